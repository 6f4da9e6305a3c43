from __future__ import annotations

import warnings
from copy import deepcopy
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.langevin import Langevin, NoiseWarning


def clipped_mean_by_loop(
    kit: Any, model: nn.Module, x: Tensor, y: Tensor, clip: float, pull: list[Tensor] | None = None
) -> tuple[list[Tensor], float]:
    parameters, total, losses = list(model.parameters()), [], 0.0
    for one_x, one_y in zip(x, y, strict=True):
        loss = kit.cross_entropies(model(one_x.unsqueeze(0)), one_y.unsqueeze(0)).sum()
        gradient = torch.autograd.grad(loss, parameters)
        gradient = gradient if pull is None else [g + p for g, p in zip(gradient, pull, strict=True)]
        norm = float(torch.cat([g.flatten() for g in gradient]).norm())
        scaled = [g * min(1.0, clip / norm) for g in gradient]
        total = [a + b for a, b in zip(total, scaled, strict=True)] if total else scaled
        losses += float(loss.detach())
    return [g / len(y) for g in total], losses / len(y)


def by_hand(kit: Any, model: nn.Module, task: Task, s: Langevin, sigma: float) -> list[dict[str, float]]:
    """θ ← Π[θ − η g + √(2ησ²) ξ], written out."""
    start = [p.detach().clone() for p in model.parameters()]
    noise = task.streams.generator("noise")
    forget = kit.Cycle(len(task.forget), s.batch_size, task.streams.generator("forget"))
    rows = []
    for e in range(s.epochs):
        for index in kit.batches(len(task.retain), s.batch_size, task.streams.generator("retain", e)):
            pull = [2 * s.pull * (p.detach() - p0) for p, p0 in zip(model.parameters(), start, strict=True)]
            g, loss = clipped_mean_by_loop(kit, model, *task.retain.take(index), s.clip, pull)
            row = {"retain": loss}
            if s.alpha < 1:
                ascent, row["forget"] = clipped_mean_by_loop(kit, model, *task.forget.take(forget.next()), s.clip)
                g = [s.alpha * a - (1 - s.alpha) * b for a, b in zip(g, ascent, strict=True)]
            with torch.no_grad():
                for p, one in zip(model.parameters(), g, strict=True):
                    drawn = torch.randn(p.shape, generator=noise, dtype=p.dtype)
                    p.copy_(p - s.lr * one + sqrt(2 * s.lr) * sigma * drawn)
                norm = float(torch.cat([p.flatten() for p in model.parameters()]).norm())
                if s.radius is not None and norm > s.radius:
                    for p in model.parameters():
                        p.mul_(s.radius / norm)
            rows.append(row)
    return rows


@pytest.mark.filterwarnings("ignore:langevin")
@pytest.mark.parametrize(
    "settings",
    [
        {"noise": 0.0},
        {"clip": 0.3, "pull": 0.0, "alpha": 1.0},
        {"alpha": 0.7, "clip": 0.5, "pull": 3.0, "noise": 0.1},
        {"alpha": 0.8, "radius": 2.0, "noise": 0.05},
    ],
    ids=str,
)
def test_the_run_is_the_one_written_out(kit: Any, model: nn.Module, task: Task, settings: dict[str, Any]) -> None:
    method = Langevin(**({"epochs": 2, "batch_size": 8, "lr": 0.3} | settings))
    expected = deepcopy(model).eval()
    updates = kit.run(method, model, task)
    rows = by_hand(kit, expected, task, method, method.noise)
    kit.assert_close(model, expected, tolerance=1e-10)
    kit.assert_updates(updates, rows, 4)


def least_noise(epsilon: float, m: float, lr: float, clip: float, steps: int, removed: int, total: int) -> float:
    """σ of the accounting, by trying orders α on a fine grid."""
    confidence = np.log(total)
    orders = 1 + confidence / epsilon * (1 + np.geomspace(1e-6, 1e6, 2_000_001))
    spread = np.exp(-steps * m * lr / orders) * 4 * orders * (removed * clip) ** 2
    return float(np.sqrt(np.min(spread / (m * total**2 * (epsilon - confidence / (orders - 1))))))


@pytest.mark.filterwarnings("ignore:langevin")
def test_a_run_has_the_noise_of_its_epsilon(kit: Any, model: nn.Module, task: Task) -> None:
    expected = deepcopy(model).eval()
    method = Langevin(epsilon=8.0, alpha=0.9, clip=0.2, pull=2.0, lr=0.05, batch_size=9, epochs=2)
    sigma = method.noise_level(forget=11, retain=27, steps=6)
    assert sigma == pytest.approx(least_noise(8.0, 2 * 0.9 * 2.0, 0.05, 0.2, 6, 11, 38), rel=1e-9)
    kit.run(method, model, task)
    by_hand(kit, expected, task, method, sigma)
    kit.assert_close(model, expected, tolerance=1e-10)
    assert Langevin(noise=0.123).noise_level(forget=10, retain=490, steps=12) == 0.123


@pytest.mark.parametrize("settings", [{"pull": 0.0}, {"alpha": 0.0}, {"pull": 2.0, "alpha": 1.0, "lr": 0.3}], ids=str)
def test_settings_for_which_epsilon_means_nothing_are_refused(settings: dict[str, Any]) -> None:
    Langevin(**settings)
    with pytest.raises(InputError, match="the accounting behind epsilon holds for"):
        Langevin(epsilon=1.0, **settings)


def test_noise_that_drowns_the_weights_is_warned_of(kit: Any, model: nn.Module, task: Task) -> None:
    with pytest.warns(NoiseWarning, match=r"epsilon=0\.01 asks for .*Raise epsilon"):
        next(Langevin(epsilon=0.01).updates(model.eval(), task))
    # Half of a typical weight, the larger of two layers' root mean squares, against √(2 lr · 3) σ over three epochs.
    model = kit.network().eval()
    edge = max(float(m.weight.detach().square().mean().sqrt()) for m in (model[0], model[3])) / 2 / sqrt(2 * 0.01 * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(Langevin(noise=0.99 * edge).updates(kit.network().eval(), kit.task_of(model)))
        kit.run(Langevin(), kit.network(), task)
    with pytest.warns(NoiseWarning, match="`noise` amounts to"):
        next(Langevin(noise=1.01 * edge).updates(kit.network().eval(), kit.task_of(model)))
