"""A study of the paper (kind "study", schema versions 1 and 2): what its file says, and how much of it there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import Field

from ..stats.area import strength_of
from ..stats.intervals import Estimate
from .compare import (
    Cell,
    Change,
    advantage_gone,
    beside,
    bullets,
    difference,
    known,
    mapped,
    paragraphs,
    privacy_gain,
    rate_beside,
)
from .drawing import Plot
from .paper_numbers import PAPER, RATES, SLICES, PaperTable, in_order, row_name
from .read import checked, current
from .schema import rate_at
from .schema_shadow import Against, Arm, GradientTest, Rows, Score, Shadow
from .words import counted, listed, method_label

IDLE = "no teleport moved anything"
# A null-space move of the length that WARP's would have, at random: its control.
KICK = "kick"
# The intervals of the audit by shadow models were chosen and checked on simulated audits of so many shadows and more.
CHECKED = 16


@dataclass(frozen=True)
class Section:
    """What is shown of a study: paragraphs and tables, figures by the name of their file, and cells in no table."""

    title: str
    parts: Sequence[object]
    plots: Mapping[str, Plot]
    cells: Sequence[Cell] = ()


@dataclass(frozen=True)
class Paired:
    """What a defence changes, paired: how much lower the AUC is, which share of the advantage is gone, or why none is
    stated, and by what share 1 − AUC rises.
    """

    lowered: Estimate | None = None
    gone: Estimate | None = None
    gained: Estimate | None = None
    note: str = ""


class StudyArm(Arm):
    """An arm of a study, and what its rows say of it."""

    @property
    def unmoved(self) -> float | None:
        """The share of its teleports that moved nothing, None where the file is silent."""
        return None if self.teleports is None else self.teleports.unmoved

    @property
    def idle(self) -> bool:
        """Whether no teleport moved anything: its models are those without the defence, and measure none."""
        return self.unmoved == 1

    @property
    def row(self) -> str:
        """The arm as our tables and the paper's name it."""
        return row_name(self.method, self.defense)

    @property
    def title(self) -> str:
        """The arm as the first cell of its row has it: its name, and what its numbers must not be read without."""
        return self.titled(self.row)

    def titled(self, name: str) -> str:
        """Another name of the arm, with the same said after it."""
        return f"{name} ({IDLE})" if self.idle else name

    def test(self, of: str) -> Score | GradientTest | None:
        """What the attack scored on "all" samples, on one slice, or the "gradient" test."""
        return self.gradient_test if of == "gradient" else self.all if of == "all" else (self.slices or {}).get(of)

    def paired(self, of: str) -> Paired:
        """What the defence changes of a test, paired."""
        if of == "gradient":
            test = self.gradient_test
            return Paired() if test is None else Paired(test.difference, test.reduction)
        found = self.reduction if of == "all" else (self.slice_reductions or {}).get(of)
        return Paired() if found is None else Paired(found.difference, found.auc, found.privacy, found.note)

    def area(self, of: str) -> Estimate | None:
        """The AUC of a test."""
        test = self.test(of)
        return None if test is None else test.auc

    def strength(self, of: str) -> Estimate | None:
        """max(AUC, 1 − AUC) of a test."""
        area = self.area(of)
        return None if area is None else strength_of(area)

    @property
    def one_minus_auc(self) -> Estimate | None:
        """1 − AUC, of scores turned around where the AUC is below ½."""
        strength = self.strength("all")
        return None if strength is None else mapped(strength, -1, 1)

    @property
    def test_accuracy(self) -> Estimate | None:
        """The share of test examples classified correctly."""
        return None if self.accuracy is None else self.accuracy.test

    @property
    def swept_text(self) -> str:
        """What was swept, in words."""
        return ", ".join(f"{name} {value:g}" for name, value in self.swept.items()) or "as given"


