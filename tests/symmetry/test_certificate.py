from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.linalg.subspace import Subspace
from warp_unlearning.symmetry import certificate as module
from warp_unlearning.symmetry.certificate import (
    SCHEMA_VERSION,
    Certificate,
    Drift,
    LayerMove,
    bases_of,
    distance,
    distance_numbers,
    drift,
    layer_moves,
    left_and_noted,
    logits_of,
    reached_weights,
    read_distances,
)
from warp_unlearning.symmetry.channel_graph import PinnedChannels
from warp_unlearning.symmetry.compose import ComposedMove
from warp_unlearning.symmetry.input_bases import InputBasis
from warp_unlearning.symmetry.move import ChannelMove, MomentumReset, Translation
from warp_unlearning.symmetry.null_move import NullMove


def numbers(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_drift_counts_what_changed() -> None:
    before = numbers([0.0, log(3)], [log(4), 0.0], [0.0, -5.0], [1.0, 1.5])
    after = numbers([0.0, log(3)], [0.0, log(4)], [0.25, -5.0], [1.0, 1.5])
    found = drift(before, after, torch.tensor([1, 0, 0, 1]))
    assert found.examples == 4
    assert found.largest_logit_change == pytest.approx(log(4))
    assert found.largest_logit == 5.0
    assert found.changed_predictions == 0.25
    shared = log(1 + torch.e**-0.5)
    first, last = log(1 + torch.e**-5), log(1 + torch.e**-5.25)
    assert found.loss_before == pytest.approx((log(4 / 3) + log(5 / 4) + first + shared) / 4)
    assert found.loss_after == pytest.approx((log(4 / 3) + log(5) + last + shared) / 4)
    assert found.loss_change == pytest.approx(found.loss_after - found.loss_before)
    assert found.loss_change > 0
    assert found.relative == pytest.approx(log(4) / 5)


def test_a_network_that_answers_zero_has_an_absolute_drift() -> None:
    found = drift(torch.zeros(2, 2), torch.full((2, 2), 0.5), torch.tensor([0, 1]))
    assert found.relative == found.largest_logit_change == 0.5
    assert drift(torch.zeros(2, 2), torch.zeros(2, 2), torch.tensor([0, 1])).relative == 0.0


def test_a_loss_is_a_mean_in_float64() -> None:
    logits = torch.tensor([[40.0, 0.0], [0.0, 17.0]])
    found = drift(logits, logits, torch.tensor([0, 1]))
    assert found.loss_before == pytest.approx((torch.e**-40 + torch.e**-17) / 2, rel=1e-6)


def test_the_share_of_a_move_in_weights_that_nothing_reaches() -> None:
    assert LayerMove("w", 3.0, 4.0, 10.0).share_unreached == pytest.approx(16 / 25)
    assert LayerMove("w", 0.0, 0.0, 10.0).share_unreached == 0.0
    assert LayerMove("w", 0.0, 2.0, 10.0).share_unreached == 1.0


@pytest.mark.parametrize("size", [1, 3, 512])
def test_logits_come_in_order_whatever_the_batch(kit: Any, size: int) -> None:
    model, x = kit.built(lambda: nn.Linear(4, 3)), kit.normal(7, 4)
    found = logits_of(model, x, batch_size=size)
    assert not found.requires_grad
    torch.testing.assert_close(found, (x @ model.weight.T + model.bias).detach())


def basis(
    weight: str, bias: str | None, reached: list[list[int]], ranks: list[int], captured: list[float]
) -> InputBasis:
    d = len(reached[0])
    blocks = tuple(
        Subspace(torch.eye(d, dtype=torch.float64)[:, :k], share) for k, share in zip(ranks, captured, strict=True)
    )
    return InputBasis(weight, bias, blocks, torch.tensor(reached).bool(), 17)


def known() -> NullMove:
    """A grouped weight of shape (4, 3) with a bias, whose second group is never reached in its last coordinate."""
    return NullMove(
        {},
        bases={"a.weight": basis("a.weight", "a.bias", [[1, 1, 1, 1], [1, 1, 0, 1]], [2, 1], [0.9, 0.8])},
        left={"b.weight": "frozen"},
        notes=("careful",),
    )


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)


def test_what_is_reached_follows_the_groups_of_the_basis() -> None:
    found = reached_weights(Held(), known(), [])
    assert list(found) == ["a.weight"]
    assert found["a.weight"].tolist() == [[True] * 3] * 2 + [[True, True, False]] * 2


def test_without_bases_the_batches_show_what_is_reached(kit: Any) -> None:
    model = kit.built(lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(4, 2)))
    x = kit.normal(3, 2, 1, 1)
    x[:, 1] = 0
    found = reached_weights(model, ChannelMove({}), [x])
    expected = torch.zeros(4, 1, 3, 3, dtype=torch.bool)
    expected[:2, 0, 1, 1] = True
    assert torch.equal(found["0.weight"], expected)
    assert bool(found["2.weight"].all())


