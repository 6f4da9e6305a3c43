from __future__ import annotations

import warnings
from copy import deepcopy
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.methods.langevin import Langevin, NoiseWarning
from warp_unlearning.methods.protocol import Task
from warp_unlearning.stats.langevin import langevin_epsilon


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
    assert [{n: float(v) for n, v in u.losses.items()} for u in updates] == [pytest.approx(r, rel=1e-9) for r in rows]
    assert [(u.step, u.of, u.epoch, u.ends_epoch) for u in updates] == [
        (i + 1, 8, i // 4, i % 4 == 3) for i in range(8)
    ]


def least_noise(epsilon: float, m: float, lr: float, clip: float, steps: int, removed: int, total: int) -> float:
    """σ of the accounting, by trying orders α on a fine grid."""
    confidence = np.log(total)
    orders = 1 + confidence / epsilon * (1 + np.geomspace(1e-6, 1e6, 2_000_001))
    spread = np.exp(-steps * m * lr / orders) * 4 * orders * (removed * clip) ** 2
    return float(np.sqrt(np.min(spread / (m * total**2 * (epsilon - confidence / (orders - 1))))))


@pytest.mark.filterwarnings("ignore:langevin")
def test_a_run_on_digits_has_the_noise_of_its_epsilon(kit: Any) -> None:
    model, sets = kit.digits()
    task, expected = kit.task(model, **sets), deepcopy(model).eval()
    method = Langevin(epsilon=8.0, alpha=0.9, clip=0.2, pull=2.0, lr=0.05, batch_size=40, epochs=2)
    sigma = method.noise_level(forget=40, retain=120, steps=6)
    assert sigma == pytest.approx(least_noise(8.0, 2 * 0.9 * 2.0, 0.05, 0.2, 6, 40, 160), rel=1e-9)
    kit.run(method, model, task)
    by_hand(kit, expected, task, method, sigma)
    kit.assert_close(model, expected, tolerance=1e-10)


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


@pytest.mark.parametrize(
    ("epsilon", "sigma"),
    [(0.05, 0.187146), (0.1, 0.093685), (0.5, 0.018915), (1, 0.009567), (2, 0.004889), (5, 0.002073)],
)
def test_known_levels_of_noise(epsilon: float, sigma: float) -> None:
    """Logistic regression on 11,982 images, two steps: λ = 1e-6 n, η = 1 / (1/4 + λ)."""
    convexity = 1e-6 * 11982
    method = Langevin(epsilon=epsilon, alpha=1.0, pull=convexity / 2, lr=1 / (0.25 + convexity))
    found = method.noise_level(forget=1, retain=11981, steps=2)
    assert found == pytest.approx(sigma, abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize(
    "settings", [{}, {"clip": 0.1, "pull": 5.0, "lr": 0.1}, {"alpha": 0.5, "delta": 1e-6}], ids=str
)
def test_the_noise_gives_its_epsilon_back(epsilon: float, settings: dict[str, Any]) -> None:
    method = Langevin(epsilon=epsilon, **settings)
    sigma = method.noise_level(forget=10, retain=490, steps=12)
    found = langevin_epsilon(
        sigma,
        steps=12,
        strong_convexity=2 * method.alpha * method.pull,
        step_size=method.lr,
        clip=method.clip,
        removed=10,
        total=500,
        delta=method.delta,
    )
    assert found == pytest.approx(epsilon, rel=1e-9)


def test_noise_may_be_given() -> None:
    assert Langevin(noise=0.123).noise_level(forget=10, retain=490, steps=12) == 0.123


@pytest.mark.parametrize("settings", [{"pull": 0.0}, {"alpha": 0.0}, {"pull": 2.0, "alpha": 1.0, "lr": 0.3}], ids=str)
def test_settings_for_which_epsilon_means_nothing_are_refused(settings: dict[str, Any]) -> None:
    Langevin(**settings)
    with pytest.raises(InputError, match="the accounting behind epsilon holds for"):
        Langevin(epsilon=1.0, **settings)


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
