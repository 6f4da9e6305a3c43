"""What is read of refreshes that are yet to be judged: one transfer for all layers, taken apart again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from ..linalg.on_host import on_host
from ..linalg.proposal import Proposal
from .input_bases import require_finite
from .refresh_draft import Draft


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was read of a draft: the diagonal (groups, d), how many of its numbers are positive, the largest number in
    coordinates never reached before, the share that each group missed, and the numbers of its proposal.
    """

    diagonal: Tensor
    reached: int
    stray: float
    missed: list[float]
    numbers: list[Tensor | None]


def judged(together: Sequence[Sequence[Draft]]) -> list[tuple[Draft, Verdict]]:
    """Each draft, of those that were made together on each device, with what was read of it, by one read for all; an
    error where inputs of one were not finite.
    """
    read = iter(on_host([part for drafts in together for part in _asked(drafts)]))
    return [pair for drafts in together for pair in zip(drafts, _verdicts(drafts, read), strict=True)]


def _asked(drafts: Sequence[Draft]) -> list[Tensor]:
    proposals = [proposal for draft in drafts for proposal in draft.proposals if proposal is not None]
    return [part for draft in drafts for part in draft.asked] + (list(Proposal.judged(proposals)) if proposals else [])


def _verdicts(drafts: Sequence[Draft], read: Iterator[Tensor]) -> list[Verdict]:
    """What `_asked` asked for, in its order."""
    own = [[next(read) for _ in range(draft.numbers_asked)] for draft in drafts]
    strays = [0.0 if draft.sample.stray is None else float(parts[1]) for draft, parts in zip(drafts, own, strict=True)]
    reached = _reached(drafts, [parts[0] for parts in own], strays)
    judged_by = _judged_by(drafts, [parts[0] for parts in own], read)
    verdicts = []
    for draft, (diagonal, *parts), count, stray in zip(drafts, own, reached, strays, strict=True):
        rest = iter(parts if draft.sample.stray is None else parts[1:])
        missed = [] if draft.missed is None else next(rest).tolist()
        numbers: list[Tensor | None] = []
        for proposal in draft.proposals:
            if proposal is None:
                numbers.append(None)
                continue
            first = next(judged_by)
            numbers.append(first if proposal.turned.sizes is None else torch.cat([first, next(rest)]))
        verdicts.append(Verdict(diagonal, count, stray, missed, numbers))
    return verdicts


def _judged_by(drafts: Sequence[Draft], diagonals: Sequence[Tensor], read: Iterator[Tensor]) -> Iterator[Tensor]:
    """The doubt, the energy missed and all there is, (3), of each proposal."""
    totals = [
        energies.sum()
        for draft, diagonal in zip(drafts, diagonals, strict=True)
        for proposal, energies in zip(draft.proposals, diagonal, strict=False)
        if proposal is not None
    ]
    return iter(torch.stack([next(read), next(read), torch.stack(totals)], dim=1).unbind() if totals else ())


def _reached(drafts: Sequence[Draft], diagonals: Sequence[Tensor], strays: Sequence[float]) -> list[int]:
    """How many numbers of each diagonal are positive; an error that names the layer where one, or what strayed, is not
    finite. All are looked at together: what is small by itself costs a call each.
    """
    if not diagonals:
        return []
    every = torch.cat([diagonal.reshape(-1) for diagonal in diagonals])
    if not bool(every.isfinite().all()) or not all(map(isfinite, strays)):
        for draft, diagonal, stray in zip(drafts, diagonals, strays, strict=True):
            require_finite(draft.sample.weight.name, diagonal + stray)
    ends = list(accumulate((diagonal.numel() for diagonal in diagonals), initial=0))
    upto = np.concatenate([[0], np.cumsum(every.numpy() > 0)])[ends]
    return np.diff(upto).tolist()  # type: ignore[no-any-return]
