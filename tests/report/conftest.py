"""Results files with simulated scores and real statistics, the reports made of them, and results of studies."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warp_unlearning.report.page import Report, make_report
from warp_unlearning.report.read import Results
from warp_unlearning.report.read import read as read_results

Make = Callable[..., dict[str, Any]]
BASE: dict[str, Any] = {
    "schema_version": 1,
    "kind": "study",
    "hardware": {"device": "one card", "cores": 2},
    "commands": ["warp reproduce NAME --shadows 12"],
}
HOSTILE = "<script>alert(1)</script>$\\frac{\"'&\x00\x1b\u202e\ud800]]>--> 日本"


def _load(name: str) -> Any:
    spec = spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def _shadow_data() -> dict[str, Any]:
    found: dict[str, Any] = _load("sample_results").shadow_sample(defenses=(None, "warp"))
    return found


@pytest.fixture
def data(_shadow_data: dict[str, Any]) -> dict[str, Any]:
    """The results of a shadow audit, to be changed at will."""
    return deepcopy(_shadow_data)


@pytest.fixture(scope="session")
def _pair_data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("pair_0.1.json").read_text())
    return found


@pytest.fixture(scope="session")
def judged_pair() -> dict[str, Any]:
    """The results of a pair audit as this version writes them."""
    found: dict[str, Any] = _load("sample_pair").pair_sample()
    return found


@pytest.fixture
def pair_data(_pair_data: dict[str, Any]) -> dict[str, Any]:
    """The results of a pair audit of version 0.1, to be changed at will."""
    return deepcopy(_pair_data)


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Write data as a results file and read it back."""

    def write_and_read(found: Any) -> Results:
        path = tmp_path / "results.json"
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        return read_results(path)

    return write_and_read