def test_lengths_layer_by_layer() -> None:
    before = {
        "a.weight": numbers([1, 2, 2], [0, 0, 0], [0, 0, 4], [2, 0, 1]),
        "a.bias": numbers(0, 0, 3, 0),
        "b.weight": numbers([1, 1], [1, 1]),
        "c.weight": numbers([5.0]),
        "n.running_mean": numbers(1, 1),
        "n.steps": torch.tensor(3),
    }
    after = {name: value.clone() for name, value in before.items()}
    after["a.weight"][0, 0] += 3
    after["a.weight"][3, 2] -= 7
    after["a.bias"][1] += 4
    after["n.running_mean"][0] += 2
    after["n.steps"] += 1
    move = known()
    reached = {"a.weight": torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 0]]).bool()}
    rows = {row.name: row for row in layer_moves(before, after, move, reached)}
    assert set(rows) == {"a.weight", "n.running_mean"}
    weight = rows["a.weight"]
    assert (weight.moved, weight.moved_unreached) == (5.0, 7.0)
    assert weight.norm == pytest.approx((1 + 4 + 4 + 4 + 9) ** 0.5)
    assert (weight.d, weight.rank, weight.captured, weight.positions) == (4, 3, 0.8, 17)
    assert weight.share_unreached == pytest.approx(49 / 74)
    statistics = rows["n.running_mean"]
    assert (statistics.moved, statistics.moved_unreached, statistics.d) == (2.0, 0.0, None)
    for name, value in before.items():
        after[name] = value.clone()
    (still,) = layer_moves(before, after, move, reached)
    assert (still.name, still.moved, still.moved_unreached) == ("a.weight", 0.0, 0.0)


def test_a_distance_is_taken_over_the_names_given() -> None:
    first = {"u": numbers([1.0, 2.0], [3.0, 4.0]), "v": numbers(1.0, 0.0)}
    second = {"u": numbers([1.0, 0.0], [0.0, 0.0]), "v": numbers(1.0, 5.0)}
    mask = {"u": torch.tensor([[True, True], [False, True]])}
    assert distance(first, second, ["u"], mask) == pytest.approx(((4 + 16) ** 0.5, 3.0))
    assert distance(first, second, ["u", "v"], mask) == pytest.approx(((4 + 16 + 25) ** 0.5, 3.0))
    assert distance(first, second, ["v"], {}) == (5.0, 0.0)


def test_what_is_known_is_found_inside_other_moves() -> None:
    null, other = known(), NullMove({}, bases={}, left={"c": "elsewhere"}, notes=("again",))
    nested = MomentumReset(ComposedMove((Translation({}), ComposedMove((null, ChannelMove({}))), other)))
    assert bases_of(nested) == dict(null.bases)
    assert left_and_noted(nested) == ({"b.weight": "frozen", "c": "elsewhere"}, ("careful", "again"))
    assert bases_of(ChannelMove({})) == {}
    assert left_and_noted(Translation({})) == ({}, ())


def certificate(**changes: Any) -> Certificate:
    seen = Drift(3, 0.5, 2.0, 0.0, 1.0, 1.25)
    values: dict[str, Any] = {
        "symmetry": "NullSpace",
        "settings": {"energy": 0.9, "parts": [{"name": "Permutation", "options": {}}]},
        "scale": 0.5,
        "retain": seen,
        "held_out": None,
        "forget": seen,
        "energy_before": 2.0,
        "energy_after": None,
        "moved": 3.0,
        "moved_unreached": 0.0,
        "norm": 12.0,
        "distance_before": 0.0,
        "distance_after": 3.0,
        "layers": (LayerMove("w", 3.0, 0.0, 12.0, 4, 2, 0.9, 7),),
        "left": {"b": "one-dimensional"},
        "pinned": (PinnedChannels("w", 3, ("output",)),),
        "notes": ("careful",),
        "seconds": 0.1,
    }
    return Certificate(**values | changes)


def test_a_certificate_is_plain_data() -> None:
    told = certificate().as_json()
    assert told["schema_version"] == SCHEMA_VERSION
    assert told["relative_move"] == 0.25
    read = json.loads(json.dumps(told, allow_nan=False))
    assert read["layers"] == [
        {"name": "w", "moved": 3.0, "moved_unreached": 0.0, "norm": 12.0}
        | {"d": 4, "rank": 2, "captured": 0.9, "positions": 7}
    ]
    assert read["pinned"] == [{"tensor": "w", "count": 3, "reasons": ["output"]}]
    assert read["retain"]["loss_after"] == 1.25
    assert read["held_out"] is None
    assert read["settings"]["parts"][0]["name"] == "Permutation"


def test_a_network_without_length_has_no_relative_move() -> None:
    assert certificate(norm=0.0, moved=0.0).relative_move == 0.0
    assert certificate(norm=4.0, moved=1.0).relative_move == 0.25


def test_logits_are_found_with_maps_of_one_pixel_as_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    within: list[str] = []

    @contextmanager
    def noted() -> Iterator[None]:
        within.append("begin")
        yield
        within.append("end")

    class Told(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            within.append("model")
            return x

    monkeypatch.setattr(module, "one_pixel_norms", noted)
    assert torch.equal(logits_of(Told(), torch.ones(3, 2)), torch.ones(3, 2))
    assert within == ["begin", "model", "end"]


@pytest.mark.parametrize("same", ["", "a", "b", "ac", "abc"])
def test_distances_are_those_of_the_entries_that_inputs_reach(same: str) -> None:
    names = ["a", "b", "c"]
    draw = torch.Generator().manual_seed(0)
    before, after, far = ({n: torch.randn(4, 3, generator=draw).double() for n in names} for _ in range(3))
    after |= {name: before[name] for name in same}
    mask = torch.rand(4, 3, generator=draw) > 0.5
    for reached in ({}, {"b": mask}, dict.fromkeys(names, mask)):
        where = torch.cat([reached.get(n, torch.ones(4, 3, dtype=torch.bool)).flatten() for n in names])
        old, new, other = (torch.cat([values[n].flatten() for n in names]) for values in (before, after, far))
        found = read_distances(distance_numbers(before, after, far, names, reached))
        expected = [(new - old)[where], (new - old)[~where], old[where], (old - other)[where], (new - other)[where]]
        assert list(asdict(found).values()) == pytest.approx([float(v.norm()) for v in expected], rel=1e-12)
    assert distance_numbers({}, {}, {}, [], {}).tolist() == [0.0] * 5
