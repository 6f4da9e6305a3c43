from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from warp_unlearning.attacks.reconstruction.image_metrics import psnr
from warp_unlearning.attacks.reconstruction.inversion import invert
from warp_unlearning.attacks.reconstruction.problem import Search


@pytest.mark.parametrize("tv", [0.0, 1e-2])
def test_losses_are_distances_without_the_prior_and_images_lie_in_the_box(kit: Any, tv: float) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    problem = kit.problem(threats, restarts=2)
    found = invert(problem, Search(iterations=15, tv=tv))
    assert found.images.shape == (2, 2, 1, 1, 8, 8)
    assert float(found.images.min()) >= 0
    assert float(found.images.max()) <= 1
    with torch.no_grad():
        again = problem.matching(found.images.flatten(0, 1), {}).reshape(2, 2)
    torch.testing.assert_close(found.losses, again, rtol=1e-9, atol=1e-12)


def test_longer_searches_match_better_and_find_the_image(kit: Any) -> None:
    threats, truth = kit.threats(kit.net(), [0, 1])
    problem = dataclasses.replace(kit.problem(threats), aligned=True)
    short, long = (invert(problem, Search(restarts=1, iterations=n)) for n in (5, 150))
    assert bool((long.losses < short.losses).all())
    assert float(psnr(long.images[:, 0, 0], truth[:, 0]).min()) > 25


def test_total_variation_pulls_to_smooth_images(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0])
    rough, smooth = (invert(kit.problem(threats), Search(restarts=1, iterations=60, tv=tv)) for tv in (0.0, 10.0))
    assert float(smooth.images.diff(dim=-1).abs().mean()) < 0.2 * float(rough.images.diff(dim=-1).abs().mean())
    assert float(smooth.losses) > float(rough.losses)


def test_every_step_is_watched(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    told: list[tuple[int, tuple[int, ...]]] = []
    problem = dataclasses.replace(kit.problem(threats), watch=lambda step, losses: told.append((step, losses.shape)))
    invert(problem, Search(restarts=1, iterations=4))
    assert told == [(i, (2,)) for i in range(4)]
