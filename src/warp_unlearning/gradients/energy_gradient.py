"""Gradient energies of one model with the gradient of their sum, again and again: on a GPU as one captured graph.

An energy with its gradient is about a thousand small operations, and launching them one by one takes a host longer than
doing them takes a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from functools import partial

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..gpu.graphs import Captured
from .energy import Loss, cross_entropy, energy_by_rules, gradient_energy, parameters_without_rules

_ENERGIES = ""  # Beside the names of parameters, none of which is empty.


class EnergyGradient:
    """Energies eᵢ = ‖∇θ ℓᵢ‖², shape (batch,), and ∂Σᵢeᵢ/∂θ by name, for `model` as it stands in memory.

    On a GPU the second batch of a shape is captured as a graph, which later ones replay, if every trainable parameter
    is used in layers that have a rule. In-place changes of weights are seen, and new tensors in their places lead to
    another capture. What the model does must not depend on values.
    """

    def __init__(self, model: nn.Module, *, loss: Loss = cross_entropy) -> None:
        self.model, self._loss = model, loss
        self._key: Hashable = None
        self._captured: Captured | None = None

    def __call__(
        self, x: Tensor, y: Tensor, *, names: Collection[str] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the energies and the gradient of their sum at the trainable parameters, or those of them in `names`.

        The gradient is zero where the loss does not depend on a parameter.
        """
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad and (names is None or n in names)}
        key = self._key_of(x, y), (*trained,)
        if self._captured is None or key != self._key:
            by_rules = x.is_cuda and not parameters_without_rules(self.model, x, y, loss=self._loss)
            self._key = key
            self._captured = Captured(partial(self._computed, trained), x.device, enabled=by_rules)
        gradient = self._captured(x, y)
        energies = gradient.pop(_ENERGIES)
        if not bool(energies.isfinite().all()):
            bad = int((~energies.isfinite()).nonzero()[0])
            raise InputError(
                f"the energy of example {bad} is {energies[bad].item()}; repair the weights or the example"
            )
        return energies, gradient

    def _computed(self, trained: dict[str, nn.Parameter], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        # The checks read values, which a graph cannot.
        energy = energy_by_rules if x.is_cuda and torch.cuda.is_current_stream_capturing() else gradient_energy
        with torch.enable_grad():
            energies = energy(self.model, x, y, loss=self._loss)
            values = list(trained.values())
            gradients = torch.autograd.grad(energies.sum(), values, materialize_grads=True) if values else ()
        return {_ENERGIES: energies, **dict(zip(trained, gradients, strict=True))}

    def _key_of(self, x: Tensor, y: Tensor) -> Hashable:
        addresses = (tensor.data_ptr() for tensor in (*self.model.parameters(), *self.model.buffers()))
        modes = (module.training for module in self.model.modules())
        return x.shape, x.dtype, x.device, y.shape, y.dtype, (*addresses,), (*modes,)
