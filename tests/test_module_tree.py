from __future__ import annotations

import torch
from torch import nn

from warp_unlearning.module_tree import (
    buffers_by_name,
    modes_of,
    modules_by_path,
    parameters_by_name,
    restore_modes,
    set_mode,
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


def test_tensors_are_those_that_torch_names_in_its_order() -> None:
    model = Odd()
    for found, expected in (
        (parameters_by_name(model), dict(model.named_parameters())),
        (buffers_by_name(model), dict(model.named_buffers())),
    ):
        assert list(found) == list(expected)
        assert all(found[name] is tensor for name, tensor in expected.items())
    assert parameters_by_name(nn.ReLU()) == buffers_by_name(nn.ReLU()) == {}
    assert list(parameters_by_name(nn.Linear(2, 2))) == ["weight", "bias"]


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
