"""A search of WARP's settings that is alike for every arm.

    python benchmarks/defense_search.py --size paper --data CIFAR --store STORE --out DIR --processes 10 --at-once 2

Every method, at its own settings, is tried with the same `--draws` random settings of the printed WARP (length of a
step, energy, dispersion; after each epoch or once at the end), with as many of the guarded one, and with the defaults
of both, or of those of the two that `--defenses` names. The shadows are none that a study has. Points that studies
audit are trained on, but neither forgotten nor measured, and the test images are not used. Everything is tried on the
first forget set of the first shadow. Of each arm `--finalists` draws and the defaults go on to the other forget sets.

The attacker knows which way to look: he ranks a shadow's forgotten points and points that it never saw by their
margins (the logit of the label's confidence), turned around where the area under the curve is below one half. Chosen
is the least area at an accuracy on points never seen of at most one point below that of the method alone.

What the second round tries is decided by its jobs, from results of the first, so that both are one run. It can be
stopped and called again. At its end DIR has all rows of the methods of which everything was tried (`search.json`), a
table (`table.md`), and the settings that were chosen as `warp reproduce --defense-options` takes them (`chosen.json`);
with `--minutes 0` they are made from what is in the store.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import torch

from warp_unlearning.data.files import array_digest, to_json
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.data.table import Index
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.errors import DivergedError, WarpError
from warp_unlearning.gpu.precision import lay_out
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.registry import make_method
from warp_unlearning.models.networks import build_model, suggest_options
from warp_unlearning.randomness import Streams
from warp_unlearning.runs.jobs import Job, NoRoom, Steps, Unfit
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.store import Store
from warp_unlearning.stats.intervals import mean
from warp_unlearning.stats.roc import roc
from warp_unlearning.studies.cell_plan import plan_cells
from warp_unlearning.studies.cell_settings import CellSettings, StudyArm
from warp_unlearning.studies.cell_work import WEIGHTS, teleports_made
from warp_unlearning.studies.gpu_trouble import gpu_trouble
from warp_unlearning.studies.quietly import quietly
from warp_unlearning.studies.stored import weight_bytes, weights_of
from warp_unlearning.studies.study import SIX, SIZES, Asked, study_arm, study_settings
from warp_unlearning.studies.tuning_design import TuningShadow, tuning_design
from warp_unlearning.studies.workplace import Workplace
from warp_unlearning.training.scoring import logit_confidence, logits
from warp_unlearning.training.training import Recipe, Training, training_steps
from warp_unlearning.unlearning.driver import drive, working_copy
from warp_unlearning.workflows.engines import choose_study_engine

ABOUT = "about.json"
SEARCHED = ("warp", "warp_guarded")
SLACK = 0.01
"""How much of the accuracy of the method alone a choice may cost."""
TRAINED, TRIAL, FINAL = "search-train", "search-trial", "search-final"


def drawn_settings(count: int, seed: int) -> list[dict[str, Any]]:
    """Settings drawn at random, each number from `count` equal parts of its range once (a Latin hypercube)."""
    generator = np.random.default_rng(Streams(seed, "defense search").number("settings"))

    def spread(low: float, high: float) -> list[float]:
        """Evenly in the logarithm."""
        parts = (generator.permutation(count) + generator.random(count)) / count
        return [float(value) for value in low * (high / low) ** parts]

    lengths, left, pulls = spread(0.005, 0.5), spread(0.001, 0.05), spread(0.01, 1.0)
    times = generator.permutation((["epoch", "end"] * count)[:count])
    return [
        {"step_size": length, "energy": 1 - rest, "dispersion": pull, "every": str(when)}
        for length, rest, pull, when in zip(lengths, left, pulls, times, strict=True)
    ]


@dataclass(frozen=True)
class Asking:
    """What a search is asked: the size, the methods, how many settings are drawn and how many of them go on, on how
    many shadows with how many forget sets. `audited`: points that the study audits, if not as many as its size says.
    """

    size: str
    data: Path | None
    device: str
    methods: tuple[str, ...] = SIX
    draws: int = 12
    finalists: int = 4
    shadows: int = 2
    forget_sets: int = 2
    seed: int = 0
    audited: int | None = None
    defenses: tuple[str, ...] = SEARCHED
    epochs: int | None = None

    def asked(self, settings: Mapping[str, Mapping[str, Any]] | None = None) -> Asked:
        """What is asked of `table1`, with these settings of "method + defence"."""
        return Asked(
            methods=self.methods,
            device=self.device,
            data_path=self.data,
            seed=self.seed,
            epochs=self.epochs,
            defense_options=settings or {},
        )

    def arm(self, method: str, defense: str | None, settings: Mapping[str, Any] | None = None) -> StudyArm:
        """An arm of `table1` with these settings of its defence."""
        options = {} if settings is None else {f"{method} + {defense}": settings}
        return study_arm(self.asked(options), SIZES[self.size], method, defense)

    def settings_for(self, method: str, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Drawn settings as this method takes them: an epoch of pgu is one of the study."""
        often = SIZES[self.size].every.get(method)
        return {**drawn, **({"every": often} if drawn["every"] == "epoch" and often else {})}


