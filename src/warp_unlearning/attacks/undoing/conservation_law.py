"""What the gradient of any loss obeys because rescaling a channel does not change the loss.

For a channel c, Σ_out θ·g − Σ_in θ·g = 0 over the weights that lead into c and out of it. Into a batch norm in eval
mode, with deviation s, mean m, weight γ and bias β, leads ⟨W_i, g_i⟩ = γ (g_γ + g_β m / s). A batch norm without γ says
nothing of what enters it, and that channel has no equation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from .channel_factors import Channels, channels_of
from .pair_sums import PairSums, pair_sums
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
    """θ·g and |θ·g|, summed by the channels they flow between, and what flows into batch norms by their own affine."""

    products: PairSums
    sizes: PairSums
    norms: Tensor


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
        none = torch.zeros(0, dtype=torch.long, device=held.device)
        self._entering = torch.cat([none, *(norm.entering for norm in self._norms)])
        self._leaving = torch.cat([none, *(norm.leaving for norm in self._norms)])
        n = self.channels.free
        self._moving = ((self._entering < n) & (self._leaving < n)).nonzero()[:, 0]
        self._between = self._entering[self._moving] * n + self._leaving[self._moving]

    def flows(self, gradient: Weights) -> Flows:
        """What a gradient makes flow."""
        products = {name: weight * gradient[name] for name, weight in self.weights.items()}
        sizes = {name: value.abs() for name, value in products.items()}
        none = next(iter(products.values())).new_zeros(0)
        norms = torch.cat([none, *(self._into(norm, gradient) for norm in self._norms)])
        return Flows(pair_sums(self.channels, products), pair_sums(self.channels, sizes), norms)

    def violations(self, flows: Flows, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each free class what flows in less what flows out, the derivatives in the logarithms of the factors that
        the gradient is multiplied by, and the sum of absolute flows; at the logarithms given.
        """
        n = self.channels.free
        through = flows.norms * logs[self._leaving].exp()
        # The class of the channels that stay has no equation and no factor.
        into, sizes = (through.new_zeros(n + 1).index_add(0, self._entering, t)[:n] for t in (through, through.abs()))
        slope = flows.products.second(logs)
        slope.view(-1).index_add_(0, self._between, -through[self._moving])
        total, size = flows.products.first(logs) - into, flows.sizes.totals(logs) + sizes
        return total * self._known, slope.mul_(self._known[:, None]), size + _TINY

    def _into(self, norm: _Norm, gradient: Weights) -> Tensor:
        """γ (g_γ + g_β m / s), which has the factors of γ and β."""
        flow = gradient[norm.weight]
        if norm.bias is not None:
            flow = flow + gradient[norm.bias] * norm.offset
        return self.weights[norm.weight] * flow


def _norm(name: str, entering: Tensor, channels: Channels, state: Weights, eps: float) -> _Norm | None:
    weight, bias = f"{name}.weight", f"{name}.bias"
    if weight not in channels.places:
        return None
    offset = state[f"{name}.running_mean"] / (state[f"{name}.running_var"] + eps).sqrt()
    return _Norm(entering, channels.places[weight][0].classes, weight, bias if bias in state else None, offset)
