"""`gradient_energy` of one model over batches of one shape, again and again on a GPU, as one captured graph.

An energy with its gradient is about a thousand small operations; launched one by one they keep the host busier than the
GPU. A captured graph launches all of them at once. What is done once before a capture is not lost: until then energies
are computed operation by operation, as those of the graph will be, so that capturing costs about as much as one more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..gpu.graphs import CudaGraph, capturable_stream
from ..gpu.precision import math_attention
from .energy import (
    Loss,
    cross_entropy,
    gradient_energy,
    output_gradients,
    parameters_without_rules,
    squared_norms,
    total_of,
    unchecked_energy,
)
from .ghost.scaled_images import for_a_graph
from .parameter_slots import copy_with_same_parameters
from .traced_pass import traced_pass

Output = TypeVar("Output")
Given = TypeVar("Given", covariant=True)


@dataclass(frozen=True, eq=False)
class Replayed:
    """Energies, ∂Σᵢeᵢ/∂θ and, where it was asked for, the gradient of the mean cross-entropy, by name.

    Those of a graph lie in its own memory and hold until the next replay.
    """

    energies: Tensor
    gradients: Mapping[str, Tensor]
    loss_gradients: Mapping[str, Tensor]


class CapturedEnergy:
    """Energies eᵢ = ‖∇θ ℓᵢ‖² and the gradient of Σᵢ eᵢ, for `model` as it stands in memory and batches like (x, y): as
    a graph once `capture` was called, and before that operation by operation, with all that `gradient_energy` checks.

    In-place changes of the weights are seen, tensors put in their places are refused. What the model does must not
    depend on values: a graph repeats the operations that its batch led to. Every trainable parameter must be used in
    layers that have a rule. With `loss_gradients` there is also the gradient of the mean cross-entropy.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy, loss_gradients: bool = False
    ) -> None:
        if x.device.type != "cuda":
            raise InputError(f"x is on {x.device}; graphs are captured on CUDA devices, use gradient_energy elsewhere")
        other = parameters_without_rules(model, x, y, loss=loss)
        if other:
            raise InputError(f"{other[0]} is used where no rule is known; use gradient_energy, which falls back there")
        self._model, self._loss = model, loss
        self._x, self._y = x.clone(), y.clone()
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._places = {name: p.data_ptr() for name, p in self._parameters.items()}
        self._with_loss = loss_gradients
        self._slopes: _Work[Replayed] = _Work()
        self._alone: _Work[Tensor] = _Work()

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The energies, shape (batch,), and ∂Σᵢeᵢ/∂θ by name; zeros where the loss does not depend on a parameter."""
        found = self.replayed(x, y)
        energies = found.energies.clone()
        if not bool(energies.isfinite().all()):
            bad = int((~energies.isfinite()).nonzero()[0])
            raise InputError(
                f"the energy of example {bad} is {energies[bad].item()}; repair the weights or the example"
            )
        return energies, {name: g.clone() for name, g in found.gradients.items()}

    @property
    def model(self) -> nn.Module:
        """The model whose energies they are."""
        return self._model

    @property
    def device(self) -> torch.device:
        """Where batches are."""
        return self._x.device

    @property
    def held(self) -> Replayed | None:
        """What every replay of the graph fills, each time the same tensors; None before there is one."""
        return None if self._slopes.graph is None else self._slopes.graph.output

    @property
    def captured(self) -> bool:
        """Whether there are graphs."""
        return self._slopes.graph is not None and self._alone.graph is not None

    def capture(self) -> None:
        """Have graphs of the energies with their slopes and of the energies alone. What was not done before is done
        once, with the batch of the last call: what libraries allocate and choose at first must not be captured.
        """
        with self._as_in_a_graph():
            slopes = self._slopes.captured(self._slopes_once)
            # In the memory of the first: what that frees on the way is free by the time this runs.
            self._alone.captured(self._energies_once, pool=slopes.pool)

    def suits(self, x: Tensor, y: Tensor) -> bool:
        """Whether the batch is like the first."""
        alike = (x.shape, x.dtype, x.device) == (self._x.shape, self._x.dtype, self._x.device)
        return alike and (y.shape, y.dtype) == (self._y.shape, self._y.dtype)

    def replayed(self, x: Tensor, y: Tensor) -> Replayed:
        """Energies and slopes of a batch. Of a graph nothing is read: energies that are not finite are not refused."""
        self._take(x, y)
        return self._now(self._slopes, self._slopes_once)

    def replayed_energies(self, x: Tensor, y: Tensor) -> Tensor:
        """The energies alone, by a graph of their own; they hold until the next replay of either."""
        self._take(x, y)
        return self._now(self._alone, self._energies_once)

    def _now(self, work: _Work[Output], once: _Once[Output]) -> Output:
        if work.graph is not None:
            return work.graph.replay()
        with self._as_in_a_graph():
            return work.by_steps(once)

    def _take(self, x: Tensor, y: Tensor) -> None:
        if x.shape != self._x.shape or y.shape != self._y.shape:
            raise InputError(
                f"the batch has shapes {tuple(x.shape)} and {tuple(y.shape)}; the graph was captured for "
                f"{tuple(self._x.shape)} and {tuple(self._y.shape)}"
            )
        moved = [name for name, place in self._places.items() if self._parameters[name].data_ptr() != place]
        if moved:
            raise InputError(f"{moved[0]} lies elsewhere in memory than when the graph was captured; capture it anew")
        self._x.copy_(x)
        self._y.copy_(y)

    @contextmanager
    def _as_in_a_graph(self) -> Iterator[None]:
        """The stream, the forms of layers and the precision of what is captured."""
        with (
            capturable_stream(self._x.device),
            for_a_graph(),
            torch.autocast(self._x.device.type, enabled=False),
            math_attention(),
        ):
            yield

    def _slopes_once(self, *, checked: bool) -> Replayed:
        energy = gradient_energy if checked else unchecked_energy
        with torch.enable_grad():
            energies = energy(self._model, self._x, self._y, loss=self._loss)
            found = self._gradients_of(energies.sum())
            of_loss = {}
            if self._with_loss:
                of_loss = self._gradients_of(F.cross_entropy(copy_with_same_parameters(self._model)(self._x), self._y))
        return Replayed(energies.detach(), found, of_loss)

    def _energies_once(self, *, checked: bool) -> Tensor:
        if checked:
            with torch.no_grad():
                return gradient_energy(self._model, self._x, self._y, loss=self._loss)
        with torch.enable_grad():
            return energies_without_graph(self._model, self._x, self._y, loss=self._loss)

    def _gradients_of(self, total: Tensor) -> dict[str, Tensor]:
        found = torch.autograd.grad(total, list(self._parameters.values()), allow_unused=True)
        named = zip(self._parameters.items(), found, strict=True)
        return {name: torch.zeros_like(p) if g is None else g for (name, p), g in named}


class _Once(Protocol[Given]):
    def __call__(self, *, checked: bool) -> Given: ...


@dataclass(eq=False)
class _Work(Generic[Output]):
    """The graph of some work, once there is one; `done`: whether it was ever done without.

    It does not hold the work: that would hold whoever holds this, with the graph, until a cycle is noticed.
    """

    done: bool = False
    graph: CudaGraph[Output] | None = None

    def by_steps(self, once: _Once[Output]) -> Output:
        """Do it operation by operation, checked."""
        found = once(checked=True)
        self.done = True
        return found

    def captured(self, once: _Once[Output], *, pool: object = None) -> CudaGraph[Output]:
        """The graph, captured now if there was none, in a pool of memory or its own."""
        if self.graph is None:
            if not self.done:
                self.by_steps(once)
            self.graph = CudaGraph(partial(once, checked=False), pool=pool)
        return self.graph


def energies_without_graph(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss) -> Tensor:
    """`unchecked_energy`, which is not differentiable and costs less."""
    traced = traced_pass(model, x)
    try:
        losses = loss(traced.output, y)
        found = output_gradients(losses.sum(), traced.trace, differentiable=False)
        norms = squared_norms(traced.trace.uses, found, set())
        return total_of(norms, losses).detach()
    finally:
        traced.trace.close()
