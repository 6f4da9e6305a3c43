"""The demo: one network on digits, one class to forget, every method, alone and defended, and the retrained model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..cli.options import Options
from ..cli.request import unlearn_run
from ..cli.subject import load_run
from ..cli.train import train_run
from ..config import resolve
from ..data.examples import as_tensors
from ..data.table import FORGET, RETAIN, TEST
from ..methods.registry import SMALL_DATA
from ..runs.local import available_cores, run_all, use_threads
from ..stats.intervals import Estimate
from ..training.scoring import mean_energy
from ..unlearning.judge import compare
from .demo_defenses import SHOWN, DefendedRow, Times, defended_name, defended_rows

# Two models retrained from different seeds differ too; no method need come closer than that.
AGAIN = "retrained again"


@dataclass(frozen=True)
class DemoRow:
    """One model: accuracy on each set, output distance to the retrained model, and the seconds its unlearning took."""

    accuracy: Mapping[str, Estimate]
    gap: Estimate | None
    seconds: float | None


@dataclass(frozen=True)
class DemoResult:
    """The forgotten class, the sizes of the sets, a row a model, a row for each method and defence, and the forget
    gradient energy of the original. The defences drew from a fixed seed, so they are for experiments only.
    """

    label: int
    counts: Mapping[str, int]
    rows: Mapping[str, DemoRow]
    defended: Mapping[str, Mapping[str, DefendedRow]]
    original_energy: float | None

    @property
    def floor(self) -> str:
        """The row of a second retrained model, whose gap is what chance alone makes."""
        return AGAIN

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the version of its form."""
        return {"schema_version": 1, "experiment_only": True, **asdict(self)}


def run_demo(folder: Path, *, seed: int, say: Callable[[str], None], label: int = 3) -> DemoResult:
    """Train, unlearn by every method and retrain, on all cores, into run directories below `folder`; then compare."""
    use_threads(available_cores())
    say("training a small residual network on scikit-learn's digits ...")
    config = resolve(overrides=[f"seed={seed}", "device=cpu", "validation=0.1"])
    results = train_run(config, folder / "original")
    say(
        f"test accuracy {results['accuracy']['test']:.3f}; forgetting the digit {label} by {', '.join(SMALL_DATA)}, "
        f"alone and defended by {', '.join(SHOWN)}, and retraining without it, twice ..."
    )
    jobs = _jobs(seed, label)
    done = run_all(partial(_times, folder), [(name, settings) for name, settings in jobs.items()])
    return _compared(folder, dict(zip(jobs, done, strict=True)), label)


def _jobs(seed: int, label: int) -> dict[str, dict[str, Any]]:
    """The settings of every unlearning, by name."""

    def job(method: str, seed: int = seed, **more: object) -> dict[str, Any]:
        return {"seed": seed, "forget__label": str(label), "method__name": method, **more}

    # The first job of a worker also loads what torch loads late, so that none whose time is compared should be first.
    jobs = {"retrain": job("retrain"), AGAIN: job("retrain", seed + 1)}
    jobs |= {name: job(name) for name in SMALL_DATA}
    for defense in SHOWN:
        for method in SMALL_DATA:
            jobs[defended_name(method, defense)] = job(method, defense__name=defense, defense__seed=seed)
    return jobs


def _times(folder: Path, job: tuple[str, dict[str, Any]]) -> Times:
    name, settings = job
    options = Options(seed=settings.pop("seed"))
    results = unlearn_run(folder / "original", folder / name, options=options, watch=lambda update: None, **settings)
    assert results is not None
    return Times(results.seconds, results.cpu_seconds)


def _compared(folder: Path, times: Mapping[str, Times], label: int) -> DemoResult:
    original, reference = load_run(folder / "original"), load_run(folder / "retrain")
    retrained, rows = reference.model, reference.parts.rows
    test = rows(TEST)
    forget, retain = as_tensors(original.examples(rows(FORGET))), as_tensors(original.examples(rows(RETAIN)))
    others = as_tensors(original.examples(test[original.table.y[test] != label]))
    found: dict[str, DemoRow] = {}
    counts: Mapping[str, int] = {}
    for name in (AGAIN, *SMALL_DATA):
        model = load_run(folder / name).model
        result = compare(original.model, model, retrained=retrained, forget=forget, retain=retain, test=others)
        counts = result.counts
        if not found:
            found["original"] = DemoRow(result.models["original"].accuracy, result.gaps["original"].forget_output, None)
            found["retrained"] = DemoRow(result.models["retrained"].accuracy, None, times["retrain"].seconds)
        scores, gap = result.models["unlearned"], result.gaps["unlearned"]
        found[name] = DemoRow(scores.accuracy, gap.forget_output, times[name].seconds)
    sets = {"forget": forget, "retain": retain, "test": others}
    defended = defended_rows(folder, list(SMALL_DATA), times, original.model, sets)
    return DemoResult(label, counts, found, defended, mean_energy(original.model, forget))
