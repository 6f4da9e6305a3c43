from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.methods.base import Task
from warp_unlearning.methods.salun import SalUn, saliency_mask


def saliencies(kit: Any, model: nn.Module, task: Task) -> dict[str, Tensor]:
    """|Σ ∇ CE| over the forget set, one example at a time, in eval mode."""
    model = deepcopy(model).eval()
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for x, y in zip(task.forget.x, task.forget.y, strict=True):
        loss = kit.cross_entropies(model(x.unsqueeze(0)), y.unsqueeze(0)).sum()
        for name, gradient in zip(total, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            total[name] += gradient
    return {n: t.abs() for n, t in total.items()}


def top_share(saliency: dict[str, Tensor], keep: float) -> dict[str, Tensor]:
    """By argsort over all weights together."""
    flat = np.concatenate([s.numpy().ravel() for s in saliency.values()])
    chosen = np.zeros(len(flat), dtype=bool)
    chosen[np.argsort(-flat)[: round(keep * len(flat))]] = True
    parts = np.split(chosen, np.cumsum([s.numel() for s in saliency.values()])[:-1])
    return {n: torch.from_numpy(part).reshape(s.shape) for (n, s), part in zip(saliency.items(), parts, strict=True)}


@pytest.mark.parametrize(("keep", "count"), [(0.01, 11), (0.2, 11), (0.3, 300), (0.5, 11), (0.77, 11), (1.0, 11)])
def test_the_mask_is_the_top_share_of_all_weights(kit: Any, model: nn.Module, keep: float, count: int) -> None:
    task = kit.task_of(model.train(), forget=kit.points(count, 1))
    found = saliency_mask(model, task.forget, keep=keep).movable
    expected = top_share(saliencies(kit, model, task), keep)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in found)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_weights_that_no_forget_example_reaches_never_move(kit: Any, model: nn.Module, task: Task) -> None:
    task.forget.x[:, 2] = 0
    model.register_parameter("spare", nn.Parameter(torch.ones(3).double()))
    start = deepcopy(model)
    kit.run(SalUn(epochs=2, keep=0.99), model, task)
    still = model[0].weight == start[0].weight
    assert still[:, 2].all()
    assert not still[:, [0, 1, 3, 4]].any(1).all()
    assert torch.equal(model.spare, start.spare)


def by_hand(kit: Any, model: nn.Module, task: Task, s: SalUn, movable: dict[str, Tensor]) -> list[dict[str, float]]:
    optimizer = kit.SGD(model, s.momentum, s.weight_decay)
    labels, rows = task.streams.generator("labels"), []
    for e in range(s.epochs):
        for name, examples, term in (("forget", task.forget, "relabelled"), ("retain", task.retain, "retain")):
            for index in kit.batches(len(examples), s.batch_size, task.streams.generator(name, e)):
                x, y = examples.take(index)
                if name == "forget" and s.exclude_true_label:
                    y = (y + torch.randint(1, 3, (len(y),), generator=labels)) % 3
                elif name == "forget":
                    y = torch.randint(0, 3, (len(y),), generator=labels)
                loss = kit.cross_entropies(model(x), y).mean()
                optimizer.step(loss, s.lr, movable=movable)
                rows.append({term: float(loss.detach())})
    return rows


@pytest.mark.parametrize("settings", [{}, {"keep": 0.2, "exclude_true_label": True}], ids=str)
def test_the_run_is_the_one_written_out(kit: Any, model: nn.Module, task: Task, settings: dict[str, Any]) -> None:
    method = SalUn(**({"epochs": 3, "batch_size": 8, "lr": 0.1, "weight_decay": 0.05} | settings))
    start, expected = deepcopy(model), deepcopy(model).train()
    movable = top_share(saliencies(kit, model, task), method.keep)
    updates = kit.run(method, model, task)
    rows = by_hand(kit, expected, task, method, movable)
    kit.assert_close(model, expected)
    kit.assert_updates(updates, rows, 6)
    for name, value in model.named_parameters():
        assert torch.equal(value == start.get_parameter(name), ~movable[name])
        assert torch.equal(updates[-1].frozen[name], ~movable[name])