@dataclass(frozen=True)
class Trial:
    """One model of a search: one forget set of one shadow, by a method alone or with a defence at its defaults (draw
    −1), at one of the drawn settings, or, in the second round, at the `rank`-th of the first.
    """

    method: str
    defense: str | None
    draw: int
    shadow: int
    part: int
    rank: int | None = None


@dataclass(frozen=True, eq=False)
class SearchPlan:
    """The jobs of a search, and what the digest of each key stands for."""

    asking: Asking
    study: CellSettings
    design: tuple[TuningShadow, ...]
    drawn: tuple[dict[str, Any], ...]
    jobs: tuple[Job, ...] = ()
    tasks: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, trial: Trial, *, draw: int | None = None) -> dict[str, Any] | None:
        """Those of the trial's defence; None are the defaults."""
        draw = trial.draw if draw is None else draw
        return None if draw < 0 else self.asking.settings_for(trial.method, self.drawn[draw])

    @cached_property
    def keys(self) -> dict[Any, Key]:
        """The key of every task."""
        return {task: job.key for job in self.jobs if (task := self.tasks.get(job.key.digest)) is not None}


def first_round(plan: SearchPlan, method: str, defense: str) -> list[Trial]:
    """The defaults and every draw, on the first forget set of the first shadow."""
    return [Trial(method, defense, draw, 0, 0) for draw in range(-1, len(plan.drawn))]


def second_round(plan: SearchPlan, method: str, defense: str) -> list[Trial]:
    """The defaults and the best draws of the first round, on all other forget sets."""
    return [
        Trial(method, defense, -1, *unit, rank)
        for unit in other_units(plan)
        for rank in (None, *range(plan.asking.finalists))
    ]


def other_units(plan: SearchPlan) -> list[tuple[int, int]]:
    """Forget sets that the second round has."""
    asking = plan.asking
    return [(s, p) for s in range(asking.shadows) for p in range(asking.forget_sets)][1:]


def plan_search(asking: Asking) -> SearchPlan:
    """Everything that is to be done, in the order in which it is worth it."""
    settings = study_settings("table1", asking.size, asking.asked())
    if asking.audited is not None:
        settings = replace(settings, audited=asking.audited)
    data = load_data(**settings.data)
    cells = plan_cells(settings, data, defense_seed=0)
    design = tuning_design(
        len(data.train),
        shadows=asking.shadows,
        forget_sets=asking.forget_sets,
        fraction=1 / settings.parts,
        seed=asking.seed,
        audited=cells.division.audited,
    )
    plan = SearchPlan(asking, settings, design, tuple(drawn_settings(asking.draws, asking.seed)))
    tasks: dict[str, Any] = {}
    jobs: list[Job] = []

    def add(kind: str, task: Any, ingredients: Mapping[str, Any], needs: Sequence[Key], cost: float, order: int) -> Key:
        found = to_json({**ingredients, "needs": [need.digest for need in needs]})
        key = Key(kind, 1, found)
        tasks[key.digest] = task
        jobs.append(Job(key, tuple(needs), cost, order))
        return key

    trained: list[Key] = []
    for shadow in design:
        about = {
            "data": data.digest,
            "network": {"name": settings.network, "options": settings.network_options},
            "recipe": settings.training,
            "trained": array_digest(shadow.trained),
            "seed": asking.seed,
            "shadow": shadow.number,
            "device": settings.device.partition(":")[0],
        }
        trained.append(add(TRAINED, ("train", len(trained)), about, (), 100.0, -2))

    def trial(found: Trial, needs: Sequence[Key], order: int) -> Key:
        shadow = design[found.shadow]
        arm = asking.arm(found.method, found.defense, plan.settings(found))
        about = {
            "forget": array_digest(shadow.forget[found.part]),
            "held out": array_digest(shadow.held_out),
            "validation": array_digest(shadow.validation),
            "arm": arm.ingredients,
            "rank": found.rank,
            "seed": asking.seed,
        }
        kind = TRIAL if found.rank is None else FINAL
        cost = COSTS[found.method] * (1 if found.defense is None else 2)
        return add(kind, found, about, (trained[found.shadow], *needs), cost, order)

    for method in asking.methods:
        alone = [trial(Trial(method, None, -1, *unit), (), -1) for unit in ((0, 0), *other_units(plan))]
        for defense in asking.defenses:
            first = [trial(t, (), -1) for t in first_round(plan, method, defense)]
            for later in second_round(plan, method, defense):
                trial(later, () if later.rank is None else (alone[0], *first), 0)
    return replace(plan, jobs=tuple({job.key: job for job in jobs}.values()), tasks=tasks)


