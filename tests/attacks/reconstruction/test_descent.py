from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from warp_unlearning.attacks.reconstruction.descent import Values, Variable, descend
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


def test_where_the_last_step_led_counts() -> None:
    found = descend({"x": Variable(torch.ones(1, 1).double(), 0.1)}, lambda v: v["x"][:, 0].square(), iterations=1)
    assert float(found.values["x"]) == pytest.approx(0.9)
    assert float(found.losses) == pytest.approx(0.81)


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
    told: list[int] = []

    def loss(values: Values) -> Tensor:
        path.append({name: v.detach().clone() for name, v in values.items()})
        return (values["x"] + 2 * values["y"] - 3).square().sum(1) + values["y"].square().sum(1)

    variables = {name: Variable(torch.zeros(2, 1).double(), rate) for name, rate in (("x", 0.1), ("y", 0.2))}
    descend(variables, loss, iterations=8, in_turn=True, watch=lambda step, _: told.append(step))
    assert len(path) == 17
    assert told == list(range(16))
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


def test_a_problem_that_breaks_once_goes_on_from_where_it_was() -> None:
    start, calls = normal(4, 3), []

    def loss(values: Values) -> Tensor:
        calls.append(1)
        heights = bowl(values)
        return heights * torch.where(torch.arange(4) == 1, torch.nan, 1.0) if len(calls) == 2 else heights

    found = descend({"x": Variable(start, 0.1)}, loss, iterations=60)
    early = bowl({"x": start})
    whole = descend({"x": Variable(start, 0.1)}, bowl, iterations=60)
    assert bool(found.losses.isfinite().all())
    assert float(found.losses[1]) < 0.5 * (float(early[1]) + float(whole.losses[1]))
    torch.testing.assert_close(bowl(found.values), found.losses)


def test_a_problem_that_is_never_finite_gives_its_start() -> None:
    start = normal(2, 1)
    found = descend({"x": Variable(start, 0.1)}, lambda v: (v["x"] * torch.nan).sum(1), iterations=3)
    assert torch.equal(found.values["x"], start)
    assert bool((found.losses == torch.inf).all())


def test_starts_are_not_written_to_and_nothing_found_has_a_graph() -> None:
    start = normal(4, 3)
    before = start.clone()
    with torch.no_grad():
        found = descend({"x": Variable(start, 0.1)}, bowl, iterations=3)
    assert torch.equal(start, before)
    assert not found.values["x"].requires_grad
    assert not found.losses.requires_grad


def test_a_watcher_may_keep_what_it_is_told() -> None:
    told: list[Tensor] = []
    found = descend(
        {"x": Variable(normal(4, 3), 0.1)}, bowl, iterations=12, watch=lambda _, losses: told.append(losses)
    )
    heights = torch.stack(told)
    assert heights.shape == (12, 4)
    assert bool((heights.diff(dim=0) <= 0).all())
    assert bool((heights[0] > heights[-1]).all())
    assert bool((found.losses <= heights[-1]).all())


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(InputError, match="0 iterations"):
        descend({"x": Variable(normal(4, 3), 0.1)}, bowl, iterations=0)
    with pytest.raises(InputError, match="captured"):
        descend({"x": Variable(normal(4, 3), 0.1)}, bowl, iterations=1, capture=True)
