from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.datasets import load_digits

from warp_unlearning.attacks.reconstruction.identification import identification
from warp_unlearning.attacks.reconstruction.image_metrics import mse
from warp_unlearning.errors import InputError


def images(n: int, seed: int, *, side: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (0.5 + 0.1 * torch.randn(n, 1, side, side, generator=generator, dtype=torch.float64)).clamp(0, 1)


def zeros(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.long)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    order = torch.randperm(len(data.images), generator=torch.Generator().manual_seed(20))
    return torch.tensor(data.images / 16)[:, None][order], torch.tensor(data.target)[order]


@given(st.integers(0, 999), st.integers(1, 4), st.integers(2, 6))
def test_a_share_is_the_count_of_decoys_that_resemble_less(seed, n, m) -> None:
    found, truth, decoys = images(n, seed), images(n, seed + 1), images(2 * m, seed + 2)
    labels, held = torch.arange(n) % 2, torch.arange(2 * m) % 2
    result = identification(found, truth, labels, decoys=decoys, decoy_labels=held)
    for i in range(n):
        rivals = [decoys[j].numpy().ravel() for j in range(2 * m) if held[j] == labels[i]]
        t, f = truth[i].numpy().ravel(), found[i].numpy().ravel()
        centre = np.mean([t, *rivals], axis=0)

        def angle(v, f=f, centre=centre) -> float:
            return float((f - centre) @ (v - centre) / np.linalg.norm(f - centre) / np.linalg.norm(v - centre))

        assert result.shares[i] == pytest.approx(np.mean([angle(t) > angle(r) for r in rivals]))
    assert result.decoys == (m,) * n
    assert result.share.value == pytest.approx(result.shares.mean())
    assert 0 <= result.share.low <= result.share.value <= result.share.high <= 1


@given(st.integers(0, 999), st.floats(0.05, 1.0))
def test_contrast_about_the_mean_does_not_matter(seed, contrast) -> None:
    truth, decoys = images(3, seed), images(5, seed + 1)
    found = images(3, seed + 2)
    centre = (truth + 5 * decoys.mean(0)) / 6
    faint = centre + contrast * (found - centre)
    one, other = (identification(f, truth, zeros(3), decoys=decoys, decoy_labels=zeros(5)) for f in (found, faint))
    np.testing.assert_allclose(one.shares, other.shares)


def test_the_target_itself_wins_and_its_negative_loses() -> None:
    truth, decoys = images(8, 20), images(30, 21)
    same = identification(truth, truth, zeros(8), decoys=decoys, decoy_labels=zeros(30))
    assert same.shares.tolist() == [1] * 8
    assert same.above_chance
    assert 0.8 < same.share.low < 1
    negative = identification(1 - truth, truth, zeros(8), decoys=decoys, decoy_labels=zeros(30))
    assert negative.share.value < 0.1
    assert not negative.above_chance


def test_the_mean_of_all_and_copies_of_the_target_are_ties() -> None:
    truth, decoys = images(1, 20), images(4, 21)
    mean = torch.cat([truth, decoys]).mean(0, keepdim=True)
    assert identification(mean, truth, zeros(1), decoys=decoys, decoy_labels=zeros(4)).shares[0] == 0.5
    copies = torch.cat([truth, truth, decoys[:1], decoys[:1]])
    assert identification(truth, truth, zeros(1), decoys=copies, decoy_labels=zeros(4)).shares[0] == 0.75


def test_blind_images_have_half_and_faint_ones_more_than_by_their_error() -> None:
    x, y = digits()
    truth, labels, decoys, held = x[:60], y[:60], x[60:660], y[60:660]
    probe, known = x[660:1200], y[660:1200]
    means = torch.stack([probe[known == c].mean(0) for c in range(10)])[labels]
    blind = identification(means, truth, labels, decoys=decoys, decoy_labels=held)
    assert blind.share.low < 0.5 < blind.share.high
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(21), dtype=torch.float64)
    faint = means + 0.15 * (truth - means) + 0.1 * noise
    seen = identification(faint, truth, labels, decoys=decoys, decoy_labels=held)
    assert seen.above_chance
    by_error = []
    for i in range(60):
        rivals = decoys[held == labels[i]]
        own = mse(faint[i : i + 1], truth[i : i + 1])
        by_error.append(float((mse(faint[i].expand_as(rivals), rivals) > own).double().mean()))
    assert seen.share.value > np.mean(by_error) + 0.1