# Milliseconds of GPU time a model, from the updates of each method; only their order counts.
COSTS = {"ngp": 0.4, "scrub": 0.8, "salun": 1.2, "pgu": 2.5, "bad_teacher": 0.2, "srf_on": 1.7}


@dataclass(frozen=True, eq=False)
class SearchWork:
    """Does the jobs of a plan; it can be sent to other processes, where the data are loaded once."""

    plan: SearchPlan
    place: Workplace
    originals: dict[int, torch.nn.Module] = field(default_factory=dict)

    def __call__(self, job: Job, store: Store) -> Steps:
        """An update at a time."""
        task = self.plan.tasks[job.key.digest]
        self.place.tidy()
        with gpu_trouble(str(task)):
            if isinstance(task, Trial):
                return (yield from self._trial(task, store))
            return (yield from self._train(task[1]))

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "place": self.place, "originals": {}}

    def _network(self, streams: Streams) -> torch.nn.Module:
        settings, data = self.plan.study, self.place.data
        options = {**suggest_options(settings.network, data.shape, len(data.classes)), **settings.network_options}
        return build_model(settings.network, generator=streams.generator("weights"), **options)

    def _train(self, index: int) -> Steps:
        settings, shadow = self.plan.study, self.plan.design[index]
        streams = Streams(settings.seed, "defense search", shadow.number)
        training = Training(
            self._network(streams).to(self.place.device),
            self.place.points(shadow.trained),
            recipe=Recipe(**settings.training),
            streams=streams,
            fill=self.place.data.fill,
            compute=self.place.compute(settings.training.get("precision", "auto")),
        )
        yield from training_steps(training)
        return {WEIGHTS: weight_bytes(training.model.state_dict())}

    def _trial(self, trial: Trial, store: Store) -> Steps:
        draw = trial.draw
        if trial.rank is not None:
            draw = ranked_draws(self.plan, store, trial.method, str(trial.defense))[trial.rank]
        arm = self.plan.asking.arm(trial.method, trial.defense, self.plan.settings(trial, draw=draw))
        about: dict[str, Any] = {"draw": draw}
        try:
            found = yield from self._measured(trial, arm, store)
        except (NoRoom, Unfit):
            raise
        except (WarpError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            found = {"failed": f"{type(error).__name__}: {error}"}
        return {ABOUT: json.dumps(about | found, sort_keys=True).encode()}

    def _measured(self, trial: Trial, arm: StudyArm, store: Store) -> Generator[object, None, dict[str, Any]]:
        shadow, place = self.plan.design[trial.shadow], self.place
        original = self._original(trial.shadow, store)
        model = working_copy(original, place.device)
        forget = place.points(shadow.forget[trial.part])
        streams = Streams(self.plan.asking.seed, "defense search", shadow.number, trial.part)
        task = Task(
            forget,
            place.points(shadow.retained(trial.part)),
            place.points(shadow.validation),
            working_copy(original, place.device).requires_grad_(False).eval(),
            len(place.data.classes),
            streams,
            place.compute(),
        )
        driven = yield from quietly(
            drive(
                model,
                task,
                make_method(arm.method, **arm.method_settings),
                defense=None if arm.defense is None else make_defense(arm.defense, **arm.defense_settings),
                secret=Streams.secret(streams.number("secret")),
                interval=100,
            )
        )
        model.eval()
        parts = {"forget": shadow.forget[trial.part], "held out": shadow.held_out}
        margins, accuracy = {}, {}
        for name, index in parts.items():
            margins[name], accuracy[name] = self._margins(model, index)
        return {
            "auc": roc(margins["forget"], margins["held out"]).auc,
            "accuracy": accuracy,
            "updates": len(driven.history),
            "teleports": teleports_made(driven),
        }

    def _margins(self, model: torch.nn.Module, index: Index) -> tuple[Any, float]:
        points = self.place.points(index)
        output, labels = logits(model, points).double().cpu().numpy(), points.y.cpu().numpy()
        if not np.isfinite(output).all():
            raise DivergedError("the outputs of the unlearned model are not finite", state={}, update=0)
        return logit_confidence(output, labels), float((output.argmax(1) == labels).mean())

    def _original(self, index: int, store: Store) -> torch.nn.Module:
        if index not in self.originals:
            model = self._network(Streams(0, "any"))
            model.load_state_dict(weights_of(store.read(self.plan.keys["train", index]).read(WEIGHTS)))
            self.originals[index] = lay_out(model.to(self.place.device)).eval()
            self.place.share()
        return self.originals[index]


def _about(plan: SearchPlan, store: Store, trial: Trial) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.read(plan.keys[trial]).read(ABOUT))
    return found


