from __future__ import annotations

import warnings
from copy import deepcopy
from math import sqrt
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from warp_unlearning.methods.langevin import Langevin, NoiseWarning
from warp_unlearning.methods.protocol import Task
from warp_unlearning.stats.langevin import langevin_noise


def clipped_mean_by_loop(kit: Any, model: nn.Module, x: Tensor, y: Tensor, clip: float) -> tuple[list[Tensor], float]:
    parameters, total, losses = list(model.parameters()), [], 0.0
    for one_x, one_y in zip(x, y, strict=True):
        loss = kit.cross_entropies(model(one_x.unsqueeze(0)), one_y.unsqueeze(0)).sum()
        gradient = torch.autograd.grad(loss, parameters)
        norm = float(torch.cat([g.flatten() for g in gradient]).norm())
        scaled = [g * min(1.0, clip / norm) for g in gradient]
        total = [a + b for a, b in zip(total, scaled, strict=True)] if total else scaled
        losses += float(loss.detach())
    return [g / len(y) for g in total], losses / len(y)


@pytest.mark.parametrize("settings", [{}, {"clip": 0.3, "decay": 0.2}, {"alpha": 0.7, "clip": 0.5}], ids=str)
def test_without_noise_the_run_is_the_one_written_out(
    kit: Any, model: nn.Module, task: Task, settings: dict[str, Any]
) -> None:
    method = Langevin(**({"noise": 0.0, "epochs": 2, "batch_size": 8, "lr": 0.3} | settings))
    expected = deepcopy(model).eval()
    updates = kit.run(method, model, task)
    forget = kit.Cycle(len(task.forget), 8, task.streams.generator("forget"))
    rows = []
    for e in range(2):
        for index in kit.batches(27, 8, task.streams.generator("retain", e)):
            gradient, loss = clipped_mean_by_loop(kit, expected, *task.retain.take(index), method.clip)
            row = {"retain": loss}
            if method.alpha < 1:
                ascent, row["forget"] = clipped_mean_by_loop(
                    kit, expected, *task.forget.take(forget.next()), method.clip
                )
                gradient = [method.alpha * g - (1 - method.alpha) * a for g, a in zip(gradient, ascent, strict=True)]
            with torch.no_grad():
                for p, g in zip(expected.parameters(), gradient, strict=True):
                    p.sub_(method.lr * (g + method.decay * p))
            rows.append(row)
    kit.assert_close(model, expected)
    assert [{n: float(v) for n, v in u.losses.items()} for u in updates] == [pytest.approx(r, rel=1e-9) for r in rows]
    assert [(u.step, u.of, u.epoch, u.ends_epoch) for u in updates] == [
        (i + 1, 8, i // 4, i % 4 == 3) for i in range(8)
    ]


def drawn_noise(kit: Any, method: Langevin, steps: int = 1) -> Tensor:
    """What one step moved beyond the same step without noise, all weights in one vector."""
    runs = []
    for noise in (method.noise, 0.0):
        model = kit.network(inputs=40, hidden=60)
        task = kit.task(
            model,
            forget=kit.points(5, 1, inputs=40),
            retain=kit.points(16, 2, inputs=40),
            validation=None,
        )
        model.eval()
        updates = Langevin(noise=noise, lr=method.lr, batch_size=8, epochs=1).updates(model, task)
        for _ in range(steps):
            next(updates)
        runs.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return runs[0] - runs[1]


def test_noise_is_normal_with_the_variance_two_lr_sigma_squared(kit: Any) -> None:
    method = Langevin(noise=0.01, lr=0.02)
    noise = drawn_noise(kit, method)
    assert len(noise) == 40 * 60 + 60 + 60 + 3 * 60 + 3
    # Mean 0 and deviation √(2 lr) σ, each within four standard errors, and no other shape.
    deviation = sqrt(2 * 0.02) * 0.01
    assert abs(float(noise.mean())) < 4 * deviation / sqrt(len(noise))
    assert float(noise.std()) == pytest.approx(deviation, rel=4 / sqrt(2 * len(noise)))
    assert stats.kstest((noise / deviation).numpy(), "norm").pvalue > 1e-3


def test_every_step_draws_anew(kit: Any) -> None:
    """After two steps the variance is that of two independent draws (gradients differ by second order only)."""
    method = Langevin(noise=1e-4, lr=0.02)
    one, two = drawn_noise(kit, method, 1), drawn_noise(kit, method, 2)
    assert float((two - one).std()) == pytest.approx(float(one.std()), rel=0.15)
    assert abs(float(torch.corrcoef(torch.stack([one, two - one]))[0, 1])) < 0.1


def test_the_level_is_the_closed_form_for_epsilon() -> None:
    method = Langevin(epsilon=2.0, lr=0.05, clip=0.7, strong_convexity=0.3, delta=1e-4)
    found = method.noise_level(forget=10, retain=490, steps=12)
    expected = langevin_noise(
        2.0, steps=12, strong_convexity=0.3, step_size=0.05, clip=0.7, removed=10, total=500, delta=1e-4
    )
    assert found == expected
    assert Langevin(noise=0.123).noise_level(forget=10, retain=490, steps=12) == 0.123


def test_epsilon_sets_the_noise_that_is_added(kit: Any, model: nn.Module, task: Task) -> None:
    by_epsilon = Langevin(epsilon=50.0, strong_convexity=5.0, lr=1e-3, clip=0.1, batch_size=8, epochs=2)
    level = langevin_noise(50.0, steps=8, strong_convexity=5.0, step_size=1e-3, clip=0.1, removed=11, total=38)
    other = deepcopy(model)
    kit.run(by_epsilon, model, task)
    kit.run(Langevin(noise=level, lr=1e-3, clip=0.1, batch_size=8, epochs=2), other, task)
    assert level > 1e-4
    kit.assert_close(model, other, tolerance=1e-12)


def test_noise_that_drowns_the_weights_is_warned_of(kit: Any, model: nn.Module, task: Task) -> None:
    with pytest.warns(NoiseWarning, match=r"epsilon=0\.01 asks for .*Raise epsilon"):
        next(Langevin(epsilon=0.01).updates(model.eval(), task))
    with pytest.warns(NoiseWarning, match="`noise` amounts to"):
        next(Langevin(noise=100.0).updates(model.eval(), task))


def test_the_warning_starts_at_half_a_typical_weight(kit: Any) -> None:
    """Three epochs of one batch: a spread of √(2 lr · 3) σ against the larger of two layers' root mean squares."""
    model = kit.network()
    sizes = [float(m.weight.detach().square().mean().sqrt()) for m in (model[0], model[3])]
    edge = max(sizes) / 2 / sqrt(2 * 0.01 * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(Langevin(noise=0.99 * edge).updates(kit.network().eval(), kit.task(model)))
    with pytest.warns(NoiseWarning):
        next(Langevin(noise=1.01 * edge).updates(kit.network().eval(), kit.task(model)))


def test_the_defaults_do_not_warn(kit: Any, model: nn.Module, task: Task) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kit.run(Langevin(), model, task)
