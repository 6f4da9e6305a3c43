"""WARP and FastWARP on networks of many kinds: nearly all moves, and certificates say what was done."""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

import pytest
import torch
from tests.networks import ARCHITECTURES, smooth
from tests.oracles import warp_loop
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning import unlearn
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.methods.base import Task
from warp_unlearning.symmetry.layer_inputs import linear_weights
from warp_unlearning.symmetry.moves import Move
from warp_unlearning.training.update import Update

State = dict[str, Tensor]


class Noted:
    """Ascends the forget loss a little, and notes the weights before and after each move."""

    name: ClassVar[str] = "noted"
    norm_mode: ClassVar[str] = "eval"

    def __init__(self) -> None:
        self.states: list[tuple[State, State]] = []

    def updates(self, model: nn.Module, task: Task) -> Generator[Update, Move | None, None]:
        x, y = task.forget.take(torch.arange(len(task.forget)))
        model.eval()
        for step in (1, 2, 3):
            gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
            with torch.no_grad():
                for p, gradient in zip(model.parameters(), gradients, strict=True):
                    p += 0.01 * gradient
            before = {name: value.clone() for name, value in model.state_dict().items()}
            yield Update(step, 3, step - 1, True, {})
            self.states.append((before, {name: value.clone() for name, value in model.state_dict().items()}))


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("defense", ["warp", "fastwarp"])
def test_nearly_all_weights_move_and_certificates_are_true(name: str, defense: str) -> None:
    make, shape = ARCHITECTURES[name]
    model, method = make().double().eval(), Noted()
    forget = smooth(4, shape, 1), torch.tensor([0, 1, 2, 0])
    retain = smooth(40, shape, 2), torch.arange(40) % 3
    result = unlearn(
        model,
        forget=forget,
        retain=retain,
        method=method,
        defense=make_defense(defense, tolerance=10.0),
    )
    assert [certificate.scale for certificate in result.teleports] == [1.0] * 3
    matrices = [weight.name for weight in linear_weights(model)]
    for certificate, (before, after) in zip(result.teleports, method.states, strict=True):
        moved = {layer.name for layer in certificate.layers if layer.moved > 0}
        assert len(moved & set(matrices)) >= 0.9 * len(matrices), certificate.left
        lengths = {name: float((after[name] - before[name]).square().sum()) for name in after}
        told = sum(layer.moved**2 + layer.moved_unreached**2 for layer in certificate.layers)
        assert told == pytest.approx(sum(lengths.values()))
        assert certificate.moved**2 + certificate.moved_unreached**2 == pytest.approx(told)
        assert all(name in certificate.left for name, _ in model.named_parameters() if lengths[name] == 0)
        ends = (certificate.energy_before, certificate.energy_after)
        for state, energy, loss in zip(
            (before, after), ends, (certificate.forget.loss_before, certificate.forget.loss_after), strict=True
        ):
            stood = make().double().eval()
            stood.load_state_dict(state)
            assert loss == pytest.approx(warp_loop.loss(stood, forget))
            if name != "squeeze and excitation":  # Torch cannot differentiate a hardsigmoid twice.
                assert energy == pytest.approx(2 * warp_loop.gradient_energy(stood, forget)[0] / 4)
