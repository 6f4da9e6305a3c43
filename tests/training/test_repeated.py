"""What is replayed on a GPU is checked here without one: that nothing in an update reads a value, and that state which
a graph would know by its place stays there.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warp_unlearning.conformance.moves import permutation
from warp_unlearning.conformance.problem import Problem, digits_problem
from warp_unlearning.data.examples import Taken, TensorExamples
from warp_unlearning.defense.base import Defense
from warp_unlearning.defense.certificate import Certificate
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.methods.pgu import ProjectedGradient, retained_complement
from warp_unlearning.methods.protocol import Task
from warp_unlearning.methods.recipes import small_data_method
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.randomness import Streams
from warp_unlearning.symmetry.moves import MomentumReset, Move, apply_move
from warp_unlearning.training import repeated
from warp_unlearning.training.precision import Precision
from warp_unlearning.training.recipe import Recipe
from warp_unlearning.training.repeated import Argument, Function, Repeated, Repeater
from warp_unlearning.training.scoring import accuracy
from warp_unlearning.training.side_by_side import side_by_side
from warp_unlearning.training.training import Training
from warp_unlearning.training.update import Update
from warp_unlearning.unlearning.driver import drive, make_task, working_copy

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU, and there is none")
READS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "unique")
SHORT: Mapping[str, Mapping[str, Any]] = {
    "ngp": {"epochs": 2},
    "scrub": {"epochs": 2, "max_epochs": 1},
    "salun": {"epochs": 1},
    "pgu": {"epochs": 3, "samples": 64},
    "bad_teacher": {"epochs": 2},
    "srf_on": {"iterations": 12},
}


class Watched(TorchDispatchMode):
    """Fails at an operation that reads a value, which a graph cannot; notes where the tensors lie that operations read
    and did not make themselves, which a graph knows by their places.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []
        self.ours: set[int] = set()
        self.given: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        assert name not in READS, f"{name} reads a value"
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and place(value) not in self.ours:
                self.given[place(value)] = value
        found = func(*args, **(kwargs or {}))
        # All are kept, so that no place is used twice.
        fresh = (v for v in tree_leaves(found) if isinstance(v, Tensor) and place(v) not in self.given)
        new = [v for v in fresh if place(v) not in self.ours]
        self.made += new
        self.ours |= {place(v) for v in new}
        return found


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Places(Repeated):
    """Calls the function as a graph would: on tensors that stay where they are, with numbers as tensors, no value read,
    and all that it read at the second call, at which it would be captured, in its place at the later ones.
    """

    def __init__(self, function: Function, by: Repeater, *, precision: Precision) -> None:
        super().__init__(function, by, precision=precision)
        self.calls = 0
        self.known: dict[int, Tensor] | None = None

    def forget_graph(self) -> None:
        self.known = None

    def __call__(self, *arguments: Argument) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls == 1 or (self._inputs and not self._fits(arguments)):
            return self._run(*arguments)
        if not self._inputs:
            self._inputs = [repeated._in_its_own_place(self._placed(a)) for a in arguments]
        for place, argument in zip(self._inputs, arguments, strict=True):
            repeated._put(argument, place)
        with Watched() as watched:
            found = self._run(*self._inputs)
        if self.known is None:
            self.known = watched.given
        elsewhere = [tuple(t.shape) for where, t in watched.given.items() if where not in self.known]
        assert not elsewhere, f"tensors of shapes {elsewhere} lie elsewhere than when the graph was captured"
        return found


class PlacesRepeater(Repeater):
    def __call__(self, function: Function, *, precision: Precision | None = None) -> Repeated:
        return Places(function, self, precision=precision or self.precision)


class Moves:
    """A defence that permutes channels after every third update, with momentum carried or, each second time, reset."""

    name = "moves"

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> Moving:
        return Moving(model, streams.generator("moves"))


