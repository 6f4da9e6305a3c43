"""The trials of an arm in a file, asked for in rounds, so that a search can be killed at any moment and taken up again.

A round asks for as many trials as the population has, and the next starts when all of them have been told. What a trial
is depends on the trials of earlier rounds and on its number alone: every draw has a seed of its own, from the number of
the trial and the name of the setting, so that neither the number of processes nor a kill in between changes anything.
Draws do not depend on the defence: arms of one method try the same settings of it in the first round.

Optuna (extra `tune`) does the search. A trial that was asked for and not told is found again as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ..data.files import to_json
from ..errors import DataError, InputError
from ..randomness import Streams
from .tuning_objectives import NAMES, Objectives
from .tuning_settings import TunedArm, TuningSettings
from .tuning_space import Choice, Range

SAMPLERS = ("nsga3", "tpe")
_SETTINGS, _REASON = "settings", "reason"
State = Literal["open", "complete", "failed"]


@dataclass(frozen=True)
class Trial:
    """A trial as the file has it: the values of the searched settings; the objectives where it is complete, the reason
    where it failed.
    """

    number: int
    values: Mapping[str, Any]
    state: State = "open"
    objectives: Objectives | None = None
    reason: str = ""


def imported_optuna() -> Any:
    """The module, or an error that names the extra."""
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        raise InputError(
            f"tuning needs the extra `tune` ({error}); install it with pip install 'warp-unlearning[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def storage_at(file: Path) -> Iterator[Any]:
    """Optuna's storage in an SQLite file, closed at the end."""
    optuna = imported_optuna()
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import SQLAlchemyError

    # Like all files of a run, for its owner alone.
    file.touch(mode=0o600)
    url = URL.create("sqlite", database=str(file)).render_as_string()
    try:
        storage = optuna.storages.RDBStorage(url)
    except (SQLAlchemyError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file} is no file of trials ({reason}); delete it to search anew") from error
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


class Search:
    """The search of one arm in a storage; a search that is there is gone on with, if it is of the same settings."""

    def __init__(self, storage: Any, arm: TunedArm, settings: TuningSettings, *, about: Mapping[str, Any]) -> None:
        self._optuna = imported_optuna()
        self._arm, self._settings = arm, settings
        self._open: dict[int, Any] = {}
        mine = _described(arm, settings, about)
        names = self._optuna.study.get_all_study_names(storage)
        self._study = self._optuna.create_study(
            storage=storage, study_name=arm.name, directions=["minimize"] * len(NAMES), load_if_exists=True
        )
        if arm.name in names and _SETTINGS in self._study.user_attrs:
            _require_same(arm.name, self._study.user_attrs[_SETTINGS], mine)
        else:
            self._study.set_user_attr(_SETTINGS, mine)
        there = len(self.trials())
        if there > settings.trials:
            raise InputError(
                f"{there} trials of {arm.name} were begun and {settings.trials} asked for; give --trials {there} or "
                "more, or choose another --out"
            )

    def round(self) -> list[Trial]:
        """Trials to be tried next, those of before that were not told among them; none when all have been."""
        population, total = self._settings.population, self._settings.trials
        told = {trial.number for trial in self.trials() if trial.state != "open"}
        left = [number for number in range(total) if number not in told]
        if not left:
            return []
        first = left[0] // population * population
        for number in range(first, min(first + population, total)):
            self._ask(number)
        return [trial for trial in self.trials() if trial.state == "open"]

    def tell(self, number: int, found: Objectives | None, *, reason: str = "") -> None:
        """The objectives of a trial, or None and the reason where it failed."""
        trial = self._open.pop(number)
        if found is None:
            trial.set_user_attr(_REASON, reason)
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, list(found))

    def trials(self) -> list[Trial]:
        """Every trial by number."""
        return [_trial(frozen, self._optuna) for frozen in self._study.get_trials(deepcopy=False)]

    def _ask(self, number: int) -> None:
        """Have the trial `number` with all its values, whether it is there, there in part, or not there."""
        states, known = self._optuna.trial.TrialState, self._study.get_trials(deepcopy=False)
        if number == 0 and not known:
            self._study.enqueue_trial(self._arm.first())
            known = self._study.get_trials(deepcopy=False)
        if number < len(known) and known[number].state.is_finished():
            return
        self._study.sampler = self._sampler(number, "together")
        if number < len(known) and known[number].state == states.RUNNING:
            trial = self._optuna.trial.Trial(self._study, known[number]._trial_id)
        else:
            trial = self._study.ask()
        self._settle_generation(number)
        # What is drawn for all settings together, with the seed of that.
        _ = trial.relative_params
        for name, found in self._arm.space.items():
            self._study.sampler = self._sampler(number, name)
            _suggest(trial, name, found)
        self._open[number] = trial

    def _settle_generation(self, number: int) -> None:
        """Put the trial into its generation, the start too, and have the parents of that chosen and written down.

        Parents are drawn once, by whichever trial asks first. With draws of their own they leave what is drawn for that
        trial the same, whether they were written down before a kill or not.
        """
        if self._settings.sampler == "nsga3":
            drawing, frozen = self._sampler(number, "parents"), self._study.get_trials(deepcopy=False)[number]
            drawing.get_parent_population(self._study, drawing.get_trial_generation(self._study, frozen))

    def _sampler(self, number: int, what: str) -> Any:
        streams = Streams(self._settings.seed, "tuning", self._arm.start.method)
        seed = streams.number("sampler", number, what) % 2**32
        samplers = self._optuna.samplers
        with warnings.catch_warnings():
            # Of a sampler that Optuna calls experimental.
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            if self._settings.sampler == "tpe":
                return samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=self._settings.population)
            return samplers.NSGAIIISampler(seed=seed, population_size=self._settings.population)


