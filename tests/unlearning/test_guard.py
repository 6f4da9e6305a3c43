from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import CollapsedError, DivergedError
from warp_unlearning.methods.protocol import Task
from warp_unlearning.randomness import Streams
from warp_unlearning.training.update import Update
from warp_unlearning.unlearning.guard import Collapse, Guard, rows_to_watch


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


X, Y = torch.eye(6).repeat(20, 1), torch.arange(6).repeat(20)


def knowing(classes: int) -> nn.Linear:
    """Right on this many of the six classes of (X, Y)."""
    model = nn.Linear(6, 6, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(6).roll(1, 0))
        model.weight[:, :classes] = torch.eye(6)[:, :classes]
    return model


def run(levels: list[int], *, restarts: bool = False, examples: int = 120) -> nn.Linear:
    """A run of an epoch a level, whose model is then right on this many classes; returns the model."""
    model = knowing(6)
    collapse = Collapse(model, TensorExamples(X[:examples], Y[:examples]))
    for step, level in enumerate(levels, 1):
        model.load_state_dict(knowing(level).state_dict())
        collapse.watch(Update(step, len(levels), step - 1, True, {}, restarts=restarts and step == 1))
    return model


@pytest.mark.parametrize(
    ("levels", "at", "kept"),
    [([6, 6, 2, 2], 4, 6), ([5, 3, 3, 1], 3, 5), ([1], 1, 6), ([6, 6, 6, 3], 4, 6), ([3, 3, 2, 6], 3, 6)],
)
def test_a_run_that_collapses_is_stopped_with_the_last_good_weights(levels: list[int], at: int, kept: int) -> None:
    with pytest.raises(CollapsedError, match=r"accuracy fell from 1\.000 to 0\.\d+ of 120 rows") as caught:
        run(levels)
    assert caught.value.update == at
    assert caught.value.exit_code == 1
    assert same_tensors(dict(caught.value.state), dict(knowing(kept).state_dict()))


@pytest.mark.parametrize("levels", [[5, 5, 5], [1, 1, 2, 6], [1, 2, 3, 4, 6, 5], [6, 6, 3, 5]])
def test_a_low_that_passes_is_no_collapse(levels: list[int]) -> None:
    run(levels)


def test_what_starts_anew_or_has_few_rows_is_not_stopped() -> None:
    run([1, 1, 1, 1], restarts=True)
    run([4, 4], examples=6)


def task(retained: int, classes: int = 6) -> Task:
    y = torch.arange(retained) % classes
    return Task(TensorExamples(X, Y), TensorExamples(torch.eye(6)[y], y), None, knowing(6), 6, Streams(0))


def test_unseen_rows_of_the_classes_that_stay_are_watched() -> None:
    unseen = TensorExamples(X, Y)
    found = rows_to_watch(task(1000, classes=5), unseen)
    assert found is not None
    assert sorted(set(found.y.tolist())) == [0, 1, 2, 3, 4]
    assert len(found) == 50
    large = rows_to_watch(task(30_000), None)
    assert large is not None
    assert len(large) == 500
    assert len(rows_to_watch(task(200), TensorExamples(X[:20], Y[:20])) or ()) == 50
    assert rows_to_watch(task(199), TensorExamples(X[:20], Y[:20])) is None


def test_looking_leaves_modes_and_generators_alone() -> None:
    class Rolls(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = super().forward(x + 0 * torch.rand(1) * np.random.rand())  # noqa: NPY002
            return result

    model = Rolls(knowing(6), nn.BatchNorm1d(6))
    model.train()
    before, states = state_of(model), (torch.get_rng_state(), np.random.get_state()[1].tolist())  # noqa: NPY002
    collapse = Collapse(model, TensorExamples(X, Y))
    collapse.watch(Update(1, 1, 0, True, {}))
    assert all(m.training for m in model.modules())
    assert same_tensors(state_of(model), before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
