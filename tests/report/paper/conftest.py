"""Results of studies made of simulated audits, and of rows as the benchmarks write them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

Results = dict[str, Any]
Make = Callable[..., Results]
BASE: Results = {
    "schema_version": 1,
    "kind": "study",
    "hardware": {"device": "one card", "cores": 2},
    "commands": ["warp reproduce NAME --shadows 12"],
}


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
def study(data: Results) -> Make:
    """A study of the simulated arms, or of others."""

    def make(name: str, arms: list[Any] | None = None, **extra: Any) -> Results:
        found = data["arms"] if arms is None else arms
        return {**deepcopy(BASE), "study": name, "audited": data["audited"], "arms": deepcopy(found), **extra}

    return make


@pytest.fixture
def arm(data: Results) -> Callable[..., dict[str, Any]]:
    """One simulated arm, under another name or with other contents where these are given."""

    def find(method: str, defense: str | None = None, /, **changes: Any) -> dict[str, Any]:
        found = next(a for a in data["arms"] if (a["method"], a["defense"]) == (method, defense))
        return {**deepcopy(found), **changes}

    return find


@pytest.fixture
def every_study(study: Make, arm: Callable[..., dict[str, Any]]) -> dict[str, Results]:
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
