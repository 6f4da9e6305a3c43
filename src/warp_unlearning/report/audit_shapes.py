"""What figures draw of one arm of a shadow audit, from its results file."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .fields import Field


@dataclass(frozen=True)
class Curve:
    """Vertices of an ROC curve, or any two lists of one length."""

    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Risk(Curve):
    """Norms of forget gradients beside scores; `model` is the one whose gradients they are, original or unlearned."""

    model: str


@dataclass(frozen=True)
class Histogram:
    """Densities of the log likelihood ratio under the two hypotheses."""

    edges: tuple[float, ...]
    forgotten: tuple[float, ...]
    never: tuple[float, ...]


def read_roc(field: Field) -> Curve | None:
    """False-positive and true-positive rates; None below two vertices."""
    fpr, tpr = field["fpr"].numbers(), field["tpr"].numbers()
    if len(fpr) != len(tpr):
        field.wrong(f"as many values of tpr as of fpr ({len(tpr)} and {len(fpr)} found)")
    if any(not 0 <= rate <= 1 for rate in (*fpr, *tpr)):
        field.wrong("rates between 0 and 1")
    return Curve(fpr, tpr) if len(fpr) > 1 else None


def read_histogram(field: Field) -> Histogram | None:
    """Densities between rising edges; None where there is no bin."""
    edges, forgotten, never = (field[name].numbers() for name in ("edges", "forgotten", "never"))
    if edges and not len(edges) - 1 == len(forgotten) == len(never):
        field.wrong(f"one value fewer than the {len(edges)} edges under each hypothesis")
    if any(left >= right for left, right in pairwise(edges)):
        field["edges"].wrong("a rising list of numbers")
    return Histogram(edges, forgotten, never) if len(edges) > 1 else None


def read_risk(field: Field) -> Risk | None:
    """Gradient norms and scores where both are known; None where none are."""
    norms = [norm.maybe_number() for norm in field["gradient_norm"]]
    scores = [score.maybe_number() for score in field["score"]]
    if len(norms) != len(scores):
        field.wrong(f"as many scores as gradient norms ({len(scores)} and {len(norms)} found)")
    known = [(n, s) for n, s in zip(norms, scores, strict=True) if n is not None and s is not None]
    model = field["model"].one_of("original", "unlearned") if "model" in field else "unlearned"
    return Risk(tuple(n for n, _ in known), tuple(s for _, s in known), model) if known else None
