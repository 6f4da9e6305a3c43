from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.errors import InputError
from warp_unlearning.linalg import tracked as tracked_module
from warp_unlearning.linalg.co_subspace import AnySubspace, CoSubspace
from warp_unlearning.linalg.held_energy import captured_energy
from warp_unlearning.linalg.iteration import Turned
from warp_unlearning.linalg.leading_subspaces import leading_subspaces
from warp_unlearning.linalg.orthonormal import departure
from warp_unlearning.linalg.proposal import Proposal
from warp_unlearning.linalg.repeated_proposal import copy_ahead, handed_over
from warp_unlearning.linalg.subspace import Rule, Subspace, principal_subspace, principal_subspace_of
from warp_unlearning.linalg.tracked import TrackedSubspace, _growths, start_all


def proposal_of(tracked: TrackedSubspace, moment: Tensor) -> Proposal | None:
    prepared = tracked.prepare(moment)
    if prepared is None:
        return None
    copy_ahead([prepared])
    return handed_over([prepared], [prepared.make()])[0]


def rows(count: int, width: int, seed: int, decay: float = 0.8) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    mix = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64)).Q
    scale = decay ** torch.arange(width, dtype=torch.float64)
    return torch.randn(count, width, generator=draw, dtype=torch.float64) * scale @ mix


def second_moment(x: Tensor) -> Tensor:
    return x.mT @ x


