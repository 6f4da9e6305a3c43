from __future__ import annotations

from typing import Any

import torch
from torch import nn

from warp_unlearning import unlearn
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.references import Finetune, Retrain
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.training.training import Recipe, Training, run_training


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_it_is_a_training_from_fresh_weights_on_the_retain_set(kit: Any, model: nn.Module, task: Task) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
    updates = kit.run(Retrain(**settings), model, task)
    expected = kit.network()
    reinitialise(expected, generator=task.streams.generator("initial weights"))
    run_training(Training(expected, task.retain, recipe=Recipe(**settings), streams=task.streams))
    assert same(model, expected)
    assert len(updates) == 12
    assert not Retrain.reads_forget


def test_fine_tuning_is_a_training_that_starts_from_the_model(kit: Any, model: nn.Module, task: Task) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
    kit.run(Finetune(**settings), model, kit.task_of(model, forget=kit.points(4, 99)))
    expected = kit.network()
    run_training(Training(expected, task.retain, recipe=Recipe(**settings), streams=task.streams))
    assert same(model, expected)
    assert not same(model, kit.network())
    assert not Finetune.reads_forget


def test_augmentation_settings_arrive(kit: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = [SmallResNet(classes=3, width=4, in_channels=2) for _ in range(3)]
    examples = type(kit.points(1, 0))(
        torch.randn(12, 2, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    )
    task = kit.task_of(models[0], retain=examples)
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 6, "crop_padding": 2, "flip": True}
    kit.run(Retrain(fill=(1.0, -2.0), **settings), models[0], task)
    reinitialise(models[1], generator=task.streams.generator("initial weights"))
    run_training(Training(models[1], examples, recipe=Recipe(**settings), streams=task.streams, fill=(1.0, -2.0)))
    kit.run(Retrain(fill=(0.0, 0.0), **settings), models[2], task)
    assert same(models[0], models[1])
    assert not same(models[0], models[2])


def test_layers_frozen_beforehand_stay_as_they_are() -> None:
    layers = [torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)]
    model = torch.nn.Sequential(*layers)
    for layer in layers[:2]:
        layer.requires_grad_(False)
    layers[1].running_mean.fill_(3.0)
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    before = {n: t.clone() for n, t in model.state_dict().items()}
    after = unlearn(
        model, forget=(x[:4], y[:4]), retain=(x[4:], y[4:]), method=Retrain(epochs=1, batch_size=64)
    ).model.state_dict()
    for name in before:
        assert torch.equal(after[name], before[name]) == name.startswith(("0.", "1."))


def test_the_first_update_alone_says_that_it_starts_from_fresh_weights(kit: Any, model: nn.Module, task: Task) -> None:
    updates = kit.run(Retrain(epochs=2, batch_size=8), model, task)
    assert [update.restarts for update in updates] == [True, *[False] * 7]
