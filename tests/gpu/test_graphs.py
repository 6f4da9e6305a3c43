"""Captured functions: plain calls on a CPU, and on a GPU the same results by replaying a graph."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.conformance.problem import Problem, digits_problem
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.gpu.graphs import Captured, Compute, CudaGraph, Pool, capturable_stream
from warp_unlearning.gpu.lanes import side_by_side
from warp_unlearning.gpu.precision import Precision
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.pgu import ProjectedGradient, retained_complement
from warp_unlearning.methods.registry import small_data_method
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.randomness import Streams
from warp_unlearning.training.scoring import accuracy
from warp_unlearning.training.training import Recipe, Training
from warp_unlearning.unlearning.driver import drive, make_task, working_copy

from .test_capturable import SHORT

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def on_gpu(test):  # type: ignore[no-untyped-def]
    needs = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU, and there is none")
    return pytest.mark.gpu(needs(test))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return digits_problem(seed=120)


def task_of(problem: Problem, model: nn.Module, compute: Compute) -> Task:
    task = make_task(model, forget=problem.forget, retain=problem.retain, validation=problem.validation, seed=3)
    return Task(task.forget, task.retain, task.validation, task.original, task.classes, task.streams, compute)


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


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_projection_is_exact_whatever_the_precision_of_the_pass(problem: Problem, precision: Precision) -> None:
    model = working_copy(problem.original, CPU)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    task = task_of(problem, model, Compute(CPU, precision))
    method = small_data_method("pgu", **SHORT["pgu"])
    assert isinstance(method, ProjectedGradient)
    bases = retained_complement(model, task, samples=method.samples, energy=method.energy, rule=method.rule).bases
    for _ in drive(model, task, method, secret=Streams.secret(0)):
        pass
    moved = 0.0
    for name, basis in bases.items():
        step = (dict(model.named_parameters())[name].detach() - before[name]).flatten(1)
        moved += float(step.norm())
        assert float((step @ basis.basis[0]).norm()) <= 1e-3 * float(step.norm()) + 1e-7, name
    assert moved > 0


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
@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("defense", [None, "warp"])
def test_a_captured_method_agrees_with_a_plain_one(problem: Problem, name: str, defense: str | None) -> None:
    models = []
    for capture in (False, True):
        model = working_copy(problem.original, GPU)
        task = task_of(problem, model, Compute(GPU, capture=capture))
        method = small_data_method(name, **SHORT[name])
        guard = None if defense is None else make_defense(defense)
        for _ in drive(model, task, method, defense=guard, secret=Streams.secret(1)):
            pass
        models.append(model)
    plain, captured = (nn.utils.parameters_to_vector(model.parameters()).detach() for model in models)
    start = nn.utils.parameters_to_vector(problem.original.parameters()).detach().to(GPU)
    # Sums in another order change which weights a mask or a basis just lets through; the rest agrees far better.
    assert float((plain - captured).norm()) < 0.1 * float((plain - start).norm())


@on_gpu
def test_trainings_side_by_side_agree_with_plain_ones_in_accuracy(problem: Problem) -> None:
    examples, test = (TensorExamples(s.x, s.y).to(GPU) for s in (problem.retain, problem.validation))

    def steps(seed: int, *, capture: bool) -> Generator[object, None, float]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = SmallResNet().to(GPU)
        compute = Compute(GPU, capture=capture)
        training = Training(model, examples, recipe=Recipe(epochs=8), streams=Streams(seed), compute=compute)
        yield from training.updates()
        return accuracy(training.model, test)

    def accuracies(at_once: int, *, capture: bool) -> list[float]:
        makers = [partial(steps, seed, capture=capture) for seed in range(8)]
        return [value for _, value in side_by_side(makers, at_once=at_once, device=GPU)]

    plain, fleet = accuracies(1, capture=False), accuracies(4, capture=True)
    assert sum(fleet) / 8 == pytest.approx(sum(plain) / 8, abs=0.03)


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