def turned(x: Tensor, angle: float, seed: int) -> Tensor:
    turn = torch.randn(x.shape[1], x.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x @ torch.matrix_exp(angle * (turn - turn.mT))


def kept_columns(subspace: AnySubspace) -> Tensor:
    return subspace.normals if isinstance(subspace, CoSubspace) else subspace.basis


@given(count=st.integers(1, 40), width=st.integers(1, 40), fraction=st.floats(0.3, 1.0), seed=st.integers(0, 99))
def test_primal_and_dual_forms_agree_with_the_singular_vectors(
    count: int, width: int, fraction: float, seed: int
) -> None:
    x = rows(count, width, seed)
    found = principal_subspace_of(x, fraction)
    _, values, right = torch.linalg.svd(x, full_matrices=False)
    energy = values.square()
    assert found.captured == pytest.approx(float(energy[: found.rank].sum() / energy.sum()), rel=1e-9)
    assert found.captured >= fraction - 1e-6
    assert departure(found.basis) <= 1e-6
    # The span is unique only where the spectrum has a gap behind it.
    if found.rank < len(values) and values[found.rank] < 0.99 * values[found.rank - 1]:
        basis = right[: found.rank].mT
        assert torch.allclose(found.basis @ found.basis.mT, basis @ basis.mT, atol=1e-6)


@pytest.mark.parametrize("rule", ["energy", "singular_values"])
@pytest.mark.parametrize(("decay", "kind"), [(0.8, Subspace), (0.99, CoSubspace)])
def test_the_first_subspace_is_the_exact_one(decay: float, kind: type, rule: Rule) -> None:
    moment = second_moment(rows(200, 30, 0, decay))
    tracked = TrackedSubspace(0.9, rule=rule)
    found = tracked.refresh(moment)
    exact = principal_subspace(moment, 0.9, rule=rule)
    assert rule == "singular_values" or isinstance(found, kind)
    assert found.rank == exact.rank
    assert found.captured == pytest.approx(exact.captured)
    torch.testing.assert_close(found.basis @ found.basis.mT, exact.basis @ exact.basis.mT, atol=1e-7, rtol=0)
    assert tracked.decompositions == 1


@settings(max_examples=40)
@given(
    seed=st.integers(0, 99),
    drift=st.floats(0.001, 0.01),
    decay=st.sampled_from([0.7, 0.8, 0.97, 0.99]),
    double=st.booleans(),
)
def test_it_follows_a_slow_drift_without_decomposing_again(seed: int, drift: float, decay: float, double: bool) -> None:
    x = rows(300, 30, seed, decay)
    tracked = TrackedSubspace(0.95, rounds=3)
    start = tracked.refresh(second_moment(x).to(torch.float64 if double else torch.float32))
    for i in range(1, 5):
        moment = second_moment(turned(x, i * drift, seed))
        followed = tracked.refresh(moment.to(torch.float64 if double else torch.float32))
        best = torch.linalg.eigvalsh(moment).flip(0)
        basis = followed.basis.double()
        captured = captured_energy(moment, basis)
        least = float(1 - best[: followed.rank].sum() / best.sum())
        assert 1 - captured <= 1.02 * least + 1e-6
        assert followed.captured == pytest.approx(captured, abs=1e-6)
        assert followed.rank >= start.rank
        assert captured >= captured_energy(moment, start.basis.double()) - 1e-6
        assert departure(kept_columns(followed)) <= 1e-3
    assert tracked.decompositions == 1


@pytest.mark.parametrize("decay", [0.8, 0.99])
def test_more_rounds_come_closer(decay: float) -> None:
    x = rows(300, 30, 0, decay)
    moment = second_moment(turned(x, 0.02, 1))
    missed = []
    for rounds in (1, 2, 6):
        tracked = TrackedSubspace(0.9, rounds=rounds, slack=10.0)
        tracked.refresh(second_moment(x))
        missed.append(1 - tracked.refresh(moment).captured)
    assert missed[0] > missed[1] > missed[2]


def test_a_changed_spectrum_is_decomposed_again_and_the_rank_chosen_anew() -> None:
    tracked = TrackedSubspace(0.9)
    first = tracked.refresh(second_moment(rows(200, 30, 0, decay=0.3)))
    second = tracked.refresh(second_moment(rows(200, 30, 1, decay=0.85)))
    assert tracked.decompositions == 2
    assert second.rank > first.rank
    assert second.captured >= 0.9


def test_a_complement_gives_up_directions_without_a_decomposition() -> None:
    x = rows(400, 30, 0, decay=0.9)
    x[:, 0] = 0
    tracked = TrackedSubspace(0.99)
    first = tracked.refresh(second_moment(x))
    assert isinstance(first, CoSubspace)
    # Energy moves out of the leading directions into those left out.
    leading = principal_subspace(second_moment(x), 0.5).basis
    moment = second_moment(x - 0.7 * x @ leading @ leading.mT)
    second = tracked.refresh(moment)
    assert tracked.decompositions == 1
    assert second.rank > first.rank
    assert second.captured >= 0.99 - 1e-9
    assert second.captured == pytest.approx(captured_energy(moment, second.basis))
    exact = principal_subspace(moment, 0.99)
    assert second.rank <= exact.rank + 2
    assert departure(kept_columns(second)) <= 1e-6


@pytest.mark.parametrize("exponent", [2.0, 0.1])
def test_a_decomposition_by_products_is_gone_on_from(exponent: float, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Subspace | None] = []

    def by_products(moments: list[Tensor], fraction: float) -> list[Subspace | None]:
        tried.extend(found := leading_subspaces(moments, fraction))
        return found

    monkeypatch.setattr("warp_unlearning.linalg.tracked.products_pay", lambda moment, rank: True)
    monkeypatch.setattr("warp_unlearning.linalg.tracked.leading_subspaces", by_products)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.linalg.qr(torch.randn(200, 200, dtype=torch.float64, generator=generator)).Q
    values = torch.arange(1, 201, dtype=torch.float64) ** -exponent
    tracker = TrackedSubspace(0.95)
    for _ in range(3):
        moment = (vectors * values) @ vectors.mT
        found, exact = tracker.refresh(moment.float()), principal_subspace(moment, 0.95)
        assert found.captured == pytest.approx(exact.captured, abs=2e-3)
        assert found.captured >= 0.95 - 0.05 * 0.05 - 1e-4
        noise = torch.randn(200, 200, dtype=torch.float64, generator=generator)
        vectors = torch.linalg.qr(vectors + 1e-3 * noise).Q
    assert tracker.decompositions == 1
    assert [found is not None for found in tried] == [exponent == 2.0]


def test_slack_decides_how_much_more_may_be_missed() -> None:
    x = rows(200, 30, 0, decay=0.93)
    moment = second_moment(turned(x, 0.2, 0))
    decompositions = []
    for slack in (0.0, 5.0):
        tracked = TrackedSubspace(0.8, slack=slack)
        tracked.refresh(second_moment(x))
        tracked.refresh(moment)
        decompositions.append(tracked.decompositions + tracked.growths)
    assert decompositions == [2, 1]


@pytest.mark.parametrize("decay", [0.8, 0.99])
def test_coordinates_that_die_and_awake_are_followed(decay: float) -> None:
    x = rows(300, 30, 0, decay)
    asleep, awake = x.clone(), turned(x, 0.01, 0)
    asleep[:, [3, 17]] = 0
    tracked = TrackedSubspace(0.97, rounds=4, slack=1.0)
    first = tracked.refresh(second_moment(asleep))
    assert kept_columns(first)[[3, 17]].abs().max() == 0
    found = tracked.refresh(second_moment(awake))
    best = torch.linalg.eigvalsh(second_moment(awake)).flip(0)
    least = float(1 - best[: found.rank].sum() / best.sum())
    assert tracked.decompositions == 1
    assert found.rank == first.rank
    assert 1 - captured_energy(second_moment(awake), found.basis) <= 1.1 * least
    awake[:, 5] = 0
    again = tracked.refresh(second_moment(awake))
    assert captured_energy(second_moment(awake), again.basis) >= 0.96
    assert departure(kept_columns(again)) <= 1e-6


def test_a_subspace_found_elsewhere_is_gone_on_from() -> None:
    x = rows(300, 30, 0, 0.99)
    moment = second_moment(turned(x, 0.005, 0))
    exact = principal_subspace(second_moment(x), 0.9)
    found = []
    for adopt in (False, True):
        tracked = TrackedSubspace(0.9)
        if adopt:
            given_back = tracked.adopt(exact, torch.ones(30, dtype=torch.bool))
            assert given_back.rank == exact.rank
        else:
            tracked.refresh(second_moment(x))
        found.append(tracked.refresh(moment))
        assert tracked.decompositions == 1 - adopt
    torch.testing.assert_close(
        found[0].basis @ found[0].basis.mT, found[1].basis @ found[1].basis.mT, atol=1e-9, rtol=0
    )


def test_energy_is_reported_as_it_is_where_columns_are_many() -> None:
    x = rows(1500, 1100, 0, decay=0.999)
    tracked = TrackedSubspace(0.9)
    tracked.refresh(second_moment(x).float())
    moment = second_moment(x + 0.02 * rows(1500, 1100, 1, decay=0.999))
    found = tracked.refresh(moment.float())
    assert isinstance(found, Subspace)
    assert found.rank > 512
    exact = captured_energy(moment, found.basis.double())
    assert 1 - found.captured == pytest.approx(1 - exact, rel=0.05)
    assert departure(found.basis.double()) <= 1e-3


def test_all_of_the_energy_is_decomposed_every_time() -> None:
    tracked = TrackedSubspace(1.0)
    for seed in range(2):
        found = tracked.refresh(second_moment(rows(4, 9, seed)))
        assert found.rank == 4
    assert tracked.decompositions == 2


def test_energy_in_few_directions_needs_no_decomposition_for_rounding_errors() -> None:
    mix = rows(20, 60, 1, decay=1.0)
    tracked = TrackedSubspace(0.9999, rule="singular_values")
    assert tracked.refresh(second_moment(rows(200, 20, 0, decay=1.0) @ mix).float()).rank == 20
    for seed in range(10):
        tracked.refresh(second_moment(rows(200, 20, seed, decay=1.0) @ mix).float())
    assert tracked.decompositions == 1


def test_another_width_starts_anew() -> None:
    tracked = TrackedSubspace(0.9)
    tracked.refresh(second_moment(rows(50, 10, 0)))
    assert len(tracked.refresh(second_moment(rows(50, 12, 0))).basis) == 12
    assert tracked.decompositions == 2


def test_no_energy_at_all_has_no_directions() -> None:
    tracked = TrackedSubspace(0.9)
    for _ in range(2):
        assert tracked.refresh(torch.zeros(4, 4)).rank == 0
    assert tracked.refresh(torch.eye(4)).rank == 4


def test_half_precision_is_computed_in_float32() -> None:
    found = TrackedSubspace(0.9).refresh(second_moment(rows(50, 10, 0)).half())
    assert found.basis.dtype == torch.float32
    assert departure(found.basis) <= 1e-4


@pytest.mark.parametrize(
    ("fraction", "options", "message"),
    [(0.9, {"rounds": 0}, "rounds is 0"), (0.9, {"slack": -0.1}, "slack is -0.1"), (1.5, {}, "fraction of energy")],
)
def test_options_that_make_no_sense_are_errors(fraction: float, options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrackedSubspace(fraction, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [0.8, 0.99])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_proposal_that_is_settled_is_a_refresh(decay: float, rounds: int) -> None:
    x = rows(300, 30, 0, decay)
    moments = [second_moment(turned(x, 0.01 * i, 1)) for i in range(3)]
    found: list[list[AnySubspace]] = []
    for propose in (False, True):
        tracked = TrackedSubspace(0.95, rounds=rounds)
        assert proposal_of(tracked, moments[0]) is None
        steps = [tracked.refresh(moments[0])]
        for moment in moments[1:]:
            proposal = proposal_of(tracked, moment) if propose else None
            assert (proposal is not None) == propose
            steps.append(tracked.refresh(moment) if proposal is None else tracked.settle(proposal, proposal.numbers))
        assert tracked.decompositions == 1
        found.append(steps)
    for one, other in zip(*found, strict=True):
        assert type(one) is type(other)
        assert torch.equal(kept_columns(one), kept_columns(other))
        assert one.captured == pytest.approx(other.captured, rel=1e-12)
        assert one.rank == other.rank


def proposed(decay: float) -> tuple[TrackedSubspace, TrackedSubspace, Proposal]:
    """Two trackers of the same subspace, and what the first proposes for inputs that have turned a little."""
    x = rows(300, 30, 0, decay)
    tracked, other = TrackedSubspace(0.95), TrackedSubspace(0.95)
    for each in (tracked, other):
        each.refresh(second_moment(x))
    moment = second_moment(turned(x, 0.01, 1))
    proposal = proposal_of(tracked, moment)
    assert proposal is not None
    return tracked, other, proposal


@pytest.mark.parametrize(
    ("decay", "place", "number"), [(0.8, 0, float("inf")), (0.99, 0, float("inf")), (0.99, 0, 1.0), (0.8, 2, 0.0)]
)
def test_numbers_that_speak_against_a_proposal_lead_to_a_refresh(decay: float, place: int, number: float) -> None:
    tracked, other, proposal = proposed(decay)
    moment = proposal.moment
    spoiled = Proposal(moment, Turned(torch.full((30, 1), float("nan")), proposal.turned.doubts), proposal.missed)
    numbers = proposal.numbers.clone()
    numbers[place] = number
    expected = other.refresh(moment)
    assert torch.equal(kept_columns(tracked.settle(spoiled, numbers)), kept_columns(expected))


def test_proposed_columns_that_are_not_orthonormal_are_made_so() -> None:
    tracked, other, proposal = proposed(0.8)
    moment = proposal.moment
    k = proposal.turned.columns.shape[1]
    skewed = proposal.turned.columns @ (torch.eye(k) + 0.1 * torch.ones(k, k)).to(moment)
    spoiled = Proposal(moment, Turned(skewed, proposal.turned.doubts), torch.tensor(float("nan")))
    numbers = proposal.numbers.clone()
    numbers[0], numbers[1] = 0.2 * k, float("nan")
    found, expected = tracked.settle(spoiled, numbers), other.refresh(moment)
    assert isinstance(found, Subspace)
    assert isinstance(expected, Subspace)
    torch.testing.assert_close(found.basis @ found.basis.mT, expected.basis @ expected.basis.mT, rtol=0, atol=1e-12)
    assert found.captured == pytest.approx(expected.captured, rel=1e-12)
    assert tracked.decompositions == 1


def test_a_proposal_that_misses_too_much_is_decomposed() -> None:
    tracked = TrackedSubspace(0.9)
    first = tracked.refresh(second_moment(rows(200, 30, 0, decay=0.3)))
    proposal = proposal_of(tracked, second_moment(rows(200, 30, 1, decay=0.85)))
    assert proposal is not None
    found = tracked.settle(proposal, proposal.numbers)
    assert tracked.decompositions == 2
    assert found.rank > first.rank
    assert found.captured >= 0.9


def test_many_columns_are_proposed_with_their_eigenvalues_and_take_turns() -> None:
    x = rows(1500, 1100, 0, decay=0.999)
    tracked, other = TrackedSubspace(0.9), TrackedSubspace(0.9)
    for each in (tracked, other):
        each.refresh(second_moment(x).float())
    for seed in (1, 2):
        moment = second_moment(x + 0.02 * rows(1500, 1100, seed, decay=0.999)).float()
        proposal = proposal_of(tracked, moment)
        assert proposal is not None
        found, expected = tracked.settle(proposal, proposal.numbers), other.refresh(moment)
        assert len(proposal.numbers) == 3 + expected.rank
        assert torch.equal(kept_columns(found), kept_columns(expected))


@pytest.mark.parametrize("decay", [0.8, 0.99])
def test_coordinates_without_energy_do_not_hinder_a_proposal_once_awakened(decay: float) -> None:
    x = rows(300, 30, 0, decay)
    x[:, [3, 17]] = 0
    later = turned(x, 0.01, 1)
    later[:, 17] = 0
    tracked, plain = TrackedSubspace(0.97, rounds=3, slack=1.0), TrackedSubspace(0.97, rounds=3, slack=1.0)
    first = tracked.refresh(second_moment(x))
    plain.refresh(second_moment(x))
    assert proposal_of(tracked, second_moment(later)) is None
    tracked.awaken()
    proposal = proposal_of(tracked, second_moment(later))
    assert proposal is not None
    found, expected = tracked.settle(proposal, proposal.numbers), plain.refresh(second_moment(later))
    assert tracked.decompositions == 1
    assert found.rank == first.rank == expected.rank
    torch.testing.assert_close(found.basis @ found.basis.mT, expected.basis @ expected.basis.mT, rtol=0, atol=1e-4)


@pytest.mark.parametrize("decay", [0.8, 0.99])
def test_it_goes_on_in_more_or_fewer_coordinates(decay: float) -> None:
    x = rows(300, 30, 0, decay)
    columns, wide = torch.arange(30) * 2 + 1, torch.zeros(300, 61, dtype=torch.float64)
    wide[:, columns] = turned(x, 0.01, 1)
    tracked, plain = TrackedSubspace(0.95), TrackedSubspace(0.95)
    for each in (tracked, plain):
        each.refresh(second_moment(x))
    tracked.widen(columns, 61)
    found, expected = tracked.refresh(second_moment(wide)), plain.refresh(second_moment(turned(x, 0.01, 1)))
    torch.testing.assert_close(kept_columns(found), kept_columns(expected.within(columns, 61)))
    torch.testing.assert_close(kept_columns(found.narrowed(columns)), kept_columns(expected))
    assert found.rank == expected.rank == expected.within(columns, 61).rank
    tracked.narrow(columns)
    again = tracked.refresh(second_moment(x))
    torch.testing.assert_close(kept_columns(again), kept_columns(plain.refresh(second_moment(x))))
    assert tracked.decompositions == 1


def refreshed(tracked: TrackedSubspace, moment: Tensor, *, proposed: bool) -> AnySubspace:
    """By a refresh, or where it is proposed, by what is proposed and then settled."""
    if not proposed:
        return tracked.refresh(moment)
    proposal = proposal_of(tracked, moment)
    assert proposal is not None
    return tracked.settle(proposal, proposal.numbers)


@pytest.mark.parametrize("proposed", [False, True])
def test_a_subspace_that_lacks_little_grows_by_the_leading_directions_outside(proposed: bool) -> None:
    x = rows(2000, 120, 0, decay=0.97)
    tracked = TrackedSubspace(0.9, slack=0.05)
    first = tracked.refresh(second_moment(x))
    later = x + 0.1 * rows(2000, 120, 5, decay=0.995)
    moment = second_moment(later)
    found = refreshed(tracked, moment, proposed=proposed)
    assert (tracked.decompositions, tracked.growths) == (1, 1)
    assert isinstance(found, Subspace)
    exact = principal_subspace(moment, 0.9)
    assert first.rank < exact.rank <= found.rank <= exact.rank + 4
    assert found.captured >= 0.9
    assert found.captured == pytest.approx(captured_energy(moment, found.basis), abs=1e-9)
    assert departure(found.basis) <= 1e-6
    again = tracked.refresh(moment)
    assert again.captured >= found.captured - 1e-9
    assert (tracked.decompositions, tracked.growths) == (1, 1)


@pytest.mark.parametrize("proposed", [False, True])
def test_a_subspace_of_few_directions_grows_by_many(proposed: bool) -> None:
    """Many times what it has, where there are many dimensions; it then misses about what the best of its rank does."""
    x = rows(3000, 400, 0, decay=0.5)
    tracked = TrackedSubspace(0.99, slack=0.25)
    first = tracked.refresh(second_moment(x))
    later = x + 0.3 * rows(3000, 400, 5, decay=0.9)
    moment = second_moment(later)
    found = refreshed(tracked, moment, proposed=proposed)
    exact = principal_subspace(moment, 0.99)
    assert (tracked.decompositions, tracked.growths) == (1, 1)
    assert isinstance(found, Subspace)
    assert 2 * first.rank < exact.rank <= found.rank <= 1.1 * exact.rank
    assert found.captured >= 0.99
    assert found.captured == pytest.approx(captured_energy(moment, found.basis), abs=1e-9)
    values = torch.linalg.eigvalsh(moment).flip(0)
    best = 1 - float(values[: found.rank].sum() / values.sum())
    assert 1 - found.captured <= 1.3 * best
    again = tracked.refresh(moment)
    assert isinstance(again, Subspace)
    assert 1 - again.captured <= 1.02 * best
    assert (again.rank, tracked.decompositions, tracked.growths) == (found.rank, 1, 1)


def test_proposals_are_judged_together_as_each_by_itself() -> None:
    proposals = []
    for seed, (width, decay, rounds) in enumerate([(30, 0.8, 1), (20, 0.99, 2), (25, 0.7, 3)]):
        x = rows(300, width, seed, decay)
        tracked = TrackedSubspace(0.95, rounds=rounds)
        tracked.refresh(second_moment(x))
        proposal = proposal_of(tracked, second_moment(turned(x, 0.01, 1)))
        assert proposal is not None
        proposals.append(proposal)
    doubts, missed = Proposal.judged(proposals)
    for place, proposal in enumerate(proposals):
        assert torch.equal(proposal.numbers[:2], torch.stack([doubts[place], missed[place]]))
    assert tuple(Proposal.judged(proposals[:1])[0].shape) == (1,)


def test_trackers_that_start_together_find_what_each_finds_alone() -> None:
    moments = [second_moment(rows(200, width, width, decay)) for width, decay in ((30, 0.8), (12, 0.99), (30, 0.9))]
    moments[2][4] = moments[2][:, 4] = 0
    alone, together = ([TrackedSubspace(0.9) for _ in moments] for _ in range(2))
    for one, other, moment, found in zip(alone, together, moments, start_all(together, moments), strict=True):
        expected = one.refresh(moment)
        torch.testing.assert_close(kept_columns(found), kept_columns(expected))
        assert found.captured == expected.captured
        assert other.decompositions == 1
        torch.testing.assert_close(kept_columns(other.refresh(moment)), kept_columns(one.refresh(moment)))


def test_trackers_that_start_together_by_products_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [second_moment(rows(400, width, width, decay)) for width, decay in ((80, 0.8), (12, 0.99), (80, 0.9))]
    fractions = (0.9, 0.9, 0.8)
    alone, together = ([TrackedSubspace(fraction) for fraction in fractions] for _ in range(2))
    expected = [one.refresh(moment) for one, moment in zip(alone, moments, strict=True)]
    asked: list[list[int]] = []

    def leading(given: Sequence[Tensor], fraction: float) -> list[Subspace | None]:
        asked.append([len(matrix) for matrix in given])
        return leading_subspaces(given, fraction)

    monkeypatch.setattr(tracked_module, "products_pay", lambda moment, rank: len(moment) > 50)
    monkeypatch.setattr(tracked_module, "leading_subspaces", leading)
    for one, other, moment, wanted, found in zip(
        alone, together, moments, expected, start_all(together, moments), strict=True
    ):
        assert other.decompositions == 1
        assert found.captured == pytest.approx(wanted.captured, abs=1e-9)
        assert span_difference(kept_columns(found), kept_columns(wanted)) < 1e-5
        assert span_difference(kept_columns(other.refresh(moment)), kept_columns(one.refresh(moment))) < 1e-5
    assert asked == [[80], [80]]


def test_where_products_give_no_answer_trackers_start_with_a_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [second_moment(rows(400, 40, 40, decay)) for decay in (0.8, 0.99)]
    alone, together = ([TrackedSubspace(0.9) for _ in moments] for _ in range(2))
    monkeypatch.setattr(tracked_module, "products_pay", lambda moment, rank: True)
    monkeypatch.setattr(tracked_module, "leading_subspaces", lambda given, fraction: [None] * len(given))
    for one, moment, found in zip(alone, moments, start_all(together, moments), strict=True):
        torch.testing.assert_close(kept_columns(found), kept_columns(one.refresh(moment)))


def span_difference(a: Tensor, b: Tensor) -> float:
    return float((a @ a.mT - b @ b.mT).abs().max())


def test_products_are_asked_about_the_rank_of_the_subspace_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def pays(moment: Tensor, rank: int | None) -> bool:
        asked.append(rank)
        return False

    monkeypatch.setattr(tracked_module, "products_pay", pays)
    # One of most of its dimensions, which is kept by its normals, and one of few.
    for moment in (torch.diag(torch.linspace(1.0, 1.2, 20)), torch.diag(0.5 ** torch.arange(20))):
        tracker = TrackedSubspace(0.9)
        (found,) = start_all([tracker], [moment])
        start_all([tracker], [moment])
        assert asked[-2:] == [None, found.rank]
    assert asked[1] is not None
    assert asked[1] > 12


def test_subspaces_by_products_have_the_type_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked_module, "products_pay", lambda moment, rank: True)
    (found,) = start_all([TrackedSubspace(0.9)], [second_moment(rows(400, 80, 0)).float()])
    assert isinstance(found, Subspace)
    assert found.basis.dtype == torch.float32


def test_products_find_neither_whole_spans_nor_shares_of_singular_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked_module, "products_pay", lambda moment, rank: True)
    assert TrackedSubspace(0.9).by_products(torch.eye(4))
    assert not TrackedSubspace(1.0).by_products(torch.eye(4))
    assert not TrackedSubspace(0.9, rule="singular_values").by_products(torch.eye(4))


