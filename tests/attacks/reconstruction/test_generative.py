from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import nn

from warp_unlearning.attacks.reconstruction.blind import prior_alone
from warp_unlearning.attacks.reconstruction.generative import invert_through, onto_ball
from warp_unlearning.attacks.reconstruction.reconstruct import reconstruct
from warp_unlearning.attacks.reconstruction.search import Search, SearchProblem
from warp_unlearning.errors import InputError
from warp_unlearning.models.generator import StageList, generate


def by_root(row: np.ndarray, radius: float) -> np.ndarray:
    """Soft thresholding by the level at which the length is the radius, found by a root finder."""
    if np.abs(row).sum() <= radius:
        return row
    level = brentq(lambda t: np.maximum(np.abs(row) - t, 0).sum() - radius, 0, np.abs(row).max(), xtol=1e-15)
    return np.sign(row) * np.maximum(np.abs(row) - level, 0)


def problem_of(
    kit: Any, *, search: Search | None = None, dtype: torch.dtype = torch.float32, generator: Any = None
) -> SearchProblem:
    threats, _ = kit.threats(kit.net(dtype=dtype), [0, 1], generator=generator or kit.generator())
    return kit.problem(threats, search=search or Search(restarts=2, iterations=1), aligned=True)


@settings(max_examples=60)
@given(
    rows=st.lists(st.lists(st.floats(-50, 50), min_size=4, max_size=4), min_size=1, max_size=4),
    radius=st.floats(0.01, 60),
)
def test_onto_ball_is_the_projection_that_a_root_finder_gives(rows: list[list[float]], radius: float) -> None:
    given_rows = torch.tensor(rows, dtype=torch.float64)
    found = onto_ball(given_rows, radius)
    expected = torch.tensor(np.array([by_root(np.array(row), radius) for row in rows]))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    assert bool((found.abs().sum(-1) <= radius * (1 + 1e-9)).all())
    # No point of the ball is nearer: the projection's inequality at its corners.
    for corner in [s * radius * torch.eye(4, dtype=torch.float64)[i] for i in range(4) for s in (1, -1)]:
        assert bool((((given_rows - found) * (corner - found)).sum(-1) <= 1e-6).all())


# With so strong a prior features give matching away for smoothness.
@pytest.mark.parametrize("tv", [1e-3, 5.0])
def test_more_stages_never_match_worse_and_stage_0_is_the_latents_own(kit: Any, tv: float) -> None:
    problem = problem_of(kit, search=Search(restarts=2, iterations=25, tv=tv))
    by_stages = [invert_through(problem, stages=s) for s in (0, 1, 2)]
    every = invert_through(problem)
    for fewer, more in pairwise(by_stages):
        assert bool((more.losses <= fewer.losses + 1e-6).all())
    if tv < 1:
        assert bool((by_stages[2].losses < by_stages[0].losses).all())
    torch.testing.assert_close(every.losses, by_stages[2].losses)
    for found in by_stages:
        with torch.no_grad():
            again = problem.matching(found.images.flatten(0, 1)).reshape(2, 2)
        torch.testing.assert_close(found.losses, again, rtol=1e-4, atol=1e-5)
        assert 0 <= float(found.images.min()) <= float(found.images.max()) <= 1


def test_generators_and_stages_that_do_not_fit_are_refused(kit: Any) -> None:
    wrong = StageList([nn.Sequential(nn.Linear(5, 49), nn.Sigmoid(), nn.Unflatten(1, (1, 7, 7)))], (5,), (1, 7, 7))
    with pytest.raises(InputError, match=r"1×7×7 and those looked for are 1×8×8"):
        invert_through(problem_of(kit, generator=wrong))
    for stages in (-1, 3):
        with pytest.raises(InputError, match=rf"{stages} feature maps .* give 0 to 2"):
            invert_through(problem_of(kit), stages=stages)


def test_a_generator_is_run_in_eval_mode_and_left_as_it_is(kit: Any) -> None:
    body = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))
    mine = StageList([nn.Linear(4, 6), body], latent=(4,), image_shape=(1, 8, 8))
    model = kit.net(dtype=torch.float32)
    threats, _ = kit.threats(model, [0], generator=mine)
    before = body[1].running_mean.clone()
    found = reconstruct(threats, attack="generative", search=Search(restarts=1, iterations=3))
    prior_alone(threats, attack="generative", search=Search(restarts=1, iterations=3))
    assert bool(found.losses.isfinite().all())
    assert torch.equal(body[1].running_mean, before)
    assert body.training
    assert all(p.requires_grad for p in body.parameters())


def test_latents_keep_their_length_and_features_their_ball(kit: Any) -> None:
    problem = problem_of(kit, search=Search(restarts=2, iterations=40))
    invert_through(problem, rate=0.3)
    latents, *features = [torch.stack([values["features"] for values in path]) for path in problem.paths]
    assert len(features) == 2
    lengths = latents.flatten(3).norm(dim=3)
    torch.testing.assert_close(lengths, lengths[:1].expand_as(lengths), rtol=1e-5, atol=1e-5)
    assert float((latents[0] - latents[-1]).abs().max()) > 0.05
    torch.testing.assert_close(latents[0], problem.draws("latent", 1, 5))
    for path, share in zip(features, (0.25, 0.35), strict=True):
        gone = (path - path[:1]).abs().flatten(3).sum(3)
        # At most as far as the most that a target of its own would be allowed.
        most = share * path[0].abs().flatten(2).mean(2).max() * path[0][0, 0].numel()
        assert 0.2 * float(most) < float(gone.max()) <= float(most) * (1 + 1e-4)


def test_an_image_of_the_generators_own_is_found_by_its_latent(kit: Any) -> None:
    generator, model, y = kit.generator(latent=2), kit.net(dtype=torch.float32), torch.tensor([3])
    # Only latents of the length they start with are looked at, so that the image is one of such a length.
    blank = kit.threat(model, kit.net(seed=21, dtype=torch.float32), labels=y, generator=generator)
    search = Search(restarts=4, iterations=150, tv=0.0)
    length = kit.problem([blank], search=search).draws("latent", 1, 2)[1].norm()
    image = generate(generator, length * torch.tensor([[0.84, -0.54]]))
    after = kit.stepped(model, kit.pixels().inputs(image), y)
    problem = kit.problem([kit.threat(model, after, labels=y, generator=generator)], search=search)
    found = invert_through(problem, stages=0)
    assert float(found.losses[0, 1]) < 1e-3
    torch.testing.assert_close(found.images[0, 1], image, atol=0.02, rtol=0)


def test_a_conditional_generator_is_given_the_labels(kit: Any) -> None:
    problem = problem_of(kit, generator=kit.ByClass(), dtype=torch.float64)
    found = invert_through(problem)
    assert found.images.dtype == torch.float64
    torch.testing.assert_close(found.images[:, :, 0, 0, 0, 0], problem.labels[..., 0].double() / 10)


def test_onto_ball_of_nothing_and_of_more_axes() -> None:
    rows = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(onto_ball(rows, 0.0).abs().max()) == 0
    torch.testing.assert_close(onto_ball(rows, 1.0).abs().sum(-1), torch.ones(2, 3).double())
    assert torch.equal(onto_ball(rows, 100.0), rows)
