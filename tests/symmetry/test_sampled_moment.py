from __future__ import annotations

from collections.abc import Mapping
from sys import maxsize

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.symmetry import sampled_moment
from warp_unlearning.symmetry.kept_columns import KeptColumns
from warp_unlearning.symmetry.layer_inputs import layer_rows
from warp_unlearning.symmetry.linear_weights import linear_weights
from warp_unlearning.symmetry.sampled_moment import SampledMoment, sampled_moments, some_of
from warp_unlearning.symmetry.tracked_bases import TrackedBases


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def sampled(
    model: nn.Module,
    batches: list[Tensor],
    *,
    examples: int = maxsize,
    patches: int = maxsize,
    seed: int = 0,
    known: Mapping[str, KeptColumns] | None = None,
) -> dict[str, SampledMoment]:
    return sampled_moments(model, batches, examples, patches, generator(seed), known or {})


def columns_of(layer: nn.Conv2d, small: Tensor) -> KeptColumns:
    (weight,) = linear_weights(layer)
    constant = torch.ones(1, 1, dtype=torch.bool)[:, : layer.bias is not None]
    found = KeptColumns.of(torch.cat([(layer_rows(layer, small) != 0).any(1), constant], 1), weight, small.device)
    assert found is not None
    return found


def with_constant(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.ones(*rows.shape[:2], 1, dtype=rows.dtype)], dim=2)


def test_all_of_all_examples_is_the_second_moment_of_all_inputs() -> None:
    """Batches of one shape are joined, those of several are not."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 6, 3, groups=2, bias=False)).double()
    for sizes in ((5, 5), (5, 4)):
        batches = [normal(7, 2, side, side, seed=side) for side in sizes]
        found = sampled(model, batches)
        assert list(found) == ["0.weight", "1.weight"]
        rows = [
            torch.cat([with_constant(layer_rows(model[0], x)) for x in batches], 1),
            torch.cat([layer_rows(model[1], model[0](x)) for x in batches], 1).detach(),
        ]
        for sample, own in zip(found.values(), rows, strict=True):
            assert sample.positions == own.shape[1]
            assert sample.stray is None
            torch.testing.assert_close(sample.total.tril(), (own.mT @ own).tril())
            torch.testing.assert_close(sample.some_rows(), own)


def test_a_sample_is_of_so_many_patches_of_so_many_examples() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False)).double(), torch.arange(160.0).double().reshape(10, 1, 4, 4)
    sample = sampled(model, list(x.split(3)), examples=4, patches=5)["0.weight"]
    drawn = sample.some_rows().flatten().tolist()
    assert sample.positions == len(drawn) == len(set(drawn)) == 20
    examples = [int(number) // 16 for number in drawn]
    assert sorted(examples.count(i) for i in set(examples)) == [5] * 4
    assert sample.total.item() == pytest.approx(sum(number**2 for number in drawn))
    again, other = (sampled(model, list(x.split(3)), examples=4, patches=5, seed=s)["0.weight"] for s in (0, 1))
    assert torch.equal(again.total, sample.total)
    assert not torch.equal(other.total, sample.total)


def test_half_precision_is_summed_in_float32() -> None:
    model, x = nn.Sequential(nn.Linear(3, 2)).to(torch.bfloat16), normal(50, 3).to(torch.bfloat16)
    sample = sampled(model, [x])["0.weight"]
    rows = with_constant(x.double()[None])
    assert sample.total.dtype == sample.some_rows().dtype == torch.float32
    torch.testing.assert_close(sample.total.double(), rows.mT @ rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_what_lies_beside_the_columns_that_are_kept_is_noticed_and_not_lost(bias: bool) -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1, bias=bias).double()
    small, large = normal(6, 2, 1, 1), normal(4, 2, 2, 2, seed=1)
    columns = columns_of(layer, small)
    own = [with_constant(layer_rows(layer, x)) if bias else layer_rows(layer, x) for x in (small, large)]
    for batches, rows in (
        ([small], own[0]),
        ([small, large], torch.cat(own, 1)),
        ([large, small], torch.cat(own[::-1], 1)),
    ):
        sample = sampled(nn.Sequential(layer), batches, known={"0.weight": columns})["0.weight"]
        narrow = rows[:, :, columns.kept]
        assert sample.positions == rows.shape[1]
        torch.testing.assert_close(sample.total.tril(), (narrow.mT @ narrow).tril())
        torch.testing.assert_close(sample.some_rows(), narrow)
        torch.testing.assert_close(sample.all_rows(), rows)
        if len(batches) == 1:
            assert sample.stray is None
        else:
            assert float(sample.stray) == float(rows[:, :, columns.others].abs().max()) > 0


@pytest.mark.parametrize("sides", [(2, 3), (3, 2)])
def test_the_largest_number_beside_the_columns_is_that_of_all_batches(sides: tuple[int, int]) -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1).double()
    batches = [normal(4, 2, side, side) * 10 ** (side - 2) for side in sides]
    known = {"0.weight": columns_of(layer, normal(6, 2, 1, 1))}
    sample = sampled(nn.Sequential(layer), batches, known=known)["0.weight"]
    beside = known["0.weight"].others
    assert float(sample.stray) == max(float(layer_rows(layer, x)[:, :, beside].abs().max()) for x in batches)


def test_columns_of_another_layer_are_not_used() -> None:
    small = normal(6, 2, 1, 1)
    columns = columns_of(nn.Conv2d(2, 3, 3, padding=1).double(), small)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=False).double())
    sample = sampled(model, [small], known={"0.weight": columns})["0.weight"]
    assert sample.columns is None
    assert sample.total.shape == (1, 18, 18)


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(10, 1.0, 10), (11, 1.0, 6), (40, 1.0, 10), (40, 0.5, 5), (7, 1e-9, 1)]
)
def test_some_rows_are_evenly_spaced_and_no_more_than_there_is_room_for(
    count: int, share: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_moment, "_MEASURED", 10 * 2 * 3)
    rows = normal(2, count, 3)
    found = some_of(rows, share=share)
    assert found.shape == (2, expected, 3)
    step = -(-count // max(1, int(10 * share)))
    assert torch.equal(found, torch.stack([rows[:, i] for i in range(0, count, step)], 1))


class Overwriting(nn.Module):
    """A layer whose input is written over as soon as it was read."""

    def __init__(self, *, overwrites: bool) -> None:
        super().__init__()
        self.overwrites = overwrites
        self.first, self.second = nn.Conv2d(2, 6, 1, bias=False), nn.Conv2d(6, 4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.second(h)
        if self.overwrites:
            h.normal_(generator=generator(5))
        return out


def test_inputs_that_are_written_over_were_seen_before() -> None:
    noted = []
    for overwrites in (False, True):
        model = Overwriting(overwrites=overwrites).double().eval()
        with torch.no_grad():
            model.first.weight.copy_(normal(6, 2, 1, 1))
        tracked = TrackedBases(0.6, examples=30, restart=50.0)
        for seed in range(2):
            tracked.refresh(model, [normal(60, 2, 1, 1, seed=seed)], generator=generator())
        noted.append(tracked._layers["second.weight"])
    assert noted[0].missed == noted[1].missed
    assert torch.equal(noted[0].moment, noted[1].moment)
