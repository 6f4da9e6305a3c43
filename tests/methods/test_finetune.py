from __future__ import annotations

from typing import Any

import torch
from torch import nn

from warp_unlearning.methods.finetune import Finetune
from warp_unlearning.methods.protocol import Task
from warp_unlearning.training.training import Recipe, Training, run_training


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_it_is_a_training_that_starts_where_the_model_is(kit: Any, model: nn.Module, task: Task) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
    kit.run(Finetune(**settings), model, task)
    expected = kit.network()
    run_training(Training(expected, task.retain, recipe=Recipe(**settings), streams=task.streams))
    assert same(model, expected)
    assert not same(model, kit.network())
    assert not Finetune.reads_forget


def test_the_forget_set_does_not_matter(kit: Any, model: nn.Module, task: Task) -> None:
    other = kit.network()
    kit.run(Finetune(epochs=2), model, task)
    kit.run(Finetune(epochs=2), other, kit.task(other, forget=kit.points(4, 99)))
    assert same(model, other)
