from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from warp_unlearning.attacks.reconstruction.ridge import (
    DeletedDirection,
    deleted_direction,
    gram,
    max_diff,
    with_known_coordinate,
    with_known_label,
)
from warp_unlearning.errors import InputError


@dataclass(frozen=True)
class Problem:
    """Rows with the constant 1 last, labels (n, k), the penalty's diagonal; the first example is deleted."""

    x: np.ndarray
    y: np.ndarray
    penalty: np.ndarray

    def fitted(self, skip: int) -> np.ndarray:
        """The minimiser by least squares on rows stacked on √P, apart from every formula under test."""
        rows = np.concatenate([self.x[skip:], np.diag(np.sqrt(self.penalty))])
        targets = np.concatenate([self.y[skip:], np.zeros((self.x.shape[1], self.y.shape[1]))])
        return np.linalg.lstsq(rows, targets, rcond=None)[0]

    def direction(self, *, includes: bool = True):
        c = gram(torch.tensor(self.x[0 if includes else 1 :]), penalty=torch.tensor(self.penalty))
        before, after = (torch.tensor(self.fitted(skip)) for skip in (0, 1))
        if self.y.shape[1] == 1:
            before, after = before[:, 0], after[:, 0]
        return deleted_direction(before, after, c, includes_deleted=includes)


def problem(seed: int, *, outputs: int, penalty: float, scale: float = 1.0, intercept_free: bool = True) -> Problem:
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 8))
    n = int(rng.integers(p + 8, 40))
    x = np.concatenate([scale * rng.normal(size=(n, p)), np.ones((n, 1))], axis=1)
    y = x @ rng.normal(size=(p + 1, outputs)) + rng.normal(size=(n, outputs))
    diagonal = np.full(p + 1, penalty)
    if intercept_free:
        diagonal[-1] = 0
    return Problem(x, y, diagonal)


def far_from_a_fit(case: Problem) -> bool:
    """An example that both models explain leaves no trace, and what is left of rounding is not to be read."""
    residual = case.y[0] - case.x[0] @ case.fitted(1)
    c = case.x.T @ case.x + np.diag(case.penalty)
    return bool(np.linalg.norm(residual) > 0.05 and np.linalg.cond(c) < 1e4)


def apart(found: torch.Tensor, truth: np.ndarray) -> float:
    return float(np.linalg.norm(found.numpy() - truth) / np.linalg.norm(truth))


seeds = st.integers(0, 2**32 - 1)
penalties = st.floats(0, 50)


@given(seeds, st.integers(1, 4), penalties, st.floats(0.1, 10), st.booleans(), st.booleans())
def test_the_example_comes_back_from_its_intercept(seed, outputs, penalty, scale, includes, free) -> None:
    case = problem(seed, outputs=outputs, penalty=penalty, scale=scale, intercept_free=free)
    assume(far_from_a_fit(case))
    direction = case.direction(includes=includes)
    found = with_known_coordinate(direction, coordinate=-1)
    assert apart(found.x, case.x[0]) < 1e-8
    assert apart(found.label, case.y[0]) < 1e-8
    c = case.x[0 if includes else 1 :].T @ case.x[0 if includes else 1 :] + np.diag(case.penalty)
    assert found.leverage == pytest.approx(case.x[0] @ np.linalg.solve(c, case.x[0]), rel=1e-6)
    assert direction.rank_one_share == pytest.approx(1)
    assert float(direction.unit.norm()) == pytest.approx(1)
    assert float(direction.unit[direction.unit.abs().argmax()]) > 0
    residual = case.y[0] - case.x[0] @ case.fitted(1 if includes else 0)
    size = np.linalg.norm(case.x[0]) * np.sign(case.x[0] @ direction.unit.numpy())
    np.testing.assert_allclose(direction.residuals.numpy() / size, residual, rtol=1e-6, atol=1e-9)


@given(seeds, st.integers(2, 4), penalties, st.booleans())
def test_several_outputs_and_the_label_leave_one_example(seed, outputs, penalty, includes) -> None:
    case = problem(seed, outputs=outputs, penalty=penalty)
    assume(far_from_a_fit(case))
    found = with_known_label(case.direction(includes=includes), torch.tensor(case.y[0]))
    assert len(found) == 1
    assert apart(found[0].x, case.x[0]) < 1e-8
    assert found[0].misfit < 1e-9


