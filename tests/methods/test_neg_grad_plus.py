from __future__ import annotations

from copy import deepcopy
from math import cos, pi
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.methods.protocol import Task


def by_hand(kit: Any, model: nn.Module, task: Task, s: NegGradPlus, ceiling: float | None) -> list[dict[str, float]]:
    """α [CE(retain) + (anchor/2) ‖θ − θ₀‖²] − (1 − α) mean min(CE(forget), ceiling), step by step."""
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = kit.SGD(model, s.momentum, s.weight_decay)
    forget_batches = kit.Cycle(len(task.forget), s.batch_size, task.streams.generator("forget"))
    rows, of, step = [], 0, 0
    of = s.epochs * len(kit.batches(len(task.retain), s.batch_size, torch.Generator()))
    for e in range(s.epochs):
        for index in kit.batches(len(task.retain), s.batch_size, task.streams.generator("retain", e)):
            forget, retain = task.forget.take(forget_batches.next()), task.retain.take(index)
            each = list(kit.cross_entropies(model(forget.x), forget.y))
            if ceiling is not None:
                each = [
                    one if float(one.detach()) < ceiling else torch.tensor(ceiling, dtype=torch.float64) for one in each
                ]
            forget_loss = sum(each) / len(each)
            retain_loss = kit.cross_entropies(model(retain.x), retain.y).mean()
            distance = sum(((p - start[n]) ** 2).sum() for n, p in model.named_parameters())
            loss = s.alpha * (retain_loss + s.anchor / 2 * distance) - (1 - s.alpha) * forget_loss
            optimizer.step(loss, s.lr * 0.5 * (1 + cos(pi * step / of)), max_norm=s.max_norm)
            step += 1
            row = {"retain": float(retain_loss.detach()), "forget": float(torch.as_tensor(forget_loss).detach())}
            rows.append(row | ({"anchor": float(distance.detach()) / 2} if s.anchor else {}))
    return rows


SETTINGS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.05, "momentum": 0.5},
    {"anchor": 2.0},
    {"max_norm": 0.05},
    {"saturate": True},
    {"norm_mode": "eval", "alpha": 0.5, "anchor": 0.3, "max_norm": 0.5, "saturate": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_run_is_the_one_written_out(kit: Any, model: nn.Module, task: Task, settings: dict[str, Any]) -> None:
    method = NegGradPlus(**({"epochs": 3, "batch_size": 8, "lr": 0.1, "alpha": 0.8} | settings))
    expected = deepcopy(model).train(method.norm_mode == "train")
    ceiling = None
    if method.saturate:
        assert task.validation is not None
        with torch.no_grad():
            ceiling = float(kit.cross_entropies(task.original(task.validation.x), task.validation.y).mean())
    updates = kit.run(method, model, task)
    rows = by_hand(kit, expected, task, method, ceiling)
    kit.assert_close(model, expected)
    assert [{n: float(v) for n, v in u.losses.items()} for u in updates] == [pytest.approx(r, rel=1e-9) for r in rows]
    assert [(u.step, u.of, u.epoch, u.ends_epoch) for u in updates] == [
        (i + 1, 12, i // 4, i % 4 == 3) for i in range(12)
    ]
    assert not any(v.requires_grad for u in updates for v in u.losses.values())


def test_saturation_bounds_the_forget_loss_and_bites(kit: Any, model: nn.Module, task: Task) -> None:
    settings: dict[str, Any] = {"epochs": 20, "batch_size": 32, "lr": 0.3, "alpha": 0.1}
    bounded, free = deepcopy(model), deepcopy(model)
    kept = kit.run(NegGradPlus(saturate=True, **settings), bounded, task)
    wild = kit.run(NegGradPlus(**settings), free, task)
    assert task.validation is not None
    ceiling = float(kit.cross_entropies(task.original(task.validation.x), task.validation.y).mean())
    assert max(float(u.losses["forget"]) for u in kept) <= ceiling + 1e-12
    assert float(wild[-1].losses["forget"]) > 2 * ceiling


def test_saturation_needs_a_validation_set(kit: Any, model: nn.Module) -> None:
    task = kit.task(model, validation=None)
    with pytest.raises(InputError, match="saturate=True needs a validation set"):
        next(NegGradPlus(saturate=True).updates(model, task))


def test_batch_norm_follows_the_mode(kit: Any, task: Task) -> None:
    def statistics(mode: Any) -> Tensor:
        model = kit.network()
        kit.run(NegGradPlus(epochs=1, norm_mode=mode), model, task)
        return model[1].running_mean

    assert torch.equal(statistics("eval"), kit.network()[1].running_mean)
    assert not torch.allclose(statistics("train"), kit.network()[1].running_mean)
