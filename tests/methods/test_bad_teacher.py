from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence
from torch.utils.data import TensorDataset

from warp_unlearning.data.examples import DatasetExamples
from warp_unlearning.methods.bad_teacher import BadTeacher
from warp_unlearning.methods.base import Task
from warp_unlearning.models.fresh import reinitialise


def fresh_teacher(task: Task) -> nn.Module:
    model = deepcopy(task.original)
    reinitialise(model, generator=task.streams.generator("untrained"))
    return model.eval()


def by_hand(kit: Any, model: nn.Module, task: Task, s: BadTeacher) -> list[dict[str, float]]:
    optimizer = kit.Adam(model, s.weight_decay) if s.optimizer == "adam" else kit.SGD(model, s.momentum, s.weight_decay)
    bad, kept = fresh_teacher(task), round(s.retain_share * len(task.retain))
    part = torch.randperm(len(task.retain), generator=task.streams.generator("part"))[:kept].tolist()
    rows = []
    for e in range(s.epochs):
        for index in kit.batches(len(task.forget) + kept, s.batch_size, task.streams.generator("mixed", e)):
            inputs, targets = [], []
            for i in index.tolist():
                forgotten = i < len(task.forget)
                x = task.forget.x[i] if forgotten else task.retain.x[part[i - len(task.forget)]]
                with torch.no_grad():
                    teacher = bad if forgotten else task.original
                    targets.append(teacher(x.unsqueeze(0))[0])
                inputs.append(x)
            output = model(torch.stack(inputs))
            total: Any = 0.0
            for row, target in zip(output, targets, strict=True):
                total = total + kl_divergence(
                    Categorical(logits=target / s.temperature), Categorical(logits=row / s.temperature)
                )
            optimizer.step(total / len(targets), s.lr)
            rows.append({"divergence": float(total.detach()) / len(targets)})
    return rows


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 3.0, "retain_share": 1.0},
        {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.1, "lr": 0.1},
    ],
    ids=str,
)
def test_the_run_is_the_one_written_out(kit: Any, settings: dict[str, Any]) -> None:
    method = BadTeacher(**({"epochs": 3, "batch_size": 7, "lr": 0.01} | settings))
    model = kit.trained()
    task, expected = kit.task_of(model), deepcopy(model).train()
    updates = kit.run(method, model, task)
    rows = by_hand(kit, expected, task, method)
    kit.assert_close(model, expected, tolerance=1e-8)
    kit.assert_updates(updates, rows, len(rows) // 3, rel=1e-7)


def test_a_dataset_gives_the_same_run_as_tensors(kit: Any) -> None:
    models = [kit.trained(), kit.trained()]
    task = kit.task_of(models[0])
    sets = {
        name: DatasetExamples(TensorDataset(s.x, s.y), s.y, torch.device("cpu"))
        for name, s in (("forget", task.forget), ("retain", task.retain))
    }
    method = BadTeacher(epochs=2, batch_size=7, lr=0.01)
    kit.run(method, models[0], task)
    kit.run(method, models[1], kit.task_of(models[1], **sets))
    kit.assert_close(*models)
