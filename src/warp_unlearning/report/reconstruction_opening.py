"""The first paragraph on a reconstruction: what was attacked, by whom, and what was rebuilt."""

from __future__ import annotations

from ..stats.verdict import Outcome, worst
from .labels import counted, listed
from .measures import Estimate
from .opening import NAMED, Opening
from .reconstruction_results import AttackedModel, AttackResult, ReconstructionResults

_HEADLINES: dict[Outcome, str] = {
    "does not hold": "Forgotten images can be rebuilt, at least in part",
    "holds": "No attack rebuilt more than was known without the models",
    "cannot be said": "Too few images to say whether forgotten images can be rebuilt",
}


def reconstruction_opening(results: ReconstructionResults, *, images: bool) -> Opening:
    """The opening; `images` says whether the page shows them."""
    outcome = worst([model.outcome for model in results.models])
    parts = (
        ("What was attacked:", _attacked(results)),
        ("Who attacked:", " ".join(_common(results)) or "The results file does not say what the attacker holds."),
        ("What was rebuilt:", " ".join(_rebuilt(model, results.level) for model in results.models)),
        ("The images:", _images(results, images)),
    )
    return Opening(_HEADLINES[outcome], parts, outcome)


def _attacked(results: ReconstructionResults) -> str:
    together = "one by one" if results.together == 1 else f"{results.together} at a time"
    names = [f"“{model.name}”" for model in results.models]
    ways = listed(names) if len(names) <= NAMED else f"{len(names)} ways (see the table)"
    return (
        f"models before and after they were made to forget {counted(len(results.classes), 'image')} of "
        f"“{results.data}”, {together}, by {ways}. The attacks try to rebuild the images from the difference."
    )


def _common(results: ReconstructionResults) -> list[str]:
    """What is said of every attacker alike."""
    first = results.models[0].threat
    return [line for line in first if all(line in model.threat for model in results.models)]


def _rebuilt(model: AttackedModel, level: float) -> str:
    shown = [attack for attack in model.attacks if attack.outcome == "does not hold"]
    best = max(shown or model.attacks, key=lambda attack: attack.scores["psnr"].value or 0)
    total = len(model.attacks)
    if shown:
        which = f"{len(shown)} of {total} attacks" if total > 1 else "the attack"
        said = f"{which} showed more of the images than is known without the models"
    elif model.outcome == "holds":
        which = f"none of {total} attacks" if total > 1 else "not even the one attack"
        said = f"{which} showed more than is known without the models"
    else:
        few = "one image has no interval" if len(model.rows) == 1 else "the images are too few"
        said = f"it is open whether more can be seen than is known without the models ({few}), which is not a pass"
    return f"After “{model.name}”, {said}. “{best.name}” came nearest: {_nearness(best, level)}"


def _nearness(attack: AttackResult, level: float) -> str:
    blind = attack.blind[attack.best_blind]["psnr"] if attack.best_blind in attack.blind else Estimate(None, None, None)
    found = attack.scores["psnr"].value
    text = "its similarity was not measured" if found is None else f"a mean PSNR of {found:.1f} dB"
    if blind.value is not None:
        text += f", where the {attack.best_blind}, which saw nothing, has {blind.value:.1f} dB"
    share = attack.share
    if share is not None and share.value is not None:
        ends = (
            f" ({100 * level:g} % interval: {100 * share.low:.0f} to {100 * share.high:.0f}; guessing: 50)"
            if share.low is not None and share.high is not None
            else " (guessing: 50)"
        )
        text += f"; it resembles the image itself more than {100 * share.value:.0f} of 100 others of the class{ends}"
    return f"{text}."


def _images(results: ReconstructionResults, images: bool) -> str:
    if images:
        return "this page holds images of forgotten examples. Do not share it with anybody who must not see them."
    if results.images_kept:
        return "they were left out of this page; the report can be made again with them, by --images."
    return "they were left out of this page, and the reconstruction did not keep them."