@given(seeds, penalties, st.booleans())
def test_one_output_and_the_label_leave_two_that_explain_both_models(seed, penalty, includes) -> None:
    case = problem(seed, outputs=1, penalty=penalty)
    y = float(case.y[0, 0])
    prediction = float(case.x[0] @ case.fitted(1 if includes else 0)[:, 0])
    # The roots are the residual and the prediction; where they meet, half of the digits are lost.
    assume(far_from_a_fit(case) and abs(y - 2 * prediction) > 0.05 * abs(y) and abs(prediction) > 1e-3)
    found = with_known_label(case.direction(includes=includes), y)
    assert min(apart(e.x, case.x[0]) for e in found) < 1e-8
    c = case.x[1:].T @ case.x[1:] + np.diag(case.penalty)
    if includes:
        other = case.x[0] * (y - prediction) / prediction
        leverage = other @ np.linalg.solve(c + np.outer(case.x[0], case.x[0]), other)
        assert len(found) == (2 if leverage < 1 else 1)
    assert [e.leverage for e in found] == sorted(e.leverage for e in found)
    if not includes:
        assert len(found) == 2
        for example in found:
            # Adding the candidate to the model without it gives the model with it: nothing tells them apart.
            x = example.x.numpy()
            again = np.linalg.solve(c + np.outer(x, x), c @ case.fitted(1)[:, 0] + x * y)
            np.testing.assert_allclose(again, case.fitted(0)[:, 0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3])
def test_scales_that_lie_close_together_keep_their_digits(gap) -> None:
    # (a − 1)(a − 1 − gap) = w − a y + a² b
    one, other = 1.0, 1.0 + gap
    direction = DeletedDirection(
        unit=torch.ones(1).double(),
        residuals=torch.tensor([one * other], dtype=torch.float64),
        coefficients=torch.ones(1, 1).double(),
        unit_leverage=1e-3,
        includes_deleted=True,
        rank_one_share=1.0,
    )
    found = with_known_label(direction, one + other)
    assert [float(e.x) for e in found] == pytest.approx([one, other], rel=2e-15 / gap)


def test_one_hot_labels_of_digits_come_back_with_the_pixels() -> None:
    data = load_digits()
    x = np.concatenate([data.data[:300] / 16, np.ones((300, 1))], axis=1)
    y = np.eye(10)[data.target[:300]]
    case = Problem(x, y, np.append(np.full(64, 1.0), 0.0))
    direction = case.direction()
    found = with_known_coordinate(direction, coordinate=64)
    assert apart(found.x, x[0]) < 1e-8
    np.testing.assert_allclose(found.label, y[0], atol=1e-8)
    fits = [with_known_label(direction, torch.eye(10, dtype=torch.float64)[c])[0] for c in range(10)]
    assert int(np.argmin([e.misfit for e in fits])) == data.target[0]
    assert apart(fits[data.target[0]].x, x[0]) < 1e-8


def test_public_rows_give_the_direction_nearly() -> None:
    data = load_digits()
    x, y = data.data / 16, (data.target % 2).astype(float)[:, None]
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    penalty = np.append(np.full(64, 1.0), 0.0)
    public = torch.tensor(x[800:])
    mean = public.mean(0)
    cosines: dict[str, list[float]] = {"inverted": [], "max diff": [], "difference": []}
    for i in range(30):
        rows = np.arange(i, i + 400)
        case = Problem(x[rows], y[rows], penalty)
        before, after = (torch.tensor(case.fitted(skip)[:, 0]) for skip in (0, 1))
        direction = deleted_direction(before, after, gram(public, penalty=torch.tensor(penalty), count=400))
        guesses = {
            "inverted": with_known_coordinate(direction, coordinate=64).x - mean,
            "max diff": max_diff(before, after, public).x - mean,
            "difference": before - after,
        }
        # Without the mean, which all digits share; the sign counts where the intercept tells it.
        for name, guess in guesses.items():
            cosine = torch.cosine_similarity(guess, torch.tensor(x[i]) - mean, dim=0)
            cosines[name].append(float(cosine if name != "difference" else cosine.abs()))
    means = {name: np.mean(values) for name, values in cosines.items()}
    assert 0.5 < means["inverted"] < 1 - 1e-6
    assert means["inverted"] > means["max diff"] + 0.1
    assert means["inverted"] > means["difference"] + 0.1


def test_public_rows_count_as_many_as_the_model_saw() -> None:
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(20), dtype=torch.float64)
    whole = rows.mT @ rows
    torch.testing.assert_close(gram(rows, penalty=0.5), whole + 0.5 * torch.eye(3))
    torch.testing.assert_close(
        gram(rows, penalty=torch.tensor([1.0, 0.0, 2.0]), count=21),
        3 * whole + torch.diag(torch.tensor([1.0, 0.0, 2.0])),
    )


