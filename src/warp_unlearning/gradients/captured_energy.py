"""`gradient_energy` of one model over batches of one shape, again and again on a GPU, as one captured graph.

An energy with its gradient is about a thousand small operations; launched one by one they keep the host busier than the
GPU. A captured graph launches all of them at once. Capturing costs a few calls, so it is for many steps on the same
weights' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cuda_graphs import CudaGraph, capturable_stream
from ..errors import InputError
from ..kernels.one_pixel_norm import one_pixel_norms
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
from .math_attention import math_attention
from .parameter_slots import copy_with_same_parameters
from .traced_pass import traced_pass

_WARM_UP = 2
Output = TypeVar("Output")


@dataclass(frozen=True, eq=False)
class Replayed:
    """Energies, ∂Σᵢeᵢ/∂θ and, where it was captured, the gradient of the mean cross-entropy, by name.

    They lie in the graph's own memory and hold until the next replay.
    """

    energies: Tensor
    gradients: Mapping[str, Tensor]
    loss_gradients: Mapping[str, Tensor]


class CapturedEnergy:
    """Energies eᵢ = ‖∇θ ℓᵢ‖² and the gradient of Σᵢ eᵢ, for `model` as it stands in memory and batches like (x, y).

    In-place changes of the weights are seen, tensors put in their places are refused. What the model does must not
    depend on values: a graph repeats the operations that the first batch led to. Every trainable parameter must be
    used in layers that have a rule. With `loss_gradients` a replay also gives the gradient of the mean cross-entropy.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy, loss_gradients: bool = False
    ) -> None:
        if not x.is_cuda:
            raise InputError(f"x is on {x.device}; graphs are captured on CUDA devices, use gradient_energy elsewhere")
        other = parameters_without_rules(model, x, y, loss=loss)
        if other:
            raise InputError(f"{other[0]} is used where no rule is known; use gradient_energy, which falls back there")
        # All that it refuses is refused here, once.
        gradient_energy(model, x, y, loss=loss)
        self._model, self._loss = model, loss
        self._x, self._y = x.clone(), y.clone()
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._places = {name: p.data_ptr() for name, p in self._parameters.items()}
        self._with_loss = loss_gradients
        self._graph = self._captured(self._once)
        self._without_gradients: CudaGraph[Tensor] | None = None

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
        """The model whose energies were captured."""
        return self._model

    def suits(self, x: Tensor, y: Tensor) -> bool:
        """Whether the batch is like the one that was captured."""
        alike = (x.shape, x.dtype, x.device) == (self._x.shape, self._x.dtype, self._x.device)
        return alike and (y.shape, y.dtype) == (self._y.shape, self._y.dtype)

    def replayed(self, x: Tensor, y: Tensor) -> Replayed:
        """What the graph gives for a batch. Nothing is read: energies that are not finite are not refused."""
        self._take(x, y)
        return self._graph.replay()

    def replayed_energies(self, x: Tensor, y: Tensor) -> Tensor:
        """The energies alone, by a second graph, which is captured at the first call; they hold until the next
        replay.
        """
        self._take(x, y)
        if self._without_gradients is None:
            # In the memory of the first, whose results are referred to and stay; what it frees on the way is free again
            # by the time this one runs.
            self._without_gradients = self._captured(self._energies_once, pool=self._graph.pool)
        return self._without_gradients.replay()

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

    def _captured(self, once: Callable[[], Output], *, pool: Any = None) -> CudaGraph[Output]:
        with capturable_stream(self._x.device), for_a_graph():
            # What libraries allocate and choose at the first calls must not be captured.
            for _ in range(_WARM_UP):
                once()
            return CudaGraph(once, pool=pool)

    def _once(self) -> Replayed:
        with torch.enable_grad(), torch.autocast("cuda", enabled=False), math_attention(), one_pixel_norms():
            energies = unchecked_energy(self._model, self._x, self._y, loss=self._loss)
            found = self._gradients_of(energies.sum())
            of_loss = {}
            if self._with_loss:
                of_loss = self._gradients_of(F.cross_entropy(copy_with_same_parameters(self._model)(self._x), self._y))
        return Replayed(energies.detach(), found, of_loss)

    def _energies_once(self) -> Tensor:
        with torch.enable_grad(), torch.autocast("cuda", enabled=False), math_attention(), one_pixel_norms():
            return energies_without_graph(self._model, self._x, self._y, loss=self._loss)

    def _gradients_of(self, total: Tensor) -> dict[str, Tensor]:
        found = torch.autograd.grad(total, list(self._parameters.values()), allow_unused=True)
        named = zip(self._parameters.items(), found, strict=True)
        return {name: torch.zeros_like(p) if g is None else g for (name, p), g in named}


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
