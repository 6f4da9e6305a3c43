"""Rows of a benchmark of reconstruction: an attack on an arm, with a number an image of every metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from ...stats.intervals import mean
from ..fields import Field
from ..measures import Estimate, read_estimate


@dataclass(frozen=True)
class ImageRow:
    """`metrics` has one number an image, in the same order for every row of one study; `failed` says why there is none.

    `share` is the chance that a reconstruction resembles its own target more than others of its class; `beyond` whether
    the attack shows more than the prior.
    """

    attack: str
    arm: str
    sigma: float | None
    spread: float | None
    failed: str
    metrics: Mapping[str, tuple[float, ...]]
    share: Estimate | None
    beyond: bool

    def mean(self, metric: str) -> Estimate | None:
        """The mean over images with Student's interval; None where the metric was not taken."""
        values = self.metrics.get(metric)
        return _estimate(values) if values else None


def read_rows(field: Field) -> tuple[ImageRow, ...]:
    """The rows as the benchmarks write them."""
    return tuple(_row(row) for row in field)


def paired(left: ImageRow | None, right: ImageRow | None, metric: str) -> Estimate | None:
    """The mean over images of left − right with Student's interval; None where the images are not the same number."""
    if left is None or right is None:
        return None
    a, b = left.metrics.get(metric, ()), right.metrics.get(metric, ())
    return _estimate([x - y for x, y in zip(a, b, strict=True)]) if a and len(a) == len(b) else None


def _estimate(values: Sequence[float]) -> Estimate:
    found = mean(values)
    low, high = (end if isfinite(end) else None for end in (found.low, found.high))
    return Estimate(found.value, low, high)


def _row(field: Field) -> ImageRow:
    def number(name: str) -> float | None:
        return field[name].maybe_number() if name in field else None

    names = field["attack"].text(), field["arm"].text() if "arm" in field else "cob"
    sigma, spread = number("sigma"), number("spread")
    if "failed" in field:
        return ImageRow(*names, sigma, spread, field["failed"].text(), {}, None, False)
    metrics = {name: values.numbers() for name, values in field["scores"]["per_image"].items()}
    beyond = field["beyond"]
    share = beyond["identification"].maybe(lambda found: read_estimate(found["share"]))
    # Rows of earlier versions say it in other words.
    shown = "outcome" in beyond and beyond["outcome"].text() == "does not hold"
    shown = shown or ("verdict" in beyond and beyond["verdict"].text() == "beyond the prior")
    return ImageRow(*names, sigma, spread, "", metrics, share, shown)