class Moving:
    certificates: tuple[Certificate, ...] = ()

    def __init__(self, model: nn.Module, generator: torch.Generator) -> None:
        assert isinstance(model, SmallResNet)
        self._model, self._generator = model, generator

    def between(self, update: Update) -> Move | None:
        if update.step % 3:
            return None
        move = permutation(self._model, generator=self._generator)
        apply_move(self._model, move)
        return MomentumReset(move) if update.step % 2 else move

    def finish(self) -> None: ...

    def brought_back(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return state


@pytest.fixture(scope="module")
def problem() -> Problem:
    return digits_problem(seed=120)


def task_of(problem: Problem, model: nn.Module, repeater: Repeater | None) -> Task:
    task = make_task(model, forget=problem.forget, retain=problem.retain, validation=problem.validation, seed=3)
    return Task(task.forget, task.retain, task.validation, task.original, task.classes, task.streams, repeater)


def unlearned(problem: Problem, name: str, repeater: Repeater | None, defense: Defense | None = None) -> nn.Module:
    model = working_copy(problem.original, torch.device("cpu"))
    steps = drive(
        model,
        task_of(problem, model, repeater),
        small_data_method(name, **SHORT[name]),
        defense=defense,
        secret=Streams.secret(1),
    )
    for _ in steps:
        pass
    return model


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "defense"),
    [(n, d) for n in SHORT for d in (None, Moves())] + [("ngp", make_defense("warp"))],
    ids=lambda given: given if isinstance(given, str) else getattr(given, "name", "alone"),
)
def test_an_update_reads_no_value_and_keeps_its_state_in_place(
    problem: Problem, name: str, defense: Defense | None
) -> None:
    repeater = PlacesRepeater(torch.device("cpu"))
    plain, watched = unlearned(problem, name, None, defense), unlearned(problem, name, repeater, defense)
    for (key, a), b in zip(plain.named_parameters(), watched.parameters(), strict=True):
        # A learning rate that was rounded to 32 bits changes the last digits.
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")


