"""`warp audit check`: a gate, which passes on "holds" alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json
from .show import finish, points

if TYPE_CHECKING:
    from ..report.results import Judged
    from ..stats.intervals import Estimate
    from ..stats.verdict import Claim

MaxAuc = Annotated[float | None, typer.Option(help="Largest max(AUC, 1 - AUC) of attacks on the new model.")]
MaxBeyond = Annotated[
    float | None, typer.Option(help="Largest excess over retrained models of attacks on both models.")
]
MaxTpr = Annotated[float | None, typer.Option(help="Largest true-positive rate of any attack, at --at-fpr.")]
RunWithVerdict = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of an audit, or its results.json.")]


def check(
    run: RunWithVerdict,
    *,
    max_auc: MaxAuc = None,
    max_beyond: MaxBeyond = None,
    max_tpr: MaxTpr = None,
    at_fpr: Annotated[float, typer.Option(help="0.0001, 0.001, 0.01 or 0.05.")] = 0.01,
    arm: Annotated[list[str] | None, typer.Option(help="Of an audit by shadow models: this arm, not all.")] = None,
    as_json: Json = False,
) -> None:
    """Hold an audit against thresholds, or, where none is given, against its own verdict.

    With thresholds the model must also have moved and still work, and the original must be beyond --max-auc, or the
    bound tests nothing. Exit code 0: all holds. 1: something does not. 3: it cannot be said, which is never a pass.
    """
    from ..errors import InputError
    from ..report.results import read_judged
    from ..stats.verdict import EXIT, worst

    for name, bound, least in (("AUC", max_auc, 0.5), ("excess", max_beyond, 0), ("true-positive rate", max_tpr, 0)):
        if bound is not None and not least <= bound <= 1:
            raise InputError(f"the largest {name} is {bound}; it must lie between {least} and 1")
    audits = read_judged(run)
    if unknown := set(arm or ()) - {audit.name for audit in audits}:
        raise InputError(f"{run} has no arm {min(unknown)!r}; it has {', '.join(a.name or '(one)' for a in audits)}")
    claims = {
        audit.name: _claims(audit, max_auc, max_beyond, max_tpr, at_fpr)
        for audit in audits
        if not arm or audit.name in arm
    }
    every = [(name, claim) for name, found in claims.items() for claim in found]
    outcome = worst([claim.outcome for _, claim in every])
    lines = [f"{name}{': ' * bool(name)}{c.name:<16}{c.outcome:<15}{c.sentence}" for name, c in every]
    plain = [asdict(claim) | {"arm": name} for name, claim in every]
    own = {a.name: a.verdict.sentence for a in audits if a.verdict is not None and a.name in claims}
    results = {"schema_version": 2, "kind": "check", "outcome": outcome, "exit": EXIT[outcome], "claims": plain}
    results["audit"] = own
    lines += [f"{name}{': ' * bool(name)}the audit itself: {sentence}" for name, sentence in own.items()]
    lines.append(f"{outcome} (exit {EXIT[outcome]})")
    finish(lines, exit_code=EXIT[outcome], results=results if as_json else None)


def _claims(
    audit: Judged, max_auc: float | None, max_beyond: float | None, max_tpr: float | None, at_fpr: float
) -> list[Claim]:
    from ..errors import InputError
    from ..stats.area import strength_of
    from ..stats.intervals import Estimate
    from ..stats.verdict import Claim

    verdict = audit.verdict
    if verdict is None:
        return [Claim("audit", "cannot be said", "nothing measured", "nothing was measured")]
    if max_auc is None and max_beyond is None and max_tpr is None:
        return list(verdict.claims)
    claims = [claim for claim in verdict.claims if claim.name in ("moved", "works")]
    if max_auc is not None:
        areas = [(e.attack, strength_of(e.area)) for e in verdict.evidence if e.claim == "forgotten"]
        claim = _bounded("max AUC", areas, max_auc, verdict.level, "nothing was compared")
        known = [strength_of(e.original).value for e in verdict.evidence if e.claim == "forgotten" and e.original]
        if known and max(known) <= max_auc and claim.outcome != "does not hold":
            nothing = f"the original is within {points(max_auc)} too, so the bound tests nothing"
            claim = Claim("max AUC", "cannot be said", "blind", nothing)
        claims.append(claim)
    if max_beyond is not None:
        # What is less than retraining leaves is no fault, so that no lower end is stored: it mirrors the upper one.
        beyond = [(e.attack, e.deviation) for e in verdict.evidence if e.claim == "hidden"]
        excess = [(name, Estimate(d.value, 2 * d.value - d.high, d.high)) for name, d in beyond]
        nobody = "there is no retrained model to compare with"
        claims.append(_bounded("beyond", excess, max_beyond, verdict.level, nobody, linear=True))
    if max_tpr is not None:
        rates = [(name, rate) for name, rate in audit.rates if abs(rate.fpr - at_fpr) < 1e-9]
        if not rates:
            offered = sorted({rate.fpr for _, rate in audit.rates})
            raise InputError(f"the audit has no rate at a false-positive rate of {at_fpr}; it has {offered}")
        few = next((rate for _, rate in rates if rate.tpr is None), None)
        unresolved = few and f"{few.negatives:,} unseen observations cannot resolve it; {few.needed:,} are needed"
        found = [(name, rate.tpr) for name, rate in rates if rate.tpr is not None and few is None]
        claims.append(_bounded(f"max TPR at {100 * at_fpr:g} %", found, max_tpr, verdict.level, unresolved or ""))
    return claims


def _bounded(
    name: str, found: Sequence[tuple[str, Estimate]], bound: float, level: float, nobody: str, *, linear: bool = False
) -> Claim:
    """Whether every upper end is within the bound, or a lower end beyond it, corrected for the number of attacks."""
    from ..stats.verdict import Claim

    if not found:
        return Claim(name, "cannot be said", "not measured", nobody)
    low, strongest = max((lower_end(e, level, len(found), linear=linear), attack) for attack, e in found)
    high, highest = max((e.high, attack) for attack, e in found)
    if low > bound:
        return Claim(name, "does not hold", "beyond", f"{strongest}: at least {points(low)}; {points(bound)} allowed")
    sentence = f"{highest}: at most {points(high)}; {points(bound)} allowed"
    return Claim(name, "holds" if high <= bound else "cannot be said", "within" if high <= bound else "wide", sentence)


def lower_end(found: Estimate, level: float, attacks: int, *, linear: bool = False) -> float:
    """The lower end of an interval of `level` at a level that holds for so many attacks at once.

    Its reach, on the logit scale for shares, grows as normal quantiles do; where a share is 1, its interval is that of
    n successes in n trials, L = (α/2)^(1/n), which tells n.
    """
    from ..stats.intervals import normal_beyond

    tail, value, low = (1 - level) / 2, found.value, found.low
    longer = normal_beyond(tail / attacks) / normal_beyond(tail)
    if linear:
        return value - longer * (value - low)
    if not 0 < low < value:
        return low
    if value >= 1:
        return float(low ** (log(tail / attacks) / log(tail)))
    start, end = (log(x / (1 - x)) for x in (value, low))
    return 1 / (1 + exp(longer * (start - end) - start))