@pytest.mark.parametrize(("targets", "decoys"), [(4, 10), (12, 12), (30, 40)])
def test_chance_is_above_the_interval_as_rarely_as_promised(targets, decoys) -> None:
    above = 0
    for seed in range(300):
        # The same guess for all, the case in which shared decoys matter most.
        found = images(1, 4 * seed).expand(targets, -1, -1, -1)
        result = identification(
            found, images(targets, 4 * seed + 1), zeros(targets), decoys=images(decoys, 4 * seed + 2),
            decoy_labels=zeros(decoys),
        )  # fmt: skip
        above += result.above_chance
    # 2.5 % of 300, and more than that only as rarely as once in a thousand.
    assert above <= stats.binom.isf(1e-3, 300, 0.025)


def test_the_interval_is_the_sum_of_both_variances() -> None:
    n, m = 40, 7
    truth, decoys = images(n, 20), images(m, 21)
    found = (truth + 4 * (images(n, 22) - 0.5)).clamp(0, 1)
    result = identification(found, truth, zeros(n), decoys=decoys, decoy_labels=zeros(m), level=0.9)
    won = np.zeros((n, m))
    for j in range(m):
        for i in range(n):
            pool = torch.cat([truth[i : i + 1], decoys])
            centre = pool.mean(0)
            a, b = (
                torch.cosine_similarity((found[i] - centre).ravel(), (v - centre).ravel(), dim=0)
                for v in (truth[i], decoys[j])
            )
            won[i, j] = a > b
    rows, columns = won.mean(1), won.mean(0)
    a = won.mean()
    usual = max(a / (2 - a), 2 * a * a / (1 + a)) - a * a
    parts = [max(rows.var(ddof=1), usual) / n, columns.var(ddof=1) / m]
    freedom = min(sum(parts) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1)), n - 1)
    reach = stats.t.isf(0.05, freedom) * np.sqrt(sum(parts))
    assert 0.5 < a < 0.95
    assert result.share.low == pytest.approx(a - reach)
    assert result.share.high == pytest.approx(min(a + reach, 1))


def test_one_target_has_no_interval_and_all_is_plain_data() -> None:
    result = identification(images(1, 20), images(1, 20), zeros(1), decoys=images(3, 21), decoy_labels=zeros(3))
    assert (result.share.low, result.share.value, result.share.high) == (0, 1, 1)
    assert not result.above_chance
    assert json.loads(json.dumps(result.as_json())) == {
        "share": {"value": 1.0, "low": 0.0, "high": 1.0},
        "chance": 0.5,
        "above_chance": False,
        "shares": [1.0],
        "decoys": [3],
    }


def test_bad_input_is_refused() -> None:
    truth, decoys = images(2, 20), images(3, 21)
    good = {"decoys": decoys, "decoy_labels": zeros(3)}
    for change, message in (
        ({"decoys": images(3, 21, side=5)}, r"decoys have shape \(1, 5, 5\)"),
        ({"decoy_labels": zeros(2)}, "one label each"),
        ({"decoy_labels": torch.tensor([0, 1, 1])}, "class 0 has 1 decoys"),
        ({"decoys": decoys / 0}, "the decoys have 48 values"),
        ({"level": 1.0}, "level is 1.0"),
    ):
        with pytest.raises(InputError, match=message):
            identification(truth, truth, zeros(2), **{**good, **change})
    with pytest.raises(InputError, match="one label each"):
        identification(truth, truth, zeros(3), **good)
