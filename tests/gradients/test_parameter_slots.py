from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.gradients.parameter_slots import copy_with_same_parameters


class Stateful(nn.Module):
    """State of many kinds beside parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.calls: list[int] = []
        self.table = {"a": [1]}
        self.sizes = (1, 2)
        self.nested = ([1], 2)
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("nothing", None)
        self.aside = [self.scale]


def test_parameters_are_shared_and_nothing_else() -> None:
    model = Stateful()
    copy: Any = copy_with_same_parameters(model)
    assert copy is not model
    assert type(copy) is Stateful
    assert copy.scale is model.scale
    assert copy.aside[0] is model.scale
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


def test_a_module_in_two_places_stays_one() -> None:
    layer = nn.Linear(2, 2)
    copy: Any = copy_with_same_parameters(nn.Sequential(layer, nn.ModuleList([layer])))
    assert copy[0] is copy[1][0]
    assert copy[0] is not layer
    assert copy[0].weight is layer.weight


def test_hooks_come_along() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda layer, args, output: output * 0)
    assert not copy_with_same_parameters(layer)(torch.ones(1, 2)).any()


def test_statistics_that_are_read_alone_are_shared_in_eval_mode() -> None:
    norm = nn.BatchNorm1d(2)
    copy: Any = copy_with_same_parameters(norm)
    assert copy.running_mean is not norm.running_mean
    copy = copy_with_same_parameters(norm.eval())
    assert copy.running_mean is norm.running_mean
    copy.running_mean = torch.ones(2)
    assert not norm.running_mean.any()


def test_a_class_that_copies_itself_does_so() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.label = "original"

        def __deepcopy__(self, memo: dict[int, Any]) -> Own:
            found = Own()
            found.inner = deepcopy(self.inner, memo)
            found.label = "copy"
            return found

    model = nn.Sequential(Own())
    copy: Any = copy_with_same_parameters(model)
    assert copy[0].label == "copy"
    assert copy[0].inner.weight is model[0].inner.weight


def test_what_cannot_be_copied_is_named() -> None:
    layer: Any = nn.Linear(2, 2)
    layer.kept = layer.weight * 2
    with pytest.raises(InputError, match="Linear cannot be copied"):
        copy_with_same_parameters(layer)


def test_what_two_modules_share_they_share_in_the_copy() -> None:
    layers: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layers[0].table = layers[1].table = {}
    layers[0].calls = layers[1].calls = []
    layers[0].sizes = layers[1].sizes = ([], 1)
    copy: Any = copy_with_same_parameters(layers)
    for name in ("table", "calls", "sizes"):
        assert getattr(copy[0], name) is getattr(copy[1], name)
        assert getattr(copy[0], name) is not getattr(layers[0], name)


def test_an_empty_child_is_copied_and_none_stays_none() -> None:
    model: Any = nn.Sequential(nn.Sequential())
    model.register_module("nobody", None)
    copy: Any = copy_with_same_parameters(model)
    assert copy[0] is not model[0]
    assert copy.nobody is None


def test_a_parameter_of_a_later_module_is_shared_with_an_earlier_one() -> None:
    layers: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layers[0].aside = [layers[1].weight]
    assert copy_with_same_parameters(layers)[0].aside[0] is layers[1].weight  # type: ignore[index]
