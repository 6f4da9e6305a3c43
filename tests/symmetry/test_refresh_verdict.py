from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import DataError
from warp_unlearning.linalg import iteration
from warp_unlearning.linalg.on_host import on_host
from warp_unlearning.linalg.tracked import TrackedSubspace
from warp_unlearning.symmetry import refresh_verdict
from warp_unlearning.symmetry.kept_columns import KeptColumns
from warp_unlearning.symmetry.linear_weights import linear_weights
from warp_unlearning.symmetry.refresh_draft import Draft, drafted
from warp_unlearning.symmetry.refresh_verdict import judged
from warp_unlearning.symmetry.sampled_moment import SampledMoment
from warp_unlearning.symmetry.tracked_layer import TrackedLayer


def inputs(groups: int, d: int, seed: int) -> Tensor:
    drawn = torch.randn(groups, 50, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn * 0.8 ** torch.arange(d).double()


def drafts_of(*, blend: float | None, rounds: int = 1) -> list[Draft]:
    """Of a layer with two groups, of one that is new, of one with inputs beside its columns, and of one more."""
    model = nn.Sequential(
        nn.Conv1d(12, 4, 1, groups=2, bias=False),
        nn.Conv1d(5, 4, 1, bias=False),
        nn.Conv1d(4, 4, 2, bias=False),
        nn.Conv1d(9, 4, 1, bias=False),
    ).double()
    columns = KeptColumns(8, torch.tensor([0, 2, 4, 6]), torch.tensor([1, 3, 5, 7]), None)
    samples, layers = [], {}
    for i, (weight, groups) in enumerate(zip(linear_weights(model), (2, 1, 1, 1), strict=True)):
        kept = columns if i == 2 else None
        sample = SampledMoment(weight, kept)
        sample.add(inputs(groups, weight.d, i), share=1.0, narrow=False)
        samples.append(sample)
        old = inputs(groups, 4 if kept else weight.d, 10 + i)
        layer = TrackedLayer(old.mT @ old / 50, [TrackedSubspace(0.7) for _ in old], columns=kept)
        layer.spans = [t.refresh(m) for t, m in zip(layer.trackers, layer.within, strict=True)]
        if i != 1:
            layers[weight.name] = layer
    return drafted(samples, layers, blend=blend, rounds=rounds)


@pytest.mark.parametrize("many", [2, 512])
@pytest.mark.parametrize(("blend", "rounds"), [(0.2, 1), (None, 2)])
def test_each_draft_gets_what_would_be_read_of_it_alone(
    blend: float | None, rounds: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are many columns, also the eigenvalues of those that take turns."""
    monkeypatch.setattr(iteration, "_MANY", many)
    together = [drafts_of(blend=blend, rounds=rounds) for _ in range(2)]
    found = judged(together)
    assert [draft for draft, _ in found] == [draft for drafts in together for draft in drafts]
    lengths = set()
    for draft, verdict in found:
        moment = draft.latest if draft.moment is None else draft.moment
        assert torch.equal(verdict.diagonal, moment.diagonal(dim1=1, dim2=2))
        assert verdict.reached == int((verdict.diagonal > 0).sum())
        beside = draft.sample.all_rows()[:, :, draft.sample.columns.others] if draft.sample.columns else torch.zeros(1)
        assert verdict.stray == float(beside.abs().max())
        assert verdict.missed == ([] if draft.missed is None else draft.missed.tolist())
        assert len(verdict.numbers) == len(draft.proposals)
        for numbers, proposal in zip(verdict.numbers, draft.proposals, strict=True):
            assert numbers is not None
            assert proposal is not None
            torch.testing.assert_close(numbers, proposal.numbers)
            lengths.add(len(numbers))
    assert (max(lengths) > 3) == (many == 2)


def test_a_tracker_that_proposed_nothing_has_no_numbers() -> None:
    drafts = drafts_of(blend=0.2)
    second = drafts[0].proposals[1]
    assert second is not None
    drafts[0].proposals[0] = None
    (_, verdict), *others = judged([drafts])
    assert verdict.numbers[0] is None
    torch.testing.assert_close(verdict.numbers[1], second.numbers)
    for draft, other in others:
        for numbers, proposal in zip(other.numbers, draft.proposals, strict=True):
            torch.testing.assert_close(numbers, proposal.numbers)  # type: ignore[union-attr]


def test_all_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together, read = [drafts_of(blend=0.2) for _ in range(2)], []
    monkeypatch.setattr(refresh_verdict, "on_host", lambda tensors: (read.append(len(tensors)), on_host(tensors))[1])
    judged(together)
    assert len(read) == 1
    assert judged([]) == []


@pytest.mark.parametrize("beside", [False, True])
def test_what_is_not_finite_is_an_error_that_names_the_layer(beside: bool) -> None:
    drafts = drafts_of(blend=0.2)
    if beside:
        drafts[2].sample.stray = torch.tensor(float("nan"))
    else:
        drafts[1].latest[0, 3, 3] = float("inf")
    with pytest.raises(DataError, match=rf"{2 if beside else 1}\.weight hold NaN or infinity"):
        judged([drafts])


def test_coordinates_without_energy_are_not_reached() -> None:
    drafts = drafts_of(blend=0.2)
    moment = drafts[0].moment
    assert moment is not None
    moment[1, 2, 2] = moment[0, 0, 0] = 0
    drafts[1].latest[0, 4, 4] = 0
    sizes = [verdict.diagonal.numel() for _, verdict in judged([drafts])]
    assert [verdict.reached for _, verdict in judged([drafts])] == [sizes[0] - 2, sizes[1] - 1, *sizes[2:]]
