from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.linalg.tracked import TrackedSubspace
from warp_unlearning.symmetry.exact_start import Beginning, beginning, decompose
from warp_unlearning.symmetry.input_bases import energies_of, input_rows, observed_rows
from warp_unlearning.symmetry.layer_inputs import layer_rows, observe_inputs


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network() -> nn.Sequential:
    """On maps of one pixel the first layer meets padding in all taps but one; the second has two groups."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 1, groups=2, bias=False), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(6, 3)).double().eval()


def begun(model: nn.Module, x: Tensor, energy: float) -> list[Beginning]:
    seen = observed_rows(model, [x], dtype=None, met=True)
    energies = energies_of(seen)
    return [beginning(seen[name], energies[name] > 0, lambda: TrackedSubspace(energy)) for name in list(seen)]


def all_rows(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    rows: dict[str, Tensor] = {}
    observe_inputs(model, [x], lambda w, layer, a: rows.update({w.name: input_rows(w, layer_rows(layer, a)).clone()}))
    return rows


@pytest.mark.parametrize("energy", [0.6, 0.97])
@pytest.mark.parametrize("count", [2, 5, 60])
def test_layers_start_with_the_leading_singular_vectors_of_their_inputs(count: int, energy: float) -> None:
    """Of fewer inputs than coordinates too, which are decomposed by themselves."""
    model, x = network(), normal(count, 3, 1, 1) + 0.2
    found = begun(model, x, energy)
    decompose(found)
    rows = all_rows(model, x)
    assert [each.weight.name for each in found] == list(rows)
    for each, own in zip(found, rows.values(), strict=True):
        basis = each.basis()
        assert (basis.positions, basis.d) == (own.shape[1], own.shape[2])
        assert torch.equal(basis.reached, (own != 0).any(1))
        assert basis.reaches == int(basis.reached.sum())
        torch.testing.assert_close(each.layer.moment, own.mT @ own / own.shape[1])
        for block, r in zip(basis.blocks, own, strict=True):
            values, right = torch.linalg.svd(r, full_matrices=False)[1:]
            share = values.square().cumsum(0) / values.square().sum()
            assert block.rank == int((share < energy).sum()) + 1
            leading = right[: block.rank].mT
            torch.testing.assert_close(block.basis @ block.basis.mT, leading @ leading.mT, rtol=1e-6, atol=1e-6)
            assert block.captured == pytest.approx(float(share[block.rank - 1]))


def test_few_inputs_are_decomposed_before_the_others_and_once() -> None:
    found = begun(network(), normal(5, 3, 1, 1) + 0.2, 0.9)
    few = {each.weight.name: bool(each.layer.spans) for each in found}
    assert few == {"0.weight": False, "2.weight": False, "4.weight": True}
    before = found[2].layer.spans
    decompose(found)
    assert found[2].layer.spans is before
    counts = [[tracker.decompositions for tracker in each.layer.trackers] for each in found]
    assert counts == [[1], [1, 1], [0]]


def test_taps_that_meet_nothing_but_padding_are_not_kept() -> None:
    first, *others = begun(network(), normal(20, 3, 1, 1), 0.9)
    assert first.layer.columns is not None
    assert first.layer.columns.kept.tolist() == [4, 13, 22, 27]
    assert first.layer.within.shape == (1, 4, 4)
    assert all(each.layer.columns is None for each in others)


def test_inputs_that_are_all_zero_leave_every_coordinate_to_be_followed() -> None:
    (found,) = begun(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False)).double(), torch.zeros(5, 3, 1, 1).double(), 0.9
    )
    decompose([found])
    assert found.layer.columns is None
    assert found.layer.within.shape == (1, 27, 27)
    basis = found.basis()
    assert (basis.d, basis.rank, basis.reaches) == (27, 0, 0)


def test_every_group_has_a_tracker_of_its_own_that_can_go_on() -> None:
    """Also where a channel was never active: `propose` needs all coordinates to count as alive."""
    model = network()
    with torch.no_grad():
        model[0].bias[5] = -100.0
    found = begun(model, normal(40, 3, 1, 1), 0.9)
    decompose(found)
    assert not bool(found[1].basis().reached[1, 1])
    trackers = [tracker for each in found for tracker in each.layer.trackers]
    assert len({id(tracker) for tracker in trackers}) == len(trackers) == 4
    for each in found:
        for tracker, moment in zip(each.layer.trackers, each.layer.within, strict=True):
            assert tracker.prepare(moment) is not None
