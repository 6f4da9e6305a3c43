"""A small shadow audit that was carried out, job by job in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warp_unlearning.config import ShadowConfig, resolve_as
from warp_unlearning.runs.drain import Outcome, Watch
from warp_unlearning.runs.jobs import Job, Work, finished
from warp_unlearning.runs.store import Store
from warp_unlearning.workflows.audit_shadow import Prepared, ShadowRequest, carry_out, prepare_shadows


class Serial:
    """An engine without processes."""

    def __call__(
        self, jobs: Sequence[Job], work: Work, store: Store, *, watch: Watch | None = None, until: float | None = None
    ) -> Outcome:
        done = []
        for job in jobs:
            if not store.has(job.key):
                store.write(job.key, finished(work(job, store)), seconds=0.5)
                done.append(job.key)
        return Outcome(tuple(done), (), {}, ())


@dataclass(frozen=True)
class Carried:
    prepared: Prepared
    results: dict[str, Any]


@pytest.fixture(scope="session")
def serial() -> Serial:
    return Serial()


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 points in 6 dimensions around 3 centres, a fifth with another label, 40 of them a test part."""
    generator = np.random.default_rng(0)
    y = np.arange(160) % 3
    x = (generator.normal(size=(160, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32)
    y = np.where(generator.random(160) < 0.2, (y + 1) % 3, y)
    path = tmp_path_factory.mktemp("blobs") / "blobs.npz"
    np.savez(path, x=x[:120], y=y[:120], x_test=x[120:], y_test=y[120:])
    return path


@pytest.fixture(scope="session")
def config(blobs: Path) -> ShadowConfig:
    overrides = [
        "data.name=npz",
        f'data.path="{blobs}"',
        "model.name=mlp",
        "model.options={hidden: [32]}",
        "training.epochs=20",
        "training.batch_size=16",
        "methods=[ngp, finetune]",
        "method_options={ngp: {epochs: 2, batch_size: 16}, finetune: {epochs: 1}}",
        "defenses=[cob]",
        "shadows=4",
        "forget_sets=2",
        "share=0.5",
        "device=cpu",
    ]
    return resolve_as(ShadowConfig, overrides=overrides)


@pytest.fixture(scope="session")
def carried(config: ShadowConfig, tmp_path_factory: pytest.TempPathFactory) -> Carried:
    prepared = prepare_shadows(ShadowRequest(config, tmp_path_factory.mktemp("audit") / "run"))
    return Carried(prepared, carry_out(prepared, Serial()))
