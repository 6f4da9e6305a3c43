"""Captured work on a GPU, and what a capture that fails leaves behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from warp_unlearning.cuda_graphs import CudaGraph, capturable_stream

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU, and there is none")
GPU = torch.device("cuda")


@pytest.mark.gpu
@CUDA
def test_after_a_capture_that_failed_random_numbers_are_drawn_and_work_is_captured() -> None:
    x = torch.ones(3, device=GPU)

    def reads() -> Tensor:
        return x * float(x.sum())

    for _ in range(2):
        with pytest.raises(RuntimeError), capturable_stream(GPU):
            CudaGraph(reads)
        before = torch.rand(4, device=GPU)
        assert not torch.equal(before, torch.rand(4, device=GPU))
    with capturable_stream(GPU):
        graph = CudaGraph(lambda: x + torch.rand(3, device=GPU))
        first = graph.replay().clone()
        second = graph.replay().clone()
    assert not torch.equal(first, second)


@pytest.mark.gpu
@CUDA
def test_graphs_that_are_garbage_do_not_end_a_capture() -> None:
    class Held:
        def __init__(self) -> None:
            self.graph, self.itself = CudaGraph(lambda: x + 1), self

    x, found = torch.ones(1 << 20, device=GPU), []

    def works() -> Tensor:
        # More than it takes for garbage to be looked for.
        found.extend([] for _ in range(5000))
        return x * 2

    with capturable_stream(GPU):
        for _ in range(3):
            Held()
            graph = CudaGraph(works)
        assert float(graph.replay()[0]) == 2


@pytest.mark.gpu
@CUDA
def test_work_of_different_purposes_has_different_streams() -> None:
    """Of the default stream; of another, which can be captured itself, it is that one."""
    found = []
    for purpose in ("", "", "other"):
        with capturable_stream(GPU, purpose=purpose):
            found.append(torch.cuda.current_stream(GPU))
    assert found[0] == found[1]
    assert len({stream.cuda_stream for stream in (*found, torch.cuda.default_stream(GPU))}) == 3
    own = torch.cuda.Stream(GPU)
    with torch.cuda.stream(own), capturable_stream(GPU, purpose="other"):
        assert torch.cuda.current_stream(GPU) == own
