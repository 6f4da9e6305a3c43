from copy import deepcopy

import pytest
import torch
from torch import nn

from warp_unlearning.attacks.membership.model_pair import (
    are_identical,
    check_pair,
    compared_parameters,
    device_of,
    gradient_copy,
)
from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import MLP, SmallResNet


def test_a_copy_is_trainable_where_asked_and_shares_nothing() -> None:
    model = SmallResNet(width=2).eval().requires_grad_(False)
    copy = gradient_copy(model, ["fc.weight"], what="original")
    assert [name for name, p in copy.named_parameters() if p.requires_grad] == ["fc.weight"]
    assert not any(p.requires_grad for p in model.parameters())
    assert not {p.data_ptr() for p in copy.parameters()} & {p.data_ptr() for p in model.parameters()}


def test_train_mode_is_refused() -> None:
    model = SmallResNet(width=2)
    with pytest.raises(InputError, match=r"the unlearned model is in train mode .*call `unlearned.eval\(\)` first"):
        gradient_copy(model, ["fc.weight"], what="unlearned")
    model.eval()
    model.layer1.bn1.train()
    with pytest.raises(InputError, match=r"train mode \(layer1.bn1\)"):
        gradient_copy(model, ["fc.weight"], what="unlearned")


def test_coarse_weights_are_refused() -> None:
    with pytest.raises(InputError, match="bfloat16"):
        gradient_copy(MLP(inputs=3, classes=2).bfloat16().eval(), ["layers.0.weight"], what="original")


def test_the_trainable_parameters_are_compared_or_all() -> None:
    model = nn.Linear(3, 2)
    assert compared_parameters(model) == ["weight", "bias"]
    model.bias.requires_grad_(False)
    assert compared_parameters(model) == ["weight"]
    assert compared_parameters(model.requires_grad_(False)) == ["weight", "bias"]
    with pytest.raises(InputError, match="no parameters"):
        compared_parameters(nn.ReLU())


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (SmallResNet(width=2, in_channels=3), "'conv1.weight' has shape"),
        (SmallResNet(width=2).double(), r"'conv1.weight' has type torch.float32 in the original and torch.float64"),
        (MLP(inputs=3, classes=2), "in one of the two models only"),
    ],
)
def test_pairs_that_do_not_match(other: nn.Module, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_pair(SmallResNet(width=2), other)


def test_weights_tied_in_one_model_only() -> None:
    one, other = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2))
    other[1].weight = other[0].weight
    with pytest.raises(InputError, match="tie or order"):
        check_pair(one, other)


def test_pairs_on_different_devices() -> None:
    with pytest.raises(InputError, match="original model is on cpu and the unlearned one on meta"):
        check_pair(nn.Linear(3, 2), nn.Linear(3, 2, device="meta"))
    with pytest.raises(InputError, match="spread over"):
        device_of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, device="meta")), what="original")


def test_identical_means_every_entry() -> None:
    model = SmallResNet(width=2)
    other = deepcopy(model)
    check_pair(model, other)
    assert are_identical(model, other)
    assert isinstance(other.bn1.running_mean, torch.Tensor)
    other.bn1.running_mean[0] += 1e-6
    assert not are_identical(model, other)
