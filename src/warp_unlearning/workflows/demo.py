"""The demo: one network on digits, one class to forget, every method, alone and defended, and the retrained model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..config.resolve import resolve
from ..data.split_folder import load_split
from ..methods.recipes import SMALL_DATA
from ..runs.cores import available_cores, use_threads
from ..runs.workers import run_all
from ..stats.intervals import Estimate
from ..unlearning.judge import compare
from .defense import forget_energy
from .demo_defenses import SHOWN, DefendedRow, Times, defended_name, defended_rows
from .source import load_source
from .train import TrainRequest, train_run
from .unlearn import UnlearnRequest, unlearn_run

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
    metrics = train_run(TrainRequest(resolve(overrides=[f"seed={seed}", "device=cpu"]), folder / "original"))
    say(
        f"test accuracy {metrics['accuracy']['test']:.3f}; forgetting the digit {label} by {', '.join(SMALL_DATA)}, "
        f"alone and defended by {', '.join(SHOWN)}, and retraining without it, twice ..."
    )
    requests = _requests(folder, seed, label)
    times = dict(zip(requests, run_all(_times, list(requests.values())), strict=True))
    return _compared(folder, times, label)


def _requests(folder: Path, seed: int, label: int) -> dict[str, UnlearnRequest]:
    # The first job of a worker also loads what torch loads late, so that none whose time is compared should be first.
    requests = {
        "retrain": _request(folder, "retrain", "retrain", seed, label),
        AGAIN: _request(folder, AGAIN, "retrain", seed + 1, label),
    }
    requests |= {name: _request(folder, name, name, seed, label) for name in SMALL_DATA}
    for defense in SHOWN:
        settings = f"defense.name={defense}", f"defense.seed={seed}"
        for method in SMALL_DATA:
            name = defended_name(method, defense)
            requests[name] = _request(folder, name, method, seed, label, *settings)
    return requests


def _request(folder: Path, name: str, method: str, seed: int, label: int, *more: str) -> UnlearnRequest:
    settings = (f"seed={seed}", f"forget.label={label}", f"method.name={method}", *more)
    return UnlearnRequest(folder / "original", folder / name, overrides=settings)


def _times(request: UnlearnRequest) -> Times:
    summary = unlearn_run(request).summary
    return Times(float(summary["seconds"]), float(summary["cpu_seconds"]))


def _compared(folder: Path, times: Mapping[str, Times], label: int) -> DemoResult:
    original = load_source(folder / "original")
    retrained = load_source(folder / "retrain").model
    split = load_split(folder / "retrain" / "split")
    forget, retain = (original.data.train.select(torch.from_numpy(i)) for i in (split.forget, split.retain))
    others = original.data.test.select((original.data.test.y != label).nonzero().flatten())
    rows: dict[str, DemoRow] = {}
    counts: Mapping[str, int] = {}
    for name in (AGAIN, *SMALL_DATA):
        model = load_source(folder / name).model
        result = compare(original.model, model, retrained=retrained, forget=forget, retain=retain, test=others)
        counts = result.counts
        if not rows:
            rows["original"] = DemoRow(result.models["original"].accuracy, result.gaps["original"].forget_output, None)
            rows["retrained"] = DemoRow(result.models["retrained"].accuracy, None, times["retrain"].seconds)
        scores, gap = result.models["unlearned"], result.gaps["unlearned"]
        rows[name] = DemoRow(scores.accuracy, gap.forget_output, times[name].seconds)
    sets = {"forget": forget, "retain": retain, "test": others}
    defended = defended_rows(folder, list(SMALL_DATA), times, original.model, sets)
    return DemoResult(label, counts, rows, defended, forget_energy(original.model, forget))
