"""The results of a study (kind "study", schema version 1) as plain dataclasses, with every field checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import DataError
from ..fields import Field, Pairs
from ..measures import Estimate, Rate, read_estimate, read_rate
from ..shadow_arm import Arm
from ..shadow_results import ShadowResults, read_shadow
from .agreement import known
from .formulas import advantage_gone, difference, privacy_gain
from .names import row_name

IDLE = "no teleport moved anything"
Swept = tuple[tuple[str, float], ...]

# What the page of one audit needs and a study may leave out.
_LEFT_OUT: Mapping[str, Any] = {
    "date": "",
    "threat": [],
    "stages": [],
    "failures": [],
    "notes": [],
    "not_tested": [],
    "configuration": {},
    "digests": {},
    "versions": {},
    "hardware": {},
}


@dataclass(frozen=True)
class About:
    """What every study says of itself; `missing` are the rows that it was to have, where it is a study of rows."""

    study: str
    hardware: Pairs
    commands: tuple[str, ...]
    notes: tuple[str, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairAttack:
    """One attack on pairs of models, mean over so many pairs; each pair's rates are at thresholds of its own."""

    name: str
    auc: Estimate
    pairs: int
    rates: tuple[Rate, ...]


@dataclass(frozen=True)
class Change:
    """A change that a defence makes; `paired` is False where it rests on two separate intervals."""

    estimate: Estimate | None
    paired: bool
    note: str = ""


@dataclass(frozen=True)
class Against:
    """An arm beside another of its method, paired: how much lower its AUC is, and how much higher its accuracy."""

    auc: Estimate | None
    test_accuracy: Estimate | None


@dataclass(frozen=True)
class Changes:
    """What a defence changes, paired: how much lower the AUC is, which share of the advantage is gone, or why none is
    stated, and by what share 1 − AUC rises.
    """

    lower_by: Estimate | None
    gone: Estimate | None
    note: str
    privacy: Estimate | None


_NONE_STATED = Changes(None, None, "", None)


@dataclass(frozen=True)
class StudyArm:
    """An arm of an audit with what a study adds: how many forget sets of each shadow it was to unlearn, of how many
    shadows it has models, how many diverged (they are among its missing ones), what was swept, all attacks on pairs,
    paired changes, those of slices by name, and the share of its teleports that moved nothing. `sets`, `shadows` and
    `unmoved` are None where the file does not say.
    """

    arm: Arm
    sets: int | None
    shadows: int | None
    diverged: int
    swept: Swept
    attacks: tuple[PairAttack, ...]
    lower_by: Estimate | None
    privacy: Estimate | None
    gradient_lower_by: Estimate | None
    gradient_reduction: Estimate | None
    correlation: Estimate | None
    against: Mapping[str, Against]
    unmoved: float | None = None
    of_slices: Mapping[str, Changes] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether no teleport moved anything: its models are those without the defence, and measure none."""
        return self.unmoved == 1

    def changes_in(self, name: str) -> Changes:
        """What the defence changes in a slice; nothing is stated where it moved nothing, or the file does not say."""
        return _NONE_STATED if self.idle else self.of_slices.get(name, _NONE_STATED)

    @property
    def row(self) -> str:
        """The arm as our tables and the paper's name it."""
        return row_name(self.arm.method, self.arm.defense)

    @property
    def title(self) -> str:
        """The arm as the first cell of its row has it: its name, and what its numbers must not be read without."""
        return self.titled(self.row)

    def titled(self, name: str) -> str:
        """Another name of the arm, with the same said after it."""
        return f"{name} ({IDLE})" if self.idle else name

    @property
    def one_minus_auc(self) -> Estimate | None:
        """1 − AUC, of scores turned around where the AUC is below ½."""
        return None if self.arm.score is None else self.arm.score.auc.strength.mapped(-1, 1)

    @property
    def test_accuracy(self) -> Estimate | None:
        """The share of test examples classified correctly."""
        return None if self.arm.accuracy is None else self.arm.accuracy.test

    @property
    def settings(self) -> str:
        """What was swept, in words."""
        return ", ".join(f"{name} {value:g}" for name, value in self.swept) or "as given"

    def value_of(self, name: str) -> float | None:
        """The value of what was swept, None where this arm does not vary it."""
        return dict(self.swept).get(name)


