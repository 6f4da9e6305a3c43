"""What the gradient of any loss obeys because rescaling a channel does not change the loss.

For a channel c, Σ_out θ·g − Σ_in θ·g = 0 over the weights that lead into c and out of it. Into a batch norm in eval
mode, with deviation s, mean m, weight γ and bias β, leads ⟨W_i, g_i⟩ = γ (g_γ + g_β m / s). A batch norm without γ says
nothing of what enters it, and that channel has no equation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.modules.batchnorm import _BatchNorm

from .channel_factors import Channels, channel_sums, channels_of, first_derivatives, rescaled, second_derivatives
from .protocol import Held, Weights

_TINY = 1e-28


@dataclass(frozen=True, eq=False)
class _Norm:
    """A batch norm: the classes of the channels that enter and that leave, its parameters' names, and m / s."""

    entering: Tensor
    leaving: Tensor
    weight: str
    bias: str | None
    offset: Tensor


@dataclass(frozen=True, eq=False)
class Flows:
    """θ·g and |θ·g|, summed over each kernel, by parameter, and what flows into each batch norm by its own affine."""

    products: dict[str, Tensor]
    sizes: dict[str, Tensor]
    norms: tuple[Tensor, ...]


class ConservationLaw:
    """The law for the gradients of one network in eval mode, at the weights it has."""

    def __init__(self, held: Held) -> None:
        self.channels = held.once(channels_of)
        self.weights = {name: held.weights[name] for name in held.parameters}
        self._norms: list[_Norm] = []
        mute = []
        for name, module in held.model.named_modules():
            places = self.channels.places.get(f"{name}.running_mean")
            if isinstance(module, _BatchNorm) and places is not None:
                norm = _norm(name, places[0].classes, self.channels, held.weights, module.eps)
                if norm is None:
                    mute.append(places[0].classes)
                else:
                    self._norms.append(norm)
        known = torch.ones(self.channels.free + 1, dtype=torch.bool, device=held.device)
        for classes in mute:
            known[classes] = False
        self._known = known[:-1]

    def flows(self, gradient: Weights) -> Flows:
        """What a gradient makes flow."""
        products = {name: _by_kernel(self.weights[name] * gradient[name]) for name in self.weights}
        sizes = {name: _by_kernel((self.weights[name] * gradient[name]).abs()) for name in self.weights}
        return Flows(products, sizes, tuple(self._into(norm, gradient) for norm in self._norms))

    def violations(self, flows: Flows, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each free class what flows in less what flows out, the derivatives in the logarithms of the factors that
        the gradient is multiplied by, and the sum of absolute flows; at the logarithms given.
        """
        n = self.channels.free
        products = rescaled(self.channels, flows.products, logs)
        total = pad(first_derivatives(self.channels, products), (0, 1))
        slope = pad(second_derivatives(self.channels, products), (0, 1, 0, 1))
        size = pad(channel_sums(self.channels, rescaled(self.channels, flows.sizes, logs)), (0, 1))
        for norm, into in zip(self._norms, flows.norms, strict=True):
            flow = into * logs[norm.leaving].exp()
            total = total.index_add(0, norm.entering, -flow)
            slope.index_put_((norm.entering, norm.leaving), -flow, accumulate=True)
            size = size.index_add(0, norm.entering, flow.abs())
        return total[:n] * self._known, slope[:n, :n] * self._known[:, None], size[:n] + _TINY

    def _into(self, norm: _Norm, gradient: Weights) -> Tensor:
        """γ (g_γ + g_β m / s), which has the factors of γ and β."""
        flow = gradient[norm.weight]
        if norm.bias is not None:
            flow = flow + gradient[norm.bias] * norm.offset
        return self.weights[norm.weight] * flow


def _by_kernel(value: Tensor) -> Tensor:
    """Sums over the taps of kernels, whose factors are one."""
    return value.flatten(2).sum(2) if value.dim() > 2 else value


def _norm(name: str, entering: Tensor, channels: Channels, state: Weights, eps: float) -> _Norm | None:
    weight, bias = f"{name}.weight", f"{name}.bias"
    if weight not in channels.places:
        return None
    offset = state[f"{name}.running_mean"] / (state[f"{name}.running_var"] + eps).sqrt()
    return _Norm(entering, channels.places[weight][0].classes, weight, bias if bias in state else None, offset)
