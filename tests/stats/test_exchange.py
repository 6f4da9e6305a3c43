from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare, fisher_exact, mannwhitneyu

from warp_unlearning.errors import InputError
from warp_unlearning.stats.area import match, matched_area
from warp_unlearning.stats.exchange import (
    Rise,
    centred_ranks,
    conformal_p,
    holm,
    learned_more,
    paired_drop,
    permutation_p,
    rank_p,
    sign_p,
)


def seeded() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize(("unseen", "p"), [(39, 2 / 40), (40, 2 / 41), (60, 2 / 61)])
def test_one_row_above_all_others_of_its_class_is_judged_exactly(unseen: int, p: float) -> None:
    rows = match(np.arange(unseen + 1) < 1, np.zeros(unseen + 1))
    alone, adjusted = permutation_p(-np.arange(unseen + 1)[None], rows, generator=seeded())
    assert alone[0] == pytest.approx(p)
    assert adjusted[0] == pytest.approx(p)


def test_right_answers_cost_one_row_nothing() -> None:
    rows = match(np.arange(41) < 1, np.zeros(41))
    scores = np.stack([-np.arange(41), np.arange(41) % 13 > 0])  # 4 wrong answers, one of them to this row
    assert permutation_p(scores, rows, generator=seeded())[1] == pytest.approx([2 / 41, 6 / 41])


def small_problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two attacks with ties on two classes."""
    scores = np.array([[3, 2, 2, 0, 1, 5, 4, 4, 1], [0, 1, 1, 0, 0, 1, 1, 0, 0]], dtype=float)
    return scores, np.array([1, 1, 0, 0, 0, 1, 1, 1, 0], dtype=bool), np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])


def by_every_choice(scores: np.ndarray, forgot: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p-values from the areas, by pairs, of every way to choose as many forgotten rows of each class."""
    spots = [np.flatnonzero(classes == c) for c in np.unique(classes)]
    choices: list[tuple[int, ...]] = [()]
    for at in spots:
        count = int(forgot[at].sum())
        choices = [(*one, *more) for one in choices for more in combinations(at.tolist(), count)]
    gaps = []
    for one in choices:
        mask = np.isin(np.arange(len(forgot)), one)
        gaps.append([matched_area(line, match(mask, classes)).value - 0.5 for line in scores])
    table, found = np.abs(gaps), np.array([abs(matched_area(s, match(forgot, classes)).value - 0.5) for s in scores])
    ps = (table[None] >= table[:, None] - 1e-9).mean(1)  # of each choice, by attack
    alone = (table >= found - 1e-9).mean(0)
    return alone, np.array([(ps.min(1) <= p + 1e-9).mean() for p in alone])


def test_few_rows_are_judged_by_every_way_to_choose_them() -> None:
    scores, forgot, classes = small_problem()
    alone, adjusted = permutation_p(scores, match(forgot, classes), generator=seeded())
    expected = by_every_choice(scores, forgot, classes)
    assert alone == pytest.approx(expected[0])
    assert adjusted == pytest.approx(expected[1])


def test_drawn_permutations_come_close_to_all_of_them() -> None:
    scores, forgot, classes = small_problem()
    scores = np.vstack([scores, [1, 0, 0, 0, 0, 1, 0, 0, 0]])
    scores, forgot, classes = np.tile(scores, 2), np.tile(forgot, 2), np.tile(classes, 2)  # 5,880 ways
    rows = match(forgot, classes)
    alone, adjusted = permutation_p(scores, rows, generator=seeded(), draws=5000)
    every = permutation_p(scores, rows, generator=seeded(), draws=50_000)
    assert alone == pytest.approx(every[0], abs=0.01)
    assert adjusted == pytest.approx(every[1], abs=0.08)  # p-values that nearly tie change places
    again = permutation_p(scores, rows, generator=seeded(), draws=5000)
    assert np.array_equal(alone, again[0])
    far = np.where(rows.forgot, 1.0, 0.0)[None]
    assert permutation_p(far, rows, generator=seeded(), draws=99)[0][0] >= 1 / 100


