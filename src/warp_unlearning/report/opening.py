"""The first paragraph: what was audited, who attacked, and what leaked, for readers who are not statisticians."""

from __future__ import annotations

from dataclasses import dataclass

from ..stats.verdict import Outcome, worst
from .labels import NO_DEFENSE, arm_label, counted, defense_label, listed, method_label
from .measures import Estimate
from .pair_results import PairResults
from .shadow_arm import Arm
from .shadow_results import ShadowResults

# More names than this would hide the sentence they stand in.
NAMED = 4


@dataclass(frozen=True)
class Opening:
    """`headline` is one line; `parts` make up the paragraph under it, each a leading word and its sentences; `verdict`
    is the worst outcome there is, None where nothing was measured.
    """

    headline: str
    parts: tuple[tuple[str, str], ...]
    verdict: Outcome | None


def shadow_opening(results: ShadowResults) -> Opening:
    """The opening of a shadow audit."""
    parts = [
        ("What was audited:", _joined([_audited(results)])),
        ("Who attacked:", _attacker(results.threat)),
        ("What leaked:", _joined(_leaked(results))),
    ]
    if not results.complete:
        parts.append(("This audit is incomplete:", _joined([_incomplete(results)])))
    outcomes = [arm.verdict.outcome for arm in results.arms if arm.verdict is not None]
    return Opening(_headline(results), tuple(parts), worst(outcomes) if outcomes else None)


def pair_opening(results: PairResults) -> Opening:
    """The opening of an audit of two checkpoints."""
    verdict = results.verdict
    said = {"does not hold": "does not hold", "holds": "holds", "cannot be said": "cannot be shown to hold"}
    headline = f"This forgetting {said[verdict.outcome]}: {', '.join(verdict.reasons)}"
    forgotten, never = results.count("forgotten"), results.count("never seen")
    audited = (
        "two models, one before and one after it was made to forget chosen training examples. "
        f"{forgotten or 'The'} forgotten examples were compared with {never or 'examples'} that neither model ever saw"
    )
    best = f"Of {counted(len(results.rows), 'attack')}, “{results.strongest}” did best: " + guesses(
        results.strongest_strength, level=results.level
    )
    parts = (
        ("What was audited:", _joined([audited])),
        ("Who attacked:", _attacker(results.threat)),
        ("What leaked:", _joined([best])),
        ("The verdict:", _joined(list(verdict.lines))),
    )
    return Opening(headline, parts, verdict.outcome)


def guesses(strength: Estimate, *, level: float = 0.95) -> str:
    """An area under the curve in words, for one that is at least ½."""
    if strength.value is None:
        return "its success was not measured"
    return (
        f"shown one forgotten and one never-seen example, it names the forgotten one in {cases(strength, level=level)}"
    )


def cases(strength: Estimate, *, level: float = 0.95) -> str:
    """A chance as so many of 100 cases.

    >>> cases(Estimate(0.78, 0.74, 0.82))
    '78 of 100 cases (95 % interval: 74 to 82; guessing: 50)'
    """
    if strength.value is None:
        return "an unknown share of cases"
    ends = (
        "interval unknown"
        if strength.low is None or strength.high is None
        else f"{100 * level:g} % interval: {100 * strength.low:.0f} to {100 * strength.high:.0f}"
    )
    return f"{100 * strength.value:.0f} of 100 cases ({ends}; guessing: 50)"


def _headline(results: ShadowResults) -> str:
    total, failed, held = len(results.arms), *(len(_with(results, kind)) for kind in ("does not hold", "holds"))
    if failed:
        return f"Forgetting does not hold in {_of(failed, total)}"
    if held == total:
        return f"Forgetting holds in {_of(held, total)}"
    if len(_with(results, None)) == total:
        return "Nothing was measured"
    return f"It cannot be said that forgetting holds in {_of(total - held, total)}"