@pytest.mark.parametrize(
    ("d", "rank", "device", "most"),
    [
        (512, 6, "cpu", [64]),
        (512, 6, "cuda", [64, 128]),
        (256, 200, "cpu", [50]),
        (256, 200, "cuda", [50, 64]),
        (9000, 4000, "cpu", [128]),
        (9000, 4000, "cuda", [128]),
    ],
)
def test_how_far_a_subspace_grows_depends_on_what_a_decomposition_costs(
    d: int, rank: int, device: str, most: list[int]
) -> None:
    assert _growths(d, rank, torch.device(device)) == most


def test_more_directions_are_looked_for_where_the_first_do_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    first, later = second_moment(rows(200, 30, 0, decay=0.3)), second_moment(rows(200, 30, 1, decay=0.85))
    asked: list[int] = []
    outside = tracked_module.leading_outside
    monkeypatch.setattr(tracked_module, "_growths", lambda d, rank, device: [2, 7, 28])
    monkeypatch.setattr(tracked_module, "leading_outside", lambda c, b, n: (asked.append(n), outside(c, b, n))[1])
    tracked = TrackedSubspace(0.9)
    tracked.refresh(first)
    found = tracked.refresh(later)
    assert (asked, tracked.growths, tracked.decompositions) == ([2, 7], 1, 1)
    assert captured_energy(later, found.basis) >= 0.9 - 1e-9


def test_columns_that_waited_for_their_turn_are_no_reason_to_grow() -> None:
    """The spectrum stays, so that the exact rank does, while the subspace turns far in one refresh."""
    draw = torch.Generator().manual_seed(0)
    d, kept = 1300, TrackedSubspace(0.99, slack=0.02)
    values = torch.exp(-11.5 * torch.arange(d) / d)
    turn = torch.linalg.qr(torch.randn(d, d, generator=draw)).Q
    kept.refresh(turn * values @ turn.mT)
    rank = kept._rank
    assert rank is not None
    assert rank >= 512
    turned = torch.linalg.qr(turn + 0.3 * torch.randn(d, d, generator=draw) / d**0.5).Q
    moment = turned * values @ turned.mT
    proposal = proposal_of(kept, moment)
    assert proposal is not None
    assert not kept._enough(1 - float(proposal.missed / moment.trace()), moment)
    found = kept.settle(proposal, proposal.numbers)
    assert (kept._rank, kept.growths, kept.decompositions) == (rank, 0, 1)
    assert isinstance(found, Subspace)
    assert departure(found.basis) <= 1e-3
    left = moment.trace() - (found.basis * (moment @ found.basis)).sum()
    assert float(left / moment.trace()) <= 1.02 * 0.01
