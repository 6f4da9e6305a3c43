"""The search of an arm in a file: its ranges, its repeatability, what a kill leaves, and what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import log10
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.studies import tuning_search
from warp_unlearning.studies.shadow_settings import Arm
from warp_unlearning.studies.tuning_objectives import Objectives
from warp_unlearning.studies.tuning_search import Search, Trial, storage_at
from warp_unlearning.studies.tuning_settings import TunedArm, TuningSettings
from warp_unlearning.studies.tuning_space import Choice, Span

pytest.importorskip("optuna")
METHOD = {
    "method.lr": Span(1e-5, 1e-1, log=True),
    "method.epochs": Span(1, 19, whole=True),
    "method.batch_size": Choice((64, 128, 256)),
}
BASE = TunedArm(Arm("ngp", {"lr": 0.5, "epochs": 5, "batch_size": 64, "alpha": 0.9}), METHOD)
DEFENDED = TunedArm(
    Arm("ngp", BASE.start.method_settings, "warp", {"energy": 0.3}), {**METHOD, "defense.energy": Span(0.1, 1.0)}
)
SETTINGS = TuningSettings({}, "mlp", {}, {"epochs": 5}, (BASE, DEFENDED), trials=8, population=3, seed=3)


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: each trial is some twenty commits, which a disk makes slow."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def folder(memory: Path) -> Iterator[Path]:
    with TemporaryDirectory(dir=memory) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def whole(memory: Path) -> dict[str, list[Trial]]:
    """The trials of a search that nothing stopped, by sampler."""
    return {
        sampler: finished(memory / f"{sampler}.db", settings=replace(SETTINGS, sampler=sampler))
        for sampler in ("nsga3", "tpe")
    }


def judged(values: Mapping[str, Any]) -> Objectives:
    lr, epochs = float(values["method.lr"]), int(values["method.epochs"])
    return lr, abs(epochs - 7) / 19, values["method.batch_size"] / 256, abs(lr - 0.05)


def finished(file: Path, arm: TunedArm = BASE, settings: TuningSettings = SETTINGS) -> list[Trial]:
    """All trials, told round by round; every fourth fails."""
    with storage_at(file) as storage:
        search = Search(storage, arm, settings, about={"data": "d"})
        while trials := search.round():
            for trial in trials:
                fails = trial.number % 4 == 3
                search.tell(trial.number, None if fails else judged(trial.values), reason="diverged" if fails else "")
        return search.trials()


@pytest.mark.parametrize("sampler", ["nsga3", "tpe"])
def test_trials_stay_in_their_ranges_and_there_are_as_many_as_asked_for(sampler: str, folder: Path) -> None:
    found = finished(folder / "a.db", DEFENDED, replace(SETTINGS, sampler=sampler, trials=12))
    assert [trial.number for trial in found] == list(range(12))
    for trial in found:
        assert set(trial.values) == set(DEFENDED.space)
        assert 1e-5 <= trial.values["method.lr"] <= 1e-1
        assert trial.values["method.epochs"] in range(1, 20)
        assert trial.values["method.batch_size"] in (64, 128, 256)
        assert 0.1 <= trial.values["defense.energy"] <= 1.0
    assert len({trial.values["method.lr"] for trial in found}) >= 4


def test_the_first_trial_is_the_start_brought_into_the_ranges(folder: Path) -> None:
    first = finished(folder / "a.db", DEFENDED)[0]
    assert first.values == {"method.lr": 0.1, "method.epochs": 5, "method.batch_size": 64, "defense.energy": 0.3}
    made = DEFENDED.arm(first.values)
    assert made.method_settings == {"lr": 0.1, "epochs": 5, "batch_size": 64, "alpha": 0.9}
    assert made.defense_settings == {"energy": 0.3}


def test_objectives_and_failures_are_kept(whole: dict[str, list[Trial]]) -> None:
    for trial in whole["nsga3"]:
        if trial.number % 4 == 3:
            assert (trial.state, trial.objectives, trial.reason) == ("failed", None, "diverged")
        else:
            assert (trial.state, trial.reason) == ("complete", "")
            assert trial.objectives == pytest.approx(judged(trial.values))


@pytest.mark.parametrize("sampler", ["nsga3", "tpe"])
def test_the_seed_decides_the_trials(sampler: str, whole: dict[str, list[Trial]], folder: Path) -> None:
    settings = replace(SETTINGS, sampler=sampler)
    assert finished(folder / "a.db", settings=settings) == whole[sampler]
    other = finished(folder / "b.db", settings=replace(settings, seed=4))
    same = [a.values["method.lr"] == b.values["method.lr"] for a, b in zip(whole[sampler], other, strict=True)]
    # The start, and what may be inherited from it.
    assert same[:3] == [True, False, False]


def test_a_generation_inherits_from_the_one_before(folder: Path) -> None:
    settings = replace(SETTINGS, trials=8, population=4)
    with storage_at(folder / "a.db") as storage:
        search = Search(storage, BASE, settings, about={})
        while trials := search.round():
            for trial in trials:
                search.tell(trial.number, judged(trial.values))
        rates = [trial.values["method.lr"] for trial in search.trials()]
    # Crossover happens in a transformed space, so a rate that was inherited is off by rounding.
    inherited = [any(rate == pytest.approx(parent, rel=1e-9) for parent in rates[:4]) for rate in rates[4:]]
    assert sum(inherited) >= 2


def test_settings_are_drawn_independently(folder: Path) -> None:
    drawn = finished(folder / "a.db", DEFENDED, replace(SETTINGS, trials=5, population=5))[1:]
    rates = [(log10(trial.values["method.lr"]) + 5) / 4 for trial in drawn]
    radii = [(trial.values["defense.energy"] - 0.1) / 0.9 for trial in drawn]
    # As shares of their ranges, which would be equal if one draw had decided both.
    assert all(abs(rate - radius) > 1e-6 for rate, radius in zip(rates, radii, strict=True))


def test_arms_of_a_method_try_the_same_settings_of_it_in_the_first_round(
    whole: dict[str, list[Trial]], folder: Path
) -> None:
    base, defended = whole["nsga3"], finished(folder / "a.db", DEFENDED)
    for a, b in zip(base[:3], defended[:3], strict=True):
        assert a.values == {name: value for name, value in b.values.items() if name in METHOD}
    assert len(base) == len(defended) == 8


@pytest.mark.parametrize("told", [0, 2, 3, 4])
def test_a_round_that_was_not_told_is_asked_for_again_as_it_was(
    told: int, whole: dict[str, list[Trial]], folder: Path
) -> None:
    with storage_at(folder / "a.db") as storage:
        search = Search(storage, BASE, SETTINGS, about={"data": "d"})
        for _ in range(1 + told // 3):
            for trial in search.round():
                fails = trial.number % 4 == 3
                if trial.number < told:
                    found = None if fails else judged(trial.values)
                    search.tell(trial.number, found, reason="diverged" if fails else "")
        assert sum(trial.state != "open" for trial in search.trials()) == told
    assert finished(folder / "a.db") == whole["nsga3"]


@pytest.mark.parametrize(("calls", "sampler"), [(0, "nsga3"), (2, "nsga3"), (4, "nsga3"), (10, "nsga3"), (10, "tpe")])
def test_a_kill_while_a_trial_is_drawn_changes_nothing(
    calls: int, sampler: str, whole: dict[str, list[Trial]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, sampler=sampler)
    draw, left = tuning_search._suggest, [calls]

    def killed(*args: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        draw(*args)

    monkeypatch.setattr(tuning_search, "_suggest", killed)
    with pytest.raises(KeyboardInterrupt):
        finished(folder / "a.db", settings=settings)
    monkeypatch.undo()
    assert finished(folder / "a.db", settings=settings) == whole[sampler]


def test_a_search_that_is_over_asks_for_nothing_and_can_be_given_more(
    whole: dict[str, list[Trial]], folder: Path
) -> None:
    first = finished(folder / "a.db", settings=replace(SETTINGS, trials=6))
    assert finished(folder / "a.db", settings=replace(SETTINGS, trials=6)) == first
    more = finished(folder / "a.db")
    assert more[:6] == first
    assert more == whole["nsga3"]


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"seed": 4}, ["seed: 3 there, 4 now"]),
        ({"sampler": "tpe"}, ["sampler: 'nsga3' there, 'tpe' now"]),
        ({"training": {"epochs": 6}}, ["training.epochs: 5 there, 6 now"]),
        ({"fraction": 0.2}, ["fraction: 0.1 there, 0.2 now"]),
    ],
)
def test_trials_of_other_settings_are_not_mixed(
    changed: dict[str, Any], parts: list[str], memory: Path, whole: object
) -> None:
    with pytest.raises(InputError) as error:
        finished(memory / "nsga3.db", settings=replace(SETTINGS, **changed))
    assert all(part in str(error.value) for part in ("the trials of ngp", *parts, "they are not mixed"))


def test_other_ranges_starts_and_data_are_other_settings(memory: Path, whole: object) -> None:
    file = memory / "nsga3.db"
    with pytest.raises(InputError, match=r"space\.method\.lr\.high: 0\.1 there, 0\.2 now"):
        finished(file, TunedArm(BASE.start, {**METHOD, "method.lr": Span(1e-5, 0.2, log=True)}))
    with pytest.raises(InputError, match=r"start\.method_settings\.alpha: 0\.9 there, 0\.8 now"):
        finished(file, TunedArm(Arm("ngp", {**BASE.start.method_settings, "alpha": 0.8}), METHOD))
    with storage_at(file) as storage, pytest.raises(InputError, match="data: 'd' there, 'e' now"):
        Search(storage, BASE, SETTINGS, about={"data": "e"})


def test_fewer_trials_than_were_begun_are_refused(memory: Path, whole: object) -> None:
    with pytest.raises(InputError, match="8 trials of ngp were begun and 7 asked for; give --trials 8 or more"):
        finished(memory / "nsga3.db", settings=replace(SETTINGS, trials=7))


def test_a_file_that_holds_no_trials_is_refused_and_one_for_its_owner_is_made(folder: Path) -> None:
    (folder / "a.db").write_text("not a database, but long enough to have a header" * 4)
    with pytest.raises(DataError, match=r"a\.db is no file of trials .*delete it to search anew"):
        finished(folder / "a.db")
    finished(folder / "b ?#%.db", settings=replace(SETTINGS, trials=1))
    assert (folder / "b ?#%.db").stat().st_mode & 0o777 == 0o600


def test_without_optuna_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"needs the extra `tune` .*pip install 'warp-unlearning\[tune\]'"):
        finished(folder / "a.db")
