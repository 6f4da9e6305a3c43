from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.errors import DataError
from warp_unlearning.symmetry.input_bases import exact_bases, input_rows
from warp_unlearning.symmetry.kept_columns import KeptColumns
from warp_unlearning.symmetry.kernel_window import Taps
from warp_unlearning.symmetry.layer_inputs import layer_rows, observe_inputs
from warp_unlearning.symmetry.linear_weights import linear_weights
from warp_unlearning.symmetry.tracked_bases import TrackedBases

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def all_rows(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    rows: dict[str, Tensor] = {}
    observe_inputs(model, [x], lambda w, layer, a: rows.update({w.name: input_rows(w, layer_rows(layer, a)).clone()}))
    return rows


@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 2),
    bias=st.booleans(),
    share=st.sampled_from([0.05, 0.2, 0.6, 1.0]),
    seed=st.integers(0, 999),
)
def test_a_tap_is_kept_with_all_of_its_channels_and_the_constant_always(
    kernel: tuple[int, int], groups: int, bias: bool, share: float, seed: int
) -> None:
    layer = nn.Conv2d(2 * groups, 2 * groups, kernel, groups=groups, bias=bias)
    (weight,) = linear_weights(layer)
    height, width = kernel
    alive = torch.rand(groups, weight.d + bias, generator=generator(seed)) < share
    marked = {
        (row, column)
        for group in range(groups)
        for channel in range(2)
        for row in range(height)
        for column in range(width)
        if alive[group, (channel * height + row) * width + column]
    }
    found = KeptColumns.of(alive, weight, CPU)
    if len(marked) in (0, height * width):
        assert found is None
        return
    assert found is not None
    kept = [
        (c * height + i) * width + j for c in range(2) for i in range(height) for j in range(width) if (i, j) in marked
    ]
    kept += [weight.d] * bias
    assert found.d == weight.d + bias
    assert found.kept.tolist() == kept
    assert sorted([*kept, *found.others.tolist()]) == list(range(found.d))
    rows, columns = {i for i, _ in marked}, {j for _, j in marked}
    around = Taps(min(rows), max(rows) + 1, min(columns), max(columns) + 1)
    whole = {(i, j) for i in range(around.top, around.bottom) for j in range(around.left, around.right)} == marked
    assert found.taps == (around if whole else None)


def test_taps_are_known_to_suffice_where_the_shape_of_the_input_says_so() -> None:
    layer, centre = nn.Conv2d(2, 3, 3, padding=1), Taps(1, 2, 1, 2)
    columns = KeptColumns(19, torch.tensor([4, 13, 18]), torch.tensor([0]), centre)
    assert columns.taps_on(layer, normal(5, 2, 1, 1)) == centre
    assert columns.taps_on(layer, normal(5, 2, 1, 2)) is None
    assert columns.taps_on(layer, normal(5, 2, 3, 3)) is None
    assert columns.taps_on(nn.Linear(19, 2), normal(5, 19)) is None
    scattered = KeptColumns(19, columns.kept, columns.others, None)
    assert scattered.taps_on(layer, normal(5, 2, 1, 1)) is None


def test_a_linear_layer_has_no_taps_to_leave_out() -> None:
    (weight,) = linear_weights(nn.Linear(3, 2))
    assert KeptColumns.of(torch.tensor([[True, False, True, True]]), weight, CPU) is None


