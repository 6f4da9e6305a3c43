"""What is read of refreshes that are yet to be judged: one transfer for all layers, taken apart again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg.on_host import on_host
from ..linalg.tracked import Proposal
from .input_bases import require_finite
from .refresh_draft import Draft


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was read of a draft: the diagonal (groups, d), the largest number in coordinates never reached before, the
    share that each group missed, and the numbers of its proposal.
    """

    diagonal: Tensor
    stray: float
    missed: list[float]
    numbers: list[Tensor | None]


def judged(together: Sequence[Sequence[Draft]]) -> list[tuple[Draft, Verdict]]:
    """Each draft, of those that were made together on each device, with what was read of it, by one read for all; an
    error where inputs of one were not finite.
    """
    read = iter(on_host([part for drafts in together for part in _asked(drafts)]))
    found = [pair for drafts in together for pair in zip(drafts, _verdicts(drafts, read), strict=True)]
    for draft, verdict in found:
        require_finite(draft.sample.weight.name, verdict.diagonal + verdict.stray)
    return found


def _asked(drafts: Sequence[Draft]) -> list[Tensor]:
    proposals = [proposal for draft in drafts for proposal in draft.proposals if proposal is not None]
    return [part for draft in drafts for part in draft.asked] + (list(Proposal.judged(proposals)) if proposals else [])


def _verdicts(drafts: Sequence[Draft], read: Iterator[Tensor]) -> list[Verdict]:
    """What `_asked` asked for, in its order."""
    own = [[next(read) for _ in draft.asked] for draft in drafts]
    proposed = any(proposal is not None for draft in drafts for proposal in draft.proposals)
    pairs = zip(next(read).unbind(), next(read).unbind(), strict=True) if proposed else iter(())
    verdicts = []
    for draft, (diagonal, *parts) in zip(drafts, own, strict=True):
        rest = iter(parts)
        stray = 0.0 if draft.sample.stray is None else float(next(rest))
        missed = [] if draft.missed is None else next(rest).tolist()
        numbers: list[Tensor | None] = []
        for proposal, energies in zip(draft.proposals, diagonal, strict=False):
            if proposal is None:
                numbers.append(None)
                continue
            first = torch.stack([*next(pairs), energies.sum()])
            numbers.append(first if proposal.turned.sizes is None else torch.cat([first, next(rest)]))
        verdicts.append(Verdict(diagonal, stray, missed, numbers))
    return verdicts
