from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.gradients.tracing import copy_with_same_parameters, parameters_replaced


class Stateful(nn.Module):
    """State of many kinds beside parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.calls: list[int] = []
        self.table = {"a": [1]}
        self.nested = ([1], 2)
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("nothing", None)
        self.aside = [self.scale]


def test_parameters_are_shared_and_nothing_else() -> None:
    model = Stateful()
    copy: Any = copy_with_same_parameters(model)
    assert copy is not model
    assert copy.scale is copy.aside[0] is model.scale
    assert copy.nothing is None
    copy.calls.append(1)
    copy.table["a"].append(2)
    copy.nested[0].append(2)
    copy.count.add_(1)
    copy.register_forward_hook(lambda *_: None)
    copy.other = 1
    assert (model.calls, model.table, model.nested) == ([], {"a": [1]}, ([1], 2))
    assert not model.count.any()
    assert not model._forward_hooks
    assert not hasattr(model, "other")


def test_a_module_in_two_places_stays_one_and_hooks_come_along() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda layer, args, output: output * 0)
    copy: Any = copy_with_same_parameters(nn.Sequential(layer, nn.ModuleList([layer])))
    assert copy[0] is copy[1][0]
    assert copy[0] is not layer
    assert not copy[0](torch.ones(1, 2)).any()


def test_what_cannot_be_copied_is_named() -> None:
    layer: Any = nn.Linear(2, 2)
    layer.kept = layer.weight * 2
    with pytest.raises(InputError, match="Linear cannot be copied"):
        copy_with_same_parameters(layer)


def test_replaced_parameters_come_back_also_after_an_error() -> None:
    layer = nn.Linear(2, 2)
    model, weight = nn.Sequential(layer, layer), layer.weight
    with parameters_replaced(model.modules(), {id(weight): torch.zeros(2, 2)}):
        assert torch.equal(layer(torch.ones(1, 2))[0], layer.bias)
    assert layer.weight is weight
    with pytest.raises(ValueError, match="here"), parameters_replaced(model.modules(), {id(weight): torch.zeros(2, 2)}):
        raise ValueError("here")
    assert layer.weight is weight
