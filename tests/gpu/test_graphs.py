"""Captured functions: plain calls on a CPU, and on a GPU the same results by replaying a graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.gpu.graphs import Captured, Compute, CudaGraph, Pool, capturable_stream

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def on_gpu(test):  # type: ignore[no-untyped-def]
    needs = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU, and there is none")
    return pytest.mark.gpu(needs(test))


@pytest.mark.parametrize("enabled", [False, True])
def test_on_a_cpu_the_function_is_called(enabled: bool) -> None:
    rates: list[object] = []

    def function(x: Tensor, rate: float) -> dict[str, Tensor]:
        rates.append(rate)
        return {"sum": (x * rate).sum()}

    x = torch.ones(2, requires_grad=True)
    for update in (Captured(function, CPU, enabled=enabled), Compute(CPU, capture=enabled).update(function)):
        found = [update(x, rate)["sum"] for rate in (1.0, 2.0, 3.0)]
        update.forget()
        assert [float(value) for value in found] == [2.0, 4.0, 6.0]
        assert not any(value.requires_grad for value in found)
    assert rates == 2 * [1.0, 2.0, 3.0]


def test_updates_are_computed_in_the_precision_of_the_task_or_their_own() -> None:
    compute, layer = Compute(CPU, "bf16"), nn.Linear(3, 2)

    def function(x: Tensor) -> dict[str, Tensor]:
        return {"output": layer(x)}

    found = [compute.update(function, precision=p)(torch.ones(1, 3))["output"].dtype for p in (None, "float32", "bf16")]
    assert found == [torch.bfloat16, torch.float32, torch.bfloat16]


@on_gpu
@pytest.mark.parametrize("shared", [False, True])
def test_a_replayed_function_gives_what_the_function_gives(shared: bool) -> None:
    weight = torch.zeros(3, device=GPU)

    def function(x: Tensor, rate: Tensor | float) -> dict[str, Tensor]:
        weight.add_(x * rate)
        return {"whole": weight * 1, "first": weight[0].clone()}

    update = Captured(function, GPU, pool=Pool() if shared else None)
    results = []
    for i in range(6):
        results.append(update(torch.full((3,), float(i), device=GPU), 0.5 if i < 4 else 0.25))
        if i == 3:
            update.forget()
    sums = [0.0, 0.5, 1.5, 3.0, 4.0, 5.25]
    assert [float(found["first"]) for found in results] == sums
    assert torch.stack([found["whole"] for found in results]).tolist() == [[value] * 3 for value in sums]


@on_gpu
def test_other_shapes_are_plain_and_tensors_elsewhere_are_captured_anew() -> None:
    held = {"weight": torch.ones(3, device=GPU)}
    update = Captured(lambda x: {"sum": x.sum() * held["weight"].sum()}, GPU)
    for count in (2, 2, 2, 5, 2):
        assert float(update(torch.ones(count, device=GPU))["sum"]) == 3 * count
    held["weight"].mul_(2)
    assert float(update(torch.ones(2, device=GPU))["sum"]) == 12
    held["weight"] = torch.full((3,), 5.0, device=GPU)
    update.forget()
    assert float(update(torch.ones(2, device=GPU))["sum"]) == 30


@on_gpu
def test_functions_that_share_memory_do_not_disturb_each_other() -> None:
    compute = Compute(GPU, capture=True)
    updates = [compute.update(lambda x, k=k: {"found": (x * k).sin().sum()}) for k in range(1, 4)]
    for i in range(4):
        x = torch.full((1000,), 0.1 * i, device=GPU)
        found = [update(x)["found"] for update in updates]
        for k, value in enumerate(found, 1):
            torch.testing.assert_close(value, (x * k).sin().sum())


@on_gpu
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


@on_gpu
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


@on_gpu
def test_only_the_default_stream_has_another_beside_it() -> None:
    found = []
    for _ in range(2):
        with capturable_stream(GPU):
            found.append(torch.cuda.current_stream(GPU))
    assert found[0] == found[1] != torch.cuda.default_stream(GPU)
    own = torch.cuda.Stream(GPU)
    with torch.cuda.stream(own), capturable_stream(GPU):
        assert torch.cuda.current_stream(GPU) == own