@dataclass(frozen=True)
class Study:
    """A study of arms; `shadows_complete` is how many shadows have every result, None where the file does not say.
    `trained_again` are the shadows whose models do not all start from the same weights.
    """

    about: About
    shadow: ShadowResults
    arms: tuple[StudyArm, ...]
    shadows_complete: int | None
    trained_again: tuple[int, ...] = ()

    @property
    def planned(self) -> int:
        """How many models are to be unlearned."""
        return self.shadow.audited.shadows * sum(self.sets_of(item) for item in self.arms)

    @property
    def made(self) -> int:
        """How many models were unlearned, those that diverged among them."""
        return self.planned - sum(item.arm.missing - item.diverged for item in self.arms)

    @property
    def complete(self) -> bool:
        """Whether every shadow has every result; models that diverged are results."""
        if self.shadows_complete is None:
            return self.made == self.planned
        return self.shadows_complete == self.shadow.audited.shadows

    def sets_of(self, item: StudyArm) -> int:
        """How many forget sets of each shadow an arm was to unlearn."""
        return self.shadow.audited.forget_sets if item.sets is None else item.sets

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods in the order of the file."""
        return self.shadow.methods

    @property
    def defenses(self) -> tuple[str | None, ...]:
        """Defences in the order of the file, none first."""
        found = dict.fromkeys(item.arm.defense for item in self.arms)
        return tuple(sorted(found, key=lambda name: name is not None))

    def find(self, method: str, defense: str | None) -> StudyArm | None:
        """The first arm of this method and defence."""
        return next((a for a in self.arms if a.arm.method == method and a.arm.defense == defense), None)

    def base_of(self, item: StudyArm) -> StudyArm | None:
        """The arm without a defence that this one is compared with: of the same sweep, or the only one there is."""
        found = [a for a in self.arms if a.arm.method == item.arm.method and a.arm.defense is None]
        same = [a for a in found if a.swept == item.swept]
        return same[0] if same else found[0] if len(found) == 1 else None

    def lowered(self, item: StudyArm) -> Change:
        """How much lower the AUC is (of scores turned around where it is below ½) than without the defence."""
        return _changed(item, item.lower_by) or _separate(self.base_of(item), item, _strength, difference)

    def advantage_gone(self, item: StudyArm) -> Change:
        """The share of the advantage over guessing that is gone."""
        reduction = item.arm.reduction
        if reduction is not None and not item.idle:
            return Change(reduction.auc, True, reduction.note)
        return _separate(self.base_of(item), item, _strength, advantage_gone)

    def privacy_gained(self, item: StudyArm) -> Change:
        """By what share 1 − AUC rises."""
        return _changed(item, item.privacy) or _separate(self.base_of(item), item, _strength, privacy_gain)

    def lower_than(self, item: StudyArm, defense: str) -> Change:
        """How much lower the AUC is than with another defence."""
        paired = item.against.get(defense)
        other = self.beside(item, defense)
        found = None if paired is None else paired.auc
        return _changed(item, found) or _separate(other, item, _strength, difference, f"with {defense}")

    def beside(self, item: StudyArm, defense: str | None) -> StudyArm | None:
        """The arm of the same method and sweep with this defence."""
        wanted = item.arm.method, defense, item.swept
        return next((a for a in self.arms if (a.arm.method, a.arm.defense, a.swept) == wanted), None)

    def gradient_gone(self, item: StudyArm) -> Change:
        """The share of the gradient-difference test's advantage over guessing that is gone."""
        paired = _changed(item, item.gradient_reduction)
        return paired or _separate(self.base_of(item), item, _gradient_strength, advantage_gone)

    def gradient_privacy(self, item: StudyArm) -> Change:
        """By what share 1 − AUC of the gradient-difference test rises."""
        return _separate(self.base_of(item), item, _gradient_strength, privacy_gain)

    def gradient_lowered(self, item: StudyArm) -> Change:
        """How much lower the AUC of the gradient-difference test is."""
        paired = _changed(item, item.gradient_lower_by)
        return paired or _separate(self.base_of(item), item, _gradient_strength, difference)


def read_about(results: Mapping[str, Any]) -> tuple[Field, About]:
    """The whole of the results as a field, and what they say of themselves."""
    whole = Field(dict(results), f"the results of the study {results.get('study', '(no name)')!s}")
    version = whole["schema_version"].value
    if type(version) is not int or version not in (1, 2):
        raise DataError(
            f"{whole.file} have schema version {version!r}; this program reads 1 and 2: make the study again"
        )
    whole["kind"].one_of("study")
    hardware = whole["hardware"].scalars() if "hardware" in whole else ()
    commands = whole["commands"].texts() if "commands" in whole else ()
    notes = whole["notes"].texts() if "notes" in whole else ()
    missing = whole["missing"].texts() if "missing" in whole else ()
    return whole, About(whole["study"].text(), hardware, commands, notes, missing)


