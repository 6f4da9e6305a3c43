"""`gradient_energy` of one model over batches of one shape, again and again on a GPU, as one captured graph.

An energy with its gradient is about a thousand small operations; launched one by one they keep the host busier than the
GPU. A captured graph launches all of them at once. Capturing costs a few calls, so it is for many steps on the same
weights' memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import InputError
from .energy import Loss, cross_entropy, gradient_energy, parameters_without_rules, unchecked_energy

_WARM_UP = 2


class CapturedEnergy:
    """Energies eᵢ = ‖∇θ ℓᵢ‖² and the gradient of Σᵢ eᵢ, for `model` as it stands in memory and batches like (x, y).

    In-place changes of the weights are seen, tensors put in their places are refused. What the model does must not
    depend on values: a graph repeats the operations that the first batch led to. Every trainable parameter must be
    used in layers that have a rule.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy) -> None:
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
        self._graph = torch.cuda.CUDAGraph()
        self._energies, self._gradients = self._captured()

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The energies, shape (batch,), and ∂Σᵢeᵢ/∂θ by name; zeros where the loss does not depend on a parameter."""
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
        self._graph.replay()
        energies = self._energies.clone()
        if not bool(energies.isfinite().all()):
            bad = int((~energies.isfinite()).nonzero()[0])
            raise InputError(
                f"the energy of example {bad} is {energies[bad].item()}; repair the weights or the example"
            )
        return energies, {name: g.clone() for name, g in self._gradients.items()}

    def _captured(self) -> tuple[Tensor, dict[str, Tensor]]:
        side = torch.cuda.Stream(self._x.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._x.device))
        # What libraries allocate and choose at the first calls must not be captured.
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._once()
        torch.cuda.current_stream(self._x.device).wait_stream(side)
        with torch.cuda.graph(self._graph):
            return self._once()

    def _once(self) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.enable_grad(), torch.autocast("cuda", enabled=False), sdpa_kernel(SDPBackend.MATH):
            energies = unchecked_energy(self._model, self._x, self._y, loss=self._loss)
            found = torch.autograd.grad(energies.sum(), list(self._parameters.values()), allow_unused=True)
        named = zip(self._parameters.items(), found, strict=True)
        return energies.detach(), {name: torch.zeros_like(p) if g is None else g for (name, p), g in named}