def test_right_and_wrong_in_one_class_is_fishers_test() -> None:
    forgot = np.arange(300) < 60
    right = np.r_[np.arange(60) < 57, np.arange(240) < 205].astype(float)
    table = [[57, 3], [205, 35]]
    gaps = permutation_p(right[None], match(forgot, np.zeros(300)), generator=seeded(), draws=20_000)[0]
    # Both are two-sided; here the tables as far from the middle are those of no larger probability, too.
    assert gaps[0] == pytest.approx(fisher_exact(table).pvalue, abs=0.01)


def test_more_forgotten_than_unseen_rows() -> None:
    scores = np.random.default_rng(5).normal(size=(1, 160))
    forgot = np.arange(160) < 130
    one = permutation_p(scores, match(forgot, np.zeros(160)), generator=seeded())[0]
    other = permutation_p(scores, match(~forgot, np.zeros(160)), generator=seeded())[0]
    assert one == pytest.approx(other, abs=0.03)
    assert one == pytest.approx(mannwhitneyu(scores[0, :130], scores[0, 130:]).pvalue, abs=0.03)


def test_p_values_are_uniform_where_nothing_leaks() -> None:
    rng = np.random.default_rng(6)
    rows = match(np.arange(80) < 30, np.arange(80) % 4)
    ps = []
    for _ in range(300):
        base = rng.normal(size=80)
        scores = np.stack([base, base > 1, base + rng.normal(size=80)])
        ps.append(permutation_p(scores, rows, generator=rng, draws=199)[1].min())
    assert np.mean(np.array(ps) <= 0.05) == pytest.approx(0.05, abs=0.04)
    assert np.mean(np.array(ps) <= 0.5) == pytest.approx(0.5, abs=0.09)


def test_ranks_sum_to_the_area_and_spread_as_under_exchange() -> None:
    scores, forgot, classes = small_problem()
    ranks, size = centred_ranks(scores, match(forgot, classes))
    for line, centred in zip(scores, ranks, strict=True):
        assert centred @ forgot == pytest.approx(matched_area(line, match(forgot, classes)).value - 0.5)
    first = np.flatnonzero(classes == 0)
    assert ranks[:, first].sum(1) == pytest.approx(0)
    assert (size > 0).all()
    assert centred_ranks(np.zeros(9), match(forgot, classes))[1].tolist() == [1.0]


def test_the_rank_test_is_that_of_mann_and_whitney_in_one_class() -> None:
    rng = np.random.default_rng(8)
    mine, others = rng.integers(6, size=40) + 1, rng.integers(6, size=60)
    p = rank_p(np.r_[mine, others], match(np.arange(100) < 40, np.zeros(100)))
    oracle = mannwhitneyu(mine, others, alternative="greater", method="asymptotic", use_continuity=False)
    assert p == pytest.approx(oracle.pvalue, rel=1e-6)
    assert rank_p(np.ones(100), match(np.arange(100) < 40, np.zeros(100))) == 1.0


@pytest.mark.parametrize(
    ("up", "down", "p"),
    [(4, 0, 0.0625), (5, 0, 0.0313), (7, 0, 0.0078), (8, 1, 0.0195), (8, 2, 0.0547), (0, 3, 1.0), (0, 0, 1.0)],
)
def test_the_sign_test(up: int, down: int, p: float) -> None:
    assert sign_p(up, down) == pytest.approx(p, abs=6e-5)
    if up + down:
        assert sign_p(up, down) == pytest.approx(binomtest(up, up + down, alternative="greater").pvalue)


@pytest.mark.parametrize(
    ("up", "down", "n", "low", "high"),
    [
        (27, 117, 3000, 0.0222, 0.0378),
        (100, 130, 3000, 0.0001, 0.0199),
        (0, 0, 50, -0.0533, 0.0533),
        (0, 0, 1, -0.924, 0.924),
    ],
)
def test_the_paired_drop(up: int, down: int, n: int, low: float, high: float) -> None:
    found = paired_drop(up, down, n)
    assert (found.value, found.low, found.high) == pytest.approx(((down - up) / n, low, high), abs=6e-4)


