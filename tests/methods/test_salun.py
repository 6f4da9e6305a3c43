from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from warp_unlearning.data.examples import TensorExamples, taken
from warp_unlearning.methods.protocol import Task
from warp_unlearning.methods.salun import SalUn, saliency_mask
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.randomness import Streams


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


@pytest.mark.parametrize("keep", [0.01, 0.2, 0.5, 0.77, 1.0])
def test_the_mask_is_the_top_share_of_all_weights(kit: Any, model: nn.Module, task: Task, keep: float) -> None:
    model.train()
    found = saliency_mask(model, task.forget, keep=keep).movable
    expected = top_share(saliencies(kit, model, task), keep)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in found)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_more_forget_examples_than_a_batch_all_count(kit: Any, model: nn.Module) -> None:
    task = kit.task(model, forget=kit.points(300, 1))
    found = saliency_mask(model, task.forget, keep=0.3).movable
    expected = top_share(saliencies(kit, model, task), 0.3)
    assert all(torch.equal(found[n], expected[n]) for n in found)


def test_weights_that_no_forget_example_reaches_never_move(kit: Any, model: nn.Module, task: Task) -> None:
    task.forget.x[:, 2] = 0
    movable = saliency_mask(model, task.forget, keep=0.99).movable
    assert not movable["0.weight"][:, 2].any()
    assert movable["0.weight"][:, [0, 1, 3, 4]].any()


def test_a_parameter_that_the_network_does_not_use_stays(kit: Any, model: nn.Module, task: Task) -> None:
    model.register_parameter("spare", nn.Parameter(torch.ones(3).double()))
    kit.run(SalUn(epochs=2), model, task)
    assert torch.equal(model.spare, torch.ones(3).double())


def by_hand(kit: Any, model: nn.Module, task: Task, s: SalUn, movable: dict[str, Tensor]) -> list[dict[str, float]]:
    optimizer = kit.SGD(model, s.momentum, s.weight_decay)
    labels, rows = task.streams.generator("labels"), []
    for e in range(s.epochs):
        for index in kit.batches(len(task.forget), s.batch_size, task.streams.generator("forget", e)):
            x, y = task.forget.take(index)
            if s.exclude_true_label:
                y = (y + torch.randint(1, 3, (len(y),), generator=labels)) % 3
            else:
                y = torch.randint(0, 3, (len(y),), generator=labels)
            loss = kit.cross_entropies(model(x), y).mean()
            optimizer.step(loss, s.lr, movable=movable)
            rows.append({"relabelled": float(loss.detach())})
        for index in kit.batches(len(task.retain), s.batch_size, task.streams.generator("retain", e)):
            x, y = task.retain.take(index)
            loss = kit.cross_entropies(model(x), y).mean()
            optimizer.step(loss, s.lr, movable=movable)
            rows.append({"retain": float(loss.detach())})
    return rows


@pytest.mark.parametrize("settings", [{}, {"keep": 0.2, "exclude_true_label": True}], ids=str)
def test_the_run_is_the_one_written_out(kit: Any, model: nn.Module, task: Task, settings: dict[str, Any]) -> None:
    method = SalUn(**({"epochs": 3, "batch_size": 8, "lr": 0.1, "weight_decay": 0.05} | settings))
    start, expected = deepcopy(model), deepcopy(model).train()
    movable = top_share(saliencies(kit, model, task), method.keep)
    updates = kit.run(method, model, task)
    rows = by_hand(kit, expected, task, method, movable)
    kit.assert_close(model, expected)
    assert [{n: float(v) for n, v in u.losses.items()} for u in updates] == [pytest.approx(r, rel=1e-9) for r in rows]
    assert [(u.step, u.of, u.epoch, u.ends_epoch) for u in updates] == [
        (i + 1, 18, i // 6, i % 6 == 5) for i in range(18)
    ]
    for name, value in model.named_parameters():
        assert torch.equal(value == start.get_parameter(name), ~movable[name])
        assert torch.equal(updates[-1].frozen[name], ~movable[name])


@pytest.mark.parametrize("exclude", [False, True])
def test_random_labels_are_uniform(exclude: bool) -> None:
    y = torch.arange(30_000) % 4
    forget, retain = TensorExamples(torch.arange(30_000.0)[:, None], y), TensorExamples(torch.zeros(1, 1), y[:1])
    task = Task(forget, retain, None, nn.Linear(1, 4), 4, Streams(0))
    batches = SalUn(exclude_true_label=exclude)._schedule(task, 0, torch.Generator().manual_seed(0))
    given = [batch for phase, batch in batches if phase == "forget"]
    # An input is its own position.
    y = y[torch.cat([taken(x) for x, _ in given]).flatten().long()]
    drawn = torch.cat([labels for _, labels in given])
    shift = torch.bincount((drawn - y) % 4, minlength=4)
    assert int(drawn.min()) == 0
    assert int(drawn.max()) == 3
    if exclude:
        assert int(shift[0]) == 0
        shift = shift[1:]
    assert stats.chisquare(shift.numpy()).pvalue > 1e-3


def test_frozen_weights_of_a_convolutional_network_stay_to_the_bit(kit: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallResNet(classes=3, width=4)
    generator = torch.Generator().manual_seed(1)
    forget, retain = (
        type(kit.points(1, 0))(torch.randn(n, 1, 8, 8, generator=generator), torch.arange(n) % 3) for n in (9, 20)
    )
    start = deepcopy(model)
    (*_, last) = kit.run(
        SalUn(epochs=2, weight_decay=0.1, lr=0.1), model, kit.task(model, forget=forget, retain=retain)
    )
    frozen = sum(int(mask.sum()) for mask in last.frozen.values())
    assert abs(frozen - 0.5 * sum(p.numel() for p in model.parameters())) < 2
    for name, value in model.named_parameters():
        mask = last.frozen[name]
        assert torch.equal(value[mask], start.get_parameter(name)[mask])
