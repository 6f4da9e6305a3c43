"""Every function that is captured on a GPU runs on the "meta" device, where reading a value raises; and what it reads
stays where it is between calls, also across moves of the weights, since a graph knows tensors by their places.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warp_unlearning import Permutation, Warp
from warp_unlearning.conformance.problem import Problem, digits_problem
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.defense.base import Defense
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.gpu.graphs import Captured, Compute, Function, Number
from warp_unlearning.gpu.lanes import side_by_side
from warp_unlearning.gpu.precision import Precision
from warp_unlearning.methods.pgu import ProjectedGradient, retained_complement
from warp_unlearning.methods.registry import small_data_method
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.randomness import Streams
from warp_unlearning.training.scoring import accuracy
from warp_unlearning.training.training import Recipe, Training
from warp_unlearning.unlearning.driver import drive, make_task, working_copy

SHORT: Mapping[str, Mapping[str, Any]] = {
    "ngp": {"epochs": 2},
    "scrub": {"epochs": 2, "max_epochs": 1},
    "salun": {"epochs": 1},
    "pgu": {"epochs": 3, "samples": 64},
    "bad_teacher": {"epochs": 2},
    "srf_on": {"iterations": 12},
}
CPU, META, GPU = torch.device("cpu"), torch.device("meta"), torch.device("cuda")


def on_gpu(test: Any) -> Any:
    needs = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU, and there is none")
    return pytest.mark.gpu(needs(test))


def on_meta(found: Tensor) -> Tensor:
    made = torch.empty_like(found, device=META)
    return nn.Parameter(made, found.requires_grad) if isinstance(found, nn.Parameter) else made


def tensors_of(function: Any) -> Iterator[Tensor]:
    """All tensors that a function can reach through its closure, whatever holds them."""
    seen: set[int] = set()
    left: list[Any] = [function]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | ModuleType):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, FunctionType):
            left += one.__closure__ or ()
        elif isinstance(one, MethodType):
            left += [one.__self__, one.__func__]
        elif isinstance(one, CellType | dict | list | tuple | partial) or hasattr(one, "__dict__"):
            left += gc.get_referents(one)


@pytest.fixture(scope="module", autouse=True)
def _fused_steps() -> Iterator[None]:
    """Fused optimizers return nothing, and torch has no form of them without values."""
    library = torch.library.Library("aten", "IMPL")
    for name in ("_fused_sgd_.tensor_lr", "_fused_adam_.tensor_lr"):
        library.impl(name, lambda *arguments, **options: None, "Meta")
    yield
    library._destroy()


class Places(TorchDispatchMode):
    """Notes where the tensors lie that operations read and did not make themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []
        self.ours: set[int] = set()
        self.read: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and place(value) not in self.ours:
                self.read[place(value)] = value
        found = func(*args, **(kwargs or {}))
        # All are kept, so that no place is used twice.
        new = [v for v in tree_leaves(found) if isinstance(v, Tensor) and place(v) not in self.read]
        self.made += new
        self.ours |= {place(v) for v in new}
        return found


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True, eq=False)
class Watching(Compute):
    """Calls functions as a graph would be: later calls on the tensors of the second, and reading no others."""

    device: torch.device = CPU
    made: list[Watched] = field(default_factory=list)

    def update(self, function: Function, *, precision: Precision | None = None) -> Captured:
        self.made.append(Watched(function))
        return self.made[-1]


class Watched(Captured):
    def __init__(self, function: Function) -> None:
        super().__init__(function, CPU)
        self.function, self.calls = function, 0
        self.given: list[Tensor] = []
        self.known: dict[int, Tensor] = {}

    def forget(self) -> None:
        self.known = {}

    def __call__(self, *arguments: Number) -> dict[str, Tensor]:
        self.calls += 1
        tensors = [torch.as_tensor(a) for a in arguments]
        other = any(old.shape != new.shape for old, new in zip(self.given, tensors, strict=False))
        if self.calls == 1 or other:
            return super().__call__(*tensors)
        if not self.given:
            self.given = [t.clone() for t in tensors]
        for old, new in zip(self.given, tensors, strict=True):
            old.copy_(new)
        with Places() as places:
            found = super().__call__(*self.given)
        self.known = self.known or places.read
        elsewhere = [tuple(t.shape) for where, t in places.read.items() if where not in self.known]
        assert not elsewhere, f"tensors of shapes {elsewhere} lie elsewhere than when the graph was captured"
        return found

    def without_values(self) -> dict[str, Tensor]:
        assert self.calls >= 2
        held = {id(t): t for t in tensors_of(self.function) if t.device != META}
        for tensor in held.values():
            tensor.grad = None
        for tensor in held.values():
            torch.utils.swap_tensors(tensor, on_meta(tensor))
        with pytest.MonkeyPatch.context() as patch:
            # There is none for "meta".
            patch.setattr(torch, "autocast", lambda *arguments, **options: nullcontext())
            return self.function(*[on_meta(t) for t in self.given])


