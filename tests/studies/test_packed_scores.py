"""The committed scores of the size of the paper, taken in from their packs: their keys, and the table they make."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from warp_unlearning.config import ReproduceConfig, resolve_as
from warp_unlearning.runs.drain import drain_nothing
from warp_unlearning.runs.pack import merge
from warp_unlearning.runs.store import Store
from warp_unlearning.workflows import study_plans
from warp_unlearning.workflows.reproduce import TABLE, ReproduceRequest, carry_out_study, prepare_study

PAPER = Path(__file__).parents[2] / "results" / "paper_size"
CIFAR = "88e86320badeeb3222583a99746eabbb91cd9053975499ba792fc5e724718934"
# What the runs of which scores are kept were asked for beside the tables: other shadows, and no pairs.
MORE: list[dict[str, Any]] = [{"shadows": 68}, {"shadows": 36, "pairs": 0}]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PAPER.is_dir(), reason="the results are not here")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("packs") / "store"
    for file in sorted((PAPER / "scores").glob("*.tar.xz")):
        merge(root, file)
    return Store(root)


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan needs to know of CIFAR-10, which is not here."""
    known = SimpleNamespace(
        name="cifar10", digest=CIFAR, train=range(50_000), test=range(10_000), classes=tuple("0123456789")
    )
    monkeypatch.setattr(study_plans, "load_data", lambda **_: known)


def request(folder: str, out: Path, store: Store, **changes: Any) -> ReproduceRequest:
    asked = yaml.safe_load((PAPER / folder / "config.yaml").read_text())
    config = resolve_as(ReproduceConfig, base=asked | changes)
    return ReproduceRequest(config, out, store.root, only_results=True)


def test_the_planner_finds_every_key(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PAPER.parents[1])
    kept = {entry.key.digest for entry in store.entries() if entry.key.kind in ("scores", "cell")}
    assert len(store.digests()) == 3236 + 536
    assert len(kept) == 3772 - 156
    folders = [str(file.parent.relative_to(PAPER)) for file in PAPER.rglob("config.yaml")]
    asked = [request(folder, tmp_path, store) for folder in folders]
    asked += [request("table1", tmp_path, store, **more) for more in MORE]
    found = {job.key.digest for each in asked for job in prepare_study(each).planned.to_do(store)}
    assert kept <= found


@pytest.mark.parametrize("folder", ["table1", "whitebox"])
def test_the_table_is_as_printed(store: Store, tmp_path: Path, folder: str) -> None:
    committed = json.loads((PAPER / folder / "results.json").read_text())
    prepared = prepare_study(request(folder, tmp_path / "out", store))
    results = carry_out_study(prepared, drain_nothing, command=committed["commands"][0])
    assert (tmp_path / "out" / TABLE).read_text() == (PAPER / folder / TABLE).read_text()
    for name in ("date", "commands", "versions", "hardware", "configuration"):
        del results[name], committed[name]
    assert differences(json.loads(json.dumps(results)), committed) == []


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [d for key in a for d in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{where}[{i}]")]
    if isinstance(a, float) and isinstance(b, float):
        return [] if isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) else [f"{where}: {a} and {b}"]
    return [] if a == b else [f"{where}: {a!r} and {b!r}"]
