from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.symmetry.linear_weights import LinearWeight, linear_weights


def by_name(model: nn.Module) -> dict[str, LinearWeight]:
    return {weight.name: weight for weight in linear_weights(model)}


def test_every_linear_layer_is_found_with_its_bias_and_groups() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2),
        nn.BatchNorm2d(6),
        nn.Conv1d(2, 2, 3, bias=False),
        nn.Linear(3, 2),
        nn.LayerNorm(2),
    )
    found = by_name(model)
    assert list(found) == ["0.weight", "2.weight", "3.weight"]
    assert [(w.bias, w.groups, w.d) for w in found.values()] == [("0.bias", 2, 18), (None, 1, 6), ("3.bias", 1, 3)]
    assert found["0.weight"].tensor is model[0].weight
    assert found["0.weight"].layers == (model[0],)


def test_frozen_weights_and_weights_that_are_buffers_are_found() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    kept = model[1].weight.detach()
    del model[1].weight
    model[1].register_buffer("weight", kept)
    assert list(by_name(model)) == ["0.weight", "1.weight"]


class Shared(nn.Module):
    def __init__(self, *, same_bias: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        if same_bias:
            self.b.bias = self.a.bias


def test_a_shared_weight_has_a_bias_only_where_all_its_layers_have_the_same() -> None:
    assert [(w.name, w.bias, len(w.layers)) for w in linear_weights(Shared(same_bias=True))] == [
        ("a.weight", "a.bias", 2)
    ]
    assert [(w.name, w.bias, len(w.layers)) for w in linear_weights(Shared(same_bias=False))] == [("a.weight", None, 2)]


def test_a_bias_that_another_layer_uses_too_does_not_move_with_a_weight() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].bias = model[0].bias
    assert [w.bias for w in linear_weights(model)] == [None, None]


def test_layers_that_share_a_weight_in_different_groups_are_cut_into_common_blocks() -> None:
    model = nn.Sequential(nn.Conv2d(4, 12, 1, groups=2, bias=False), nn.Conv2d(6, 12, 1, groups=3, bias=False))
    model[1].weight = model[0].weight
    assert [w.groups for w in linear_weights(model)] == [6]


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


class Untouched(nn.Linear):
    pass


def test_layers_that_compute_something_else_are_left_out() -> None:
    patched = nn.Linear(2, 2)
    patched.forward = lambda x: x @ patched.weight  # type: ignore[method-assign]
    model = nn.Sequential(Standardised(1, 1, 1), patched, Untouched(2, 2), nn.ConvTranspose2d(1, 1, 1))
    assert list(by_name(model)) == ["2.weight"]


def test_a_weight_that_another_kind_of_layer_shares_is_left_out() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False), nn.Linear(5, 5))
    model[0].weight = model[1].weight
    assert list(by_name(model)) == ["2.weight"]
    holder = nn.Module()
    holder.register_parameter("table", model[2].weight)
    assert list(by_name(nn.Sequential(model[2], holder))) == []


def test_a_weight_computed_at_every_call_is_left_out() -> None:
    model = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    assert list(by_name(model)) == ["1.weight"]
