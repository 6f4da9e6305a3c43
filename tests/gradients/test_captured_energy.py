"""Energies as one captured graph: what a CPU can check of it, and the graph itself on a GPU."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.gradients import captured_energy
from warp_unlearning.gradients.captured_energy import CapturedEnergy, energies_without_graph
from warp_unlearning.gradients.energy import (
    cross_entropy,
    gradient_energy,
    parameters_without_rules,
    unchecked_energy,
)
from warp_unlearning.models.networks import SmallResNet


class Scaled(nn.Module):
    """A network whose last factor stands in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.factor


def summed(model: nn.Module, energies: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(energies.sum(), list(model.parameters()), allow_unused=True)


def test_unchecked_energies_are_the_energies(drawn: Any, examples: Any) -> None:
    model, (x, y) = drawn(lambda: SmallResNet(classes=3, width=4)), examples(3, 1, 8, 8)
    expected, found = gradient_energy(model, x, y), unchecked_energy(model, x, y, loss=cross_entropy)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(summed(model, found), summed(model, expected), rtol=1e-9, atol=1e-12)


def test_energies_without_a_graph_are_the_energies(drawn: Any, examples: Any) -> None:
    model, (x, y) = drawn(lambda: SmallResNet(classes=3, width=4)), examples(3, 1, 8, 8)
    found = energies_without_graph(model, x, y, loss=cross_entropy)
    assert not found.requires_grad
    torch.testing.assert_close(found, gradient_energy(model, x, y).detach(), rtol=1e-12, atol=0)


def test_parameters_without_rules_are_named(drawn: Any, examples: Any) -> None:
    x, y = examples(3, 4)
    assert parameters_without_rules(drawn(Scaled), x, y, loss=cross_entropy) == ["factor"]
    assert parameters_without_rules(drawn(lambda: nn.Linear(4, 3)), x, y, loss=cross_entropy) == []


def test_a_batch_that_is_not_the_first_axis_is_named(drawn: Any, examples: Any) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.transpose(0, 1)).sum(0)

    x, y = examples(2, 4, 3)
    assert parameters_without_rules(drawn(Turned), x, y, loss=cross_entropy) == ["layer.weight", "layer.bias"]


def test_a_cpu_has_no_graphs(drawn: Any, examples: Any) -> None:
    with pytest.raises(InputError, match="on cpu; graphs are captured on CUDA"):
        CapturedEnergy(drawn(lambda: nn.Linear(4, 3)), *examples(3, 4))


def problem(drawn: Any, examples: Any) -> tuple[nn.Module, Tensor, Tensor]:
    return drawn(lambda: SmallResNet(classes=3, width=4)), *examples(3, 1, 8, 8)


