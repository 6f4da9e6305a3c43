"""Test examples divided into a background for attacks to fit and non-members to compare forgotten examples with.

Forgotten examples of some classes beside test examples of others would be told apart by class alone. So non-members are
drawn to have the classes of the forget set in its proportions: with f_c forgotten and t_c remaining test examples of
class c, ⌊s f_c⌋ of them, s = min_c t_c / f_c.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import DataError

# Of the test set, what the background may take at most.
_SHARE = 3


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Positions: in the forget set those that are compared, in the test set those of the background and the
    non-members; and notes on what was left out.
    """

    forget: Tensor
    background: Tensor
    non_members: Tensor
    notes: tuple[str, ...]


def divide(forget_y: Tensor, test_y: Tensor, *, background: int, generator: torch.Generator) -> HeldOut:
    """Draw the background, at most a third of the test set, then the non-members from the rest.

    Forgotten examples of a class that the test set lacks are left out.
    """
    forget_y, test_y = forget_y.cpu(), test_y.cpu()
    if len(test_y) < 4 or len(forget_y) < 2:
        raise DataError(
            f"there are {len(forget_y)} forgotten and {len(test_y)} test examples; an audit needs at least 2 and 4"
        )
    fitted, rest = _background(test_y, background, generator)
    kept = torch.isin(forget_y, test_y).nonzero().flatten()
    notes: list[str] = []
    if len(kept) < len(forget_y):
        notes.append(f"{len(forget_y) - len(kept)} forgotten examples are of classes that the test set lacks: left out")
    if len(kept) < 2:
        raise DataError("the test set has no examples of the classes that were forgotten; give test examples of them")
    non_members = _matched(forget_y[kept], test_y[rest])
    compared = torch.isin(forget_y[kept], test_y[rest][non_members])
    if not bool(compared.all()):
        notes.append(
            f"{int((~compared).sum())} forgotten examples are of classes too rare, in the forget or the test set, to "
            "be compared in proportion: left out"
        )
        kept = kept[compared]
    if len(non_members) < 2:
        raise DataError(
            f"only {len(non_members)} test examples remain that have the classes of the forget set in its proportions; "
            "give more test examples of the forgotten classes"
        )
    if len(non_members) < len(rest):
        notes.append(
            f"{len(non_members)} of {len(rest)} test examples are compared with, in the forget set's proportions of "
            "classes"
        )
    return HeldOut(kept, fitted.sort().values, rest[non_members].sort().values, tuple(notes))


def _background(test_y: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of so many test examples, at most a third of each class but two in all, and of the rest; both at
    random.
    """
    order = torch.randperm(len(test_y), generator=generator)
    size = max(2, min(size, len(test_y) // _SHARE))
    shuffled = test_y[order]
    # The rank of an example within its class, over the size of the class: all classes give alike.
    rank = torch.zeros(len(order), dtype=torch.float64)
    for label in torch.unique(shuffled):
        places = (shuffled == label).nonzero().flatten()
        rank[places] = torch.arange(1, len(places) + 1, dtype=torch.float64) / len(places)
    by_rank = torch.argsort(rank, stable=True)
    chosen = by_rank[:size]
    left = torch.ones(len(order), dtype=torch.bool)
    left[chosen] = False
    return order[chosen], order[left]


def _matched(forget_y: Tensor, rest_y: Tensor) -> Tensor:
    """Positions in `rest_y`, first come first taken, with the classes of `forget_y` in its proportions."""
    classes, counts = torch.unique(forget_y, return_counts=True)
    there = torch.stack([(rest_y == c).sum() for c in classes])
    # In whole numbers: s = there / counts of the scarcest class.
    scarce = int((there.double() / counts).argmin())
    wanted = counts * there[scarce] // counts[scarce]
    return torch.cat([(rest_y == c).nonzero().flatten()[:n] for c, n in zip(classes, wanted.tolist(), strict=True)])
