"""How large a study is, how much of it there is, and what its numbers leave out, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ..labels import counted, listed, method_label
from .markdown import bullets, paragraphs
from .names import in_order, row_name
from .study import IDLE, About, Study, StudyArm

# The data and the network of the paper's tables, as audits name them.
PAPER = ("cifar10", "resnet18")
# The intervals of the audit by shadow models were chosen and checked on simulated audits of so many shadows and more.
CHECKED = 16


def audited_text(study: Study, *, of_pairs: bool = False) -> str:
    """What was to be audited, and before it how much of that there is where it is not all. `of_pairs`: the section has
    no number of the audit by shadow models.
    """
    about = study.shadow.audited
    other = (about.data, about.model) != PAPER
    planned = (
        f"Ours{'' if study.complete else ', as planned'}: {about.data}, {about.model}, {about.shadows} shadows × "
        f"{_forget_sets(study)}, each of {about.forget_set_size:,} of {about.training_examples:,} training examples, "
        f"{about.points:,} audited points, seed {about.seed}."
        + (" The paper's are of CIFAR-10 and a ResNet-18, so that nothing needs to agree." if other else "")
    )
    return paragraphs(_so_far(study, of_pairs), planned, "" if of_pairs else _few_shadows(study)).strip()


def problems(study: Study, *, of_pairs: bool = False) -> str:
    """Arms that are not complete, teleports that moved nothing, points that the audit by shadow models leaves out, arms
    alike on one line; and shadows whose models do not all start from the same weights.
    """
    lacking = _alike(study, lambda item: item.arm.problem or _missing(study, item))
    unmoved = _alike(study, _unmoved)
    dropped = [] if of_pairs else _alike(study, lambda item: " ".join(item.arm.score.notes) if item.arm.score else "")
    return paragraphs(
        f"Incomplete:\n\n{bullets(lacking)}" if lacking else "",
        f"Teleports that moved nothing:\n\n{bullets(unmoved)}" if unmoved else "",
        f"Left out of the audit by shadow models:\n\n{bullets(dropped)}" if dropped else "",
        _trained_again(study),
    ).strip()


def _trained_again(study: Study) -> str:
    if not study.trained_again:
        return ""
    shadows = listed([f"{shadow}" for shadow in study.trained_again])
    return (
        f"The originals of shadows {shadows} were trained again, which did not give the same weights to the bit: "
        "there, a defended model and the one it is compared with may start from different weights."
    )


def rows_text(about: About, there: int) -> str:
    """How many rows of a study of rows there are, where they are not all."""
    if not about.missing:
        return ""
    return (
        f"**Incomplete: {there:,} of {counted(there + len(about.missing), 'row')} {'is' if there == 1 else 'are'} "
        "there.** What is said below of several rows is of those."
    )


def missing_text(about: About) -> str:
    """The rows that a study of rows was to have and does not."""
    return f"Not measured:\n\n{bullets(about.missing)}" if about.missing else ""


def _so_far(study: Study, of_pairs: bool) -> str:
    if study.complete:
        return ""
    shadows = "" if study.shadows_complete is None else f"{study.shadows_complete} of {study.shadow.audited.shadows} "
    begun = _varied(study, lambda item: item.shadows, "shadow")
    rest = "" if of_pairs else "; slices and comparisons are over those shadows that have all they need"
    return (
        f"**Incomplete: {f'{shadows}shadows are complete, and ' if shadows else ''}{study.made:,} of "
        f"{study.planned:,} unlearned models are there{f', of {begun}' if begun else ''}.** Every number below is of "
        f"what there is, each arm's of its own models, and will change{rest}."
    )


def _few_shadows(study: Study) -> str:
    known = [item.shadows for item in study.arms if item.shadows is not None]
    fewest = min(known, default=study.shadow.audited.shadows)
    if fewest >= CHECKED:
        return ""
    return (
        f"Intervals of the audit by shadow models were checked with {CHECKED} shadows and more; with "
        f"{'as few as ' if len(set(known)) > 1 else ''}{fewest} they can be far too wide or too narrow."
    )


def _forget_sets(study: Study) -> str:
    return _varied(study, lambda item: study.sets_of(item), "forget set")


def _varied(study: Study, value: Callable[[StudyArm], int | None], noun: str) -> str:
    """A number that most arms share, and those of the others: "4 forget sets (10 of NGP and BT)"; empty where it is
    known of none.
    """
    known = [(item, number) for item in study.arms if (number := value(item)) is not None]
    if not known:
        return ""
    counts = Counter(number for _, number in known)
    usual = min(counts, key=lambda number: (-counts[number], number))
    parts = [
        f"{number:,} of {listed(_names(study, [item for item, own in known if own == number]))}"
        for number in sorted(counts)
        if number != usual
    ]
    return counted(usual, noun) + (f" ({', '.join(parts)})" if parts else "")


def _names(study: Study, items: list[StudyArm]) -> list[str]:
    """The names of arms; of a method all of whose arms are among them its name alone."""
    found = []
    for method in in_order(study.methods):
        own = [item for item in items if item.arm.method == method]
        whole = len(own) == sum(item.arm.method == method for item in study.arms)
        found += [method_label(method)] if whole else [row_name(method, item.arm.defense) for item in own]
    return list(dict.fromkeys(found))


def _missing(study: Study, item: StudyArm) -> str:
    of = study.shadow.audited.shadows * study.sets_of(item)
    never = item.arm.missing - item.diverged
    return "; ".join(
        [
            *([f"{never:,} of {of:,} models are missing"] if never else []),
            *([f"{item.diverged:,} of {of:,} models diverged and are left out"] if item.diverged else []),
        ]
    )


def _unmoved(item: StudyArm) -> str:
    """Certificates say why."""
    if item.idle:
        return f"{IDLE}: these are the models without the defence, and no measurement of it"
    return f"{100 * item.unmoved:.0f} % of the teleports" if item.unmoved else ""


def _alike(study: Study, told: Callable[[StudyArm], str]) -> list[str]:
    """What is told of each arm, arms of which the same is told on one line; nothing of arms of which nothing is."""
    found: dict[str, list[str]] = {}
    for item in study.arms:
        if text := told(item):
            found.setdefault(text, []).append(item.arm.name)
    return [
        f"{'each arm' if len(names) == len(study.arms) > 1 else ', '.join(names)}: {text}"
        for text, names in found.items()
    ]