class Study(Shadow):
    """A study of arms."""

    arms: tuple[StudyArm, ...] = Field(min_length=1)

    @property
    def planned(self) -> int:
        """How many models are to be unlearned."""
        return self.audited.shadows * sum(self.sets_of(arm) for arm in self.arms)

    @property
    def made(self) -> int:
        """How many models were unlearned, those that diverged among them."""
        return self.planned - sum(arm.missing - arm.diverged for arm in self.arms)

    @property
    def whole(self) -> bool:
        """Whether every shadow has every result; models that diverged are results."""
        if self.shadows_complete is None:
            return self.made == self.planned
        return self.shadows_complete == self.audited.shadows

    @property
    def defenses(self) -> list[str | None]:
        """Defences in the order of the file, none first."""
        return sorted(dict.fromkeys(arm.defense for arm in self.arms), key=lambda name: name is not None)

    @property
    def ordered(self) -> list[StudyArm]:
        """Arms by method in the paper's order, then by defence."""
        methods, defenses = in_order(self.methods), self.defenses
        return sorted(self.arms, key=lambda arm: (methods.index(arm.method), defenses.index(arm.defense)))

    def sets_of(self, arm: StudyArm) -> int:
        """How many forget sets of each shadow an arm was to unlearn."""
        return self.audited.forget_sets if arm.sets is None else arm.sets

    def beside(self, arm: StudyArm, defense: str | None) -> StudyArm | None:
        """The arm of the same method and sweep with this defence."""
        wanted = arm.method, defense, arm.swept
        return next((a for a in self.arms if (a.method, a.defense, a.swept) == wanted), None)

    def base_of(self, arm: StudyArm) -> StudyArm | None:
        """The arm without a defence that this one is compared with: of the same sweep, or the only one there is."""
        found = [a for a in self.arms if a.method == arm.method and a.defense is None]
        return self.beside(arm, None) or (found[0] if len(found) == 1 else None)

    def changed(self, arm: StudyArm, of: str = "all") -> tuple[Change, Change, Change]:
        """How much lower the AUC is (of scores turned around where it is below ½) than without the defence, the share
        of the advantage over guessing that is gone, and by what share 1 − AUC rises: of "all", the "gradient" test, or
        a slice, of which only what the file says is stated.
        """
        paired = Paired() if arm.idle else arm.paired(of)
        if of in SLICES:
            lowered, gone, gained = (Change(found, True) for found in (paired.lowered, paired.gone, paired.gained))
            return lowered, Change(gone.estimate, True, paired.note), gained
        base = self.base_of(arm)
        return (
            _changed(paired.lowered, base, arm, of, difference),
            Change(paired.gone, True, paired.note)
            if paired.note
            else _changed(paired.gone, base, arm, of, advantage_gone),
            _changed(paired.gained, base, arm, of, privacy_gain),
        )

    def lower_than(self, arm: StudyArm, defense: str) -> Change:
        """How much lower the AUC is than with another defence."""
        paired = None if arm.idle else arm.against.get(defense, Against()).auc
        return _changed(paired, self.beside(arm, defense), arm, "all", difference, f"with {defense}")


def _changed(
    paired: Estimate | None,
    base: StudyArm | None,
    arm: StudyArm,
    of: str,
    change: Callable[[Estimate, Estimate], Estimate | None],
    which: str = "without a defence",
) -> Change:
    """The paired change where it is known, else that from two separate intervals, or why there is none."""
    if known(paired):
        return Change(paired, True)
    if arm.idle:
        return Change(None, False, f"{IDLE}, so that there is no defence to measure")
    if base is None:
        return Change(None, False, f"there is no arm {which} to compare with, or none of the same settings")
    before, after = base.strength(of), arm.strength(of)
    if after is None:
        return Change(None, False)
    if before is None:
        return Change(None, False, f"the arm {which} to compare with was not measured")
    if change is advantage_gone and before.low <= 0.5:
        return Change(None, False, "the advantage without the defence is not distinguishable from guessing")
    return Change(change(before, after), False)


Read = TypeVar("Read", Study, Rows)


def read_study(results: Mapping[str, Any]) -> Study:
    """A study of arms."""
    return _read(results, Study)


def read_rows(results: Mapping[str, Any]) -> Rows:
    """A study of rows."""
    return _read(results, Rows)


def _read(results: Mapping[str, Any], model: type[Read]) -> Read:
    name = f"the results of the study {results.get('study', '(no name)')!s}"
    return checked(model, current(results, name), name)


def audited_text(study: Study, *, of_pairs: bool = False) -> str:
    """What was to be audited, and before it how much of that there is where it is not all. `of_pairs`: the section has
    no number of the audit by shadow models.
    """
    about = study.audited
    other = (about.data, about.model) != PAPER
    sets = _varied(study, study.sets_of, "forget set")
    planned = (
        f"Ours{'' if study.whole else ', as planned'}: {about.data}, {about.model}, {about.shadows} shadows × "
        f"{sets}, each of {about.forget_set_size:,} of {about.training_examples:,} training examples, "
        f"{about.points:,} audited points, seed {about.seed}."
        + (" The paper's are of CIFAR-10 and a ResNet-18, so that nothing needs to agree." if other else "")
    )
    counts = {arm.shadows for arm in study.arms if arm.shadows is not None}
    fewest = min(counts, default=about.shadows)
    few = (
        f"Intervals of the audit by shadow models were checked with {CHECKED} shadows and more; with "
        f"{'as few as ' if len(counts) > 1 else ''}{fewest} they can be far too wide or too narrow."
    )
    return paragraphs(_so_far(study, of_pairs), planned, "" if of_pairs or fewest >= CHECKED else few)


