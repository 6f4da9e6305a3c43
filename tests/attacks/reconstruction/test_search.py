from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.attacks.reconstruction.attacks import invert
from warp_unlearning.attacks.reconstruction.search import Search, Values, Variable, descend, total_variation
from warp_unlearning.errors import InputError


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


AIM, BENDS = normal(4, 3, seed=1), normal(4, 3, seed=2).exp()


def bowl(values: Values, rows: slice = slice(None)) -> Tensor:
    return (BENDS[rows] * (values["x"] - AIM[rows]).square()).sum(1) + (values["x"].sin()).sum(1)


def adam(start: Tensor, rates: list[float], loss: Any) -> list[Tensor]:
    """Where torch's Adam goes."""
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=1.0)
    path = [start.clone()]
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()
        path.append(x.detach().clone())
    return path


def rates_of(rate: float, iterations: int) -> list[float]:
    """Divided by 10 at 3/8, 5/8 and 7/8 of the way."""
    return [rate * 0.1 ** sum(i * 8 >= k * iterations for k in (3, 5, 7)) for i in range(iterations)]


@pytest.mark.parametrize("iterations", [1, 5, 16, 40])
def test_unsigned_steps_are_those_of_torchs_adam(iterations: int) -> None:
    start, seen = normal(4, 3), []

    def loss(values: Values) -> Tensor:
        seen.append(values["x"].detach().clone())
        return bowl(values)

    found = descend({"x": Variable(start, 0.2)}, loss, iterations=iterations)
    path = adam(start, rates_of(0.2, iterations), lambda x: bowl({"x": x}).sum())
    assert len(seen) == len(path) == iterations + 1
    for one, other in zip(seen, path, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    heights = torch.stack([bowl({"x": x}) for x in path])
    torch.testing.assert_close(found.losses, heights.min(0).values)
    best = torch.stack(path)[heights.argmin(0), torch.arange(4)]
    torch.testing.assert_close(found.values["x"], best)


def test_signed_steps_are_those_of_torchs_adam_on_signs() -> None:
    start, seen = normal(4, 3), []

    def loss(values: Values) -> Tensor:
        seen.append(values["x"].detach().clone())
        return bowl(values)

    descend({"x": Variable(start, 0.1, signed=True)}, loss, iterations=24)
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x])
    for rate, at in zip(rates_of(0.1, 24), seen, strict=False):
        torch.testing.assert_close(at, x.detach(), rtol=1e-9, atol=1e-9)
        x.grad = torch.autograd.grad(bowl({"x": x}).sum(), x)[0].sign()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()


