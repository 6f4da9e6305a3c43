"""What a batch norm in eval mode computes with: μ, σ², r = 1/√(σ² + ε) and γr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ...modules import tensor_of

# Where a layer keeps them once they are known.
_KNOWN = "_statistics_of_eval_mode"


@dataclass(frozen=True)
class BatchStatistics:
    """μ, σ², r and γr, shape (channels,), and ε."""

    mean: Tensor
    variance: Tensor
    r: Tensor
    scale: Tensor
    eps: float


def has_statistics(norm: nn.BatchNorm2d) -> bool:
    """Whether the layer is in eval mode, has running statistics to go by, and a scale."""
    return not norm.training and tensor_of(norm, "running_mean") is not None and tensor_of(norm, "weight") is not None


def note_statistics(norms: Sequence[nn.BatchNorm2d]) -> None:
    """Write them down in the layers, found in as few steps as if it were one."""
    for norm, statistics in zip(norms, _statistics(norms) if norms else (), strict=True):
        vars(norm)[_KNOWN] = statistics, _versions(norm)


def statistics_of(norm: nn.BatchNorm2d) -> BatchStatistics:
    """Those the layer has noted, or found now where it has none or was written over since."""
    found, versions = cast("tuple[BatchStatistics | None, object]", vars(norm).get(_KNOWN, (None, None)))
    return found if found is not None and versions == _versions(norm) else _statistics([norm])[0]


def _versions(norm: nn.BatchNorm2d) -> tuple[int | None, ...]:
    tensors = cast("Sequence[Tensor | None]", (norm.weight, norm.running_mean, norm.running_var))
    return tuple(None if t is None else t._version for t in tensors)


def _statistics(norms: Sequence[nn.BatchNorm2d]) -> list[BatchStatistics]:
    means = [cast(Tensor, norm.running_mean) for norm in norms]
    variances = [cast(Tensor, norm.running_var) for norm in norms]
    r = torch._foreach_add(variances, [norm.eps for norm in norms])
    torch._foreach_rsqrt_(r)
    weights = [cast("Tensor | None", norm.weight) for norm in norms]
    factors = [torch.ones_like(mean) if w is None else w.detach() for w, mean in zip(weights, means, strict=True)]
    scales = torch._foreach_mul(factors, r)
    return [
        BatchStatistics(mean, variance, its_r, scale, norm.eps)
        for mean, variance, its_r, scale, norm in zip(means, variances, r, scales, norms, strict=True)
    ]