@pytest.fixture(scope="module")
def problem() -> Problem:
    return digits_problem(seed=120)


def unlearned(
    problem: Problem, name: str, compute: Compute | None, defense: Defense | None = None, device: torch.device = CPU
) -> nn.Module:
    model = working_copy(problem.original, device)
    task = make_task(model, forget=problem.forget, retain=problem.retain, validation=problem.validation, seed=3)
    task = replace(task, compute=compute)
    method = small_data_method(name, **SHORT[name])
    for _ in drive(model, task, method, defense=defense, secret=Streams.secret(1)):
        pass
    return model


@pytest.mark.parametrize(
    "momentum", [None, *(pytest.param(each, marks=pytest.mark.long) for each in ("carry", "reset"))]
)
@pytest.mark.parametrize("name", SHORT)
def test_the_updates_of_a_method_can_be_captured(problem: Problem, name: str, momentum: Any) -> None:
    defense = None if momentum is None else Warp(Permutation(), every=3, momentum=momentum)
    compute = Watching()
    plain, watched = unlearned(problem, name, None, defense), unlearned(problem, name, compute, defense)
    for (key, a), b in zip(plain.named_parameters(), watched.parameters(), strict=True):
        # A learning rate that was rounded to 32 bits changes the last digits.
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")
    assert compute.made
    for update in compute.made:
        # What was read may be views, which hold their tensors.
        update.forget()
    for update in compute.made:
        losses = update.without_values()
        assert losses
        assert {loss.device for loss in losses.values()} == {META}


def test_the_updates_of_a_training_can_be_captured(problem: Problem) -> None:
    def train(compute: Compute | None) -> nn.Module:
        model = working_copy(problem.original, CPU)
        recipe = Recipe(epochs=2, crop_padding=1, flip=True)
        # Its own, since a training holds its examples and they lose their values below.
        images = problem.retain.select(torch.arange(100))
        for _ in Training(model, images, recipe=recipe, streams=Streams(2), compute=compute).updates():
            pass
        return model

    compute = Watching()
    for a, b in zip(train(None).parameters(), train(compute).parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert compute.made[0].without_values()["train"].device == META


def test_reading_a_value_is_noticed() -> None:
    weight = torch.ones(3)
    for read in (lambda x: weight * float(x.sum()), lambda x: x[x > 0], lambda x: (x + weight).cpu()):
        watched = Watched(lambda x, read=read: {"found": read(x)})
        for _ in range(2):
            watched(torch.ones(3))
        with pytest.raises((RuntimeError, NotImplementedError)):
            watched.without_values()
        torch.utils.swap_tensors(weight, torch.ones(3))


def test_a_tensor_that_is_put_in_anothers_place_is_noticed() -> None:
    held = {"weight": torch.ones(3)}
    watched = Watched(lambda x: {"found": x * held["weight"]})
    for _ in range(3):
        watched(torch.ones(3))
    held["weight"] = torch.ones(3)
    with pytest.raises(AssertionError, match="lie elsewhere"):
        watched(torch.ones(3))
    watched.forget()
    watched(torch.ones(3))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_projection_is_exact_whatever_the_precision_of_the_pass(problem: Problem, precision: Precision) -> None:
    before = dict(problem.original.named_parameters())
    model = unlearned(problem, "pgu", Compute(CPU, precision))
    task = make_task(problem.original, forget=problem.forget, retain=problem.retain, validation=None, seed=3)
    method = small_data_method("pgu", **SHORT["pgu"])
    assert isinstance(method, ProjectedGradient)
    start = working_copy(problem.original, CPU)
    bases = retained_complement(start, task, samples=method.samples, energy=method.energy, rule=method.rule).bases
    moved = 0.0
    for name, basis in bases.items():
        step = (model.get_parameter(name) - before[name]).detach().flatten(1)
        moved += float(step.norm())
        assert float((step @ basis.basis[0]).norm()) <= 1e-3 * float(step.norm()) + 1e-7, name
    assert moved > 0


@on_gpu
@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("defense", [None, "warp"])
def test_a_captured_method_agrees_with_a_plain_one(problem: Problem, name: str, defense: str | None) -> None:
    guard = None if defense is None else make_defense(defense)
    models = [unlearned(problem, name, Compute(GPU, capture=c), guard, GPU) for c in (False, True)]
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
