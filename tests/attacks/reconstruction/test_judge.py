from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.datasets import load_digits

from warp_unlearning.attacks.reconstruction.blind import BlindGuess
from warp_unlearning.attacks.reconstruction.judge import (
    Identification,
    adjusted_p,
    assess,
    beyond_prior,
    compare_with_prior,
    identification,
)
from warp_unlearning.attacks.reconstruction.metrics import ImageScores, mse, psnr
from warp_unlearning.errors import InputError
from warp_unlearning.stats.intervals import Estimate


def pictures(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**16), count=st.integers(2, 3))
def test_images_forgotten_together_are_matched_one_to_one_for_the_least_error(seed: int, count: int) -> None:
    truth, found = pictures(2, count, seed=seed), pictures(2, count, seed=seed + 1)
    blind = {"grey": BlindGuess("grey", torch.full((2 * count, 1, 8, 8), 0.5))}
    same = torch.zeros(2, count, dtype=torch.long)
    scores = assess(found, truth, blind=blind, labels=same, found_labels=same)
    for i in range(2):
        best = min(
            itertools.permutations(range(count)),
            key=lambda order: float((found[i][list(order)] - truth[i]).square().sum()),
        )
        torch.testing.assert_close(scores.images.reshape(2, count, 1, 8, 8)[i], found[i][list(best)])


def test_labels_come_before_the_error() -> None:
    truth, labels = pictures(5, 2), torch.tensor([[3, 4]]).repeat(5, 1)
    blind = {"grey": BlindGuess("grey", torch.full((10, 1, 8, 8), 0.5))}
    decoys = (pictures(40, seed=9), torch.arange(40) % 2 + 3)
    turned = assess(truth.flip(1), truth, blind=blind, labels=labels, found_labels=labels, decoys=decoys)
    torch.testing.assert_close(turned.images, truth.flip(1).flatten(0, 1))
    assert turned.beyond.identification is not None
    # Where labels are alike the error decides, and decoys are no fair comparison any more.
    alike = torch.full((5, 2), 3)
    matched = assess(truth.flip(1), truth, blind=blind, labels=alike, found_labels=alike, decoys=decoys)
    torch.testing.assert_close(matched.images, truth.flatten(0, 1))
    assert matched.beyond.identification is None
    with pytest.raises(InputError, match="told apart by their labels"):
        assess(truth, truth, blind=blind)


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
    assert 0.8 < same.share.low < 1
    negative = identification(1 - truth, truth, zeros(8), decoys=decoys, decoy_labels=zeros(30))
    assert negative.share.value < 0.1
    assert negative.p > 0.99


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
    assert seen.p < 0.001
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
        above += result.share.low > 0.5
    # 2.5 % of 300, and more than that only as rarely as once in a thousand.
    assert above <= stats.binom.isf(1e-3, 300, 0.025)


def test_the_interval_is_the_sum_of_both_variances() -> None:
    n, m = 40, 7
    truth, decoys = images(n, 20), images(m, 21)
    found = (truth + 4 * (images(n, 22) - 0.5)).clamp(0, 1)
    result = identification(found, truth, zeros(n), decoys=decoys, decoy_labels=zeros(m))
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
    reach = stats.t.isf(0.025, freedom) * np.sqrt(sum(parts))
    assert 0.5 < a < 0.95
    assert result.share.low == pytest.approx(a - reach)
    assert result.share.high == pytest.approx(min(a + reach, 1))
    assert result.p == pytest.approx(stats.t.sf((a - 0.5) / np.sqrt(sum(parts)), freedom))


def test_one_target_has_no_interval() -> None:
    result = identification(images(1, 20), images(1, 20), zeros(1), decoys=images(3, 21), decoy_labels=zeros(3))
    assert (result.share.low, result.share.value, result.share.high) == (0, 1, 1)
    assert (result.p, result.rank_p()) == (1, pytest.approx(1 / 4))


def test_bad_input_is_refused() -> None:
    truth, decoys = images(2, 20), images(3, 21)
    good = {"decoys": decoys, "decoy_labels": zeros(3)}
    for change, message in (
        ({"decoys": images(3, 21, side=5)}, r"decoys have shape \(1, 5, 5\)"),
        ({"decoy_labels": zeros(2)}, "one label each"),
        ({"decoy_labels": torch.tensor([0, 1, 1])}, "class 0 has 1 decoys"),
        ({"decoys": decoys / 0}, "the decoys have 48 values"),
    ):
        with pytest.raises(InputError, match=message):
            identification(truth, truth, zeros(2), **{**good, **change})
    with pytest.raises(InputError, match="one label each"):
        identification(truth, truth, zeros(3), **good)


def scores(psnr) -> ImageScores:
    values = np.asarray(psnr, dtype=np.float64)
    return ImageScores(psnr=values, ssim=values / 100, mse=10 ** (-values / 10))


def named(low: float, value: float, high: float, *, n: int = 30) -> Identification:
    """Shares with this interval of level .95, and the p-value that goes with it."""
    error = max(value - low, 1e-9) / stats.t.isf(0.025, n - 1)
    return Identification(
        Estimate(value, low, high), np.full(n, value), (20,) * n, stats.t.sf((value - 0.5) / error, n - 1)
    )