@pytest.mark.parametrize("signed", [False, True])
def test_problems_at_once_are_problems_one_by_one(signed: bool) -> None:
    start = normal(4, 3)
    together = descend({"x": Variable(start, 0.3, signed)}, bowl, iterations=50)
    for i in range(4):
        rows = slice(i, i + 1)
        alone = descend({"x": Variable(start[rows], 0.3, signed)}, lambda v, rows=rows: bowl(v, rows), iterations=50)
        torch.testing.assert_close(together.values["x"][rows], alone.values["x"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(together.losses[rows], alone.losses, rtol=1e-12, atol=1e-12)


def test_the_best_that_was_met_is_kept_even_where_steps_lead_away() -> None:
    # So long a step passes the bottom and goes up the other side.
    start = torch.tensor([[0.5], [3.0]], dtype=torch.float64)
    found = descend({"x": Variable(start, 2.0)}, lambda v: v["x"][:, 0].square(), iterations=3)
    path = adam(start, rates_of(2.0, 3), lambda x: x.square().sum())
    heights = torch.stack([p[:, 0].square() for p in path])
    assert int(heights[:, 0].argmin()) == 0
    assert int(heights[:, 1].argmin()) not in (0, 3)
    torch.testing.assert_close(found.losses, heights.min(0).values)
    torch.testing.assert_close(found.values["x"][:, 0].square(), found.losses)


def test_variables_stay_in_their_box() -> None:
    start, seen = torch.full((2, 2), 0.5).double(), []

    def loss(values: Values) -> Tensor:
        seen.append(values["x"].detach().clone())
        return (values["x"] - torch.tensor([[3.0, -3.0], [0.25, 2.0]])).square().sum(1)

    variable = Variable(start, 0.2, signed=True, project=lambda v: v.clamp(0, 1))
    found = descend({"x": variable}, loss, iterations=60)
    assert all(float(x.min()) >= 0 and float(x.max()) <= 1 for x in seen)
    torch.testing.assert_close(found.values["x"], torch.tensor([[1.0, 0.0], [0.25, 1.0]]).double(), atol=1e-3, rtol=0)


def test_in_turn_one_variable_moves_at_a_time_each_as_often() -> None:
    path: list[dict[str, Tensor]] = []

    def loss(values: Values) -> Tensor:
        path.append({name: v.detach().clone() for name, v in values.items()})
        return (values["x"] + 2 * values["y"] - 3).square().sum(1) + values["y"].square().sum(1)

    variables = {name: Variable(torch.zeros(2, 1).double(), rate) for name, rate in (("x", 0.1), ("y", 0.2))}
    descend(variables, loss, iterations=8, in_turn=True)
    assert len(path) == 17
    moved = [[n for n in ("x", "y") if not torch.equal(a[n], b[n])] for a, b in pairwise(path)]
    assert moved == [["x"], ["y"]] * 8
    # Adam's first step is as long as the rate; at 3/8 of its own steps each variable slows down.
    assert float(path[1]["x"][0]) == pytest.approx(0.1)
    assert float(path[2]["y"][0]) == pytest.approx(0.2)
    steps = [float((b["x"] - a["x"]).abs().max()) for a, b in pairwise(path)][::2]
    assert steps[3] < 0.2 * steps[2]


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_problem_that_breaks_leaves_the_others_alone_and_keeps_its_best(broken: float) -> None:
    start, calls = normal(4, 3), []

    def loss(values: Values) -> Tensor:
        calls.append(1)
        heights = bowl(values)
        if len(calls) < 4:
            return heights
        damage = torch.zeros(4, dtype=torch.float64)
        damage[1] = broken
        return heights * torch.where(damage == 0, 1.0, damage)

    found = descend({"x": Variable(start, 0.1)}, loss, iterations=30)
    whole = descend({"x": Variable(start, 0.1)}, bowl, iterations=30)
    short = adam(start, rates_of(0.1, 30)[:2], lambda x: bowl({"x": x}).sum())
    others = [0, 2, 3]
    torch.testing.assert_close(found.values["x"][others], whole.values["x"][others], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.losses[others], whole.losses[others])
    heights = torch.stack([bowl({"x": x}) for x in short])
    torch.testing.assert_close(found.losses[1], heights[:, 1].min())
    assert bool(found.values["x"].isfinite().all())


def looped(image: Tensor) -> float:
    channels, height, width = image.shape
    across = [
        abs(float(image[c, i, j + 1] - image[c, i, j]))
        for c in range(channels)
        for i in range(height)
        for j in range(width - 1)
    ]
    down = [
        abs(float(image[c, i + 1, j] - image[c, i, j]))
        for c in range(channels)
        for i in range(height - 1)
        for j in range(width)
    ]
    return sum(sum(side) / len(side) for side in (across, down) if side)


@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)), seed=st.integers(0, 2**16))
def test_the_mean_of_neighbours_differences_by_loops(shape: tuple[int, int, int], seed: int) -> None:
    images = torch.rand(2, 3, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = total_variation(images)
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert float(found[i, j]) == pytest.approx(looped(images[i, j]), abs=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"restarts": 0},
        {"restarts": True},
        {"iterations": 0},
        {"iterations": 3.0},
        {"rate": 0.0},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"tv": -1.0},
        {"tv": float("nan")},
    ],
)
def test_a_search_that_cannot_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"the search has .* whole numbers"):
        Search(**wrong)


