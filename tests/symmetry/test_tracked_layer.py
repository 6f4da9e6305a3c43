from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.linalg.tracked import TrackedSubspace
from warp_unlearning.symmetry.kept_columns import KeptColumns
from warp_unlearning.symmetry.kernel_window import Taps
from warp_unlearning.symmetry.linear_weights import LinearWeight, linear_weights
from warp_unlearning.symmetry.tracked_layer import TrackedLayer


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moments(groups: int, d: int, *, beside: tuple[int, ...] = (), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (groups, 40, d) that are zero in some coordinates, and their mean second moment."""
    rows = normal(groups, 40, d, seed=seed) * 0.7 ** torch.arange(d).double()
    rows[:, :, list(beside)] = 0
    return rows, rows.mT @ rows / 40


def followed(moment: Tensor, energy: float) -> TrackedLayer:
    layer = TrackedLayer(moment, [TrackedSubspace(energy, rounds=30) for _ in moment])
    layer.spans = [tracker.refresh(own) for tracker, own in zip(layer.trackers, moment, strict=True)]
    return layer


def convolution(*, groups: int = 1) -> LinearWeight:
    """Two taps, of which padding may be all that the first one meets."""
    (weight,) = linear_weights(nn.Conv1d(3 * groups, 2 * groups, 2, groups=groups, bias=False).double())
    return weight


FIRST = (0, 2, 4)
SECOND = KeptColumns(6, torch.tensor([1, 3, 5]), torch.tensor(FIRST), Taps(0, 1, 1, 2))


@pytest.mark.parametrize("energy", [0.5, 0.97])
@pytest.mark.parametrize("groups", [1, 2])
def test_what_is_kept_within_columns_is_the_same_over_all(energy: float, groups: int) -> None:
    rows, moment = moments(groups, 6, beside=FIRST)
    layer = followed(moment, energy)
    whole = [span.basis @ span.basis.mT for span in layer.spans]
    layer.narrow(SECOND)
    assert layer.within.shape == (groups, 3, 3)
    assert torch.equal(layer.moment, moment)
    for span, block, projector in zip(layer.spans, layer.blocks, whole, strict=True):
        assert span.basis.shape[0] == 3
        torch.testing.assert_close(block.basis @ block.basis.mT, projector)
    torch.testing.assert_close(
        layer.missed_shares(rows[:, :, SECOND.kept]),
        torch.stack([(r - r @ p).square().sum() / r.square().sum() for r, p in zip(rows, whole, strict=True)]),
    )
    basis = layer.basis(convolution(groups=groups), layer.spans, 40, 3 * groups)
    assert basis.reached.tolist() == [[False, True] * 3] * groups
    assert (basis.d, basis.reaches, basis.positions) == (6, 3 * groups, 40)
    for block, projector in zip(basis.blocks, whole, strict=True):
        torch.testing.assert_close(block.basis @ block.basis.mT, projector)
    layer.widen()
    assert layer.columns is None
    assert torch.equal(layer.within, moment)
    for span, projector in zip(layer.spans, whole, strict=True):
        torch.testing.assert_close(span.basis @ span.basis.mT, projector)


@pytest.mark.parametrize("energy", [0.5, 0.97])
def test_trackers_go_on_within_columns_and_after_they_are_kept_no_longer(energy: float) -> None:
    _, before = moments(1, 6, beside=FIRST)
    layer = followed(before, energy)
    layer.narrow(SECOND)
    layer.awaken()
    for own in (moments(1, 6, beside=FIRST, seed=1)[1], moments(1, 6, seed=2)[1]):
        if bool(own[0, 0].any()):
            layer.widen()
        (tracker,) = layer.trackers
        (moment,) = own if layer.columns is None else own[:, SECOND.kept][:, :, SECOND.kept]
        found = tracker.refresh(moment)
        values = torch.linalg.eigvalsh(moment).flip(0)
        held = float((found.basis * (moment @ found.basis)).sum())
        assert held >= float(values[: found.rank].sum()) * (1 - 1e-6)
        assert held >= (1 - 1.05 * (1 - energy)) * float(values.sum())
    assert tracker.decompositions == 1


def test_a_refresh_by_itself_finds_the_leading_subspace_and_the_columns() -> None:
    _, moment = moments(2, 6, beside=FIRST)
    layer = TrackedLayer(moment, [TrackedSubspace(0.8) for _ in moment])
    basis = layer.refreshed(convolution(groups=2), 40)
    assert layer.columns is not None
    assert layer.columns.kept.tolist() == [1, 3, 5]
    assert layer.within.shape == (2, 3, 3)
    assert basis.reaches == 6
    for block, own in zip(basis.blocks, moment, strict=True):
        values, vectors = torch.linalg.eigh(own)
        leading = vectors[:, -block.rank :]
        torch.testing.assert_close(block.basis @ block.basis.mT, leading @ leading.mT)
        assert block.captured == pytest.approx(float(values[-block.rank :].sum() / values.sum()))


def test_a_channel_that_was_never_active_is_no_obstacle_to_a_proposal() -> None:
    """Only what lies beside the columns is left out; a dead channel may wake up."""
    _, moment = moments(1, 6, beside=(*FIRST, 3))
    layer = TrackedLayer(moment, [TrackedSubspace(0.8)])
    assert layer.refreshed(convolution(), 40).reached.tolist() == [[False, True, False, False, False, True]]
    assert layer.within.shape == (1, 3, 3)
    assert layer.trackers[0].prepare(layer.within[0]) is not None


def test_the_best_is_the_least_that_the_worst_group_missed() -> None:
    layer = TrackedLayer(torch.zeros(2, 1, 1), [])
    for missed, best in (([0.1, 0.4], 0.4), ([0.2, 0.1], 0.2), ([0.05, 0.9], 0.2)):
        layer.note(missed)
        assert (layer.missed, layer.best) == (missed, best)
    layer.note([])
    assert (layer.missed, layer.best) == ([], 1.0)


def test_too_much_is_so_many_times_the_best_or_what_may_be_missed() -> None:
    layer = TrackedLayer(torch.zeros(2, 1, 1), [])
    assert not layer.misses(more_than=2.0, of=0.0)
    layer.missed, layer.best = [0.1, 0.5], 0.2
    assert layer.misses(more_than=2.4, of=0.1)
    assert not layer.misses(more_than=2.6, of=0.1)
    assert not layer.misses(more_than=2.4, of=0.21)


def test_measured_subspaces_tell_what_they_held_of_new_inputs() -> None:
    layer = followed(moments(2, 6)[1], 0.9)
    before = [span.captured for span in layer.spans]
    assert [block.captured for block in layer.measured_blocks()] == before
    layer.note([0.3, 0.05])
    assert [block.captured for block in layer.measured_blocks()] == pytest.approx([0.7, 0.95])
    assert [span.captured for span in layer.spans] == before


@pytest.mark.parametrize(("missed", "weight"), [([0.1, 0.2], 0.25), ([0.1, 0.4], 0.5)])
def test_the_group_that_misses_most_decides_the_weight_of_all(missed: list[float], weight: float) -> None:
    layer = TrackedLayer(moments(2, 6)[1], [], best=0.2)
    latest = moments(2, 6, seed=1)[1]
    found = layer.blended(latest, torch.tensor(missed, dtype=torch.float64), blend=0.25)
    torch.testing.assert_close(found, (1 - weight) * layer.within + weight * latest)


@pytest.mark.parametrize("groups", [1, 2])
def test_what_is_reached_is_told_anew_where_the_coordinates_are_others(groups: int) -> None:
    """Where all that is kept is reached, nothing is looked at: the count says so."""
    _, moment = moments(groups, 6, beside=FIRST)
    layer, weight = followed(moment, 0.5), convolution(groups=groups)

    def reached(count: int) -> list[list[bool]]:
        return layer.basis(weight, layer.spans, 40, count).reached.tolist()

    assert reached(3 * groups) == [[False, True] * 3] * groups
    layer.narrow(SECOND)
    for _ in range(2):
        assert reached(3 * groups) == [[False, True] * 3] * groups
    layer.widen()
    layer.within = layer.within + torch.eye(6, dtype=torch.float64)
    for _ in range(2):
        assert reached(6 * groups) == [[True] * 6] * groups
    layer.within[0, 2, 2] = 0
    assert reached(6 * groups - 1)[0] == [True, True, False, True, True, True]
    layer.within = torch.eye(4, dtype=torch.float64).expand(groups, 4, 4)
    layer.spans = [span.narrowed(torch.arange(4)) for span in layer.spans]
    assert reached(4 * groups) == [[True] * 4] * groups