def _so_far(study: Study, of_pairs: bool) -> str:
    if study.whole:
        return ""
    shadows = "" if study.shadows_complete is None else f"{study.shadows_complete} of {study.audited.shadows} "
    begun = _varied(study, lambda arm: arm.shadows, "shadow")
    rest = "" if of_pairs else "; slices and comparisons are over those shadows that have all they need"
    return (
        f"**Incomplete: {f'{shadows}shadows are complete, and ' if shadows else ''}{study.made:,} of "
        f"{study.planned:,} unlearned models are there{f', of {begun}' if begun else ''}.** Every number below is of "
        f"what there is, each arm's of its own models, and will change{rest}."
    )


def problems(study: Study, *, of_pairs: bool = False) -> str:
    """Arms that are not complete, teleports that moved nothing, points that the audit by shadow models leaves out, arms
    alike on one line; and shadows whose models do not all start from the same weights.
    """

    def incomplete(arm: StudyArm) -> str:
        of, never = study.audited.shadows * study.sets_of(arm), arm.missing - arm.diverged
        texts = [f"{never:,} of {of:,} models are missing"] if never else []
        texts += [f"{arm.diverged:,} of {of:,} models diverged and are left out"] if arm.diverged else []
        return arm.problem or "; ".join(texts)

    def unmoved(arm: StudyArm) -> str:
        if arm.idle:
            return f"{IDLE}: these are the models without the defence, and no measurement of it"
        return f"{100 * arm.unmoved:.0f} % of the teleports" if arm.unmoved else ""

    def dropped(arm: StudyArm) -> str:
        return "" if of_pairs or arm.all is None else " ".join(arm.all.notes)

    lists = {
        "Incomplete": incomplete,
        "Teleports that moved nothing": unmoved,
        "Left out of the audit by shadow models": dropped,
    }
    trained_again = listed([f"{shadow}" for shadow in study.originals_trained_again])
    again = (
        f"The originals of shadows {trained_again} were trained again, which "
        "did not give the same weights to the bit: there, a defended model and the one it is compared with may start "
        "from different weights."
    )
    texts = [f"{name}:\n\n{found}" for name, text in lists.items() if (found := bullets(_alike(study, text)))]
    return paragraphs(*texts, again if study.originals_trained_again else "")


def _varied(study: Study, value: Callable[[StudyArm], int | None], noun: str) -> str:
    """A number that most arms share, and those of the others: "4 forget sets (10 of NGP and BT)"; empty where it is
    known of none.
    """
    found = {i: number for i, arm in enumerate(study.arms) if (number := value(arm)) is not None}
    if not found:
        return ""
    counts = Counter(found.values())
    usual = min(counts, key=lambda number: (-counts[number], number))
    parts = []
    for number in sorted(counts.keys() - {usual}):
        own = [study.arms[i] for i, value_of in found.items() if value_of == number]
        parts.append(f"{number:,} of {listed(_names(study, own))}")
    return counted(usual, noun) + (f" ({', '.join(parts)})" if parts else "")


def _names(study: Study, arms: Sequence[StudyArm]) -> list[str]:
    """The names of arms; of a method all of whose arms are among them its name alone."""
    found = []
    for method in in_order(study.methods):
        own = [arm for arm in arms if arm.method == method]
        whole = len(own) == sum(arm.method == method for arm in study.arms)
        found += [method_label(method)] if whole else [arm.row for arm in own]
    return list(dict.fromkeys(found))


def _alike(study: Study, text: Callable[[StudyArm], str]) -> list[str]:
    """The texts of arms, arms with the same text on one line; arms without one are left out."""
    found: dict[str, list[str]] = {}
    for arm in study.arms:
        found.setdefault(text(arm), []).append(arm.name)
    found.pop("", None)
    return [
        f"{'each arm' if len(names) == len(study.arms) > 1 else ', '.join(names)}: {text}"
        for text, names in found.items()
    ]


def scores(arm: StudyArm, of: str, paper: PaperTable, prefix: str = "", row: str = "") -> list[Cell]:
    """Area and rates of a test beside those of the paper's row, by default the one of the arm's name."""
    test, row = arm.test(of), row or arm.row
    area = beside(arm.area(of), paper.number(row, f"{prefix}AUC"), chance=0.5)
    rates = [None if test is None else rate_at(test.rates, fpr) for fpr in RATES]
    printed = [paper.number(row, f"{prefix}{name}") for name in RATES.values()]
    return [area, *map(rate_beside, rates, printed)]
