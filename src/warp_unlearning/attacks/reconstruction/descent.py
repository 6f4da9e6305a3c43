"""Adam on many independent problems at once.

Every variable has shape (problems, ...), and a problem's loss depends on its own rows alone, so that the steps are
those that each problem would take by itself. As in gradient inversion, steps may go by the sign of the gradient, the
rate is divided by 10 at 3/8, 5/8 and 7/8 of the way, and after every step variables are brought back to where they may
be. A step reads no value back, so that on a GPU it is captured once and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError

Values = Mapping[str, Tensor]
Objective = Callable[[Values], Tensor]
Watch = Callable[[int, Tensor], None]

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8
_WARM_UP = 3


def _anywhere(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, eq=False)
class Variable:
    """Where a variable starts, (problems, ...), its rate, which may differ by problem, whether it goes by signs, and
    what brings it back to where it may be.
    """

    start: Tensor
    rate: float | Tensor
    signed: bool = False
    project: Callable[[Tensor], Tensor] = _anywhere


@dataclass(frozen=True, eq=False)
class Found:
    """The values with the least loss that each problem met, and these losses, shape (problems,)."""

    values: dict[str, Tensor]
    losses: Tensor


def descend(
    variables: Mapping[str, Variable],
    objective: Objective,
    *,
    iterations: int,
    in_turn: bool = False,
    capture: bool | None = None,
    watch: Watch | None = None,
) -> Found:
    """Minimise `objective`, which gives the loss of every problem. With `in_turn` one variable moves at a time, each as
    often as `iterations`. A problem whose loss is not finite keeps the best it had. `capture` replays a step as a CUDA
    graph, by default wherever that is possible. `watch` is told the step and the least losses so far.
    """
    if iterations < 1:
        raise InputError(f"the search has {iterations} iterations; give at least 1")
    walk = _Walk(variables, objective)
    turns = [[name] for name in variables] if in_turn else [list(variables)]
    advance = _captured(walk, turns) if walk.on_gpu and capture is not False else None
    if advance is None and capture:
        raise InputError("this search cannot be captured as a CUDA graph; leave capture out")
    for step in range(iterations * len(turns)):
        walk.factor.fill_(_factor(step // len(turns) / iterations))
        turn = step % len(turns)
        if advance is None:
            walk.advance(turns[turn])
        else:
            advance[turn]()
        if watch is not None:
            watch(step, walk.losses.clone())
    # Where the last step led.
    walk.look()
    return Found(walk.best, walk.losses)


class _Walk:
    """The state of a search, all of it in tensors that stay where they are."""

    def __init__(self, variables: Mapping[str, Variable], objective: Objective) -> None:
        self._variables, self._objective = variables, objective
        self._now = {name: v.start.detach().clone().requires_grad_(True) for name, v in variables.items()}
        self.best = {name: value.detach().clone() for name, value in self._now.items()}
        first = next(iter(self.best.values()))
        self.losses = first.new_full((len(first),), torch.inf)
        self.factor = first.new_ones(())
        self._moments = {name: (torch.zeros_like(v), torch.zeros_like(v)) for name, v in self.best.items()}
        self._counts = {name: first.new_zeros(()) for name in self.best}
        self.on_gpu = first.is_cuda

    def state(self) -> list[Tensor]:
        """All that a step changes."""
        moments = [tensor for pair in self._moments.values() for tensor in pair]
        return [*self._now.values(), *self.best.values(), self.losses, *moments, *self._counts.values()]

    def advance(self, moving: list[str]) -> None:
        """Take note of where the search is, and move these variables."""
        with torch.enable_grad():
            losses = self._objective(self._now)
            gradients = torch.autograd.grad(losses.sum(), [self._now[name] for name in moving])
        with torch.no_grad():
            self._keep_better(losses)
            for name, gradient in zip(moving, gradients, strict=True):
                self._move(name, gradient)

    @torch.no_grad()
    def look(self) -> None:
        """Take note of where the search is."""
        self._keep_better(self._objective(self._now))

    def _keep_better(self, losses: Tensor) -> None:
        found = torch.where(losses.isfinite(), losses, torch.inf)
        better = found < self.losses
        for name, value in self._now.items():
            mask = better.reshape(-1, *[1] * (value.dim() - 1))
            self.best[name].copy_(torch.where(mask, value, self.best[name]))
        self.losses.copy_(torch.minimum(self.losses, found))

    def _move(self, name: str, gradient: Tensor) -> None:
        v, value, count = self._variables[name], self._now[name], self._counts[name]
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        gradient = gradient.sign() if v.signed else gradient
        mean, square = self._moments[name]
        mean.lerp_(gradient, 1 - _FIRST)
        square.mul_(_SECOND).addcmul_(gradient, gradient, value=1 - _SECOND)
        count.add_(1)
        deviation = (square / (1 - _SECOND**count)).sqrt_().add_(_TINY)
        rate = v.rate.reshape(-1, *[1] * (value.dim() - 1)) if isinstance(v.rate, Tensor) else v.rate
        value.sub_(self.factor * rate * (mean / (1 - _FIRST**count)) / deviation)
        value.copy_(v.project(value))


def _captured(walk: _Walk, turns: list[list[str]]) -> list[Callable[[], None]] | None:
    """A step of every turn as a graph to replay, or None where something in it cannot be captured."""
    before = [tensor.detach().clone() for tensor in walk.state()]
    device = walk.losses.device
    try:
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        # What libraries allocate and choose at the first calls must not be captured.
        with torch.cuda.stream(side):
            for turn in turns * _WARM_UP:
                walk.advance(turn)
        torch.cuda.current_stream(device).wait_stream(side)
        return [_graph_of(walk, turn) for turn in turns]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize(device)
        return None
    finally:
        with torch.no_grad():
            for tensor, value in zip(walk.state(), before, strict=True):
                tensor.copy_(value)


def _graph_of(walk: _Walk, turn: list[str]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        walk.advance(turn)
    return graph.replay


def _factor(part: float) -> float:
    return float(10.0 ** -sum(part >= point for point in (3 / 8, 5 / 8, 7 / 8)))
