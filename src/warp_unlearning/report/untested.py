"""What a shadow audit did not test: what its results say, and what is missing from them."""

from __future__ import annotations

from .figures import SHOWN
from .labels import DEFENSES, arm_label, counted, defense_label, listed
from .shadow_arm import Arm
from .shadow_results import ShadowResults


def not_tested(results: ShadowResults) -> tuple[str, ...]:
    """Sentences; those of the file first."""
    said = (text[:1].upper() + text[1:] for text in results.not_tested)
    return (*said, *_defenses(results), *_rates(results), *_parts(results))


def _defenses(results: ShadowResults) -> list[str]:
    present = {arm.defense for arm in results.arms}
    absent = [defense_label(name) for name in (None, *DEFENSES) if name not in present]
    return [f"Not in this audit: {listed(absent)}."] if absent else []


def _rates(results: ShadowResults) -> list[str]:
    found = []
    for fpr in SHOWN:
        rates = [rate for arm in results.arms if arm.score and (rate := arm.score.rate(fpr))]
        unresolved = [rate for rate in rates if not rate.resolved]
        if unresolved:
            most = max(rate.negatives for rate in unresolved)
            found.append(
                f"True-positive rates at {100 * fpr:g} % false positives are unresolved in {len(unresolved)} of "
                f"{counted(len(rates), 'way')}: that takes {round(10 / fpr):,} never-seen observations, and there were "
                f"at most {most:,}."
            )
    return found


def _parts(results: ShadowResults) -> list[str]:
    parts = (
        ("The attack by shadow models was not scored", [arm for arm in results.arms if arm.score is None]),
        ("The gradient-difference test was not made", [arm for arm in results.arms if arm.gradient_test is None]),
        ("Attackers with the weights of both models were not tried", [a for a in results.arms if a.strongest is None]),
    )
    return [f"{what} {_where(arms, len(results.arms))}." for what, arms in parts if arms]


def _where(arms: list[Arm], total: int) -> str:
    if len(arms) == total:
        return "in any of the ways audited"
    return f"for {listed([arm_label(arm) for arm in arms])}"
