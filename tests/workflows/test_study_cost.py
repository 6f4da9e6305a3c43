"""The cost of a study without a GPU is said before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from warp_unlearning.config import ReproduceConfig
from warp_unlearning.errors import InputError
from warp_unlearning.studies import study
from warp_unlearning.studies.study import Size
from warp_unlearning.workflows import study_cost
from warp_unlearning.workflows.study_cost import require_gpu

SMALL = Size({"name": "npz"}, "mlp", {"hidden": [8]}, {"epochs": 5, "batch_size": 10}, 6, 2, 2, 60, 20, 0, 20)


def test_hours_are_those_of_all_originals(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(study.SIZES, "paper", SMALL)  # type: ignore[arg-type]
    clock = iter((100.0, 103.0 * 3600))
    monkeypatch.setattr(study_cost, "perf_counter", lambda: next(clock))
    given = ReproduceConfig(study="table1", size="paper", data_path=blobs, device="cpu")
    # Half of the 120 points less 20, in batches of 10, five times: 25 updates; three took 103 hours less 100 seconds.
    with pytest.raises(InputError, match=r"the 6 originals alone would take about 5,149 hours of one core here"):
        require_gpu(given)


@pytest.mark.parametrize("changes", [{"size": "small"}, {"device": "cuda"}, {"study": "runtime"}], ids=str)
def test_nothing_is_said_where_it_is_cheap_or_a_gpu_does_it(changes: dict[str, str]) -> None:
    require_gpu(ReproduceConfig(**{"study": "table1", "size": "paper", "device": "cpu", **changes}))
