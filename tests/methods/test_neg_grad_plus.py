from __future__ import annotations

from copy import deepcopy
from math import cos, pi
from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.neg_grad_plus import Anchor, NegGradPlus
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.rescaling import ChangeOfBasis


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
    kit.assert_updates(updates, rows, 4)


def test_saturation_needs_a_validation_set(kit: Any, model: nn.Module) -> None:
    task = kit.task_of(model, validation=None)
    with pytest.raises(InputError, match="saturate=True needs a validation set"):
        next(NegGradPlus(saturate=True).updates(model, task))


def test_the_distance_and_its_gradient_follow_moves(kit: Any, model: nn.Module) -> None:
    """Two moves that do not commute, with steps between them: distances are measured where the run started."""
    model[3].bias.requires_grad_(False)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    anchor, generator = Anchor(model), torch.Generator().manual_seed(0)
    assert float(anchor.distance_squared(model).detach()) == 0
    moves = [kit.permutation([1, 2, 3, 4, 5, 0]), ChangeOfBasis().move(model, generator=generator)]
    for move in moves:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
        apply_move(model, move)
        anchor.carry(move)
        anchor.carry(None)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = anchor.distance_squared(model)
    gradients = torch.autograd.grad(found, list(trained.values()))

    back = {n: p.detach() for n, p in trained.items()}
    for move in reversed(moves):
        back = {n: move.inverse().point(n, value) for n, value in back.items()}
    assert float(found.detach()) == pytest.approx(float(sum(((v - start[n]) ** 2).sum() for n, v in back.items())))
    for (name, value), gradient in zip(back.items(), gradients, strict=True):
        expected = 2 * (value - start[name])
        for move in moves:
            expected = move.covector(name, expected)
        torch.testing.assert_close(gradient, expected)
