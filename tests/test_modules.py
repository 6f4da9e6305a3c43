from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from warp_unlearning.modules import (
    modes_of,
    modules_by_path,
    restore_modes,
    set_mode,
    tensor_of,
)


class Odd(nn.Module):
    """A layer that is a child twice, and places that are empty."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ModuleDict({"a": nn.Tanh()}))
        self.again = self.first[0]
        self.own = nn.Parameter(torch.zeros(2))
        self.register_parameter("nothing", None)
        self.register_module("nobody", None)
        self.register_buffer("held", torch.ones(2))
        self.register_buffer("unheld", None)


class Frozen(nn.Sequential):
    """One whose layers stay as they are in train mode."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        for child in self:
            child.eval()
        return self


def test_paths_are_those_of_torch() -> None:
    model = Odd()
    assert list(modules_by_path(model).items()) == list(model.named_modules())


def test_modes_are_set_and_brought_back() -> None:
    model = Odd()
    model.first[1].eval()
    before = modes_of(model)
    assert [(id(module), mode) for module, mode in before] == [(id(m), m.training) for m in model.modules()]
    for training in (True, False):
        set_mode(model, training=training)
        assert {module.training for module in model.modules()} == {training}
    restore_modes(before)
    assert [module.training for module in model.modules()] == [mode for _, mode in before]
    frozen = Frozen(nn.Dropout())
    set_mode(frozen, training=False)
    set_mode(frozen, training=True)
    assert [module.training for module in frozen.modules()] == [True, False]


def test_a_tensor_is_what_the_attribute_is() -> None:
    model = Odd()
    for name in ("own", "nothing", "held", "unheld"):
        assert tensor_of(model, name) is getattr(model, name)
    assert tensor_of(nn.Linear(2, 2, bias=False), "bias") is None
    with pytest.raises(AttributeError, match="absent"):
        tensor_of(model, "absent")
    halved: Any = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Half())
    halved.parametrizations.weight.original.data.fill_(2)
    found = tensor_of(halved, "weight")
    assert found is not None
    assert found.eq(1).all()
    hidden = nn.Linear(2, 2)
    vars(hidden)["weight"] = torch.zeros(2, 2)
    assert tensor_of(hidden, "weight") is hidden.weight


class Half(nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2
