from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.gradients.ghost import rule as registry
from warp_unlearning.gradients.ghost.linear import LinearRule
from warp_unlearning.gradients.ghost.rule import GhostRule, register, rule_of


class Scale(nn.Module):
    """Every feature times a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class ScaleRule(GhostRule):
    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        return a * g


def test_a_second_rule_for_a_type_is_refused_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    with pytest.raises(InputError, match="Linear already has the rule LinearRule; register ScaleRule for a subclass"):
        register(Scale, nn.Linear)(ScaleRule)
    assert isinstance(rule_of(nn.Linear(2, 2)), LinearRule)
    assert rule_of(Scale()) is None


def test_a_registered_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    register(Scale)(ScaleRule)
    assert isinstance(rule_of(Scale()), ScaleRule)


def test_layers_that_compute_something_of_their_own_have_no_rule() -> None:
    class Same(nn.Linear):
        pass

    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sin()

    class Kernel(nn.Conv1d):
        def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return super()._conv_forward(x, weight.sin(), bias)

    changed = nn.Linear(2, 2)
    changed.forward = torch.sin
    assert isinstance(rule_of(Same(2, 2)), LinearRule)
    assert rule_of(Other(2, 2)) is None
    assert rule_of(Kernel(2, 2, 1)) is None
    assert rule_of(changed) is None
