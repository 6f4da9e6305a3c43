"""A browser, and reports for it to open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from warp_unlearning.report.page import write_report

HERE = Path(__file__).parent


def _load(path: Path) -> Any:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    chromium = _load(HERE / "chromium.py")
    program = chromium.chromium_path()
    if program is None:
        pytest.skip("Chromium is not installed; `make test-browser` installs it")
    with chromium.Chromium(program) as found:
        yield found


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports by name: of a demo, of a pair of models, and one in which every name is hostile and long."""
    folder = tmp_path_factory.mktemp("reports")
    sample = _load(HERE.parent / "report" / "sample_results.py")
    found = {
        "demo": sample.shadow_sample(
            methods=("ngp", "bad_teacher"), defenses=tuple(sample.KEPT), points=120, shadows=8
        ),
        "pair": _load(HERE.parent / "report" / "sample_pair.py").pair_sample(),
        "hostile": _hostile(sample.shadow_sample(methods=("ngp",), points=80, shadows=8)),
    }
    for name, data in found.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(data))
        write_report(path)
    return {name: folder / f"{name}.html" for name in found}


def _hostile(data: dict[str, Any]) -> dict[str, Any]:
    text = "<script>console.error(1)</script><img src=http://127.0.0.1:1/a onerror=alert(1)>$\\frac{" + "m" * 300
    for arm in data["arms"]:
        arm |= {"name": text, "method": text, "missing": 2}
        arm["strongest"]["attack"] = text
        arm["slices"] = {text: arm["all"]}
    data["arms"][1]["defense"] = text
    data["audited"] |= {"data": text, "model": text, "classes": [text] * 3}
    data["failures"] = [{"job": text, "reason": "/a" * 2000}]
    data |= {"digests": {text: "f" * 500}, "configuration": {text: {text: text}}, "threat": [text], "notes": [text]}
    return data