def advantage(found: Mapping[str, Any]) -> float:
    """How far from one half the area is, whichever way the attacker looks; infinite where there is no model."""
    return float("inf") if "failed" in found else abs(found["auc"] - 0.5)


def held_out(found: Mapping[str, Any]) -> float:
    """The accuracy on points never seen; −1 where there is no model."""
    return -1.0 if "failed" in found else float(found["accuracy"]["held out"])


def ranked_draws(plan: SearchPlan, store: Store, method: str, defense: str) -> list[int]:
    """The draws of an arm after the first round, best first: those accurate enough by their advantage, then the others
    by their accuracy.
    """
    least = held_out(_about(plan, store, Trial(method, None, -1, 0, 0))) - SLACK
    found = {t.draw: _about(plan, store, t) for t in first_round(plan, method, defense) if t.draw >= 0}

    def place(draw: int) -> tuple[bool, float, int]:
        accurate = held_out(found[draw]) >= least
        return not accurate, advantage(found[draw]) if accurate else -held_out(found[draw]), draw

    return sorted(found, key=place)


def finalists(plan: SearchPlan, store: Store, method: str, defense: str) -> list[dict[str, Any]]:
    """The defaults and the draws of the second round with what was found on every forget set."""
    best = ranked_draws(plan, store, method, defense)[: plan.asking.finalists]
    rows = []
    for rank, draw in [(None, -1), *enumerate(best)]:
        others = [Trial(method, defense, -1, *unit, rank) for unit in other_units(plan)]
        each = [_about(plan, store, t) for t in (Trial(method, defense, draw, 0, 0), *others)]
        rows.append({"draw": draw, "units": each})
    return rows


def chosen(plan: SearchPlan, store: Store, method: str, defense: str) -> dict[str, Any]:
    """The finalist of least mean advantage among those accurate enough; the most accurate where none is."""
    units = [(0, 0), *other_units(plan)]
    alone = np.mean([held_out(_about(plan, store, Trial(method, None, -1, *unit))) for unit in units])
    rows = finalists(plan, store, method, defense)

    def place(row: Mapping[str, Any]) -> tuple[bool, float]:
        accuracy = float(np.mean([held_out(each) for each in row["units"]]))
        accurate = accuracy >= alone - SLACK
        return not accurate, float(np.mean([advantage(each) for each in row["units"]])) if accurate else -accuracy

    return min(rows, key=place)


def searched(plan: SearchPlan, store: Store) -> list[str]:
    """The methods of which everything was tried."""
    trials = [(plan.tasks[job.key.digest], store.has(job.key)) for job in plan.jobs]
    left = {task.method for task, there in trials if isinstance(task, Trial) and not there}
    return [method for method in plan.asking.methods if method not in left]


def results(plan: SearchPlan, store: Store, out: Path) -> dict[str, Any]:
    """Write all rows, a table, and what was chosen, which is returned: settings by "method + defence"."""
    rows, best = list[dict[str, Any]](), {}
    units = [(0, 0), *other_units(plan)]
    for method in searched(plan, store):
        alone = [_about(plan, store, Trial(method, None, -1, *unit)) for unit in units]
        rows.append({"method": method, "defense": None, "settings": None, "chosen": False, "units": alone})
        for defense in plan.asking.defenses:
            draw = chosen(plan, store, method, defense)["draw"]
            found = {row["draw"]: row["units"] for row in finalists(plan, store, method, defense)}
            for trial in first_round(plan, method, defense):
                each = found.get(trial.draw, [_about(plan, store, trial)])
                settings = plan.settings(trial)
                rows.append(
                    {
                        "method": method,
                        "defense": defense,
                        "settings": settings,
                        "chosen": trial.draw == draw,
                        "units": each,
                    }
                )
            best[f"{method} + {defense}"] = plan.settings(Trial(method, defense, draw, 0, 0)) or {}
    out.mkdir(parents=True, exist_ok=True)
    about = {**vars(plan.asking), "data": plan.study.data["name"], "rows": rows}
    (out / "search.json").write_text(json.dumps(about, indent=1) + "\n")
    (out / "chosen.json").write_text(json.dumps(best, indent=1) + "\n")
    (out / "table.md").write_text(markdown(rows, len(units)))
    return best


