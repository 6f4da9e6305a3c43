import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.errors import InputError
from warp_unlearning.runs.cores import Share, available_cores, be_patient, share_cores, use_threads


@given(jobs=st.integers(0, 200), cores=st.integers(1, 256))
def test_workers_times_threads_never_exceed_the_cores(jobs: int, cores: int) -> None:
    share = share_cores(jobs, cores=cores)
    assert share.workers * share.threads <= cores
    assert share.workers == max(1, min(jobs, cores))
    assert share.threads >= 1
    # A core more for each worker would be too many.
    assert share.workers * (share.threads + 1) > cores


@given(data=st.data(), jobs=st.integers(1, 50), cores=st.integers(1, 64))
def test_a_wanted_number_of_workers_is_kept_within_the_cores(data: st.DataObject, jobs: int, cores: int) -> None:
    wanted = data.draw(st.integers(1, cores))
    share = share_cores(jobs, cores=cores, workers=wanted)
    assert share == Share(min(jobs, wanted), cores // min(jobs, wanted))


@pytest.mark.parametrize("workers", [0, -1, 5])
def test_more_workers_than_cores_are_refused(workers: int) -> None:
    with pytest.raises(InputError, match=f"{workers} workers were asked for on 4 cores; give 1 to 4"):
        share_cores(8, cores=4, workers=workers)


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1600000 100000\n", 8),
        ("", 8),
        ("200000", 8),
        ("x y", 8),
        ("1 0", 8),
        ("1 2 3", 8),
    ],
)
def test_a_container_quota_lowers_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    file = tmp_path / "cpu.max"
    file.write_text(content)
    assert available_cores(file) == cores


def test_without_a_quota_file_the_affinity_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 7}, raising=False)
    assert available_cores(tmp_path / "none") == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_cores(tmp_path / "none") == 6


def test_this_machine_has_cores_it_may_use() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


def test_torch_takes_the_threads_it_is_given() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            use_threads(threads)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_waiting_threads_sleep_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    be_patient()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    be_patient()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
