"""Gradient energies of one model with the gradient of their sum, again and again: on a GPU as one captured graph.

An energy with its gradient is about a thousand small operations, and launching them one by one takes a host longer than
doing them takes a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

import torch
from torch import Tensor, nn

from ..cuda_graphs import CudaGraph, capturable_stream, graphs_are_there
from ..errors import InputError
from .energy import Loss, cross_entropy, energy_by_rules, gradient_energy, parameters_without_rules

Found = tuple[Tensor, dict[str, Tensor]]


class EnergyGradient:
    """Energies eᵢ = ‖∇θ ℓᵢ‖², shape (batch,), and ∂Σᵢeᵢ/∂θ by name, for `model` as it stands in memory.

    On a GPU the second batch of a shape is captured as a graph, which later ones replay, if every trainable parameter
    is used in layers that have a rule. In-place changes of weights are seen, and new tensors in their places lead to
    another capture. What the model does must not depend on values.
    """

    def __init__(self, model: nn.Module, *, loss: Loss = cross_entropy) -> None:
        self.model, self._loss = model, loss
        self._key: Hashable = None
        self._graph: CudaGraph[Found] | None = None

    def __call__(self, x: Tensor, y: Tensor, *, names: Collection[str] | None = None) -> Found:
        """The energies and the gradient at all trainable parameters or those of them in `names`.

        It is zero where the loss does not depend on a parameter.
        """
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad and (names is None or n in names)}
        if not graphs_are_there(x.device):
            return self._found(x, y, trained, checked=True)
        key = self._key_of(x, y), (*trained,)
        if key != self._key:
            self._key, self._graph = key, None
            # Libraries allocate and choose at the first use, on the stream that is captured later.
            with capturable_stream(x.device):
                return self._found(x, y, trained, checked=True)
        if self._graph is None:
            if parameters_without_rules(self.model, x, y, loss=self._loss):
                return self._found(x, y, trained, checked=True)
            self._x, self._y = x.clone(), y.clone()
            with capturable_stream(x.device):
                self._graph = CudaGraph(lambda: self._found(self._x, self._y, trained, checked=False))
        self._x.copy_(x)
        self._y.copy_(y)
        energies, gradient = self._graph.replay()
        if not bool(energies.isfinite().all()):
            bad = int((~energies.isfinite()).nonzero()[0])
            raise InputError(
                f"the energy of example {bad} is {energies[bad].item()}; repair the weights or the example"
            )
        return energies.clone(), {name: g.clone() for name, g in gradient.items()}

    def _found(self, x: Tensor, y: Tensor, trained: dict[str, nn.Parameter], *, checked: bool) -> Found:
        with torch.enable_grad():
            energies = (gradient_energy if checked else energy_by_rules)(self.model, x, y, loss=self._loss)
            values = list(trained.values())
            found = torch.autograd.grad(energies.sum(), values, materialize_grads=True) if values else ()
        return energies.detach(), dict(zip(trained, found, strict=True))

    def _key_of(self, x: Tensor, y: Tensor) -> Hashable:
        places = (tensor.data_ptr() for tensor in (*self.model.parameters(), *self.model.buffers()))
        modes = (module.training for module in self.model.modules())
        return x.shape, x.dtype, x.device, y.shape, y.dtype, (*places,), (*modes,)