def markdown(rows: Sequence[Mapping[str, Any]], units: int) -> str:
    """What went on to all forget sets, with means and intervals over those sets, which are few and share originals;
    then all of the first round.
    """
    heads = "attacker's advantage", "lower than alone by", "accuracy on points never seen", "area", "loss, forgotten"
    lines = ["| method | defence | settings | " + " | ".join(heads) + " | taken back | chosen |"]
    lines.append("|---" * 10 + "|")
    alone = {row["method"]: row["units"] for row in rows if row["defense"] is None}
    for row in rows:
        if len(row["units"]) == units and not any("failed" in unit for unit in row["units"]):
            below = [advantage(a) - advantage(b) for a, b in zip(alone[row["method"]], row["units"], strict=True)]
            samples = [advantage(unit) for unit in row["units"]], below, [held_out(unit) for unit in row["units"]]
            areas = (
                f"{min(unit['auc'] for unit in row['units']):.3f} to {max(unit['auc'] for unit in row['units']):.3f}"
            )
            numbers = [str(mean(sample)) for sample in samples]
            cells = [*numbers, areas, *_teleported(row["units"]), "yes" if row["chosen"] else ""]
            lines.append("| " + " | ".join([row["method"], row["defense"] or "none", _settings(row), *cells]) + " |")
    lines += ["", "First forget set of the first shadow, every setting:", ""]
    lines += ["| method | defence | settings | area | accuracy on points never seen | loss, forgotten | taken back |"]
    lines.append("|---" * 7 + "|")
    for row in rows:
        unit = row["units"][0]
        failed = [unit["failed"], ""] if "failed" in unit else [f"{unit['auc']:.3f}", f"{held_out(unit):.3f}"]
        cells = [*failed, *_teleported([unit])]
        lines.append("| " + " | ".join([row["method"], row["defense"] or "none", _settings(row), *cells]) + " |")
    return "\n".join(lines) + "\n"


def _settings(row: Mapping[str, Any]) -> str:
    if row["settings"] is None:
        return "defaults"
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row["settings"].items())


def _teleported(units: Sequence[Mapping[str, Any]]) -> list[str]:
    """The mean loss on examples to forget before and after a teleport, and how many of how many were taken back."""
    made = [unit["teleports"] for unit in units if unit.get("teleports", {}).get("count")]
    pairs = [pair for each in made for pair in each["forget_loss"] if pair is not None]
    if not pairs:
        return ["", ""]
    before, after = np.mean(pairs, axis=0)
    back, count = (sum(each[name] for each in made) for name in ("taken_back", "count"))
    return [f"{before:.3f} → {after:.3f}", f"{back} of {count}"]


def main() -> None:
    """Do what is not done yet, and write results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=list(SIZES))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=list(SIX))
    parser.add_argument("--defenses", nargs="+", default=list(SEARCHED), choices=SEARCHED)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--finalists", type=int, default=4)
    parser.add_argument("--shadows", type=int, default=2)
    parser.add_argument("--forget-sets", type=int, default=2)
    parser.add_argument("--audited", type=int, help="points that the study audits, for trials at a small size")
    parser.add_argument("--epochs", type=int, help="of the originals, for trials at a small size")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--minutes", type=float, help="after which no job is begun")
    options = parser.parse_args()
    names = "size", "data", "device", "draws", "finalists", "shadows", "forget_sets", "audited", "epochs"
    asking = Asking(
        **{name: getattr(options, name) for name in names},
        methods=tuple(options.methods),
        defenses=tuple(options.defenses),
    )
    plan, store = plan_search(asking), Store(options.store)
    engine = choose_study_engine(asking.device, at_once=options.at_once, processes=options.processes).engine
    until = None if options.minutes is None else time() + 60 * options.minutes
    work = SearchWork(plan, Workplace(plan.study.data, plan.study.device))
    outcome = engine(plan.jobs, work, store, until=until)
    for key, reason in outcome.failed.items():
        print(f"failed {key}: {reason}")
    print(f"{len(plan.jobs)} jobs, left {len(outcome.left)}, failed {len(outcome.failed)}")
    results(plan, store, options.out)
    print((options.out / "table.md").read_text())


if __name__ == "__main__":
    # Workers know this file by the name of its module.
    from defense_search import main as in_module

    in_module()
