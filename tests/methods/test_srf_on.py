from __future__ import annotations

from copy import deepcopy
from math import cos, pi
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.methods.base import Task
from warp_unlearning.methods.srf_on import SrfOn, fisher_diagonal


def fisher_by_loop(kit: Any, model: nn.Module, examples: Any, batch_size: int) -> dict[str, Tensor]:
    """The mean over batches of the squared mean gradient, batches in order; of single examples at size 1."""
    model = deepcopy(model).eval()
    total, batches = {n: torch.zeros_like(p) for n, p in model.named_parameters()}, 0
    for first in range(0, len(examples), batch_size):
        x, y = examples.x[first : first + batch_size], examples.y[first : first + batch_size]
        gradients = torch.autograd.grad(kit.cross_entropies(model(x), y).mean(), list(model.parameters()))
        for name, g in zip(total, gradients, strict=True):
            total[name] += g**2
        batches += 1
    return {n: t / batches for n, t in total.items()}


@pytest.mark.parametrize(("kind", "batch_size"), [("batch", 1), ("batch", 4), ("batch", 100), ("sample", 4)])
def test_fisher_diagonals(kit: Any, model: nn.Module, kind: Any, batch_size: int) -> None:
    examples = kit.points(70, 1)
    model.train()
    found = fisher_diagonal(model, examples, batch_size=batch_size, kind=kind)
    expected = fisher_by_loop(kit, model, examples, 1 if kind == "sample" else batch_size)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-10, atol=1e-15)
    assert model.training


@pytest.mark.parametrize("kind", ["batch", "sample"])
def test_a_parameter_that_the_network_does_not_use_has_no_information(model: nn.Module, task: Task, kind: Any) -> None:
    model.register_parameter("spare", nn.Parameter(torch.ones(3).double()))
    found = fisher_diagonal(model, task.retain, batch_size=8, kind=kind)
    assert torch.equal(found["spare"], torch.zeros(3).double())


def by_hand(kit: Any, model: nn.Module, task: Task, s: SrfOn) -> list[dict[str, float]]:
    fisher = {
        name: fisher_by_loop(kit, model, getattr(task, name), 1 if s.fisher == "sample" else s.batch_size)
        for name in ("forget", "retain")
    }
    movable = {n: (f + 1e-15) / (fisher["retain"][n] + 1e-15) >= s.ratio for n, f in fisher["forget"].items()}
    share = sum(int(m.sum()) for m in movable.values()) / sum(m.numel() for m in movable.values())
    assert 0.05 < share < 0.9
    sgd = kit.SGD(model, s.momentum, s.weight_decay)
    forgetting = kit.SGD(model, s.momentum, s.weight_decay) if s.strict_mask else sgd
    cycles = {
        name: kit.Cycle(len(getattr(task, name)), s.batch_size, task.streams.generator(name))
        for name in ("forget", "retain")
    }
    rows: list[dict[str, float]] = []
    for t in range(s.iterations):
        fade = 0.5 * (1 + cos(pi * t / s.iterations))
        if t % s.forget_every == 0:
            x, y = task.forget.take(cycles["forget"].next())
            each = kit.cross_entropies(model(x), y)
            raw = [1 / (loss**s.reweighting + 1e-15) for loss in each.tolist()]
            total: Any = 0.0
            for one, weight in zip(each, raw, strict=True):
                total = total + one * weight * len(raw) / sum(raw)
            loss = -s.strength * fade * total / len(raw)
            kept = movable if s.strict_mask else None
            forgetting.step(loss, s.lr * fade, movable=kept, seen=movable, max_norm=s.max_norm)
            rows.append({"forget": float(each.detach().mean())})
        x, y = task.retain.take(cycles["retain"].next())
        loss = kit.cross_entropies(model(x), y).mean()
        sgd.step(loss, s.lr * fade)
        rows.append({"retain": float(loss.detach())})
    return rows


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fisher": "sample", "ratio": 1.5, "reweighting": 2.0},
        {"reweighting": 0.0},
        {"forget_every": 2, "max_norm": 0.1, "weight_decay": 0.1},
        {"strict_mask": True, "forget_every": 2, "max_norm": 0.1, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_the_run_is_the_one_written_out(kit: Any, settings: dict[str, Any]) -> None:
    method = SrfOn(**({"iterations": 10, "forget_every": 3, "strength": 5.0, "batch_size": 8, "lr": 0.05} | settings))
    model = kit.trained()
    task, expected = kit.task_of(model), deepcopy(model).train()
    updates = kit.run(method, model, task)
    rows = by_hand(kit, expected, task, method)
    kit.assert_close(model, expected, tolerance=1e-10)
    assert [{n: float(v) for n, v in u.losses.items()} for u in updates] == [pytest.approx(r, rel=1e-8) for r in rows]
    assert [u.step for u in updates] == list(range(1, len(rows) + 1))
    assert {u.total for u in updates} == {len(rows)}
    # Four retain batches are an epoch; the last iteration ends one too.
    retain = [u for u in updates if "retain" in u.losses]
    assert [u.ends_epoch for u in retain] == [t in (3, 7, 9) for t in range(10)]
    assert [u.epoch for u in retain] == [t // 4 for t in range(10)]
    assert not any(u.ends_epoch for u in updates if "forget" in u.losses)


@pytest.mark.parametrize("strict", [False, True])
def test_only_a_strict_mask_holds_weights_to_the_bit(kit: Any, strict: bool) -> None:
    model = kit.trained()
    method = SrfOn(iterations=12, forget_every=2, batch_size=8, weight_decay=0.1, strict_mask=strict)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for update in method.updates(model.train(), kit.task_of(model)):
        assert bool(update.frozen) == (strict and "forget" in update.losses)
        for name, p in model.named_parameters():
            still = update.frozen.get(name, torch.zeros_like(p, dtype=torch.bool))
            assert torch.equal(p.detach() == before[name], still)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
    assert method.masks == strict
