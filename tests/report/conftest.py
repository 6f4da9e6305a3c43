"""Results files with simulated scores and real statistics, and the reports made of them."""

from __future__ import annotations

import json
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from warp_unlearning.report.page import Report, make_report
from warp_unlearning.report.results import Results, read_results

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
