from __future__ import annotations

from math import exp, fsum, log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.small import network, points
from torch import nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.training.scoring import accuracy, logit_confidence, logits, losses


def test_scores_are_those_of_single_examples_in_eval_mode() -> None:
    model, data = network(), points()
    model.train()
    model[2].eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    found = [logits(model, data, batch_size=size) for size in (7, 512)]
    each, share = losses(model, data), accuracy(model, data)
    assert [m.training for m in model.modules()] == [True, True, True, False, True]
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    model.eval()
    right = 0
    with torch.no_grad():
        for i in range(len(data)):
            row = model(data.x[i : i + 1])[0]
            label = int(data.y[i])
            for table in found:
                torch.testing.assert_close(table[i], row)
            values = row.tolist()
            expected = log(sum(exp(v) for v in values)) - values[label]
            assert float(each[i]) == pytest.approx(expected)
            right += values.index(max(values)) == label
    assert share == right / len(data)
    assert not found[0].requires_grad


def test_a_network_that_changes_its_inputs_leaves_the_examples() -> None:
    x = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])
    examples = TensorExamples(x.clone(), torch.tensor([0, 1]))
    found = logits(nn.Sequential(nn.ReLU(inplace=True)), examples)
    assert found.tolist() == [[0, 2], [3, 0]]
    assert torch.equal(examples.x, x)


rows = st.lists(st.floats(-30, 30), min_size=2, max_size=6)


@given(rows, st.integers(0, 5))
def test_it_is_the_log_odds_of_the_label(logits: list[float], label: int) -> None:
    label %= len(logits)
    total = fsum(exp(z) for z in logits)
    p, q = exp(logits[label]) / total, fsum(exp(z) for i, z in enumerate(logits) if i != label) / total
    assert logit_confidence(logits, label) == pytest.approx(log(p) - log(q), abs=1e-9)


@given(rows, st.integers(0, 5), st.floats(-1e5, 1e5))
def test_a_shift_of_all_logits_changes_nothing(logits: list[float], label: int, shift: float) -> None:
    label %= len(logits)
    moved = logit_confidence(np.array(logits) + shift, label)
    assert moved == pytest.approx(float(logit_confidence(logits, label)), abs=1e-9)


def test_extreme_logits_stay_finite_also_as_float32() -> None:
    found = logit_confidence(np.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], dtype=np.float32), [0, 0])
    np.testing.assert_allclose(found, [1e4, -2e4])
    assert np.isfinite(found.astype(np.float32)).all()


def test_near_certainty_is_resolved() -> None:
    """A probability of 1 − 1e-18 is 1 in float64, and its log odds are not infinite."""
    assert logit_confidence([[np.log(1e18), 0.0]], [0])[0] == pytest.approx(np.log(1e18))


def test_shapes_carry_over() -> None:
    logits = np.random.default_rng(20).normal(size=(3, 4, 5))
    labels = np.arange(12).reshape(3, 4) % 5
    found = logit_confidence(logits, labels)
    assert found.shape == (3, 4)
    assert found.dtype == np.float64
    assert found[1, 2] == logit_confidence(logits[1, 2], labels[1, 2])


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        ([[1.0, 2.0]], [0, 1], InputError, "shape"),
        ([[1.0]], [0], InputError, "1 class"),
        ([[1.0, 2.0]], [0.0], InputError, "integers"),
        ([[1.0, 2.0]], [2], DataError, "labels from 2 to 2"),
        ([[1.0, 2.0]], [-1], DataError, "labels from -1"),
        ([[1.0, float("nan")]], [0], DataError, "1 logits are not finite"),
    ],
)
def test_what_has_no_confidence_is_refused(
    logits: list[list[float]], labels: list[int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        logit_confidence(logits, labels)