def assert_follows(energy: CapturedEnergy, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Energies, slopes and the gradient of the loss are those of the weights as they stand."""
    expected = gradient_energy(model, x, y)
    mean = torch.nn.functional.cross_entropy(model(x), y)
    right = torch.autograd.grad(mean, list(model.parameters()))
    found = energy.replayed(x, y)
    torch.testing.assert_close(found.energies, expected.detach(), rtol=1e-9, atol=0)
    for given, wanted in ((found.gradients, summed(model, expected)), (found.loss_gradients, right)):
        for one, other in zip(given.values(), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(energy.replayed_energies(x, y), expected.detach(), rtol=1e-9, atol=0)


def test_before_and_after_a_capture_it_is_the_energy(drawn: Any, examples: Any, redone: list[Any]) -> None:
    model, x, y = problem(drawn, examples)
    energy = CapturedEnergy(model, x, y, loss_gradients=True)
    for turn in range(4):
        if turn == 2:
            energy.capture()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.1)
        assert_follows(energy, model, x * (1 + turn), y.roll(turn))
        assert energy.captured == (turn >= 2)
    assert [graph.replays for graph in redone] == [2, 2]
    assert redone[1].pool is redone[0].pool
    energy.capture()
    assert len(redone) == 2


def test_nothing_holds_it_once_it_is_let_go_of(drawn: Any, examples: Any, redone: list[Any]) -> None:
    """Graphs that wait for a cycle to be noticed are destroyed at any moment, also while others are captured."""
    model, x, y = problem(drawn, examples)
    gc.collect()
    gc.disable()
    try:
        energy = CapturedEnergy(model, x, y)
        energy.replayed(x, y)
        energy.capture()
        gone = [weakref.ref(each) for each in (energy, energy._slopes, energy._alone)]
        # The stand-ins for graphs hold what they do again.
        energy._slopes.graph = energy._alone.graph = None
        redone.clear()
        del energy
        assert [each() for each in gone] == [None, None, None]
    finally:
        gc.enable()


Counted = tuple[CapturedEnergy, Tensor, Tensor, list[str]]


@pytest.fixture
def counted(drawn: Any, examples: Any, monkeypatch: pytest.MonkeyPatch, redone: list[Any]) -> Counted:
    """An energy, a batch of it, and by name which functions compute energies from here on."""
    model, x, y = problem(drawn, examples)
    calls: list[str] = []

    def call(inner: Any, name: str, *given: Any, **named: Any) -> Any:
        calls.append(name)
        return inner(*given, **named)

    for name in ("gradient_energy", "unchecked_energy", "energies_without_graph"):
        monkeypatch.setattr(captured_energy, name, partial(call, getattr(captured_energy, name), name))
    return CapturedEnergy(model, x, y), x, y, calls


def test_what_was_done_is_not_done_again_for_a_capture(counted: Counted) -> None:
    energy, x, y, calls = counted
    energy.replayed(x, y)
    energy.replayed_energies(x, y)
    assert calls == ["gradient_energy", "gradient_energy"]
    energy.capture()
    assert calls[2:] == ["unchecked_energy", "energies_without_graph"]


def test_what_was_not_done_is_done_before_a_capture_and_checked(counted: Counted) -> None:
    energy, x, y, calls = counted
    energy.replayed_energies(x, y)
    energy.capture()
    assert calls == ["gradient_energy", "gradient_energy", "unchecked_energy", "energies_without_graph"]
    broken = CapturedEnergy(energy.model, torch.full_like(x, torch.nan), y)
    with pytest.raises(InputError, match="x holds"):
        broken.capture()


@pytest.mark.usefixtures("redone")
def test_until_it_is_captured_it_refuses_what_the_energy_refuses(drawn: Any, examples: Any) -> None:
    model, x, y = problem(drawn, examples)
    energy = CapturedEnergy(model, x, y)
    for ask in (energy.replayed, energy.replayed_energies):
        with pytest.raises(InputError, match="x holds"):
            ask(torch.full_like(x, torch.nan), y)
        ask(x, y)
    energy.capture()
    assert not bool(energy.replayed(torch.full_like(x, torch.nan), y).energies.isfinite().any())


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
def test_a_replay_follows_the_weights_and_the_batch(drawn: Any, examples: Any) -> None:
    model = drawn(lambda: SmallResNet(classes=3, width=4)).cuda()
    (x, y), (other_x, other_y) = ([t.cuda() for t in examples(3, 1, 8, 8)] for _ in range(2))
    graph = CapturedEnergy(model, x, y)
    graph.capture()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    for batch in ((x, y), (other_x * 0.5, other_y.flip(0))):
        energies, gradients = graph(*batch)
        expected = gradient_energy(model, *batch)
        torch.testing.assert_close(energies, expected.detach(), rtol=1e-9, atol=0)
        for found, right in zip(gradients.values(), summed(model, expected), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-8, atol=1e-12)


@pytest.mark.gpu
@needs_gpu
def test_energies_alone_and_the_gradient_of_the_loss_follow_too(drawn: Any, examples: Any) -> None:
    """Both graphs share memory: each replay is right whatever was replayed before it."""
    model = drawn(lambda: SmallResNet(classes=3, width=4)).cuda()
    x, y = (t.cuda() for t in examples(3, 1, 8, 8))
    graph = CapturedEnergy(model, x, y, loss_gradients=True)
    for turn, factor in enumerate((1.1, 0.9, 1.2)):
        if turn == 1:
            graph.capture()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(factor)
        expected = gradient_energy(model, x, y)
        slopes = summed(model, expected)
        # What is left of its graph would tie the parameters to the stream it was made on.
        expected = expected.detach()
        torch.testing.assert_close(graph.replayed_energies(x, y), expected, rtol=1e-9, atol=0)
        found = graph.replayed(x, y)
        energies, gradients = found.energies.clone(), [g.clone() for g in found.gradients.values()]
        of_loss = [g.clone() for g in found.loss_gradients.values()]
        torch.testing.assert_close(graph.replayed_energies(x, y), expected.detach(), rtol=1e-9, atol=0)
        torch.testing.assert_close(energies, expected.detach(), rtol=1e-9, atol=0)
        right = torch.autograd.grad(torch.nn.functional.cross_entropy(model(x), y), list(model.parameters()))
        for given, wanted in ((gradients, slopes), (of_loss, right)):
            for one, other in zip(given, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)
    assert graph.suits(x, y)
    assert not graph.suits(x[:2], y[:2])


@pytest.mark.gpu
@needs_gpu
def test_what_a_graph_refuses(drawn: Any, examples: Any) -> None:
    model = drawn(lambda: nn.Linear(4, 3)).cuda()
    x, y = (t.cuda() for t in examples(3, 4))
    graph = CapturedEnergy(model, x, y)
    graph.capture()
    with pytest.raises(InputError, match="captured for"):
        graph(x[:2], y[:2])
    with pytest.raises(InputError, match=r"the energy of example 1 is nan"):
        graph(x.index_fill(0, torch.tensor([1], device="cuda"), float("nan")), y)
    model.weight.data = model.weight.data.clone()
    with pytest.raises(InputError, match="weight lies elsewhere"):
        graph(x, y)
    with pytest.raises(InputError, match="factor is used where no rule is known"):
        CapturedEnergy(drawn(Scaled).cuda(), x, y)
