"""Weights that are not finite, and models that collapse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import CollapsedError, DivergedError
from warp_unlearning.methods.base import Task
from warp_unlearning.randomness import Streams
from warp_unlearning.training.update import Update
from warp_unlearning.unlearning.guard import Collapse, Guard, rows_to_watch


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in model.state_dict().items()}


def update(step: int, **losses: float) -> Update:
    return Update(step, 100, step // 4, False, {name: torch.tensor(value) for name, value in losses.items()})


def same(a: object, b: dict[str, Tensor]) -> bool:
    return isinstance(a, dict) and a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("name", ["0.weight", "1.bias", "1.running_var"])
def test_a_weight_or_statistic_that_is_not_finite_stops(name: str) -> None:
    model = build()
    guard, before = Guard(model, interval=10), state_of(model)
    model.state_dict()[name].view(-1)[1] = torch.inf
    guard.watch(update(1, forget=1.0))
    with pytest.raises(DivergedError, match="a weight is no longer finite") as caught:
        guard.flush()
    assert same(caught.value.state, before)


def test_a_parameter_that_got_another_storage_is_still_watched() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    guard = Guard(model, interval=1)
    model.to(memory_format=torch.channels_last)
    model[0].weight.detach().fill_(2.0)
    guard.watch(update(1, forget=1.0))
    before = state_of(model)
    model[0].weight.detach()[0, 0, 0, 0] = torch.nan
    with pytest.raises(DivergedError, match="a weight is no longer finite") as caught:
        guard.watch(update(2, forget=1.0))
    assert same(caught.value.state, before)


X, Y = torch.eye(6).repeat(20, 1), torch.arange(6).repeat(20)


def knowing(classes: int) -> nn.Linear:
    """Right on this many of the six classes of (X, Y)."""
    model = nn.Linear(6, 6, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(6).roll(1, 0))
        model.weight[:, :classes] = torch.eye(6)[:, :classes]
    return model


def run(levels: list[int], *, restarts: bool = False, examples: int = 120) -> None:
    """A run of an epoch a level, whose model is then right on this many classes."""
    model = knowing(6)
    collapse = Collapse(model, TensorExamples(X[:examples], Y[:examples]))
    for step, level in enumerate(levels, 1):
        model.load_state_dict(knowing(level).state_dict())
        collapse.watch(Update(step, len(levels), step - 1, True, {}, restarts=restarts and step == 1))


@pytest.mark.parametrize(
    ("levels", "at", "kept"),
    [([6, 6, 2, 2], 4, 6), ([5, 3, 3, 1], 3, 5), ([1], 1, 6), ([6, 6, 6, 3], 4, 6), ([3, 3, 2, 6], 3, 6)],
)
def test_a_run_that_collapses_is_stopped_with_the_last_good_weights(levels: list[int], at: int, kept: int) -> None:
    with pytest.raises(CollapsedError, match=r"accuracy fell from 1\.000 to 0\.\d+ of 120 rows") as caught:
        run(levels)
    assert (caught.value.update, caught.value.exit_code) == (at, 1)
    assert same(caught.value.state, state_of(knowing(kept)))


def test_a_low_that_passes_a_new_start_and_few_rows_are_no_collapse() -> None:
    for levels in ([5, 5, 5], [1, 1, 2, 6], [1, 2, 3, 4, 6, 5], [6, 6, 3, 5]):
        run(levels)
    run([1, 1, 1, 1], restarts=True)
    run([4, 4], examples=6)


def test_unseen_rows_of_the_classes_that_stay_are_watched() -> None:
    def watched(retained: int, unseen: int, classes: int = 6) -> TensorExamples | None:
        y = torch.arange(retained) % classes
        task = Task(TensorExamples(X, Y), TensorExamples(torch.eye(6)[y], y), None, knowing(6), 6, Streams(0))
        return rows_to_watch(task, TensorExamples(X[:unseen], Y[:unseen]) if unseen else None)

    found = watched(1000, 120, classes=5)
    assert found is not None
    assert sorted(set(found.y.tolist())) == [0, 1, 2, 3, 4]
    assert len(found) == 50
    assert len(watched(30_000, 0) or ()) == 500
    assert len(watched(200, 20) or ()) == 50
    assert watched(199, 20) is None


def test_looking_leaves_modes_and_generators_alone() -> None:
    class Rolls(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = super().forward(x + 0 * torch.rand(1) * np.random.rand())  # noqa: NPY002
            return result

    model = Rolls(knowing(6), nn.BatchNorm1d(6)).train()
    before, states = state_of(model), (torch.get_rng_state(), np.random.get_state()[1].tolist())  # noqa: NPY002
    Collapse(model, TensorExamples(X, Y)).watch(Update(1, 1, 0, True, {}))
    assert all(m.training for m in model.modules())
    assert same(state_of(model), before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
