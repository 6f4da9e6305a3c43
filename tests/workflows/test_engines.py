from __future__ import annotations

import pickle
from functools import partial

import pytest
import torch

from warp_unlearning.errors import InputError
from warp_unlearning.gpu import lanes
from warp_unlearning.runs.local import Lanes, run_local
from warp_unlearning.workflows.engines import GpuLane, choose_study_engine

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@pytest.mark.parametrize(("processes", "share"), [(1, "100"), (2, "100"), (4, "62"), (10, "25"), (300, "1")])
def test_processes_share_a_gpu(processes: int, share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARE, raising=False)
    chosen = choose_study_engine("cuda", at_once=3, processes=processes)
    engine = chosen.engine
    assert isinstance(engine, partial)
    assert engine.func is run_local
    assert engine.keywords["workers"] == processes
    assert engine.keywords["lanes"] == Lanes(3, GpuLane("cuda", min(1.0, 2 / processes)))
    assert engine.keywords["environment"] == {SHARE: share}
    assert chosen.workers == 3 * processes


def test_a_share_that_was_chosen_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARE, "40")
    engine = choose_study_engine("cuda:1", at_once=None, processes=10).engine
    assert isinstance(engine, partial)
    assert engine.keywords["environment"] == {SHARE: "40"}
    assert engine.keywords["lanes"] == Lanes(2, GpuLane("cuda:1", 0.2))


def test_lanes_travel_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(Lanes(2, GpuLane("cuda")))) == Lanes(2, GpuLane("cuda"))


def test_processes_are_for_a_gpu() -> None:
    with pytest.raises(InputError, match="10 processes that share a GPU, and the device is cpu"):
        choose_study_engine("cpu", at_once=None, processes=10)


def test_what_is_timed_is_alone() -> None:
    with pytest.raises(InputError, match="2 processes, for a study that times its jobs one at a time"):
        choose_study_engine("cuda", at_once=None, processes=2, alone=True)


@pytest.mark.parametrize("processes", [None, 2])
def test_no_more_lanes_than_there_are_streams_for(processes: int | None) -> None:
    with pytest.raises(InputError, match="17 models at once in a process; a GPU has streams for 16"):
        choose_study_engine("cuda", at_once=17, processes=processes)
    with pytest.raises(InputError, match="0 processes that share a GPU"):
        choose_study_engine("cuda", at_once=2, processes=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_lane_has_its_share_of_the_memory(device: str) -> None:
    try:
        GpuLane(device, 0.5)()
        assert torch.cuda.get_per_process_memory_fraction(0) == 0.5
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_the_share_is_of_a_numbered_device(device: str, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[tuple[float, object]] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: shares.append(given))
    monkeypatch.setattr(lanes, "sleep_while_waiting", lambda index: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    GpuLane(device, 0.2)()
    assert shares == [(0.2, index)]
