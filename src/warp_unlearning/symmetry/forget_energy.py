"""Gradient energies of the forget batch at the weights as they stand, with the slopes that a null-space move descends.

Both kinds give tensors, so that a caller can read them together with others. On a GPU the energies of a network that is
moved again and again are a captured graph, which launches at once what is else about a thousand operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..gradients.captured_energy import CapturedEnergy, Replayed
from ..gradients.energy import gradient_energy
from ..waiting import with_work
from .symmetry import Probe

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Slopes:
    """Σᵢ ‖∇ℓᵢ‖², and by name its gradient and that of the mean loss, the latter None where it was not asked for."""

    energy: Tensor
    of_energy: Mapping[str, Tensor]
    of_loss: Mapping[str, Tensor] | None


class ForgetEnergy(Protocol):
    """The energies of one batch under a model whose parameters are changed in place."""

    def slopes(self, parameters: Mapping[str, nn.Parameter], *, loss: bool) -> Slopes:
        """The summed energy and its gradient; an error where it is not finite, at once or by `refuse`."""

    def value(self) -> Tensor:
        """The summed energy, float64; infinite or NaN where it has no finite value."""

    def refuse(self) -> None:
        """Raise the error for an energy that was read and is not finite."""


@dataclass(frozen=True, eq=False)
class EagerEnergy:
    """Operation by operation. `working` computes what `model` does with the same parameters, and may be called."""

    model: nn.Module
    working: nn.Module
    forget: Examples

    def slopes(self, parameters: Mapping[str, nn.Parameter], *, loss: bool) -> Slopes:
        """As the protocol says."""
        with torch.enable_grad():
            energies = gradient_energy(self.model, *self.forget)
            found = torch.autograd.grad(energies.sum(), list(parameters.values()), allow_unused=True)
        energy = energies.detach().double().sum()
        return Slopes(energy, _named(parameters, found), self._loss_slope(parameters) if loss else None)

    def value(self) -> Tensor:
        """As the protocol says."""
        with torch.no_grad():
            try:
                return gradient_energy(self.model, *self.forget).double().sum()
            except InputError:
                return _infinite(self.forget[0].device)

    def refuse(self) -> None:
        """Raise what `gradient_energy` says of it."""
        with torch.no_grad():
            energies = gradient_energy(self.model, *self.forget)
        raise InputError(
            f"the gradient energies sum to {float(energies.double().sum())}; repair the weights or the data"
        )

    def _loss_slope(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, Tensor]:
        x, y = self.forget
        with torch.enable_grad():
            mean = F.cross_entropy(self.working(x), y)
            found = torch.autograd.grad(mean, list(parameters.values()), allow_unused=True)
        return _named(parameters, found)


class ReplayedEnergy:
    """By a captured graph of the model that `eager` has, or as that graph will be, until it is captured."""

    def __init__(self, graph: CapturedEnergy, eager: EagerEnergy) -> None:
        self.graph, self.eager = graph, eager
        self._ahead: Replayed | None = None

    @contextmanager
    def slopes_meanwhile(self) -> Iterator[None]:
        """Let the GPU find the slopes beside other work of the block, which must not change the weights: from where the
        block calls `work_meanwhile` on, or from its end.
        """
        x = self.eager.forget[0]
        current = torch.cuda.current_stream(x.device) if x.is_cuda else None
        side = None if current is None else self.graph.may_run_beside(current)
        if current is None or side is None:
            yield
            return
        try:
            with with_work(partial(self._find_on, side, current.record_event())):
                yield
        finally:
            current.wait_stream(side)

    def _find_on(self, side: torch.cuda.Stream, begun: torch.cuda.Event) -> None:
        side.wait_event(begun)
        with torch.cuda.stream(side):
            self._ahead = self.graph.replayed(*self.eager.forget)

    def slopes(self, parameters: Mapping[str, nn.Parameter], *, loss: bool) -> Slopes:
        """As the protocol says."""
        found = self.graph.replayed(*self.eager.forget) if self._ahead is None else self._ahead
        self._ahead = None
        return self._slopes_in(found, parameters, loss=loss)

    @staticmethod
    def _slopes_in(found: Replayed, parameters: Mapping[str, nn.Parameter], *, loss: bool) -> Slopes:
        of_loss = {name: found.loss_gradients[name] for name in parameters} if loss else None
        return Slopes(found.energies.double().sum(), {name: found.gradients[name] for name in parameters}, of_loss)

    def held_slopes(self, parameters: Mapping[str, nn.Parameter], *, loss: bool) -> Slopes | None:
        """The tensors that `slopes` fills each time, the energy apart; None before there is a graph."""
        held = self.graph.held
        return None if held is None else self._slopes_in(held, parameters, loss=loss)

    def value(self) -> Tensor:
        """As the protocol says."""
        self._ahead = None
        try:
            return self.graph.replayed_energies(*self.eager.forget).double().sum()
        except InputError:
            return _infinite(self.eager.forget[0].device)

    def refuse(self) -> None:
        """Raise what `gradient_energy` says of it."""
        self.eager.refuse()


class NoEnergy:
    """Where there is nothing to forget: zero everywhere."""

    def slopes(self, parameters: Mapping[str, nn.Parameter], *, loss: bool) -> Slopes:
        """Nothing to descend."""
        return Slopes(self.value(), {}, None)

    def value(self) -> Tensor:
        """Zero."""
        return torch.zeros((), dtype=torch.float64)

    def refuse(self) -> None:
        """Zero is never refused."""


def eager_energy(model: nn.Module, working: nn.Module, probe: Probe) -> EagerEnergy | NoEnergy:
    """The energy of what the probe has to forget."""
    return NoEnergy() if probe.forget is None else EagerEnergy(model, working, probe.forget)


def _infinite(device: torch.device) -> Tensor:
    return torch.tensor(inf, dtype=torch.float64, device=device)


def _named(parameters: Mapping[str, nn.Parameter], gradients: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
    pairs = zip(parameters.items(), gradients, strict=True)
    return {name: torch.zeros_like(p) if g is None else g.detach() for (name, p), g in pairs}