def test_the_paired_drop_covers() -> None:
    rng, inside = np.random.default_rng(9), []
    for _ in range(2000):
        up, down, _ = rng.multinomial(200, [0.03, 0.05, 0.92])
        found = paired_drop(int(up), int(down), 200)
        inside.append(found.low <= 0.02 <= found.high)
    assert np.mean(inside) > 0.94


@pytest.mark.parametrize(
    ("before", "after", "unseen_before", "unseen_after", "rise"),
    [
        (190, 197, 893, 893, Rise(0.95, 0.985, 0.893)),
        (190, 194, 893, 893, None),  # .0625: chance
        (190, 197, 860, 893, None),  # unseen rows rose by as much
        (170, 177, 893, 893, None),  # still below unseen rows
        (190, 195, 893, 893, None),  # by 2.5 points
    ],
)
def test_a_rise_of_the_field(before: int, after: int, unseen_before: int, unseen_after: int, rise: Rise | None) -> None:
    rows, i = match(np.arange(1200) < 200, np.zeros(1200)), np.arange(1200)
    old, new = (
        np.where(i < 200, i < right, i - 200 < others)
        for right, others in ((before, unseen_before), (after, unseen_after))
    )
    assert learned_more(old, new, rows) == rise


some = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def rejected(p_values: list[float], alpha: float) -> set[int]:
    """Step down by definition: stop at the first that is not below α over the number still standing."""
    out: set[int] = set()
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] * (len(p_values) - rank) > alpha:
            break
        out.add(index)
    return out


@given(some, st.floats(0.001, 0.999))
def test_corrected_values_reject_what_stepping_down_rejects(p_values: list[float], alpha: float) -> None:
    assert {i for i, p in enumerate(holm(p_values)) if p <= alpha} == rejected(p_values, alpha)


def test_true_hypotheses_survive_together() -> None:
    draw = np.random.default_rng(20)
    false_alarms = [bool((holm(draw.random(6)) <= 0.1).any()) for _ in range(2000)]
    assert np.mean(false_alarms) == pytest.approx(1 - (1 - 0.1 / 6) ** 6, abs=0.02)


@pytest.mark.parametrize("p_values", [[], [0.5, 1.2], [-0.1], [float("nan")]])
def test_what_is_no_p_value_is_refused(p_values: list[float]) -> None:
    with pytest.raises(InputError, match="p-values"):
        holm(p_values)


# Few values, so that ties are frequent.
SCORES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@given(scores=SCORES, calibration=SCORES)
def test_p_values_count_the_calibration_scores(scores: list[float], calibration: list[float]) -> None:
    upper = [(1 + sum(c >= s for c in calibration)) / (len(calibration) + 1) for s in scores]
    np.testing.assert_allclose(conformal_p(scores, calibration), upper, rtol=1e-14)


def test_p_values_are_uniform_on_their_grid_without_ties() -> None:
    replicates = np.random.default_rng(21).normal(size=(4000, 10))
    p = np.array([conformal_p(row[:1], row[1:])[0] for row in replicates])
    counts = np.bincount(np.rint(p * 10).astype(int), minlength=11)
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 1e-3


def test_p_values_are_never_too_small_with_ties() -> None:
    replicates = np.random.default_rng(22).integers(0, 3, (4000, 10)).astype(float)
    p = np.array([conformal_p(row[:1], row[1:])[0] for row in replicates])
    for level in (0.1, 0.2, 0.3, 0.5):
        assert (p <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / len(p))


@pytest.mark.parametrize(
    ("scores", "calibration", "said"),
    [
        ([np.nan], [0.0], "score 0 of 1 is nan"),
        ([0.0], [1.0, np.inf], "calibration score 1 of 2 is inf"),
        ([0.0], [], "no calibration score"),
        ([[0.0]], [0.0], "shape"),
    ],
)
def test_bad_input(scores: list[float], calibration: list[float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        conformal_p(scores, calibration)