def _suggest(trial: Any, name: str, found: Range) -> None:
    if isinstance(found, Choice):
        trial.suggest_categorical(name, list(found.values))
    elif found.whole:
        trial.suggest_int(name, int(found.low), int(found.high), log=found.log)
    else:
        trial.suggest_float(name, found.low, found.high, log=found.log)


def _trial(frozen: Any, optuna: Any) -> Trial:
    states = optuna.trial.TrialState
    state: State = {states.COMPLETE: "complete", states.FAIL: "failed"}.get(frozen.state, "open")  # type: ignore[assignment]
    found = tuple(frozen.values) if state == "complete" else None
    return Trial(frozen.number, dict(frozen.params), state, found, frozen.user_attrs.get(_REASON, ""))


def _described(arm: TunedArm, settings: TuningSettings, about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides the trials of an arm but how many there are to be."""
    space = {name: {"kind": type(found).__name__.lower(), **asdict(found)} for name, found in arm.space.items()}
    found: dict[str, Any] = to_json(
        {
            **about,
            "start": arm.start.ingredients,
            "space": space,
            "network": settings.network,
            "network_options": settings.network_options,
            "training": settings.training,
            "sampler": settings.sampler,
            "population": settings.population,
            "shadows": settings.shadows,
            "forget_sets": settings.forget_sets,
            "fraction": settings.fraction,
            "seed": settings.seed,
        }
    )
    return found


def _require_same(name: str, there: Any, now: Any) -> None:
    different = list(_differences(there, now))
    if different:
        raise InputError(
            f"the trials of {name} in this file are of other settings ({'; '.join(different[:4])}); they are not "
            "mixed: choose another --out, or delete the file"
        )


def _differences(there: Any, now: Any, where: str = "") -> Iterator[str]:
    if isinstance(there, Mapping) and isinstance(now, Mapping):
        for key in sorted({*there, *now}):
            yield from _differences(there.get(key), now.get(key), f"{where}.{key}" if where else key)
    elif there != now:
        yield f"{where}: {there!r} there, {now!r} now"