def read_study(results: Mapping[str, Any]) -> Study:
    """A study of arms."""
    whole, about = read_about(results)
    given = whole.mapping()
    audited = {"classes": [], **whole["audited"].mapping()}
    shadow = read_shadow(Field({**_LEFT_OUT, **given, "audited": audited}, whole.file))
    extra = zip(shadow.arms, whole["arms"], strict=True)
    done = whole["shadows_complete"].count() if _given(whole, "shadows_complete") else None
    again = whole["originals_trained_again"] if _given(whole, "originals_trained_again") else ()
    arms = tuple(_study_arm(arm, field) for arm, field in extra)
    return Study(about, shadow, arms, done, tuple(shadow.count() for shadow in again))


def _study_arm(arm: Arm, field: Field) -> StudyArm:
    swept = tuple((name, value.number()) for name, value in field["swept"].items()) if _given(field, "swept") else ()
    attacks = tuple(_attack(item) for item in field["pair_attacks"]) if _given(field, "pair_attacks") else ()
    reduction, test, risk = field["reduction"], field["gradient_test"], field["risk"]
    teleports = field["teleports"] if _given(field, "teleports") else None
    against = {name: _against(item) for name, item in field["against"].items()} if _given(field, "against") else {}
    sets, shadows, diverged = (
        field[name].count() if _given(field, name) else None for name in ("sets", "shadows", "diverged")
    )
    return StudyArm(
        arm,
        sets,
        shadows,
        diverged or 0,
        swept,
        attacks,
        read_estimate(reduction["difference"]) if _given(reduction, "difference") else None,
        read_estimate(reduction["privacy"]) if _given(reduction, "privacy") else None,
        read_estimate(test["difference"]) if _given(test, "difference") else None,
        read_estimate(test["reduction"]) if _given(test, "reduction") else None,
        read_estimate(risk["correlation"]) if _given(risk, "correlation") else None,
        against,
        teleports["unmoved"].number() if teleports is not None and _given(teleports, "unmoved") else None,
        _slices(field),
    )


def _slices(field: Field) -> dict[str, Changes]:
    if not _given(field, "slice_reductions"):
        return {}
    return {name: _changes(item) for name, item in field["slice_reductions"].items() if item.value is not None}


def _changes(field: Field) -> Changes:
    lower_by, gone, privacy = (field[name].maybe(read_estimate) for name in ("difference", "auc", "privacy"))
    return Changes(lower_by, gone, field["note"].text(), privacy)


def _given(field: Field, name: str) -> bool:
    return field.value is not None and name in field and field[name].value is not None


def _attack(field: Field) -> PairAttack:
    rates = tuple(read_rate(rate) for rate in field["rates"]) if _given(field, "rates") else ()
    return PairAttack(field["name"].text(), read_estimate(field["auc"]), field["pairs"].count(), rates)


def _against(field: Field) -> Against:
    return Against(
        read_estimate(field["auc"]) if _given(field, "auc") else None,
        read_estimate(field["test_accuracy"]) if _given(field, "test_accuracy") else None,
    )


def _strength(item: StudyArm) -> Estimate | None:
    return None if item.arm.score is None else item.arm.score.auc.strength


def _gradient_strength(item: StudyArm) -> Estimate | None:
    return None if item.arm.gradient_test is None else item.arm.gradient_test.auc.strength


def _changed(item: StudyArm, paired: Estimate | None) -> Change | None:
    """The paired change where it is known, and the arm moved anything."""
    return Change(paired, True) if known(paired) and not item.idle else None


def _separate(
    base: StudyArm | None,
    item: StudyArm,
    measure: Callable[[StudyArm], Estimate | None],
    change: Callable[[Estimate, Estimate], Estimate | None],
    which: str = "without a defence",
) -> Change:
    """The change from two separate intervals, or why there is none; `which` is the arm compared with."""
    if item.idle:
        return Change(None, False, f"{IDLE}, so that there is no defence to measure")
    before, after = (None if a is None else measure(a) for a in (base, item))
    if base is None:
        return Change(None, False, f"there is no arm {which} to compare with, or none of the same settings")
    if after is None:
        return Change(None, False)
    if before is None:
        return Change(None, False, f"the arm {which} to compare with was not measured")
    if change is advantage_gone and (before.low is None or before.low <= 0.5):
        return Change(None, False, "the advantage without the defence is not distinguishable from guessing")
    return Change(change(before, after), False)


def swept_values(arms: Iterable[StudyArm], name: str) -> list[float]:
    """The values of what was swept, rising."""
    return sorted({value for arm in arms if (value := arm.value_of(name)) is not None})
