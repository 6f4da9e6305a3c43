from __future__ import annotations

import numpy as np
import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.stats.clusters import cell_sums, combined, two_way
from warp_unlearning.stats.intervals import Spread


def by_loops(table: np.ndarray, refit: float) -> tuple[float, float]:
    rows, columns = table.shape
    used = [p for p in range(columns) if any(table[s, p] != 0 for s in range(rows))]
    apart = sum(sum(table[s, p] for s in range(rows)) ** 2 for p in used) * len(used) / (len(used) - 1)
    shadow = sum(sum(table[s]) ** 2 for s in range(rows)) * rows / (rows - 1)
    beyond = shadow - sum(x * x for x in table.ravel())
    together = refit**4 * beyond if beyond > 0 else max(beyond / 2, -apart / 2)
    total = apart + together
    return total, total**2 / (apart**2 / (len(used) - 1) + max(together, 0) ** 2 / ((rows - 1) / 2))


@pytest.mark.parametrize("kind", ["together", "cancelling", "cancelling in columns too"])
def test_the_variance_is_that_of_points_and_what_shadows_add(kind: str) -> None:
    draw = np.random.default_rng(20)
    table = draw.normal(size=(6, 40))
    if kind == "together":
        table += 0.5 * draw.normal(size=(6, 1))
    else:
        table -= table.mean(1, keepdims=True)
    if kind == "cancelling in columns too":
        table -= 0.9 * table.mean(0)
    table[:, 7] = 0.0
    found = two_way([table], refit=1.3).spread([1.0])
    assert (found.variance, found.freedom) == pytest.approx(by_loops(table, 1.3))
    assert found.together == pytest.approx(by_loops(table, 1.3)[0] - (table.sum(0) ** 2).sum() * 39 / 38)


def test_a_weighted_sum_has_the_variance_of_the_summed_tables() -> None:
    draw = np.random.default_rng(21)
    tables = [draw.normal(size=(5, 30)), draw.normal(size=(5, 30))]
    joint = two_way(tables, refit=1.2)
    for weights in ([1.0, -1.0], [0.3, 2.0], [0.0, 1.0]):
        alone = two_way([weights[0] * tables[0] + weights[1] * tables[1]], refit=1.2).spread([1.0])
        assert joint.spread(weights).variance == pytest.approx(alone.variance)
        assert joint.spread(weights).freedom == pytest.approx(alone.freedom)


def test_equal_tables_cancel() -> None:
    table = np.random.default_rng(22).normal(size=(5, 30))
    assert two_way([table, table]).spread([1.0, -1.0]).variance == pytest.approx(0, abs=1e-12)


def test_it_is_the_variance_of_a_mean_over_rows_and_columns_both_drawn() -> None:
    """Entries R_s + C_p + e: the mean's variance is known in closed form."""
    draw = np.random.default_rng(23)
    rows, columns, claimed = 30, 60, []
    for _ in range(300):
        x = 0.3 * draw.normal(size=(rows, 1)) + draw.normal(size=(1, columns)) + draw.normal(size=(rows, columns))
        claimed.append(two_way([(x - x.mean()) / x.size]).spread([1.0]).variance)
    truth = 0.3**2 / rows + 1 / columns + 1 / (rows * columns)
    assert np.mean(claimed) == pytest.approx(truth, rel=0.05)


def test_one_column_leaves_only_rows() -> None:
    table = np.random.default_rng(24).normal(size=(8, 1))
    found = two_way([table], refit=1.1).spread([1.0])
    assert found.variance == pytest.approx(1.1**4 * 8 / 7 * (table**2).sum())
    assert found.freedom == pytest.approx(3.5)


def test_cells_are_summed() -> None:
    found = cell_sums(np.array([1.0, 2.0, 4.0]), np.array([0, 1, 0]), np.array([2, 0, 2]), (2, 3))
    np.testing.assert_array_equal(found, [[0, 0, 5], [2, 0, 0]])


def test_tiny_variances_keep_their_freedom() -> None:
    assert combined(1e-200, 0.0, rows=4, columns=11) == Spread(1e-200, pytest.approx(10.0), 0.0)
    assert combined(0.0, 0.0, rows=4, columns=11).variance == 0


@pytest.mark.parametrize(
    ("tables", "message"),
    [([np.zeros((2, 3)), np.zeros((2, 4))], "one shape"), ([np.zeros((1, 3))], "at least 2"), ([np.zeros(3)], "shape")],
)
def test_tables_that_do_not_fit_are_refused(tables: list[np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        two_way(tables)