def _audited(results: ShadowResults) -> str:
    about = results.audited
    methods = listed([method_label(name) for name in results.methods])
    defenses = list(dict.fromkeys(defense_label(arm.defense) for arm in results.arms))
    protections = [name for name in defenses if name != NO_DEFENSE]
    protected = (
        f"without protection and with {listed(protections)}"
        if protections and NO_DEFENSE in defenses
        else f"with {listed(protections)}"
        if protections
        else "without protection"
    )
    return (
        f"{counted(len(results.arms), 'way')} of making a model (“{about.model}”, trained on "
        f"“{about.data}”) forget chosen training examples: {methods}, {protected}. Each was tried "
        f"{about.shadows * about.forget_sets:,} times: {counted(about.shadows, 'model')} were trained for this audit, "
        f"and each was made to forget {counted(about.forget_sets, 'set')} of "
        f"{counted(about.forget_set_size, 'example')}"
    )


def _leaked(results: ShadowResults) -> list[str]:
    total, claims = len(results.arms), ("forgotten", "works")
    leaks, harmed = ([arm for arm in results.arms if _claim(arm, name) == "does not hold"] for name in claims)
    if leaks:
        found = [f"After {_of(len(leaks), total)}, forgotten examples can be told from examples no model ever saw"]
    else:
        found = ["In none of them did this attacker tell forgotten examples from unseen ones for certain"]
    found += _worst_cases(results)
    if harmed:
        found.append(f"{_of(len(harmed), total).capitalize()} cost more test accuracy than is allowed")
    if held := _with(results, "holds"):
        found.append(f"Forgetting holds in {_named(held)}")
    if small := [*_with(results, "cannot be said"), *_with(results, None)]:
        found.append(f"For {_named(small)} it cannot be said, which is not a pass")
    return found


def _worst_cases(results: ShadowResults) -> list[str]:
    """The strongest attack by shadow models, and the strongest by weights."""
    found = []
    scored = [(arm.score.auc.strength, arm) for arm in results.arms if arm.score is not None]
    known = [(strength, arm) for strength, arm in scored if strength.value is not None]
    if known:
        strength, arm = max(known, key=lambda pair: pair[0].value or 0)
        found.append(f"The attack by shadow models does best against {arm_label(arm)}: {guesses(strength)}")
    weights = [(arm.strongest, arm) for arm in results.arms if arm.strongest is not None]
    if measured := [(strongest, arm) for strongest, arm in weights if strongest.strength.value is not None]:
        strongest, arm = max(measured, key=lambda pair: pair[0].strength.value or 0)
        found.append(
            f"An attacker who compares the weights before and after does best against {arm_label(arm)}: right in "
            f"{cases(strongest.strength)}, by “{strongest.attack}”, picked afterwards as the strongest of several"
        )
    return found


def _incomplete(results: ShadowResults) -> str:
    reasons = []
    if results.missing:
        arms = sum(arm.missing > 0 for arm in results.arms)
        reasons.append(
            f"{counted(results.missing, 'unlearned model')} in {counted(arms, 'way')} could not be made, and the "
            "numbers rest on the others"
        )
    if results.failures:
        reasons.append(f"{counted(len(results.failures), 'job')} failed")
    open_jobs = sum(max(stage.jobs - stage.done - stage.failed, 0) for stage in results.stages)
    if open_jobs:
        reasons.append(f"{counted(open_jobs, 'job')} were not done")
    return "; ".join(reasons) or "the results mark a part of it as unfinished"


def _with(results: ShadowResults, outcome: Outcome | None) -> list[Arm]:
    return [arm for arm in results.arms if (None if arm.verdict is None else arm.verdict.outcome) == outcome]


def _claim(arm: Arm, name: str) -> Outcome | None:
    claims = () if arm.verdict is None else arm.verdict.claims
    return next((claim.outcome for claim in claims if claim.name == name), None)


def _named(arms: list[Arm]) -> str:
    return listed([arm_label(arm) for arm in arms]) if len(arms) <= NAMED else f"{len(arms)} ways (see the table)"


def _of(some: int, total: int) -> str:
    """So many of all ways.

    >>> _of(2, 2), _of(1, 1), _of(3, 7)
    ('both ways', 'the one way', '3 of 7 ways')
    """
    if some < total:
        return f"{some} of {total} ways"
    return {1: "the one way", 2: "both ways"}.get(total, f"all {total} ways")


def _attacker(threat: tuple[str, ...]) -> str:
    return _joined(list(threat)) or "The results file does not say what the attacker holds."


def _joined(sentences: list[str]) -> str:
    """Sentences as one paragraph, each with a full stop."""
    texts = [text.strip() for text in sentences if text.strip()]
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in texts)
