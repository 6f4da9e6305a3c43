"""That a subspace is followed by captured graphs as it is without, and when they are captured."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from warp_unlearning import streams_beside
from warp_unlearning.linalg import iteration, repeated_proposal
from warp_unlearning.linalg.orthonormal import fixed_normal
from warp_unlearning.linalg.proposal import Proposal, proposed_by_columns, proposed_by_normals, proposed_in_turn
from warp_unlearning.linalg.repeated_proposal import Prepared, RepeatedProposal, Way, copy_ahead, handed_over
from warp_unlearning.linalg.side_streams import SideStreams
from warp_unlearning.linalg.tracked import TrackedSubspace

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def made(prepared: Prepared) -> Proposal:
    copy_ahead([prepared])
    return handed_over([prepared], [prepared.make()])[0]


def proposed(repeated: RepeatedProposal, way: Way, moment: Tensor, *given: Tensor, rounds: int) -> Proposal:
    return made(repeated.prepared(way, moment, *given, rounds=rounds))


def propose(tracker: TrackedSubspace, moment: Tensor) -> Proposal:
    prepared = tracker.prepare(moment)
    assert prepared is not None
    return made(prepared)


def parts(proposal: Proposal) -> list[Tensor]:
    doubts = [part for doubt in proposal.turned.doubts for part in (*doubt.failed, doubt.first, doubt.second)]
    return [proposal.turned.columns, proposal.missed, *doubts]


def moment_of(seed: int, d: int = 12, decay: float = 0.6, device: str = "cpu") -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64)).Q
    return ((turn * decay ** torch.arange(d, dtype=torch.float64)) @ turn.mT).to(device)


def columns_of(seed: int, k: int, d: int = 12) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, k, generator=draw, dtype=torch.float64)).Q


WAYS = [(proposed_by_columns, 4), (proposed_by_normals, 3)]


@pytest.mark.parametrize(("way", "k"), WAYS)
def test_a_replay_gives_what_the_way_gives(proposed_again: Any, way: Way, k: int) -> None:
    repeated = RepeatedProposal()
    repeated.capture(way, moment_of(0), columns_of(1, k), rounds=2)
    for seed in (2, 3):
        moment, columns = moment_of(seed), columns_of(seed + 10, k)
        found, expected = proposed(repeated, way, moment, columns, rounds=2), way(2, moment, columns)
        assert found.moment is moment
        for one, other in zip(parts(found), parts(expected), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert [graph.replays for graph in proposed_again.graphs] == [2]


def test_columns_are_not_written_over_by_the_next_proposal(proposed_again: Any) -> None:
    repeated, basis = RepeatedProposal(), columns_of(1, 4)
    repeated.capture(proposed_by_columns, moment_of(0), basis, rounds=1)
    first = proposed(repeated, proposed_by_columns, moment_of(2), basis, rounds=1).turned.columns
    kept = first.clone()
    proposed(repeated, proposed_by_columns, moment_of(3), first, rounds=1)
    assert torch.equal(first, kept)
    assert proposed_again.graphs[0].replays == 2


def test_what_is_asked_for_twice_in_a_row_is_captured(proposed_again: Any) -> None:
    repeated = RepeatedProposal()
    for k in (4, 5, 4):
        proposed(repeated, proposed_by_columns, moment_of(0), columns_of(1, k), rounds=1)
    assert not repeated.captured
    proposed(repeated, proposed_by_columns, moment_of(0), columns_of(2, 4), rounds=1)
    assert repeated.captured
    assert [graph.replays for graph in proposed_again.graphs] == [1]


OTHERS: list[dict[str, Any]] = [
    {"way": proposed_by_normals},
    {"moment": moment_of(5).float()},
    {"columns": columns_of(6, 5)},
    {"rounds": 2},
]


@pytest.mark.parametrize("other", OTHERS, ids=["way", "type", "columns", "rounds"])
def test_something_else_is_done_without_the_graph_which_is_kept(proposed_again: Any, other: dict[str, Any]) -> None:
    usual = {"way": proposed_by_columns, "moment": moment_of(2), "columns": columns_of(3, 4), "rounds": 1}
    repeated = RepeatedProposal()
    repeated.capture(proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    asked = {**usual, **other}
    found = proposed(repeated, asked["way"], asked["moment"], asked["columns"], rounds=asked["rounds"])
    expected = asked["way"](asked["rounds"], asked["moment"], asked["columns"])
    assert torch.equal(found.turned.columns, expected.turned.columns)
    assert [graph.replays for graph in proposed_again.graphs] == [0]
    proposed(repeated, usual["way"], usual["moment"], usual["columns"], rounds=1)
    assert [graph.replays for graph in proposed_again.graphs] == [1]


def test_a_graph_belongs_to_its_stream(proposed_again: Any) -> None:
    repeated = RepeatedProposal()
    repeated.capture(proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    proposed_again.stream = "another"
    proposed(repeated, proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    assert [graph.replays for graph in proposed_again.graphs] == [0]
    proposed_again.stream = None
    for _ in range(3):
        proposed(repeated, proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    assert [graph.replays for graph in proposed_again.graphs] == [0]


def test_another_precision_is_done_without_the_graph(proposed_again: Any) -> None:
    repeated, switch = RepeatedProposal(), torch.backends.cuda.matmul
    repeated.capture(proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    before = switch.fp32_precision
    try:
        switch.fp32_precision = "ieee" if before == "tf32" else "tf32"
        proposed(repeated, proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    finally:
        switch.fp32_precision = before
    assert [graph.replays for graph in proposed_again.graphs] == [0]


def test_what_cannot_be_captured_is_proposed_as_before(monkeypatch: pytest.MonkeyPatch, proposed_again: Any) -> None:
    tries = []

    def fails(make: Any) -> None:
        tries.append(make)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(repeated_proposal, "CudaGraph", fails)
    repeated, moment, columns = RepeatedProposal(), moment_of(0), columns_of(1, 4)
    repeated.capture(proposed_by_columns, moment, columns, rounds=1)
    for _ in range(3):
        found = proposed(repeated, proposed_by_columns, moment, columns, rounds=1)
        assert torch.equal(found.turned.columns, proposed_by_columns(1, moment, columns).turned.columns)
    assert len(tries) == 1


def test_what_has_no_room_to_be_tried_is_not_captured(proposed_again: Any) -> None:
    tries = []

    def way(rounds: int, moment: Tensor, basis: Tensor) -> Proposal:
        tries.append(rounds)
        raise torch.OutOfMemoryError("out of memory")

    repeated = RepeatedProposal()
    repeated.capture(way, moment_of(0), columns_of(1, 4), rounds=1)
    repeated.capture(way, moment_of(0), columns_of(1, 4), rounds=1)
    assert not repeated.captured
    assert (len(tries), proposed_again.graphs) == (1, [])


def test_small_subspaces_are_not_captured(proposed_again: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_proposal, "_LEAST", 13)
    repeated = RepeatedProposal()
    repeated.capture(proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    for _ in range(3):
        proposed(repeated, proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    assert not repeated.captured
    repeated.capture(proposed_by_columns, moment_of(0, 13), columns_of(1, 4, 13), rounds=1)
    assert repeated.captured


@pytest.mark.parametrize(
    ("way", "k"), [(proposed_by_columns, 520), (proposed_by_normals, 515), (proposed_by_columns, 4)]
)
def test_what_a_graph_reads_beside_what_it_is_given_stays_where_it_is(way: Way, k: int) -> None:
    """However many other lengths are asked for: a graph holds nothing of it."""
    moment, columns = torch.eye(530), torch.eye(530)[:, :k]
    way(1, moment, columns)
    few = [fixed_normal(530, count, columns.dtype, columns.device) for count in (8, 32)]
    places = [part.data_ptr() for part in few]
    for length in range(600, 1200):
        fixed_normal(length, 8, columns.dtype, columns.device)
        fixed_normal(length, 40, columns.dtype, columns.device)
    way(1, moment, columns)
    assert [fixed_normal(530, c, columns.dtype, columns.device).data_ptr() for c in (8, 32)] == places


def test_without_a_gpu_nothing_is_captured() -> None:
    repeated = RepeatedProposal()
    repeated.capture(proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    for _ in range(3):
        proposed(repeated, proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    assert not repeated.captured


@pytest.mark.parametrize("copied", [deepcopy, lambda used: pickle.loads(pickle.dumps(used))])
def test_a_copy_begins_anew(proposed_again: Any, copied: Any) -> None:
    repeated = RepeatedProposal()
    repeated.capture(proposed_by_columns, moment_of(0), columns_of(1, 4), rounds=1)
    assert repeated.captured
    assert not copied(repeated).captured


@pytest.mark.parametrize(("decay", "followed_by"), [(0.3, "span"), (0.9, "normals"), (0.6, "turns")])
def test_a_tracker_comes_to_the_same_with_graphs(
    proposed_again: Any, monkeypatch: pytest.MonkeyPatch, decay: float, followed_by: str
) -> None:
    """Several refreshes, each from what the last came to, and with a direction more on the way."""
    if followed_by == "turns":
        monkeypatch.setattr(iteration, "_MANY", 4)
        monkeypatch.setattr(iteration, "_TOGETHER", 2)
    trackers = [TrackedSubspace(0.95, slack=0.05) for _ in range(2)]
    spans: list[list[Tensor]] = []
    for number, tracker in enumerate(trackers):
        proposed_again.stream = "one" if number == 0 else None
        tracker.refresh(moment_of(0, decay=decay))
        assert (tracker._normals is not None) == (followed_by == "normals")
        assert (tracker._span is not None and tracker._span.turn() is not None) == (followed_by == "turns")
        tracker.make_ready(moment_of(0, decay=decay))
        spans.append([])
        for step, steep in enumerate((decay, decay, decay * 1.08, decay * 1.08, decay * 1.08)):
            moment = torch.lerp(moment_of(0, decay=steep), moment_of(1, decay=steep), 0.02 * step)
            proposal = propose(tracker, moment)
            found = tracker.settle(proposal, proposal.numbers)
            spans[-1].append(found.outside(torch.eye(12, dtype=torch.float64)))
    for one, other in zip(*spans, strict=True):
        torch.testing.assert_close(one, other)
    assert followed_by == "normals" or trackers[0].growths == trackers[1].growths > 0
    assert sum(graph.replays for graph in proposed_again.graphs) >= 2


def test_what_is_given_from_the_host_is_brought_along(proposed_again: Any) -> None:
    """The columns that take turns are chosen on the host, others each time."""
    moment, basis, sizes = moment_of(0), columns_of(1, 6), torch.linspace(1, 0.1, 6, dtype=torch.float64)
    repeated, turns = RepeatedProposal(), [torch.tensor(some) for some in ([0, 1, 4], [0, 1, 5], [2, 0, 1])]
    repeated.capture(proposed_in_turn, moment, basis, sizes, turns[0], rounds=1)
    for chosen in turns:
        found = proposed(repeated, proposed_in_turn, moment, basis, sizes, chosen, rounds=1)
        expected = proposed_in_turn(1, moment, basis, sizes, chosen)
        assert found.turned.sizes is not None
        assert expected.turned.sizes is not None
        assert torch.equal(found.turned.sizes, expected.turned.sizes)
        assert torch.equal(found.turned.columns, expected.turned.columns)
        others = [column for column in range(6) if column not in chosen]
        assert torch.equal(found.turned.sizes[others], sizes[others])
    assert [graph.replays for graph in proposed_again.graphs] == [3]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("way", "k", "more"),
    [
        (proposed_by_columns, 40, ()),
        (proposed_by_normals, 30, ()),
        (proposed_in_turn, 40, (torch.linspace(1, 0.1, 40), torch.arange(0, 40, 2))),
    ],
)
def test_graphs_on_side_streams_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, way: Way, k: int, more: tuple[Tensor, ...]
) -> None:
    # Other tests may have taken all that there are.
    monkeypatch.setattr(streams_beside, "_OF", {})
    device = torch.device("cuda")
    every = [RepeatedProposal() for _ in range(6)]
    basis = columns_of(1, k, 160).float().to(device)

    def moment(seed: int) -> Tensor:
        return moment_of(seed, 160, 0.97).float().to(device)

    # Not on the default stream, so that the sides are those of the stream that works.
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        with SideStreams(device) as sides:
            ready = [lambda r=each: r.capture(way, moment(0), basis, *more, rounds=1) for each in every]
            assert len(sides._streams) == 4
            sides.each(ready, apart=False)
        assert all(each.captured for each in every)
        moments = [moment(seed) for seed in range(2, 8)]
        with SideStreams(device) as sides:
            asked = [
                lambda r=each, m=m: proposed(r, way, m, basis, *more, rounds=1)
                for each, m in zip(every, moments, strict=True)
            ]
            found = sides.each(asked, apart=False)
        for one, m in zip(found, moments, strict=True):
            expected = way(1, m, basis, *(each.to(device) for each in more))
            for mine, its in zip(parts(one), parts(expected), strict=True):
                torch.testing.assert_close(mine.double(), its.double(), rtol=1e-3, atol=1e-5)
    torch.cuda.synchronize()


def test_making_ready_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration, "_MANY", 4)
    tracker = TrackedSubspace(0.95)
    tracker.refresh(moment_of(0, decay=0.6))
    assert tracker._span is not None
    before = tracker._span._turn
    tracker.make_ready(moment_of(0, decay=0.6))
    assert tracker._span._turn == before
    propose(tracker, moment_of(0, decay=0.6))
    assert tracker._span._turn == before + 1
