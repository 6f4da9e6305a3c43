"""A random map of one part of a transformer.

Heads: M = U diag(τ) Vᵀ, with U and V uniformly distributed orthogonal matrices (Haar measure) and independent singular
values τ from a law of `laws`: the condition number of M is the ratio of the largest τ to the smallest, at most
(1 + s) / (1 − s) for the uniform law on 1 ± s. Norms: independent τ from the same law. Units: a uniform permutation.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .attention_parts import Part
from .head_map import HeadMap
from .laws import Law, draw_scales
from .move import AxisMap, TensorMap


def draw_axes(
    parts: Iterable[Part], *, law: Law, spread: float, generator: torch.Generator
) -> dict[str, tuple[TensorMap, ...]]:
    """Independent maps of all `parts`, by the tensors they act on, in float64 on the CPU."""
    axes: dict[str, tuple[TensorMap, ...]] = {}
    for part in parts:
        for name, tensor_map in _maps(part, law, spread, generator):
            axes[name] = (*axes.get(name, ()), tensor_map)
    return axes


def _maps(part: Part, law: Law, spread: float, generator: torch.Generator) -> list[tuple[str, TensorMap]]:
    if part.kind == "units":
        order = torch.randperm(part.width, generator=generator, device=generator.device).cpu()
        return [(p.name, AxisMap(p.axis, order)) for p in part.places]
    scales = draw_scales(law, part.channels, spread=spread, generator=generator)
    if part.kind == "norms":
        made: list[tuple[str, TensorMap]] = [(p.name, AxisMap(p.axis, None, scales)) for p in part.made]
        return made + [(p.name, AxisMap(p.axis, None, 1 / scales)) for p in part.read]
    left, right = (_orthogonal(part.groups, part.width, generator) for _ in range(2))
    singular = scales.reshape(part.groups, 1, part.width)
    matrices, contragredient = (left * singular) @ right.mT, (left / singular) @ right.mT
    made = [(p.name, HeadMap(p.axis, matrices, p.start)) for p in part.made]
    return made + [(p.name, HeadMap(p.axis, contragredient, p.start)) for p in part.read]


def _orthogonal(count: int, width: int, generator: torch.Generator) -> Tensor:
    normal = torch.randn(count, width, width, generator=generator, dtype=torch.float64, device=generator.device).cpu()
    q, r = torch.linalg.qr(normal)
    # Without the signs of R's diagonal, Q follows the convention of the routine and not the Haar measure.
    signed: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return signed
