"""Every rule of the kit is kept by every method of the package, and catches a method broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from warp_unlearning.conformance import check_method, rules
from warp_unlearning.conformance.kit import RULES
from warp_unlearning.conformance.problem import Problem, digits_problem, forgets, noise_problem
from warp_unlearning.errors import ConformanceError
from warp_unlearning.methods import make_method, method_classes
from warp_unlearning.methods.base import Method, NormMode, Task
from warp_unlearning.methods.neg_grad_plus import Anchor
from warp_unlearning.methods.registry import SMALL_DATA, small_data_method
from warp_unlearning.methods.salun import saliency_mask
from warp_unlearning.training.stepper import Stepper
from warp_unlearning.training.update import Update, Updates

# Every option that keeps state in weight coordinates is on in one of these.
VARIANTS: list[Method] = [
    make_method("ngp", anchor=0.5, epochs=3, batch_size=8, max_norm=1.0, weight_decay=1e-3),
    make_method("ngp", saturate=True, norm_mode="eval", batch_size=12),
    make_method("scrub", rewind=True, optimizer="adam", forget_batch_size=4, retain_batch_size=12),
    make_method("salun", keep=0.2, lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=8, epochs=4),
    make_method("pgu", momentum=0.9, weight_decay=5e-3, epochs=5, energy=0.8, batch_size=4, lr=0.3, stop=False),
    make_method("pgu", epochs=8, energy=0.5, batch_size=12, lr=2.0, stop=True),
    make_method("bad_teacher", optimizer="sgd", lr=0.05, weight_decay=1e-3, batch_size=8, temperature=2.0),
    make_method("srf_on", strict_mask=True, iterations=20, batch_size=8, fisher="sample", weight_decay=0.01),
    make_method("langevin", alpha=0.9, batch_size=8, radius=3.0),
]
# What holds between two updates holds however many there are.
FEWER: dict[str, dict[str, int]] = {"srf_on": {"iterations": 30}}
METHODS: list[Method] = [small_data_method(name, **FEWER.get(name, {})) for name in method_classes()] + VARIANTS


@pytest.fixture(scope="module")
def problem() -> Problem:
    return noise_problem()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_keeps_every_rule(method: Method, rule: str, problem: Problem) -> None:
    assert RULES[rule](method, problem) is None


@pytest.mark.parametrize("name", ["retrain", "finetune"])
def test_references_never_read_a_forget_example(name: str, problem: Problem) -> None:
    assert rules.forget_unread(small_data_method(name), problem) is None


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_the_six_methods_approach_the_retrained_model_on_digits(seed: int) -> None:
    digits = digits_problem(seed)
    broken = {name: forgets(small_data_method(name), digits, seed=seed) for name in SMALL_DATA}
    assert len(broken) == 6
    assert all(found is None for found in broken.values()), broken


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Four steps of descent on the forget set: the base of the broken methods, itself within the rules."""

    name: ClassVar[str] = "descent"
    norm_mode: NormMode = "train"
    momentum: float = 0.0

    def updates(self, model: nn.Module, task: Task) -> Updates:
        stepper = Stepper(model, momentum=self.momentum)
        for i in range(1, 5):
            loss = self.loss(model, task)
            stepper.step(loss, lr=0.1)
            self.after(model, task)
            moved = yield Update(i, 4, 0, i == 4, {"forget": loss.detach()})
            if self.follows():
                stepper.carry(moved)

    def loss(self, model: nn.Module, task: Task) -> torch.Tensor:
        x, y = task.forget.take(torch.arange(8))
        return F.cross_entropy(model(x), y)

    def after(self, model: nn.Module, task: Task) -> None:
        return

    def follows(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class TouchesOriginal(Descent):
    target: nn.Module

    def after(self, model: nn.Module, task: Task) -> None:
        with torch.no_grad():
            next(self.target.parameters()).add_(1e-3)


class TrainsTeacher(Descent):
    def after(self, model: nn.Module, task: Task) -> None:
        task.original.train()
        with torch.no_grad():
            task.original(task.forget.take(torch.arange(8)).x)
        task.original.eval()


@dataclass(frozen=True, kw_only=True)
class MasksGradientsOnly(Descent):
    """The published SalUn code: the gradient is masked, weight decay and momentum are not."""

    def updates(self, model: nn.Module, task: Task) -> Updates:
        mask = saliency_mask(model, task.forget, keep=0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        for i in range(1, 5):
            optimizer.zero_grad()
            loss = self.loss(model, task)
            loss.backward()
            for name, p in model.named_parameters():
                p.grad = mask.limit_gradient(name, p.grad)
            optimizer.step()
            yield Update(i, 4, 0, i == 4, {"forget": loss.detach()}, mask.frozen)


@dataclass(frozen=True, kw_only=True)
class ForgetsMaskAtMove(Descent):
    """Keeps its mask where it was when the channels moved."""

    def updates(self, model: nn.Module, task: Task) -> Updates:
        mask = saliency_mask(model, task.forget, keep=0.5)
        first = mask.frozen
        stepper = Stepper(model, constraint=mask)
        for i in range(1, 9):
            loss = self.loss(model, task)
            stepper.step(loss, lr=0.1)
            moved = yield Update(i, 8, 0, i == 8, {"forget": loss.detach()}, mask.frozen if i < 4 else first)
            stepper.carry(moved)


class LiesAboutNormMode(Descent):
    def after(self, model: nn.Module, task: Task) -> None:
        model.eval()


class UpdatesStatisticsInEval(Descent):
    """Ends in the declared mode, but passed through batch norm in train mode."""

    def loss(self, model: nn.Module, task: Task) -> torch.Tensor:
        model.train()
        value = super().loss(model, task)
        model.eval()
        return value


class NeverUpdatesStatistics(Descent):
    """Declares train mode and is in it at every update, but computes in eval mode."""

    def loss(self, model: nn.Module, task: Task) -> torch.Tensor:
        model.eval()
        value = super().loss(model, task)
        model.train()
        return value


class DrawsFromNowhere(Descent):
    def loss(self, model: nn.Module, task: Task) -> torch.Tensor:
        generator = torch.Generator()
        generator.seed()
        return super().loss(model, task) * torch.rand((), generator=generator)


class DifferentiatesInEval(Descent):
    """In train mode at every update, with statistics that change, but differentiates in eval mode."""

    def loss(self, model: nn.Module, task: Task) -> torch.Tensor:
        with torch.no_grad():
            super().loss(model, task)
        model.eval()
        value = super().loss(model, task)
        model.train()
        return value


@dataclass(frozen=True, kw_only=True)
class DeclaresNothingFrozen(Descent):
    """Says it masks, and never says what."""

    masks: ClassVar[bool] = True


def anchored(method: Descent, model: nn.Module, task: Task, anchor: Anchor, *, carry: bool) -> Updates:
    stepper = Stepper(model)
    for i in range(1, 5):
        loss = method.loss(model, task) + anchor.distance_squared(model)
        stepper.step(loss, lr=0.01)
        moved = yield Update(i, 4, 0, i == 4, {"loss": loss.detach()})
        stepper.carry(moved)
        if carry:
            anchor.carry(moved)


@dataclass(frozen=True, kw_only=True)
class AnchorsAtOriginal(Descent):
    """Takes the weights it stays close to from the teacher."""

    def updates(self, model: nn.Module, task: Task) -> Updates:
        anchor = Anchor(task.original.requires_grad_(True))
        task.original.requires_grad_(False)
        yield from anchored(self, model, task, anchor, carry=True)


@dataclass(frozen=True, kw_only=True)
class PutsBackOldWeights(Descent):
    """Ends with a checkpoint that it did not carry across the moves since."""

    def updates(self, model: nn.Module, task: Task) -> Updates:
        start = {n: t.clone() for n, t in model.state_dict().items()}
        yield from super().updates(model, task)
        model.load_state_dict(start)


@dataclass(frozen=True, kw_only=True)
class CountsRuns(Descent):
    """Depends on how often it ran, without touching any generator."""

    runs: Iterator[int]

    def updates(self, model: nn.Module, task: Task) -> Updates:
        with torch.no_grad():
            next(model.parameters()).mul_(1 + 0.01 * next(self.runs))
        yield from super().updates(model, task)


@dataclass(frozen=True, kw_only=True)
class DropsMomentum(Descent):
    """Keeps its momentum where it was when the channels moved."""

    momentum: float = 0.9

    def follows(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class DropsAnchor(Descent):
    """Measures the distance to where the weights started as if they had never been moved."""

    def updates(self, model: nn.Module, task: Task) -> Updates:
        yield from anchored(self, model, task, Anchor(model), carry=False)


class DoesNothing(Descent):
    def loss(self, model: nn.Module, task: Task) -> torch.Tensor:
        return super().loss(model, task) * 0.0


class RuinsModel(Descent):
    def after(self, model: nn.Module, task: Task) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.01)


BROKEN: list[tuple[str, Callable[[Problem], Method]]] = [
    ("original untouched", lambda problem: TouchesOriginal(target=problem.original)),
    ("teacher frozen", lambda _: TrainsTeacher()),
    ("frozen weights stay", lambda _: MasksGradientsOnly()),
    ("frozen weights stay", lambda _: ForgetsMaskAtMove()),
    ("frozen weights stay", lambda _: DeclaresNothingFrozen()),
    ("batch-norm mode kept", lambda _: LiesAboutNormMode()),
    ("batch-norm mode kept", lambda _: UpdatesStatisticsInEval(norm_mode="eval")),
    ("batch-norm mode kept", lambda _: NeverUpdatesStatistics()),
    ("batch-norm mode kept", lambda _: DifferentiatesInEval()),
    ("seed decides", lambda _: DrawsFromNowhere()),
    ("seed decides", lambda _: CountsRuns(runs=iter(range(100)))),
    ("permutations followed", lambda _: DropsMomentum()),
    ("change of basis unseen", lambda _: DropsAnchor()),
    ("start move followed", lambda _: AnchorsAtOriginal()),
    ("last move kept", lambda _: PutsBackOldWeights()),
]


@pytest.mark.parametrize(("rule", "build"), BROKEN)
def test_each_rule_catches_a_broken_method(rule: str, build: Callable[[Problem], Method]) -> None:
    fresh = noise_problem()
    assert RULES[rule](build(fresh), fresh) is not None


def test_no_rule_is_without_a_broken_method() -> None:
    assert {rule for rule, _ in BROKEN} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_what_the_broken_methods_are_built_on_keeps_the_rules(rule: str, problem: Problem) -> None:
    assert RULES[rule](Descent(momentum=0.9), problem) is None


def test_reading_one_forget_example_is_caught(problem: Problem) -> None:
    assert rules.forget_unread(Descent(), problem) == "the forget set was read 4 times"


def test_a_method_that_ruins_the_model_is_caught() -> None:
    assert "accuracy fell" in (forgets(RuinsModel(), digits_problem(2, epochs=4), seed=0) or "")


def test_the_report_names_the_method_and_what_it_broke() -> None:
    report = check_method(DropsMomentum(), forgetting_seeds=())
    assert [f.rule for f in report.broken] == ["permutations followed"]
    with pytest.raises(ConformanceError, match=r"descent breaks 1 of 9 rules: permutations followed: .*update 3"):
        report.require()


def test_a_method_that_fails_is_reported_and_not_raised() -> None:
    class Fails(Descent):
        def loss(self, model: nn.Module, task: Task) -> torch.Tensor:
            raise ZeroDivisionError("one over nothing")

    report = check_method(Fails(), forgetting_seeds=())
    assert all(f.broken == "ZeroDivisionError: one over nothing" for f in report.findings)


def test_a_method_that_does_nothing_does_not_forget() -> None:
    (finding,) = check_method(DoesNothing(norm_mode="eval"), forgetting_seeds=(2,)).broken
    assert finding.rule == "forgets (seed 2)"
    assert "the distance to the retrained model's outputs went from" in (finding.broken or "")
