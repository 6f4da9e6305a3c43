from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.utils.data import TensorDataset

from warp_unlearning.data.examples import DatasetExamples
from warp_unlearning.methods.bad_teacher import BadTeacher, untrained_copy
from warp_unlearning.methods.protocol import Task
from warp_unlearning.models.fresh import reinitialise


def fresh_teacher(task: Task) -> nn.Module:
    model = deepcopy(task.original)
    reinitialise(model, generator=task.streams.generator("untrained"))
    return model.eval()


def by_hand(kit: Any, model: nn.Module, task: Task, s: BadTeacher) -> list[float]:
    optimizer = kit.Adam(model, s.weight_decay) if s.optimizer == "adam" else kit.SGD(model, s.momentum, s.weight_decay)
    bad, kept = fresh_teacher(task), round(s.retain_share * len(task.retain))
    part = torch.randperm(len(task.retain), generator=task.streams.generator("part"))[:kept].tolist()
    losses = []
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
            losses.append(float(total.detach()) / len(targets))
    return losses


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
    task, expected = kit.task(model), deepcopy(model).train()
    updates = kit.run(method, model, task)
    losses = by_hand(kit, expected, task, method)
    kit.assert_close(model, expected, tolerance=1e-8)
    assert [float(u.losses["divergence"]) for u in updates] == pytest.approx(losses, rel=1e-7)
    per_epoch = len(losses) // 3
    assert [(u.step, u.of, u.epoch, u.ends_epoch) for u in updates] == [
        (i + 1, len(losses), i // per_epoch, i % per_epoch == per_epoch - 1) for i in range(len(losses))
    ]


def test_the_untrained_teacher_is_new_frozen_and_drawn_from_the_streams(kit: Any) -> None:
    model = kit.trained()
    task = kit.task(model)
    before = {n: t.clone() for n, t in task.original.state_dict().items()}
    bad = untrained_copy(task)
    assert not bad.training
    assert not any(p.requires_grad for p in bad.parameters())
    for name in ("0.weight", "3.weight", "1.running_mean"):
        assert not torch.allclose(bad.state_dict()[name], before[name])
    assert all(torch.equal(t, before[n]) for n, t in task.original.state_dict().items())
    again, other = untrained_copy(task), untrained_copy(kit.task(model, seed=8))
    assert torch.equal(again[0].weight, bad[0].weight)
    assert not torch.equal(other[0].weight, bad[0].weight)


def answers_of(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return deepcopy(model).eval()(x)


def test_forget_answers_approach_the_untrained_teacher_and_retain_answers_stay(kit: Any) -> None:
    model = kit.trained()
    task = kit.task(model)
    kit.run(BadTeacher(epochs=100, lr=0.02, retain_share=1.0), model, task)

    def divergence(teacher: nn.Module, student: nn.Module, x: Tensor) -> float:
        p, q = (Categorical(logits=answers_of(m, x)) for m in (teacher, student))
        return float(kl_divergence(p, q).mean())

    bad = fresh_teacher(task)
    assert divergence(bad, model, task.forget.x) < 0.5 * divergence(bad, task.original, task.forget.x)
    assert divergence(task.original, model, task.retain.x) < 0.5 * divergence(task.original, model, task.forget.x)


def test_a_dataset_gives_the_same_run_as_tensors(kit: Any) -> None:
    models = [kit.trained(), kit.trained()]
    task = kit.task(models[0])
    sets = {
        name: DatasetExamples(TensorDataset(s.x, s.y), s.y, torch.device("cpu"))
        for name, s in (("forget", task.forget), ("retain", task.retain))
    }
    method = BadTeacher(epochs=2, batch_size=7, lr=0.01)
    kit.run(method, models[0], task)
    kit.run(method, models[1], kit.task(models[1], **sets))
    kit.assert_close(*models)