class Bare(nn.Module):
    """A parameter that no layer holds, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gain, self.unused = nn.Linear(64, 10), nn.Parameter(torch.tensor(0.7)), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.body(x.flatten(1))


@pytest.mark.parametrize("build", ["plain", "norm", "bare"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("n", [1, 2])
def test_updates_are_gradients_of_the_mean_loss(kit: Any, build: str, count: int, n: int) -> None:
    model = kit.drawn(Bare) if build == "bare" else kit.net(norm=build == "norm")
    x, y = kit.digits(n * count)
    x, y = x.reshape(n, count, 1, 8, 8), y.reshape(n, count)
    threats = [
        kit.threat(model, kit.stepped(model, some, labels), labels=labels, count=count)
        for some, labels in zip(x, y, strict=True)
    ]
    problem = kit.problem(threats)
    found = problem.updates(kit.pixels().images(x))
    assert list(found) == list(problem.targets.values)
    for i in range(n):
        truth = kit.gradient(model, x[i], y[i])
        for name, value in found.items():
            torch.testing.assert_close(value[i], truth[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("norm", [False, True])
def test_matching_is_the_same_with_and_without_the_updates(kit: Any, distance: str, norm: bool) -> None:
    threats, truth = kit.threats(kit.net(norm=norm), [0, 1, 2])
    problem = kit.problem(threats, search=Search(restarts=2), distance=distance)
    aligned = dataclasses.replace(problem, aligned=True)
    images = torch.rand(6, 1, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    images[2] = truth[1]
    images.requires_grad_()
    one, other = (p.matching(images) for p in (problem, aligned))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert float(one[2].detach()) == pytest.approx(0, abs=1e-9)
    assert float(one.detach().topk(4).values.min()) > 1e-3
    weights = torch.linspace(0.5, 1.5, 6).double()
    slopes = [torch.autograd.grad(v @ weights, images)[0] for v in (one, other)]
    rows = [0, 1, 3, 4, 5]
    torch.testing.assert_close(slopes[0][rows], slopes[1][rows], rtol=1e-7, atol=1e-9)
    # A search on its own has the same distance and slope.
    alone = dataclasses.replace(
        problem, threats=threats[:1], targets=problem.targets.part(slice(1)), labels=problem.labels[:1, :1]
    )
    first = images[:1].detach().requires_grad_()
    torch.testing.assert_close(alone.matching(first), one[:1], rtol=1e-9, atol=1e-12)
    (slope,) = torch.autograd.grad(weights[0] * alone.matching(first).sum(), first)
    torch.testing.assert_close(slope, slopes[0][:1], rtol=1e-7, atol=1e-9)
    # By numbers: every search answers for its own image.
    shift = torch.zeros_like(images)
    shift[3] = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        change = (problem.matching(images + 1e-6 * shift) - problem.matching(images - 1e-6 * shift)) / 2e-6
    torch.testing.assert_close(change[[0, 1, 2, 4, 5]], torch.zeros(5).double(), atol=1e-9, rtol=0)
    assert float(change[3] * weights[3]) == pytest.approx(float((slopes[1] * shift).sum()), rel=1e-5)


def test_draws_belong_to_a_target_and_a_restart(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1, 2])

    def draws(what: str = "image", seed: int = 0, restarts: int = 2, first: int = 0) -> Tensor:
        problem = kit.problem(threats[first:], search=Search(restarts=restarts), seed=seed, first=first)
        return problem.draws(what, 3)

    every = draws()
    assert every.shape == every.unique(dim=0).shape == (6, 3)
    assert torch.equal(draws(first=1), every[2:])
    assert not torch.equal(draws("latent"), every)
    assert not torch.equal(draws(seed=1), every)
    assert torch.equal(draws(restarts=3).reshape(3, 3, 3)[:, :2].flatten(0, 1), every)


@pytest.mark.parametrize("tv", [0.0, 1e-2])
def test_losses_are_distances_without_the_prior_and_images_lie_in_the_box(kit: Any, tv: float) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    problem = kit.problem(threats, search=Search(restarts=2, iterations=15, tv=tv))
    found = invert(problem)
    assert found.images.shape == (2, 2, 1, 1, 8, 8)
    assert 0 <= float(found.images.min()) <= float(found.images.max()) <= 1
    with torch.no_grad():
        again = problem.matching(found.images.flatten(0, 1)).reshape(2, 2)
    torch.testing.assert_close(found.losses, again, rtol=1e-9, atol=1e-12)


def test_total_variation_pulls_to_smooth_images(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0])
    searches = (Search(restarts=1, iterations=60, tv=tv) for tv in (0.0, 10.0))
    rough, smooth = (invert(kit.problem(threats, search=search)) for search in searches)
    assert float(total_variation(smooth.images).mean()) < 0.2 * float(total_variation(rough.images).mean())
    assert float(smooth.losses) > float(rough.losses)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("in_turn", [False, True])
def test_captured_steps_are_the_plain_ones(in_turn: bool) -> None:
    def found(device: str) -> Tensor:
        aim, bends = AIM.to(device), BENDS.to(device)

        def loss(values: Values) -> Tensor:
            return (bends * (values["x"] + values["y"] - aim).square()).sum(1) + values["y"].square().sum(1)

        starts = {name: Variable(normal(4, 3, seed=5).to(device), 0.1) for name in ("x", "y")}
        return descend(starts, loss, iterations=30, in_turn=in_turn).losses.cpu()

    torch.testing.assert_close(found("cuda"), found("cpu"), rtol=1e-9, atol=1e-9)


def test_starts_are_not_written_to() -> None:
    start = normal(4, 3)
    before = start.clone()
    found = descend({"x": Variable(start, 0.1)}, bowl, iterations=12)
    assert torch.equal(start, before)
    assert not found.values["x"].requires_grad
    never = descend({"x": Variable(start, 0.1)}, lambda v: (v["x"] * torch.nan).sum(1), iterations=3)
    assert torch.equal(never.values["x"], start)
    assert bool((never.losses == torch.inf).all())
