"""What an area under the curve and its interval say: a leak, none found, or too little data to say.

An area of 0.1 leaks as much as one of 0.9, because whoever sees it turns the score around; so the reading is two-sided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import InputError
from .intervals import Estimate

Verdict = Literal["leak", "no leak found", "inconclusive"]

# An interval may reach this far from ½ for "no leak found" to mean something.
MARGIN = 0.02


@dataclass(frozen=True)
class Reading:
    """`strength` is max(AUC, 1 − AUC); `direction` says which side scores higher."""

    verdict: Verdict
    direction: Literal["positives higher", "positives lower", "none"]
    strength: float
    area: Estimate
    margin: float

    def __str__(self) -> str:
        return f"{self.verdict}: AUC {self.area}, {self.direction}, max(AUC, 1 - AUC) = {self.strength:.3f}"


def read_area(area: Estimate, *, margin: float = MARGIN) -> Reading:
    """A leak if the interval excludes ½; none found if it contains ½ and is at most `margin` to either side; else open.

    >>> read_area(Estimate(0.1, 0.05, 0.2)).verdict, read_area(Estimate(0.5, 0.4, 0.6)).verdict
    ('leak', 'inconclusive')
    """
    require_margin(margin)
    verdict: Verdict = "inconclusive"
    if area.low > 0.5 or area.high < 0.5:
        verdict = "leak"
    elif max(area.high - 0.5, 0.5 - area.low) <= margin:
        verdict = "no leak found"
    sides: dict[bool, Literal["positives higher", "positives lower"]] = {
        True: "positives higher",
        False: "positives lower",
    }
    direction = "none" if area.value == 0.5 else sides[area.value > 0.5]
    return Reading(verdict, direction, max(area.value, 1 - area.value), area, margin)


def require_margin(margin: float) -> None:
    """Refuse a margin that no interval, or any, would stay within."""
    if not 0 < margin < 0.5:
        raise InputError(
            f"the margin is {margin}; it must be above 0 and below ½, which every interval stays within: {MARGIN}, say"
        )