RNG = np.random.default_rng(20)
IMAGES = 12 + 4 * RNG.normal(size=30)
NOISE = RNG.normal(size=30)
CHANCE = named(0.42, 0.5, 0.58)


def test_the_gain_is_paired_and_against_the_better_blind_attack() -> None:
    found = scores(IMAGES + 1 + 0.5 * NOISE)
    blind = {"class mean": scores(IMAGES), "prior alone": scores(IMAGES - 3)}
    result = compare_with_prior(found, blind)
    assert result.best == "class mean"
    gap = 1 + 0.5 * NOISE
    low, high = stats.t.interval(0.95, 29, loc=gap.mean(), scale=stats.sem(gap))
    gain = result.gains["class mean"]
    assert (gain.low, gain.value, gain.high) == pytest.approx((low, gap.mean(), high))
    assert result.gains["prior alone"].value == pytest.approx(gap.mean() + 3)
    assert result.tests == {"gain": pytest.approx(stats.ttest_1samp(gap, 0, alternative="greater").pvalue)}
    assert "above the class mean's" in str(result)
    # Not paired, images that differ by 4 dB would hide it.
    assert stats.ttest_ind(found.psnr, IMAGES).pvalue > 0.1


def test_better_than_the_worse_blind_attack_alone_is_nothing() -> None:
    blind = {"class mean": scores(IMAGES - 6), "prior alone": scores(IMAGES + 1)}
    result = compare_with_prior(scores(IMAGES + 0.1 * NOISE), blind, identification=CHANCE)
    assert result.best == "prior alone"
    assert result.gains["class mean"].low > 0
    claim = beyond_prior({"inversion": result})
    assert (claim.outcome, claim.reason) == ("holds", "nothing beyond the prior")
    assert claim.sentence.startswith("inversion: mean PSNR 1.0")
    assert "below the prior alone's" in claim.sentence


@pytest.mark.parametrize(
    ("gain", "share", "outcome"),
    [
        (-5.0, None, "holds"),
        (-5.0, named(0.49, 0.6, 0.7), "holds"),
        (-5.0, named(0.501, 0.6, 0.7), "does not hold"),
        (-5.0, named(0.3, 0.6, 0.8), "cannot be said"),
        (-5.0, named(0.1, 0.2, 0.3), "holds"),
        (0.0, CHANCE, "holds"),
        (1.0, CHANCE, "does not hold"),
    ],
)
def test_the_claim_of_one_attack_follows_its_intervals(gain, share, outcome) -> None:
    found = scores(IMAGES + gain + 0.1 * (NOISE - NOISE.mean()))
    result = compare_with_prior(found, {"class mean": scores(IMAGES)}, identification=share)
    assert beyond_prior({"inversion": result}).outcome == outcome


def test_every_attack_must_be_excluded_and_all_their_tests_are_corrected_for() -> None:
    blind = {"class mean": scores(IMAGES)}
    nothing = compare_with_prior(scores(IMAGES - 5 + 0.1 * NOISE), blind, identification=CHANCE)
    shown = compare_with_prior(scores(IMAGES - 5), blind, identification=named(0.501, 0.6, 0.7))
    wide = compare_with_prior(scores(IMAGES - 5), blind, identification=named(0.3, 0.6, 0.8))
    assert beyond_prior({"a": shown}).outcome == "does not hold"
    several = {"a": shown, "b": nothing, "c": nothing}
    assert adjusted_p(several)["a"] == pytest.approx(6 * shown.tests["share"])
    # Alone it is shown, among six tests no more; its interval excludes a share of three quarters.
    assert beyond_prior(several, about="ngp").outcome == "holds"
    assert beyond_prior(several, about="ngp").sentence.startswith("ngp: a: mean PSNR")
    assert "after correction for 6 tests" in beyond_prior(several).sentence
    assert beyond_prior({"b": nothing, "c": nothing}).outcome == "holds"
    assert beyond_prior({"b": nothing, "c": wide}).outcome == "cannot be said"
    strong = compare_with_prior(scores(IMAGES + 1 + 0.1 * NOISE), blind, identification=CHANCE)
    claim = beyond_prior({"b": nothing, "d": strong})
    assert (claim.outcome, claim.strongest) == ("does not hold", "d")


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_blind_images_go_beyond_the_prior_as_rarely_as_promised(count: int) -> None:
    """Two attacks whose images are drawn as targets and decoys are; the level is that of all their tests together."""
    above = 0
    for seed in range(200):
        truth, decoys, grey = images(count, 9 * seed), images(30, 9 * seed + 1), images(count, 9 * seed + 2)
        evidence = {}
        for name, more in (("one", 3), ("other", 4)):
            result = assess(
                images(count, 9 * seed + more)[:, None],
                truth[:, None],
                blind={"as blind": BlindGuess("as blind", grey)},
                labels=zeros(count)[:, None],
                decoys=(decoys, zeros(30)),
            )
            evidence[name] = result.beyond
        above += beyond_prior(evidence).outcome == "does not hold"
    assert above <= stats.binom.isf(1e-3, 200, 0.05)


