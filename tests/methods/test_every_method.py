"""What holds for every method: it forgets a single example, and moves between its updates only move its result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from warp_unlearning import unlearn
from warp_unlearning.methods.registry import BUILT_IN, make_method
from warp_unlearning.symmetry.moves import apply_move

CASES: list[tuple[str, dict[str, Any]]] = [
    ("ngp", {"epochs": 3, "batch_size": 8, "anchor": 1.0, "weight_decay": 0.05, "max_norm": 1.0, "lr": 0.1}),
    ("scrub", {"epochs": 2, "retain_batch_size": 8, "forget_batch_size": 8, "lr": 0.05}),
    ("scrub", {"epochs": 2, "retain_batch_size": 8, "forget_batch_size": 8, "lr": 0.01, "optimizer": "adam"}),
    ("salun", {"epochs": 2, "batch_size": 8, "lr": 0.1, "keep": 0.3, "weight_decay": 0.1}),
    ("pgu", {"epochs": 6, "batch_size": 6, "energy": 0.6, "lr": 1.0, "momentum": 0.9, "stop": False}),
    ("bad_teacher", {"epochs": 3, "batch_size": 5, "lr": 0.01}),
    ("srf_on", {"iterations": 9, "forget_every": 2, "batch_size": 8, "weight_decay": 0.1}),
    ("srf_on", {"iterations": 9, "forget_every": 2, "batch_size": 8, "weight_decay": 0.1, "strict_mask": True}),
    ("retrain", {"epochs": 3, "batch_size": 8}),
    ("finetune", {"epochs": 3, "batch_size": 8}),
    ("langevin", {"epochs": 3, "batch_size": 8, "noise": 0.1, "alpha": 0.9, "pull": 2.0, "radius": 3.0}),
]
ORDERS = {1: [1, 2, 3, 4, 5, 0], 2: [3, 1, 0, 2, 5, 4], 5: [5, 3, 1, 0, 2, 4], 7: [2, 0, 1, 5, 4, 3]}


@pytest.mark.filterwarnings("ignore:langevin")
@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])
def test_permutations_between_updates_change_nothing_but_the_places(
    kit: Any, name: str, settings: dict[str, Any]
) -> None:
    still, moved = kit.trained(), kit.trained()
    task = kit.task_of(still)
    moves = {step: kit.permutation(order) for step, order in ORDERS.items()}
    updates = kit.run(make_method(name, **settings), still, task)
    again = kit.run(make_method(name, **settings), moved, task, move_after=moves)
    assert len(updates) >= 7
    assert [{n: float(v) for n, v in u.losses.items()} for u in again] == [
        pytest.approx({n: float(v) for n, v in u.losses.items()}, rel=1e-7) for u in updates
    ]
    assert not torch.allclose(moved[0].weight, still[0].weight)
    for move in moves.values():
        apply_move(still, move)
    kit.assert_close(moved, still, tolerance=1e-7)


@pytest.mark.parametrize("name", ["salun", "srf_on", "pgu"])
def test_the_frozen_entries_reported_follow_as_well(kit: Any, name: str) -> None:
    """What an update says it could not move is what it did not move, in the coordinates of that update."""
    model = kit.trained()
    task = kit.task_of(model)
    settings = {"iterations": 6, "forget_every": 1, "strict_mask": True} if name == "srf_on" else {"epochs": 6}
    method = make_method(name, weight_decay=0.1, **settings)
    model.train(method.norm_mode == "train")
    updates, moved, frozen = method.updates(model, task), None, 0
    for turn in range(6):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        update = updates.send(moved)
        for entry, mask in update.frozen.items():
            assert torch.equal(model.get_parameter(entry)[mask], before[entry][mask])
            frozen += int(mask.sum())
        moved = kit.permutation([1, 2, 3, 4, 5, 0] if turn % 2 else [3, 1, 0, 2, 5, 4])
        apply_move(model, moved)
    assert frozen > 0


@pytest.mark.filterwarnings("ignore:the unlearning by pgu")  # Outputs move by less than the verdict asks for.
@pytest.mark.parametrize("name", list(BUILT_IN))
def test_every_method_forgets_a_single_example(kit: Any, name: str) -> None:
    """From a network with batch norm, for which a batch of one has no statistics."""
    points = kit.points(31, 1)
    forget, retain = (points.select(torch.arange(*each)) for each in ((0, 1), (1, 31)))
    fast = {"srf_on": {"iterations": 10}, "retrain": {"epochs": 2}}.get(name, {})
    result = unlearn(kit.network(), forget=forget, retain=retain, method=make_method(name, **fast))
    assert result.record.deletions[0].requested == 1
    assert len(result.history) > 0