def test_a_label_that_cannot_be_met_gives_the_nearest_and_says_so() -> None:
    case = problem(20, outputs=1, penalty=1.0)
    direction = case.direction()
    product = float(direction.residuals * (direction.coefficients.mT @ direction.unit))
    # r² − y r + product = 0 has no real root for small labels where the product is positive.
    if product < 0:
        flipped = np.abs(product)
        direction = type(direction)(**{**direction.__dict__, "coefficients": -direction.coefficients})
        product = flipped
    label = 0.5 * np.sqrt(product)
    found = with_known_label(direction, label)
    assert found[0].misfit > 0.1
    others = [float(f) for f in np.linspace(-50, 50, 20001) if f]
    b = float(direction.coefficients[:, 0] @ direction.unit)
    least = min(abs(float(direction.residuals) - a * label + a * a * b) for a in others)
    assert found[0].misfit * abs(float(direction.residuals)) == pytest.approx(least, rel=1e-3)


def test_max_diff_is_the_row_whose_prediction_moves_most() -> None:
    rng = np.random.default_rng(20)
    for shape in ((4,), (4, 3)):
        before, after, rows = (torch.tensor(rng.normal(size=s)) for s in (shape, shape, (9, 4)))
        found = max_diff(before, after, rows)
        changes = [np.linalg.norm(np.atleast_1d(row @ before.numpy() - row @ after.numpy())) for row in rows.numpy()]
        np.testing.assert_allclose(found.changes, changes)
        assert found.index == int(np.argmax(changes))
        assert torch.equal(found.x, rows[found.index])


BETA, C = torch.tensor([1.0, 2.0, 0.5]).double(), torch.eye(3).double()


@pytest.mark.parametrize(
    ("before", "after", "c", "message"),
    [
        (BETA, BETA.clone(), C, "nothing to recover"),
        (BETA, BETA * (1 + 1e-16), C, "nothing to recover"),
        (BETA.float(), BETA.float() * (1 + 1e-7), C, "nothing to recover"),
        (BETA, BETA[:2], C, "two of one shape"),
        (BETA[None, None], BETA[None, None] + 1, C, "two of one shape"),
        (BETA, BETA * float("nan"), C, "after the deletion are not finite"),
        (BETA * float("inf"), BETA, C, "before the deletion are not finite"),
        (BETA, BETA + 1, C[:2, :2], r"should be \(3, 3\)"),
        (BETA, BETA + 1, C[0], "give a matrix"),
        (BETA, BETA + 1, C / 0, "the matrix C is a finite"),
        (BETA, BETA + 1, C + torch.triu(C + 1, 1), "not symmetric"),
        (BETA, BETA + 1, C * 0, "to 0"),
    ],
)
def test_degenerate_models_are_refused(before, after, c, message) -> None:
    with pytest.raises(InputError, match=message):
        deleted_direction(before, after, c)


def test_degenerate_knowledge_is_refused() -> None:
    direction = deleted_direction(BETA, BETA + torch.tensor([1.0, 0, 0]), C)
    for options, message in (
        ({"coordinate": 3}, "coordinate 3 of 3"),
        ({"coordinate": 0, "value": 0.0}, "only one that is not 0"),
        ({"coordinate": 0, "value": float("nan")}, "only one that is not 0"),
        ({"coordinate": 1}, "is 0 at coordinate 1"),
    ):
        with pytest.raises(InputError, match=message):
            with_known_coordinate(direction, **options)
    for label in (torch.ones(2), float("nan")):
        with pytest.raises(InputError, match="give 1 finite numbers"):
            with_known_label(direction, label)
    flat = deleted_direction(BETA, torch.zeros(3).double(), C)
    with pytest.raises(InputError, match="cannot be told"):
        with_known_label(flat, 0.0)


def test_degenerate_rows_are_refused() -> None:
    rows = torch.ones(2, 3)
    for options in ({"penalty": -1.0}, {"penalty": float("nan")}, {"penalty": torch.ones(2)}):
        with pytest.raises(InputError, match="the penalty is"):
            gram(rows, **options)
    with pytest.raises(InputError, match="0 examples"):
        gram(rows, penalty=1.0, count=0)
    with pytest.raises(InputError, match="4 columns"):
        max_diff(BETA, BETA + 1, torch.ones(2, 4))
    with pytest.raises(InputError, match="the public rows"):
        max_diff(BETA, BETA + 1, torch.ones(2, 3, dtype=torch.long))
