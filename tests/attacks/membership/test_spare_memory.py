import pytest
import torch

from warp_unlearning.attacks.membership import spare_memory
from warp_unlearning.attacks.membership.spare_memory import (
    CPU_BATCH,
    CPU_HELD,
    GPU_LARGEST_BATCH,
    LARGEST_BATCH,
    can_hold,
    held_at_once,
    rows_at_once,
)
from warp_unlearning.gpu.graphs import CudaGraph, capturable_stream

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_cpu_holds_up_to_a_fixed_size() -> None:
    assert can_hold(CPU_HELD, CPU)
    assert not can_hold(CPU_HELD + 1, CPU)
    assert not can_hold(CPU_HELD, CPU, already=1)


def test_a_gpu_holds_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_memory, "free", lambda device: 1000)
    assert can_hold(600, GPU, already=10**12)  # what is held is no longer free
    assert not can_hold(601, GPU)
    assert rows_at_once(10, GPU) == 6


@pytest.mark.parametrize(("fraction", "expected"), [(1.0, 1100), (0.05, 300), (0.02, 0)])
def test_a_process_has_no_more_than_its_share(fraction: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"mem_get_info": (1000, 10000), "memory_reserved": 300, "memory_allocated": 200}
    for name, value in {**given, "get_per_process_memory_fraction": fraction}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(spare_memory, "_kept_for_graphs", lambda device: 0)
    assert spare_memory.free(GPU) == expected


def test_batches_fit_and_are_never_empty() -> None:
    assert rows_at_once(CPU_BATCH // 5, CPU) == 5
    assert rows_at_once(10 * CPU_BATCH, CPU) == 1
    assert rows_at_once(1, CPU) == LARGEST_BATCH


@pytest.mark.gpu
def test_what_graphs_keep_is_not_free() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    before = spare_memory._kept_for_graphs(GPU)

    def work() -> torch.Tensor:
        # Of numbers that a sum does not convert first.
        return torch.ones(2**26, device=GPU).sum()

    with capturable_stream(GPU):
        graph = CudaGraph(work)
    assert spare_memory._kept_for_graphs(GPU) - before == pytest.approx(2**28, rel=0.2)
    assert graph.pool


@pytest.mark.gpu
def test_free_memory_falls_by_what_is_taken() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    before = spare_memory.free(GPU)
    taken = torch.empty(2**28, dtype=torch.uint8, device=GPU)
    assert before - spare_memory.free(GPU) == pytest.approx(len(taken), rel=0.1)


def test_things_that_are_held_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held_at_once(CPU_HELD // 3, CPU) == 3
    assert held_at_once(2 * CPU_HELD, CPU) == 1
    monkeypatch.setattr(spare_memory, "free", lambda device: 1000)
    assert held_at_once(100, GPU) == 6


def test_batches_of_a_gpu_take_the_share_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_memory, "free", lambda device: 10**6)
    assert rows_at_once(1000, GPU, share=0.1) == 100
    assert rows_at_once(1, GPU, share=0.1) == GPU_LARGEST_BATCH
    assert rows_at_once(CPU_BATCH // 5, CPU, share=1e-9) == 5