def padded() -> nn.Sequential:
    """On images of one pixel the kernels of both convolutions meet padding in all taps but one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 3, padding=1, bias=False), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(5, 3)).double().eval()


def pixels(count: int, seed: int) -> Tensor:
    return normal(count, 4, 1, 1, seed=seed) * torch.tensor([1.0, 0.7, 0.3, 0.1]).reshape(4, 1, 1) + 0.2


@pytest.mark.parametrize("energy", [0.7, 0.99])
def test_taps_that_meet_nothing_but_padding_are_left_out_and_change_nothing(energy: float) -> None:
    model, tracked = padded(), TrackedBases(energy, rounds=40, examples=500, blend=1.0, restart=50.0)
    first = tracked.refresh(model, [pixels(200, 1)], generator=generator())
    kept = {name: layer.within.shape[1] for name, layer in tracked._layers.items()}
    assert kept == {"0.weight": 5, "2.weight": 6, "4.weight": 6}
    assert [basis.d for basis in first.values()] == [37, 54, 6]
    found = tracked.refresh(model, [pixels(200, 2)], generator=generator())
    exact = exact_bases(model, [pixels(200, 2)], energy=energy)
    for name, rows in all_rows(model, pixels(200, 2)).items():
        assert found[name].d == exact[name].d
        assert torch.equal(found[name].reached, exact[name].reached)
        assert found[name].reaches == int(exact[name].reached.sum())
        assert found[name].free == int(found[name].reached.sum()) - found[name].rank
        (block,), (r,) = found[name].blocks, rows
        assert block.basis.shape[0] == r.shape[1]
        values = torch.linalg.svdvals(r).square()
        assert block.missed(r) <= 1.01 * float(values[block.rank :].sum() / values.sum()) + 1e-9
    assert tracked.exact_builds == 1


def test_inputs_where_there_was_padding_are_taken_in() -> None:
    """Larger images reach every tap; what was followed is the blend over all of them."""
    model, tracked = padded()[:3], TrackedBases(0.9, rounds=60, examples=500, patches=100, blend=0.3, restart=1e6)
    tracked.refresh(model, [pixels(50, 1)], generator=generator())
    wide = normal(60, 4, 3, 3, seed=2)
    found = tracked.refresh(model, [wide], generator=generator())
    small, large = all_rows(model, pixels(50, 1)), all_rows(model, wide)
    for name, basis in found.items():
        layer = tracked._layers[name]
        assert layer.columns is None
        weight = max(0.3, 1 - layer.best / layer.missed[0])
        moment = (1 - weight) * small[name].mT @ small[name] / 50 + weight * large[name].mT @ large[name] / (60 * 9)
        torch.testing.assert_close(layer.moment, moment, rtol=1e-6, atol=1e-9)
        values = torch.linalg.eigvalsh(moment[0]).flip(0)
        held = float((basis.blocks[0].basis * (moment[0] @ basis.blocks[0].basis)).sum())
        assert held >= float(values[: basis.rank].sum()) * (1 - 1e-4)
        assert bool(basis.reached.all())
    again = tracked.refresh(model, [wide], generator=generator())
    assert all(again[name].d == found[name].d for name in found)


def test_a_renewal_forgets_also_where_there_was_padding() -> None:
    """What it sees in taps that were left out is all there is, and no part of a blend."""
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1)).double()
    tracked = TrackedBases(0.9, rounds=60, examples=500, patches=800, restart=1.01, afar=1e6)
    basis = torch.linalg.qr(normal(4, 4, seed=5)).Q
    first, other = (normal(50, 1, seed=7) * basis[:, i] for i in (0, 1))
    for x in (first, first, other):
        tracked.refresh(model, [x.reshape(50, 4, 1, 1)], generator=generator())
    wide = normal(60, 4, 3, 3, seed=2)
    tracked.refresh(model, [wide], generator=generator())
    assert (tracked.exact_builds, tracked.renewals) == (1, 1)
    layer, rows = tracked._layers["0.weight"], all_rows(model, wide)["0.weight"]
    assert layer.columns is None
    torch.testing.assert_close(layer.moment, rows.mT @ rows / (60 * 9))
    assert (layer.missed, layer.best) == ([], 1.0)


def test_what_is_not_finite_in_a_tap_left_out_is_an_error() -> None:
    """The far pixel of a small image meets the last tap alone, which images of one pixel never reach."""
    model, tracked = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, stride=2)).double(), TrackedBases(0.9, examples=500)
    tracked.refresh(model, [pixels(50, 1)], generator=generator())
    broken = torch.zeros(4, 4, 2, 2, dtype=torch.float64)
    broken[:, :, 0, 0] = pixels(4, 2)[:, :, 0, 0]
    tracked.refresh(model, [broken], generator=generator())
    assert tracked._layers["0.weight"].columns is not None
    broken[0, 0, 1, 1] = float("nan")
    with pytest.raises(DataError, match=r"0\.weight hold NaN"):
        tracked.refresh(model, [broken], generator=generator())


class Twice(nn.Module):
    """A convolution on maps of one pixel, and on larger ones if asked."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 3, 3, padding=1)
        self.larger = False

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv(x[:, :, :1, :1]).mean((2, 3))
        return first + self.conv(x).mean((2, 3)) if self.larger else first


def test_a_layer_called_on_larger_maps_beside_those_of_one_pixel_loses_nothing() -> None:
    model, x = Twice().double().eval(), normal(40, 4, 3, 3, seed=3)
    tracked = TrackedBases(0.9, rounds=30, examples=100, patches=100, blend=1.0, restart=1e6)
    tracked.refresh(model, [x], generator=generator())
    assert tracked._layers["conv.weight"].columns is not None
    model.larger = True
    tracked.refresh(model, [x], generator=generator())
    one, many = (layer_rows(model.conv, part)[0] for part in (x[:, :, :1, :1], x))
    rows = torch.cat([torch.cat([one, many]), torch.ones(400, 1, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(tracked._layers["conv.weight"].moment[0], rows.mT @ rows / 400)
