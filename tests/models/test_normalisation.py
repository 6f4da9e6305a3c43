from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.modes import batch_norms, enter_mode, norm_mode
from warp_unlearning.models.networks import ResNet18


def test_all_kinds_of_batch_norm_are_found_and_nothing_else() -> None:
    kinds = [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2)]
    model = nn.Sequential(nn.LayerNorm(2), nn.Sequential(*kinds), nn.GroupNorm(1, 2), nn.InstanceNorm1d(2))
    found = batch_norms(model)
    assert len(found) == 4
    assert all(a is b for a, b in zip(found, kinds, strict=True))


def test_resnet18_has_twenty() -> None:
    assert len(batch_norms(ResNet18(width=2))) == 20


@pytest.mark.parametrize(("mode", "training"), [("train", True), ("eval", False)])
def test_the_mode_holds_inside_and_each_module_gets_its_own_back(mode: str, training: bool) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), nn.BatchNorm1d(2))
    model[0].eval()
    with norm_mode(model, mode):  # type: ignore[arg-type]
        assert [module.training for module in model.modules()] == [training] * 4
    assert [module.training for module in model.modules()] == [True, False, True, True]


def test_the_modes_come_back_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout()).train()
    with pytest.raises(ZeroDivisionError), norm_mode(model, "eval"):
        1 / 0
    assert model[0].training


def test_eval_leaves_the_running_statistics() -> None:
    model = nn.BatchNorm1d(2)
    x = torch.arange(6.0).reshape(3, 2)
    with norm_mode(model, "eval"):
        model(x)
    assert model.num_batches_tracked == 0
    with norm_mode(model, "train"):
        model(x)
    assert model.num_batches_tracked == 1


def test_an_unknown_mode_is_refused() -> None:
    with (
        pytest.raises(InputError, match="mode is 'evl'; did you mean 'eval'"),
        norm_mode(nn.Dropout(), "evl"),
    ):  # type: ignore[arg-type]
        pass


def test_frozen_layers_stay_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2), nn.Dropout())
    model[1].requires_grad_(False)
    enter_mode(model, "train")
    assert [m.training for m in (model, *model)] == [True, True, False, True, True]
    enter_mode(model, "eval")
    assert not any(m.training for m in model.modules())
