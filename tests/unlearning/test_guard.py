from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import DivergedError
from warp_unlearning.training.update import Update
from warp_unlearning.unlearning.guard import Guard


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in model.state_dict().items()}


def advance(model: nn.Module) -> None:
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(1)


def update(step: int, **losses: float) -> Update:
    return Update(step, 100, step // 4, False, {name: torch.tensor(value) for name, value in losses.items()})


def test_history_rows_are_the_losses() -> None:
    guard = Guard(build(), interval=3)
    rows = []
    for step in range(1, 9):
        # Terms may differ from one update to the next.
        losses = {"forget": 0.5 * step} if step % 2 else {"retain": 0.25 * step, "anchor": -2.0}
        guard.watch(update(step, **losses))
        rows.append({"update": step, "epoch": step // 4, **losses})
        assert guard.history == rows[: step // 3 * 3]
    guard.flush()
    assert guard.history == rows
    guard.flush()
    assert guard.history == rows


@pytest.mark.parametrize("interval", [1, 4, 10])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [1, 6, 12])
def test_a_loss_that_is_not_finite_stops_with_the_weights_of_the_last_check(interval: int, bad: float, at: int) -> None:
    model = build()
    guard, states = Guard(model, interval=interval), [state_of(model)]
    found_at = -(-at // interval) * interval

    def run() -> None:
        for step in range(1, 100):
            advance(model)
            states.append(state_of(model))
            guard.watch(update(step, forget=bad if step == at else 1.0))

    with pytest.raises(DivergedError, match="a loss became") as caught:
        run()
    assert caught.value.update == found_at
    checked = (found_at - 1) // interval * interval
    assert f"after update {checked} " in str(caught.value)
    assert same_tensors(dict(caught.value.state), states[checked])
    assert len(guard.history) == checked


@pytest.mark.parametrize("name", ["0.weight", "1.bias", "1.running_var"])
def test_a_weight_or_statistic_that_is_not_finite_stops(name: str) -> None:
    model = build()
    guard, before = Guard(model, interval=2), state_of(model)
    model.state_dict()[name].view(-1)[1] = torch.inf
    guard.watch(update(1, forget=1.0))
    with pytest.raises(DivergedError, match="a weight is no longer finite") as caught:
        guard.watch(update(2, forget=1.0))
    assert same_tensors(dict(caught.value.state), before)


def test_the_last_updates_are_checked_by_flush() -> None:
    guard = Guard(build(), interval=10)
    guard.watch(update(1, forget=float("nan")))
    with pytest.raises(DivergedError):
        guard.flush()


def test_what_is_kept_does_not_follow_the_model() -> None:
    model = build()
    guard = Guard(model, interval=1)
    guard.watch(update(1, forget=1.0))
    before = state_of(model)
    advance(model)
    with pytest.raises(DivergedError) as caught:
        guard.watch(update(2, forget=float("nan")))
    assert same_tensors(dict(caught.value.state), before)
    assert not same_tensors(state_of(model), before)


def same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def test_a_parameter_that_got_another_storage_is_still_watched() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    guard = Guard(model, interval=1)
    model.to(memory_format=torch.channels_last)
    with torch.no_grad():
        model[0].weight.fill_(2.0)
    guard.watch(update(1, forget=1.0))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(DivergedError, match="a weight is no longer finite") as caught:
        guard.watch(update(2, forget=1.0))
    assert same_tensors(dict(caught.value.state), before)