def test_a_training_reads_no_value(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    images = problem.retain

    def train() -> nn.Module:
        model = working_copy(problem.original, torch.device("cpu"))
        recipe = Recipe(epochs=2, crop_padding=1, flip=True)
        for _ in Training(model, images, recipe=recipe, streams=Streams(2), fill=(0.0,)).updates():
            pass
        return model

    plain = train()
    monkeypatch.setattr("warp_unlearning.training.training.Repeater", PlacesRepeater)
    watched = train()
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_without_a_gpu_nothing_is_captured() -> None:
    seen: list[object] = []

    def function(x: Tensor, rate: float) -> dict[str, Tensor]:
        seen.append(rate)
        return {"sum": (x * rate).sum()}

    repeated = Repeater(torch.device("cpu"), capture=True)(function)
    assert [float(repeated(torch.ones(2), r)["sum"]) for r in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
    assert seen == [1.0, 2.0, 3.0]


def test_what_is_yet_to_be_taken_is_given_taken() -> None:
    table = torch.arange(6.0).reshape(3, 2)
    repeated = Repeater(torch.device("cpu"))(lambda x, rate: {"sum": (x * rate).sum()})
    found = [float(repeated(Taken(table, torch.tensor(index)), 2.0)["sum"]) for index in ([0, 2], [1, 1], [2])]
    assert found == [20.0, 20.0, 18.0]


@pytest.mark.parametrize(
    ("new", "old", "fits"),
    [
        ("same", "same", True),
        ("same", "longer", False),
        ("other", "same", False),
        ("same", "tensor", False),
        ("tensor", "same", False),
        ("tensor", "tensor", True),
    ],
)
def test_a_graph_holds_for_other_rows_of_the_same_table_alone(new: str, old: str, fits: bool) -> None:
    table, index = torch.zeros(4, 2), torch.tensor([0, 1])
    given = {
        "same": Taken(table, index),
        "longer": Taken(table, torch.tensor([0, 1, 2])),
        "other": Taken(table.clone(), index),
        "tensor": torch.zeros(2, 2),
    }
    assert repeated._fits(given[new], given[old]) == fits


@pytest.mark.gpu
@CUDA
def test_a_replayed_function_takes_rows_itself() -> None:
    table = torch.arange(12.0, device="cuda").reshape(6, 2)
    update = Repeater(torch.device("cuda"), capture=True)(lambda x, rate: {"sum": (x * rate).sum()})
    for i in range(5):
        index = torch.tensor([i, i + 1], device="cuda")
        found = update(Taken(table, index), 0.5)
        assert float(found["sum"]) == pytest.approx(float(0.5 * table[index].sum()))


@pytest.mark.gpu
@CUDA
def test_a_replayed_function_gives_what_the_function_gives() -> None:
    weight = torch.zeros(3, device="cuda")

    def function(x: Tensor, rate: Tensor | float) -> dict[str, Tensor]:
        weight.add_(x * rate)
        return {"sum": weight.sum(), "first": weight[0].clone()}

    repeated = Repeater(torch.device("cuda"), capture=True)(function)
    for i in range(6):
        found = repeated(torch.full((3,), float(i), device="cuda"), 0.5)
        assert float(found["first"]) == pytest.approx(0.5 * sum(range(i + 1)))
    assert float(weight.sum()) == pytest.approx(1.5 * 15)


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("defense", [None, "warp"])
def test_a_captured_method_agrees_with_a_plain_one(problem: Problem, name: str, defense: str | None) -> None:
    device = torch.device("cuda")
    models = []
    for capture in (False, True):
        model = working_copy(problem.original, device)
        task = task_of(problem, model, Repeater(device, capture=capture))
        method = small_data_method(name, **SHORT[name])
        guard = None if defense is None else make_defense(defense)
        for _ in drive(model, task, method, defense=guard, secret=Streams.secret(1)):
            pass
        models.append(model)
    plain, captured = (nn.utils.parameters_to_vector(model.parameters()).detach() for model in models)
    start = nn.utils.parameters_to_vector(problem.original.parameters()).detach().to(device)
    # Sums in another order change which weights a mask or a basis just lets through; the rest agrees far better.
    assert float((plain - captured).norm()) < 0.1 * float((plain - start).norm())


@pytest.mark.gpu
@CUDA
def test_trainings_side_by_side_on_a_gpu_agree_with_plain_ones_in_accuracy(problem: Problem) -> None:
    device = torch.device("cuda")
    images, held = problem.retain, problem.validation
    examples, test = (TensorExamples(s.x, s.y).to(device) for s in (images, held))

    def steps(seed: int, *, capture: bool) -> Generator[object, None, float]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = SmallResNet().to(device)
        training = Training(
            model, examples, recipe=Recipe(epochs=8), streams=Streams(seed), repeater=Repeater(device, capture=capture)
        )
        yield from training.updates()
        return accuracy(training.model, test)

    def accuracies(at_once: int, *, capture: bool) -> list[float]:
        makers = [partial(steps, seed, capture=capture) for seed in range(8)]
        return [value for _, value in side_by_side(makers, at_once=at_once, device=device)]

    plain, fleet = accuracies(1, capture=False), accuracies(4, capture=True)
    assert sum(fleet) / 8 == pytest.approx(sum(plain) / 8, abs=0.03)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_projection_is_exact_whatever_the_precision_of_the_pass(problem: Problem, precision: Precision) -> None:
    model = working_copy(problem.original, torch.device("cpu"))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    task = task_of(problem, model, Repeater(torch.device("cpu"), precision))
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


def test_a_training_that_is_done_is_let_go_of(problem: Problem) -> None:
    model = working_copy(problem.original, torch.device("cpu"))
    training = Training(model, problem.retain, recipe=Recipe(epochs=1), streams=Streams(1))
    for _ in training.updates():
        pass
    gone = ref(training)
    gc.disable()
    try:
        del training
        assert gone() is None
    finally:
        gc.enable()
