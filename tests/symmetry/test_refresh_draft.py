from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.linalg import tracked
from warp_unlearning.linalg.co_subspace import CoSubspace
from warp_unlearning.linalg.subspace import Subspace
from warp_unlearning.linalg.tracked import TrackedSubspace
from warp_unlearning.symmetry.linear_weights import LinearWeight, linear_weights
from warp_unlearning.symmetry.refresh_draft import drafted
from warp_unlearning.symmetry.sampled_moment import SampledMoment
from warp_unlearning.symmetry.tracked_layer import TrackedLayer


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(groups: int, d: int, seed: int) -> Tensor:
    return normal(groups, 50, d, seed=seed) * 0.6 ** torch.arange(d).double()


def weights() -> list[LinearWeight]:
    """Of one group and of two, the smaller first."""
    model = nn.Sequential(nn.Conv1d(6, 4, 1, groups=2, bias=False), nn.Conv1d(7, 3, 1, bias=False)).double()
    return list(linear_weights(model))


def sample_of(weight: LinearWeight, rows: Tensor) -> SampledMoment:
    sample = SampledMoment(weight, None)
    for part in rows.split(20, dim=1):
        sample.add(part, share=0.5, narrow=False)
    return sample


def layer_of(moment: Tensor, *, best: float = 1.0, energy: float = 0.7) -> TrackedLayer:
    layer = TrackedLayer(moment, [TrackedSubspace(energy) for _ in moment], best=best)
    layer.spans = [tracker.refresh(own) for tracker, own in zip(layer.trackers, moment, strict=True)]
    return layer


def case(best: float = 1.0) -> tuple[list[LinearWeight], list[Tensor], dict[str, TrackedLayer]]:
    """Weights, new inputs of each, and what was kept of others."""
    every, shapes = weights(), ((2, 3), (1, 7))
    rows = [inputs(*shape, seed=i) for i, shape in enumerate(shapes)]
    old = [inputs(*shape, seed=10 + i) for i, shape in enumerate(shapes)]
    layers = {w.name: layer_of(r.mT @ r / 50, best=best) for w, r in zip(every, old, strict=True)}
    return every, rows, layers


@pytest.mark.parametrize("best", [1.0, 0.05])
def test_a_draft_is_the_blend_of_second_moments_and_what_was_missed(best: float) -> None:
    every, rows, layers = case(best)
    drafts = drafted([sample_of(w, r) for w, r in zip(every, rows, strict=True)], layers, blend=0.2, rounds=1)
    assert [draft.sample.weight.name for draft in drafts] == [w.name for w in every]
    for draft, weight, own in zip(drafts, every, rows, strict=True):
        layer = layers[weight.name]
        projectors = torch.stack([span.basis @ span.basis.mT for span in layer.spans])
        missed = (own - own @ projectors).square().sum((1, 2)) / own.square().sum((1, 2))
        share = max(0.2, 1 - best / float(missed.max()))
        assert (share > 0.2) == (best < 1)
        torch.testing.assert_close(draft.missed, missed)
        torch.testing.assert_close(draft.latest, own.mT @ own / 50)
        torch.testing.assert_close(draft.moment, (1 - share) * layer.within + share * own.mT @ own / 50)


@pytest.mark.parametrize("blend", [0.3, None])
def test_proposals_are_for_the_drafted_moment_and_change_nothing_that_is_kept(blend: float | None) -> None:
    every, rows, layers = case()
    before = {n: (layer.within.clone(), [s.basis.clone() for s in layer.spans]) for n, layer in layers.items()}
    drafts = drafted([sample_of(w, r) for w, r in zip(every, rows, strict=True)], layers, blend=blend, rounds=200)
    for draft in drafts:
        assert draft.moment is not None
        assert draft.layer is layers[draft.sample.weight.name]
        assert (draft.moment is draft.latest) == (blend is None) == (draft.missed is None)
        for proposal, moment, span in zip(draft.proposals, draft.moment, draft.layer.spans, strict=True):
            assert proposal is not None
            found = proposal.turned.columns
            vectors = torch.linalg.eigh(moment).eigenvectors
            # A subspace of most dimensions is followed by the directions orthogonal to it.
            own = vectors[:, : found.shape[1]] if isinstance(span, CoSubspace) else vectors[:, -found.shape[1] :]
            torch.testing.assert_close(found @ found.mT, own @ own.mT, rtol=1e-6, atol=1e-6)
    assert {type(span) for layer in layers.values() for span in layer.spans} == {Subspace, CoSubspace}
    for name, layer in layers.items():
        assert torch.equal(layer.within, before[name][0])
        assert all(torch.equal(s.basis, b) for s, b in zip(layer.spans, before[name][1], strict=True))


@pytest.mark.parametrize("few", [3, 256])
@pytest.mark.parametrize("rounds", [1, 2])
def test_rounds_are_those_asked_for_and_one_more_of_few_coordinates(
    monkeypatch: pytest.MonkeyPatch, rounds: int, few: int
) -> None:
    monkeypatch.setattr(tracked, "_FEW", few)
    every, rows, layers = case()
    start = layers[every[1].name].spans[0].basis
    (draft,) = drafted([sample_of(every[1], rows[1])], layers, blend=None, rounds=rounds)
    (proposal,) = draft.proposals
    assert proposal is not None
    found = proposal.turned.columns
    expected = torch.linalg.qr(torch.linalg.matrix_power(draft.latest[0], rounds + (few > 7)) @ start).Q
    torch.testing.assert_close(found @ found.mT, expected @ expected.mT, rtol=1e-9, atol=1e-9)


def test_a_layer_that_is_unknown_or_of_another_size_has_nothing_to_go_on_from() -> None:
    every, rows, layers = case()
    del layers[every[0].name]
    layers[every[1].name] = layer_of(torch.eye(5, dtype=torch.float64)[None])
    drafts = drafted([sample_of(w, r) for w, r in zip(every, rows, strict=True)], layers, blend=0.3, rounds=1)
    for draft, own in zip(drafts, rows, strict=True):
        assert draft.layer is draft.moment is draft.missed is None
        assert draft.proposals == []
        torch.testing.assert_close(draft.latest, own.mT @ own / 50)
        (diagonal,) = draft.asked
        assert torch.equal(diagonal, draft.latest.diagonal(dim1=1, dim2=2))
