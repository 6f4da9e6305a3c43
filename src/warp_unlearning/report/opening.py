"""The first paragraph: what was audited, who attacked, and what leaked, for readers who are not statisticians."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ..stats.area import strength_of
from ..stats.intervals import Estimate
from ..stats.verdict import Outcome, worst
from .figures import SHOWN
from .schema import AttackedModel, ImageAttack, Pair, Reconstruction, rate_at
from .schema_shadow import Arm, Shadow
from .words import DEFENSES, NO_DEFENSE, arm_label, counted, defense_label, listed, method_label

_COUNTED = "forgotten", "never seen"
# More names than this would hide the sentence they stand in.
NAMED = 4

_HEADLINES: dict[Outcome, str] = {
    "does not hold": "Forgotten images can be rebuilt, at least in part",
    "holds": "No attack rebuilt more than was known without the models",
    "cannot be said": "Too few images to say whether forgotten images can be rebuilt",
}


@dataclass(frozen=True)
class Opening:
    """`headline` is one line; `parts` make up the paragraph under it, each a leading word and its sentences; `verdict`
    is the worst outcome there is, None where nothing was measured.
    """

    headline: str
    parts: tuple[tuple[str, str], ...]
    verdict: Outcome | None


def shadow_opening(results: Shadow) -> Opening:
    """The opening of a shadow audit."""
    parts = [
        ("What was audited:", _joined([_audited(results)])),
        ("Who attacked:", _attacker(results.threat)),
        ("What leaked:", _joined(_leaked(results))),
    ]
    if not results.finished:
        parts.append(("This audit is incomplete:", _joined([_incomplete(results)])))
    outcomes = [arm.verdict.outcome for arm in results.arms if arm.verdict is not None]
    return Opening(_headline(results), tuple(parts), worst(outcomes) if outcomes else None)


def pair_opening(results: Pair) -> Opening:
    """The opening of an audit of two checkpoints."""
    verdict = results.verdict
    said = {"does not hold": "does not hold", "holds": "holds", "cannot be said": "cannot be shown to hold"}
    headline = f"This forgetting {said[verdict.outcome]}: {', '.join(verdict.reasons)}"
    forgotten, never = (f"{results.counts[name]:,}" if name in results.counts else "" for name in _COUNTED)
    audited = (
        "two models, one before and one after it was made to forget chosen training examples. "
        f"{forgotten or 'The'} forgotten examples were compared with {never or 'examples'} that neither model ever saw"
    )
    best = f"Of {counted(len(results.rows), 'attack')}, “{results.strongest}” did best: " + guesses(
        results.strongest_strength, level=results.verdict.level
    )
    beside = next((row.retrained for row in results.rows if row.name == results.strongest), ())
    seen = [best]
    if beside:
        shares = listed([f"{100 * strength_of(area).value:.0f}" for area in beside])
        seen.append(f"Of models retrained without the examples, the same attack names it in {shares} of 100")
    parts = (
        ("What was audited:", _joined([audited])),
        ("Who attacked:", _attacker(results.threat)),
        ("What attackers saw:", _joined(seen)),
        ("The verdict:", _joined(list(verdict.lines))),
    )
    return Opening(headline, parts, verdict.outcome)


def reconstruction_opening(results: Reconstruction, *, images: bool) -> Opening:
    """The opening; `images` says whether the page shows them."""
    outcome = results.verdict.outcome
    parts = (
        ("What was attacked:", _attacked_images(results)),
        ("Who attacked:", " ".join(_common(results)) or "The results file does not say what the attacker holds."),
        ("What was rebuilt:", " ".join(_rebuilt(results, model) for model in results.models)),
        ("The images:", _images(results, images)),
    )
    return Opening(_HEADLINES[outcome], parts, outcome)


def _attacked_images(results: Reconstruction) -> str:
    together = results.counts["forgotten together"]
    each = "one by one" if together == 1 else f"{together} at a time"
    names = [f"“{model.name}”" for model in results.models]
    ways = listed(names) if len(names) <= NAMED else f"{len(names)} ways (see the table)"
    return (
        f"models before and after they were made to forget {counted(len(results.targets), 'image')} of "
        f"“{results.data}”, {each}, by {ways}. The attacks try to rebuild the images from the difference."
    )


def _common(results: Reconstruction) -> list[str]:
    """What is said of every attacker alike."""
    first = results.models[0].threat
    return [line for line in first if all(line in model.threat for model in results.models)]


def _rebuilt(results: Reconstruction, model: AttackedModel) -> str:
    shown = [attack for attack in model.attacks if results.outcome_of(model, attack) == "does not hold"]
    best = max(shown or model.attacks, key=lambda attack: attack.scores.summary["psnr"].value)
    total = len(model.attacks)
    if shown:
        which = f"{len(shown)} of {total} attacks" if total > 1 else "the attack"
        said = f"{which} showed more of the images than is known without the models"
    elif results.claim_on(model) == "holds":
        which = f"none of {total} attacks" if total > 1 else "not even the one attack"
        said = f"{which} showed more than is known without the models"
    else:
        few = "one image has no interval" if len(model.rows) == 1 else "the images are too few"
        said = f"it is open whether more can be seen than is known without the models ({few}), which is not a pass"
    return f"After “{model.name}”, {said}. “{best.name}” came nearest: {_nearness(best, results.level)}"


def _nearness(attack: ImageAttack, level: float) -> str:
    best = attack.beyond.best_blind
    text = f"a mean PSNR of {attack.scores.summary['psnr'].value:.1f} dB"
    if best in attack.blind and "psnr" in attack.blind[best].summary:
        text += f", where the {best}, which saw nothing, has {attack.blind[best].summary['psnr'].value:.1f} dB"
    if attack.beyond.identification is not None:
        share = attack.beyond.identification.share
        ends = (
            f" ({100 * level:g} % interval: {100 * share.low:.0f} to {100 * share.high:.0f}; guessing: 50)"
            if isfinite(share.low) and isfinite(share.high)
            else " (guessing: 50)"
        )
        text += f"; it resembles the image itself more than {100 * share.value:.0f} of 100 others of the class{ends}"
    return f"{text}."


def _images(results: Reconstruction, images: bool) -> str:
    if images:
        return "this page holds images of forgotten examples. Do not share it with anybody who must not see them."
    if results.images_kept:
        return "they were left out of this page; the report can be made again with them, by --images."
    return "they were left out of this page, and the reconstruction did not keep them."


def not_tested(results: Shadow) -> tuple[str, ...]:
    """Sentences; those of the file first."""
    said = (text[:1].upper() + text[1:] for text in results.not_tested)
    return (*said, *_left_out(results), *_unresolved(results), *_not_made(results))


def _left_out(results: Shadow) -> list[str]:
    present = {arm.defense for arm in results.arms}
    absent = [defense_label(name) for name in (None, *DEFENSES) if name not in present]
    return [f"Not in this audit: {listed(absent)}."] if absent else []


def _unresolved(results: Shadow) -> list[str]:
    found = []
    for fpr in SHOWN:
        rates = [rate for arm in results.arms if arm.all and (rate := rate_at(arm.all.rates, fpr))]
        unresolved = [rate for rate in rates if not rate.resolved]
        if unresolved:
            most = max(rate.negatives for rate in unresolved)
            found.append(
                f"True-positive rates at {100 * fpr:g} % false positives are unresolved in {len(unresolved)} of "
                f"{counted(len(rates), 'way')}: that takes {round(10 / fpr):,} never-seen observations, and there were "
                f"at most {most:,}."
            )
    return found


def _not_made(results: Shadow) -> list[str]:
    parts = (
        ("The attack by shadow models was not scored", [arm for arm in results.arms if arm.all is None]),
        ("The gradient-difference test was not made", [arm for arm in results.arms if arm.gradient_test is None]),
        ("Attackers with the weights of both models were not tried", [a for a in results.arms if a.strongest is None]),
    )
    return [f"{what} {_where(arms, len(results.arms))}." for what, arms in parts if arms]


def _where(arms: list[Arm], total: int) -> str:
    if len(arms) == total:
        return "in any of the ways audited"
    return f"for {listed([arm_label(arm) for arm in arms])}"


def guesses(strength: Estimate, *, level: float = 0.95) -> str:
    """An area under the curve in words, for one that is at least ½."""
    return (
        f"shown one forgotten and one never-seen example, it names the forgotten one in {cases(strength, level=level)}"
    )


def cases(strength: Estimate, *, level: float = 0.95) -> str:
    """A chance as so many of 100 cases.

    >>> cases(Estimate(0.78, 0.74, 0.82))
    '78 of 100 cases (95 % interval: 74 to 82; guessing: 50)'
    """
    ends = (
        "interval unknown"
        if not (isfinite(strength.low) and isfinite(strength.high))
        else f"{100 * level:g} % interval: {100 * strength.low:.0f} to {100 * strength.high:.0f}"
    )
    return f"{100 * strength.value:.0f} of 100 cases ({ends}; guessing: 50)"


def _headline(results: Shadow) -> str:
    total, failed, held = len(results.arms), *(len(_with(results, kind)) for kind in ("does not hold", "holds"))
    if failed:
        return f"Forgetting does not hold in {_of(failed, total)}"
    if held == total:
        return f"Forgetting holds in {_of(held, total)}"
    if len(_with(results, None)) == total:
        return "Nothing was measured"
    return f"It cannot be said that forgetting holds in {_of(total - held, total)}"


def _audited(results: Shadow) -> str:
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


def _leaked(results: Shadow) -> list[str]:
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


def _worst_cases(results: Shadow) -> list[str]:
    """The strongest attack by shadow models, and the strongest by weights."""
    found = []
    scored = [(strength_of(arm.all.auc), arm) for arm in results.arms if arm.all is not None]
    if scored:
        strength, arm = max(scored, key=lambda pair: pair[0].value)
        found.append(f"The attack by shadow models does best against {arm_label(arm)}: {guesses(strength)}")
    if weights := [(arm.strongest, arm) for arm in results.arms if arm.strongest is not None]:
        strongest, arm = max(weights, key=lambda pair: pair[0].strength.value)
        found.append(
            f"An attacker who compares the weights before and after does best against {arm_label(arm)}: right in "
            f"{cases(strongest.strength)}, by “{strongest.attack}”, picked afterwards as the strongest of several"
        )
    return found


def _incomplete(results: Shadow) -> str:
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


def _with(results: Shadow, outcome: Outcome | None) -> list[Arm]:
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
