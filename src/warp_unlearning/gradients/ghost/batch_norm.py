"""BatchNorm by running statistics: x̂ = (a − μ)r with r = 1/√(σ² + ε).

Both norms are found together: with h = Σₜ gₜx̂ₜ and k = Σₜ gₜ, n = ‖h‖² + ‖k‖², ∂n/∂a = 2hrG and ∂n/∂G = 2(hx̂ + k).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .affine import AffineRule
from .batch_norm_twice import normalised_twice
from .batch_statistics import BatchStatistics, has_statistics, note_statistics, statistics_of
from .rule import Part, Passing, register


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class BatchNormRule(AffineRule):
    """Scale and shift of batch norm in eval mode, inputs (batch, channels, ...)."""

    def prepare(self, layers: Sequence[nn.Module]) -> None:
        """Their statistics."""
        note_statistics([norm for norm in cast("Sequence[nn.BatchNorm2d]", layers) if has_statistics(norm)])

    def output(self, layer: nn.Module, forward: Callable[[Tensor], Tensor], a: Tensor, passing: Passing) -> Tensor:
        """By a batch norm that is cheaper to differentiate twice than torch's."""
        norm = cast(nn.BatchNorm2d, layer)
        if not has_statistics(norm):
            return forward(a)
        norm._check_input_dim(a)
        bias = None if norm.bias is None else passing.weight(norm.bias)
        weight, statistics = passing.weight(norm.weight), statistics_of(norm)
        if few_steps(a.device):
            return scaled_and_shifted(a, weight, bias, statistics)
        return normalised_twice(a, weight, bias, statistics, passing)

    def normalised(self, layer: nn.Module, a: Tensor) -> Tensor:
        """x̂, shape of a."""
        norm = cast(nn.BatchNorm2d, layer)
        return F.batch_norm(a, norm.running_mean, norm.running_var, eps=norm.eps)

    def kinship(self, layer: nn.Module, a: Tensor, g: Tensor) -> Hashable | None:
        """Layers on inputs of the same shape, where steps are better few than small."""
        return a.shape if few_steps(a.device) else None

    def squared_norms(self, names: Sequence[str], parts: Sequence[Part]) -> Tensor:
        """Of scales and shifts together."""
        statistics = [statistics_of(cast(nn.BatchNorm2d, part.layer)) for part in parts]
        shape = (*parts[0].g.shape[:2], -1)
        found = _AffineNorms.apply(  # type: ignore[no-untyped-call]
            statistics, frozenset(names), *(p.a.reshape(shape) for p in parts), *(p.g.reshape(shape) for p in parts)
        )
        return cast(Tensor, found)


def few_steps(device: torch.device) -> bool:
    """Whether steps cost more to begin than to do, so that several layers are taken in one."""
    return device.type != "cpu"


def scaled_and_shifted(a: Tensor, weight: Tensor, bias: Tensor | None, statistics: BatchStatistics) -> Tensor:
    """γra + (β − γrμ) in operations of torch's own, whose derivatives are begun without an interpreter.

    It is as exact as a is: what a − μ loses, a has lost when it was rounded.
    """
    scale = weight * statistics.r
    shift = -statistics.mean * scale if bias is None else torch.addcmul(bias, statistics.mean, scale, value=-1)
    shape = (-1, *[1] * (a.dim() - 2))
    return torch.addcmul(shift.reshape(shape), a, scale.reshape(shape))


# Numbers that are copied faster than a GPU is given two more steps for each layer.
STACKED = 2**25


class _AffineNorms(torch.autograd.Function):
    """Σ n over layers and their parameters `names`; a and then G of every layer, shapes (batch, channels, T)."""

    @staticmethod
    def forward(ctx: Any, statistics: Sequence[BatchStatistics], names: frozenset[str], *inputs: Tensor) -> Tensor:
        count = len(statistics)
        mean = torch.stack([s.mean for s in statistics])[:, None]
        r = torch.stack([s.r for s in statistics])[:, None]
        h, k = _sums(inputs[:count], inputs[count:])
        h = torch.addcmul(h, k, mean, value=-1) * r if "weight" in names else torch.zeros_like(h)
        k = k if "bias" in names else torch.zeros_like(k)
        ctx.save_for_backward(*inputs)
        ctx.sums = h * r, k, mean
        return torch.cat([h, k], 2).square().sum((0, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        hr, k, mean = ctx.sums
        inputs, count = ctx.saved_tensors, len(hr)
        twice = (2 * upstream)[:, None]
        scale = (hr * twice)[..., None]
        shift = torch.addcmul(k * twice, scale[..., 0], mean, value=-1)[..., None]
        layers = list(zip(inputs[:count], inputs[count:], scale, shift, ctx.needs_input_grad[2:], strict=False))
        for_a = [g * its_scale if wanted else None for _, g, its_scale, _, wanted in layers]
        for_g = [torch.addcmul(its_shift, a, its_scale) for a, _, its_scale, its_shift, _ in layers]
        return None, None, *for_a, *for_g


def _sums(inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Σₜ aₜgₜ and Σₜ gₜ of every layer, shapes (layers, batch, channels)."""
    if len(inputs) > 1 and len(inputs) * inputs[0].numel() <= STACKED:
        stacked = torch.stack(tuple(gradients))
        return (torch.stack(tuple(inputs)) * stacked).sum(-1), stacked.sum(-1)
    h, k = inputs[0].new_empty(2, len(inputs), *inputs[0].shape[:2])
    for index, (a, g) in enumerate(zip(inputs, gradients, strict=True)):
        torch.sum(a * g, -1, out=h[index])
        torch.sum(g, -1, out=k[index])
    return h, k
