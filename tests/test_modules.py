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
    """A layer that is a child twice, a tied weight, places that are empty, and tensors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.again = self.first[0]
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first[0].weight
        self.own = nn.Parameter(torch.zeros(2))
        self.register_parameter("nothing", None)
        self.register_module("nobody", None)
        self.register_buffer("held", torch.ones(2))
        self.register_buffer("unheld", None)
        self.register_buffer("held_again", self.held, persistent=False)


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
    assert not model.first[1].training


class Frozen(nn.Sequential):
    """One whose layers stay as they are in train mode."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        for child in self:
            child.eval()
        return self


def test_a_module_says_itself_what_train_mode_is() -> None:
    model = Frozen(nn.Dropout())
    set_mode(model, training=False)
    set_mode(model, training=True)
    assert model.training
    assert not model[0].training


def test_paths_are_those_of_torch() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared), nn.ModuleDict({"a": nn.Sequential(nn.Tanh())}))
    model.register_module("nothing", None)
    found = modules_by_path(model)
    assert list(found.items()) == list(model.named_modules())


def test_a_tensor_is_what_the_attribute_is() -> None:
    model = Odd()
    assert tensor_of(model, "own") is model.own
    assert tensor_of(model, "nothing") is None
    assert tensor_of(model, "held") is model.held
    assert tensor_of(model, "unheld") is None
    assert tensor_of(nn.Linear(2, 2, bias=False), "bias") is None
    with pytest.raises(AttributeError, match="absent"):
        tensor_of(model, "absent")


def test_a_tensor_is_found_where_torch_did_not_put_it() -> None:
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
