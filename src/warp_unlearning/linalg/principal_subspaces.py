"""Principal subspaces of many second moments, with few reads for all.

On a GPU large ones are found by products where that is possible (`leading_subspaces`). The others are decomposed, side
by side, those of one size together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError
from .eigh_of_each import eigh_of_each
from .leading_subspaces import leading_subspaces, products_pay
from .on_host import on_host
from .subspace import Rule, Subspace


def principal_subspaces(
    moments: Sequence[Tensor],
    fraction: float,
    *,
    rule: Rule = "energy",
    expected: Sequence[int | None] | None = None,
) -> list[Subspace]:
    """The leading eigenvectors of each second moment (d, d) that hold `fraction` of it, in its own type.

    What `principal_subspace` gives where every coordinate is alive; leave out those that are not beforehand. How many
    directions are `expected`, where one like it is known, decides what is tried first.
    """
    if not 0 < fraction <= 1:
        raise InputError(f"the fraction of energy to keep is {fraction}; it must be above 0 and at most 1")
    subspaces = _by_products(moments, fraction, rule, expected or [None] * len(moments))
    stacks: dict[tuple[int, torch.dtype, torch.device], list[int]] = {}
    for place, moment in enumerate(moments):
        if place not in subspaces:
            stacks.setdefault((len(moment), moment.dtype, moment.device), []).append(place)
    vectors: dict[int, Tensor] = {}
    numbers = []
    decomposed = eigh_of_each([torch.stack([moments[place] for place in places]) for places in stacks.values()])
    for places, (values, found) in zip(stacks.values(), decomposed, strict=True):
        numbers.append(ranks_for(values.flip(1), fraction, rule=rule))
        vectors |= dict(zip(places, found, strict=True))
    for places, read in zip(stacks.values(), on_host(numbers), strict=True):
        for place, (rank, captured) in zip(places, read.tolist(), strict=True):
            # A part that is kept must not keep the whole.
            basis = vectors.pop(place).flip(1)[:, : int(rank)].clone()
            subspaces[place] = Subspace(basis, captured)
    return [subspaces[place] for place in range(len(moments))]


def _by_products(
    moments: Sequence[Tensor], fraction: float, rule: Rule, expected: Sequence[int | None]
) -> dict[int, Subspace]:
    """Those that products alone give, by place."""
    if rule != "energy" or fraction == 1:
        return {}
    suited = [
        i
        for i, (moment, rank) in enumerate(zip(moments, expected, strict=True))
        if moment.dtype == torch.float64 and products_pay(moment, rank)
    ]
    found: dict[int, Subspace] = {}
    for device in dict.fromkeys(moments[i].device for i in suited):
        own = [i for i in suited if moments[i].device == device]
        leading = leading_subspaces([moments[i] for i in own], fraction)
        found |= {i: subspace for i, subspace in zip(own, leading, strict=True) if subspace is not None}
    return found


def ranks_for(eigenvalues: Tensor, fraction: float, *, rule: Rule = "energy") -> Tensor:
    """`rank_for` of each row of `eigenvalues` (b, d), descending, and the share of the energy that so many hold:
    float64 (b, 2), not read.
    """
    values = eigenvalues.double().clamp(min=0)
    if values.shape[1] == 0:
        return values.new_zeros(len(values), 2)
    floor = values[:, :1] * values.shape[1] * torch.finfo(eigenvalues.dtype).eps
    rank = (values > floor).sum(1)
    if fraction < 1:
        weights = values if rule == "energy" else values.sqrt()
        share = weights.cumsum(1) / weights.sum(1, keepdim=True)
        rank = torch.minimum((share < fraction).sum(1) + 1, rank)
    rank = torch.where(values[:, 0] > 0, rank, 0)
    held = values.cumsum(1).gather(1, (rank - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    captured = torch.where(rank > 0, held / values.sum(1), 0.0)
    return torch.stack([rank.double(), captured], dim=1)
