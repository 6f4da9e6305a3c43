from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from warp_unlearning.attacks.reconstruction.problem import Search, first_images, smoothness
from warp_unlearning.attacks.reconstruction.total_variation import total_variation
from warp_unlearning.errors import InputError


@pytest.mark.parametrize(
    "wrong",
    [{"restarts": 0}, {"iterations": 0}, {"rate": 0.0}, {"rate": float("nan")}, {"tv": -1.0}, {"tv": float("nan")}],
)
def test_a_search_that_cannot_run_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="the search has"):
        Search(**wrong)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("norm", [False, True])
def test_matching_is_the_same_with_and_without_the_updates(kit: Any, distance: str, norm: bool) -> None:
    threats, truth = kit.threats(kit.net(norm=norm), [0, 1, 2])
    problem = kit.problem(threats, restarts=2, distance=distance)
    aligned = dataclasses.replace(problem, aligned=True)
    images = torch.rand(6, 1, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    images[2] = truth[1]
    images.requires_grad_()
    one, other = (p.matching(images, {}) for p in (problem, aligned))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert float(one[2].detach()) == pytest.approx(0, abs=1e-9)
    assert float(one.detach().topk(4).values.min()) > 1e-3
    weights = torch.linspace(0.5, 1.5, 6).double()
    slopes = [torch.autograd.grad(v @ weights, images)[0] for v in (one, other)]
    rows = [0, 1, 3, 4, 5]
    torch.testing.assert_close(slopes[0][rows], slopes[1][rows], rtol=1e-7, atol=1e-9)
    # By numbers: every search answers for its own image.
    shift = torch.zeros_like(images)
    shift[3] = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        change = (problem.matching(images + 1e-6 * shift, {}) - problem.matching(images - 1e-6 * shift, {})) / 2e-6
    torch.testing.assert_close(change[[0, 1, 2, 4, 5]], torch.zeros(5).double(), atol=1e-9, rtol=0)
    assert float(change[3] * weights[3]) == pytest.approx(float((slopes[1] * shift).sum()), rel=1e-5)


def test_a_transform_sees_the_updates_and_the_values(kit: Any) -> None:
    threats, truth = kit.threats(kit.net(), [0, 1])
    problem = dataclasses.replace(kit.problem(threats), aligned=True)
    images = truth.clone()
    turned = problem.matching(images, {"k": torch.tensor(-1.0)}, lambda u, v: {n: g * v["k"] for n, g in u.items()})
    torch.testing.assert_close(turned, torch.full((2,), 2.0).double())


def test_draws_belong_to_a_target_and_a_restart(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1, 2])
    all_of = kit.problem(threats, restarts=2).draws("image", 3)
    assert all_of.shape == (6, 3)
    assert all_of.unique(dim=0).shape == (6, 3)
    later = dataclasses.replace(kit.problem(threats[1:], restarts=2), first=1)
    assert torch.equal(later.draws("image", 3), all_of[2:])
    assert not torch.equal(kit.problem(threats, restarts=2).draws("latent", 3), all_of)
    assert not torch.equal(kit.problem(threats, restarts=2, seed=1).draws("image", 3), all_of)
    more = kit.problem(threats, restarts=3).draws("image", 3).reshape(3, 3, 3)
    assert torch.equal(more[:, :2].flatten(0, 1), all_of)


def test_images_start_near_grey_and_smoothness_is_a_mean_over_those_of_one_search(kit: Any) -> None:
    start = first_images(torch.tensor([0.0, 1.0, -9.0, 9.0]))
    torch.testing.assert_close(start, torch.tensor([0.5, 0.65, 0.0, 1.0]))
    images = torch.rand(3, 2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    found = smoothness(images, Search(tv=0.3))
    expected = torch.stack([0.3 * (total_variation(i[0]) + total_variation(i[1])) / 2 for i in images])
    torch.testing.assert_close(found, expected)
    assert smoothness(images, Search(tv=0.0)).tolist() == [0, 0, 0]


def test_candidates_are_in_rows_of_targets(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    problem = kit.problem(threats, restarts=3)
    images = torch.arange(6.0)[:, None, None, None, None].expand(6, 1, 1, 8, 8)
    found = problem.candidates(images, torch.arange(6.0))
    assert found.losses.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.images[1, 2].unique().tolist() == [5]