@pytest.fixture(scope="session")
def results(_shadow_data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Results:
    path = tmp_path_factory.mktemp("results") / "results.json"
    path.write_text(json.dumps(_shadow_data))
    return read_results(path)


@pytest.fixture(scope="session")
def report(results: Results) -> Report:
    return make_report(results)


@pytest.fixture(scope="session")
def hostile(_shadow_data: dict[str, Any]) -> dict[str, Any]:
    """Every text from outside is hostile, and much is missing."""
    found = deepcopy(_shadow_data)
    found["arms"] = found["arms"][:2]
    for arm in found["arms"]:
        arm |= {"name": HOSTILE, "method": HOSTILE, "complete": False, "missing": 3, "gradient_test": None}
        arm["settings"] = {HOSTILE: HOSTILE}
        arm["strongest"]["attack"] = HOSTILE
        arm["all"]["notes"] = [HOSTILE]
        arm["slices"] = {HOSTILE: arm["slices"]["most memorised 5 %"]}
    found["arms"][1]["defense"] = HOSTILE
    found["arms"][1]["reduction"] = {"auc": None, "tpr_at_1": None, "note": HOSTILE}
    found["audited"] |= {"data": HOSTILE, "model": HOSTILE, "classes": [HOSTILE, "x" * 3000]}
    found["stages"][0]["name"] = HOSTILE
    found["failures"] = [{"job": HOSTILE, "reason": "/folder" * 300}]
    found |= {key: [HOSTILE] for key in ("threat", "notes", "not_tested")}
    found |= {key: {HOSTILE: HOSTILE} for key in ("digests", "versions", "hardware")}
    found |= {"configuration": {HOSTILE: {HOSTILE: [HOSTILE]}}, "date": HOSTILE}
    return found


@pytest.fixture(scope="session")
def hostile_report(hostile: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("hostile") / "results.json"
    path.write_text(json.dumps(hostile))
    return make_report(read_results(path))


def swept(arm: dict[str, Any], **values: float) -> dict[str, Any]:
    """The arm as one of a sweep."""
    return {**deepcopy(arm), "swept": values}


def estimate(value: float, reach: float | None = 0.01) -> dict[str, float | None]:
    ends = (None, None) if reach is None else (value - reach, value + reach)
    return {"value": value, "low": ends[0], "high": ends[1]}


def image_row(attack: str, arm: str | None, quality: float, *, images: int = 8, **extra: float) -> dict[str, Any]:
    """A row with made-up scores around `quality`."""
    wobble = np.linspace(-1, 1, images)
    per_image = {
        "psnr": (quality + wobble).tolist(),
        "ssim": (0.1 + 0.01 * wobble).tolist(),
        "mse": (10 ** (-(quality + wobble) / 10)).tolist(),
        "feature_mse": (60 - 3 * quality + wobble).tolist(),
    }
    share = {"value": 0.8, "low": 0.7, "high": 0.9}
    row = {
        "attack": attack,
        "scores": {"images": images, "level": 0.95, "per_image": per_image, "summary": {}},
        "beyond": {"outcome": "does not hold", "identification": {"share": share}},
        "psnr": per_image["psnr"],
        **extra,
    }
    return row if arm is None else {**row, "arm": arm}


@pytest.fixture
def study(data: dict[str, Any]) -> Make:
    """A study of the simulated arms, or of others."""

    def make(name: str, arms: list[Any] | None = None, **extra: Any) -> dict[str, Any]:
        found = data["arms"] if arms is None else arms
        return {**deepcopy(BASE), "study": name, "audited": data["audited"], "arms": deepcopy(found), **extra}

    return make


@pytest.fixture
def arm(data: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """One simulated arm, under another name or with other contents where these are given."""

    def find(method: str, defense: str | None = None, /, **changes: Any) -> dict[str, Any]:
        found = next(a for a in data["arms"] if (a["method"], a["defense"]) == (method, defense))
        return {**deepcopy(found), **changes}

    return find


@pytest.fixture
def every_study(study: Make, arm: Callable[..., dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Results of every study."""
    ngp, warp, fast = arm("ngp"), arm("ngp", "warp"), arm("ngp", "warp", defense="fastwarp")
    noisy = [swept(arm("ngp", method="langevin"), epsilon=e) for e in (1, 4, 8, 16)]
    sweep = [swept(warp, energy=e) for e in (0.95, 0.99, 0.999)] + [swept(warp, batch_size=b) for b in (256, 4096)]
    times = {None: 30.0, "warp": 55.0, "fastwarp": 35.0}
    rows = [
        {"method": m, "defense": d, "seconds": estimate(s, 0.5), "runs": 5}
        for m in ("ngp", "bad_teacher")
        for d, s in times.items()
    ]
    images = [image_row(a, d, q) for a, q in (("inversion", 14.0), ("filtered", 9.0)) for d in ("none", "cob")]
    images += [image_row("generative", "none", 18.0), image_row("canonical", "cob", 14.0)]
    images.append({"attack": "joint", "arm": "cob", "failed": "InputError: no"})
    fits = [image_row("adaptive", None, 8 + s - w, sigma=s, spread=w) for w in (0.1, 0.8) for s in (0.0, 0.8)] + [
        image_row(a, None, 7.0, spread=w) for w in (0.1, 0.8) for a in ("inversion", "canonical")
    ]
    return {
        **{name: study(name) for name in ("table1", "whitebox", "radar", "risk-vs-norm")},
        "langevin": study("langevin", [*noisy, warp]),
        "tradeoff": study("tradeoff", [swept(a, lr=r) for a in (ngp, warp) for r in (0.1, 0.2)]),
        "fastwarp": study("fastwarp", [ngp, warp, fast]),
        "sensitivity": study("sensitivity", sweep),
        "runtime": {**deepcopy(BASE), "study": "runtime", "rows": rows},
        "reconstruction": {**deepcopy(BASE), "study": "reconstruction", "rows": images},
        "adaptive": {**deepcopy(BASE), "study": "adaptive", "rows": fits},
    }
