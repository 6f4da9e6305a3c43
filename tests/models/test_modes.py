from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.modes import (
    batch_norms,
    choose_device,
    draws_nothing,
    enter_mode,
    norm_mode,
    predict,
)
from warp_unlearning.models.networks import MODELS, ResNet18, build_model


def test_all_kinds_of_batch_norm_are_found_and_nothing_else() -> None:
    kinds = [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2)]
    model = nn.Sequential(nn.LayerNorm(2), nn.Sequential(*kinds), nn.GroupNorm(1, 2), nn.InstanceNorm1d(2))
    assert [id(found) for found in batch_norms(model)] == [id(kind) for kind in kinds]
    assert len(batch_norms(ResNet18(width=2))) == 20


@pytest.mark.parametrize(("mode", "training"), [("train", True), ("eval", False)])
def test_the_mode_holds_inside_and_each_module_gets_its_own_back(mode: str, training: bool) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), nn.BatchNorm1d(2))
    model[0].eval()
    with norm_mode(model, mode):  # type: ignore[arg-type]
        assert [module.training for module in model.modules()] == [training] * 4
    with pytest.raises(ZeroDivisionError), norm_mode(model, mode):  # type: ignore[arg-type]
        1 / 0
    assert [module.training for module in model.modules()] == [True, False, True, True]
    with pytest.raises(InputError, match="mode is 'evl'; did you mean 'eval'"), norm_mode(model, "evl"):  # type: ignore[arg-type]
        pass


def test_frozen_layers_stay_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2), nn.Dropout())
    model[1].requires_grad_(False)
    enter_mode(model, "train")
    assert [m.training for m in (model, *model)] == [True, True, False, True, True]
    enter_mode(model, "eval")
    assert not any(m.training for m in model.modules())


def test_a_single_example_passes_batch_norm_by_running_statistics() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    x = torch.ones(1, 3)
    with norm_mode(model, "eval"):
        expected = model(x)
    assert torch.equal(predict(model, x), expected)
    assert model[1].training
    assert model[1].num_batches_tracked == 0
    predict(model, torch.ones(2, 3))
    assert model[1].num_batches_tracked == 1


class Noisy(nn.Linear):
    """Its own code may draw."""


def test_only_networks_of_ours_and_known_layers_are_said_to_draw_nothing() -> None:
    for name in MODELS:
        assert draws_nothing(build_model(name, **({"inputs": 2, "classes": 2} if name == "mlp" else {})))
    assert draws_nothing(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert not draws_nothing(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)))
    assert not draws_nothing(Noisy(2, 2))


def test_devices_are_chosen_by_name_and_others_refused_in_one_line() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(InputError, match=rf"the device '{name}' cannot be used: [^\n]+; try auto or cpu$"):
            choose_device(name)