@pytest.mark.parametrize(
    ("share", "decoys", "outcome"),
    [
        (1.0, 18, "cannot be said"),
        (1.0, 39, "does not hold"),
        (0.95, 99, "cannot be said"),
        (0.97, 99, "does not hold"),
        (0.5, 999, "cannot be said"),
    ],
)
def test_one_image_is_judged_by_its_rank(share: float, decoys: int, outcome: str) -> None:
    alone = Identification(Estimate(share, 0.0, 1.0), np.array([share]), (decoys,), 1.0)
    assert alone.rank_p() == pytest.approx((1 + round(decoys * (1 - share), 9)) / (decoys + 1))
    found = compare_with_prior(scores([40.0]), {"class mean": scores([10.0])}, identification=alone)
    claim = beyond_prior({"inversion": found})
    assert claim.outcome == outcome
    assert f"mean PSNR 30.00 dB above the class mean's, nearer to the target than {share:.3f} of {decoys}" in str(found)
    assert ("one image has no interval" in claim.sentence) is (outcome == "cannot be said")
    plain = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert plain["psnr_gain"] == {"class mean": {"value": 30.0, "low": None, "high": None}}
    blind = compare_with_prior(scores([90.0]), {"class mean": scores([10.0])})
    assert beyond_prior({"inversion": blind}).outcome == "cannot be said"


def test_few_images_are_judged_by_their_ranks_too() -> None:
    two = Identification(Estimate(1.0, 0.4, 1.0), np.array([1.0, 1.0]), (80, 80), 0.2)
    assert two.rank_p() == pytest.approx(stats.combine_pvalues([1 / 81, 1 / 81], method="fisher").pvalue)
    found = compare_with_prior(scores([9.0, 9.5]), {"class mean": scores([10.0, 10.0])}, identification=two)
    assert list(found.tests) == ["gain", "share", "ranks"]
    assert beyond_prior({"inversion": found}).outcome == "does not hold"
    assert adjusted_p({"inversion": found})["inversion"] == pytest.approx(3 * two.rank_p())
    chance = Identification(Estimate(0.5, 0.0, 1.0), np.array([0.4, 0.6]), (80, 80), 0.5)
    found = compare_with_prior(scores([9.0, 9.5]), {"class mean": scores([10.0, 10.0])}, identification=chance)
    assert beyond_prior({"inversion": found}).outcome == "cannot be said"


def test_plain_data_says_all() -> None:
    result = compare_with_prior(scores(IMAGES - 1), {"class mean": scores(IMAGES)}, identification=CHANCE)
    plain = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert set(plain) == {"best_blind", "psnr_gain", "identification", "tests", "text"}
    assert (plain["best_blind"], set(plain["tests"])) == ("class mean", {"gain", "share"})
    assert plain["identification"]["share"]["value"] == 0.5
    assert compare_with_prior(scores(IMAGES), {"a": scores(IMAGES)}).as_json()["identification"] is None


def test_scores_of_other_images_are_refused() -> None:
    with pytest.raises(InputError, match="at least the class mean"):
        compare_with_prior(scores(IMAGES), {})
    with pytest.raises(InputError, match="'class mean' has scores of 29 images"):
        compare_with_prior(scores(IMAGES), {"class mean": scores(IMAGES[1:])})
    with pytest.raises(InputError, match="'identification' has scores of 3"):
        compare_with_prior(scores(IMAGES), {"class mean": scores(IMAGES)}, identification=named(0.1, 0.5, 0.9, n=3))


def test_single_images_stay_in_their_order_beside_blind_guesses_and_decoys() -> None:
    truth, labels = pictures(12, 1), (torch.arange(12) % 2)[:, None]
    guess = torch.full((12, 1, 8, 8), 0.5)
    given = {"blind": {"grey": BlindGuess("grey", guess)}, "labels": labels}
    result = assess(truth, truth, **given, decoys=(pictures(40, seed=9), torch.arange(40) % 2))
    torch.testing.assert_close(torch.as_tensor(result.blind["grey"].psnr), psnr(guess.double(), truth[:, 0]))
    assert result.claim.outcome == "does not hold"
    assert result.beyond.identification is not None
    assert result.beyond.identification.share.value == 1
    plain = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert set(plain) == {"scores", "blind", "beyond"}
    assert (plain["beyond"]["outcome"], plain["beyond"]["identification"]["share"]["value"]) == ("does not hold", 1)
    swapped = assess(truth.flip(0), truth, **given)
    torch.testing.assert_close(swapped.images, truth.flip(0)[:, 0])
    assert swapped.claim.outcome != "does not hold"
    assert swapped.beyond.identification is None
    with pytest.raises(InputError, match=r"\(2, 1, 1, 8, 8\) and the truth \(3, 1, 1, 8, 8\)"):
        assess(pictures(2, 1), pictures(3, 1), blind={})
