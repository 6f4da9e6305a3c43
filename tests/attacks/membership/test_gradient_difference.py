from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.stats import chi2, kstest
from tests.oracles.uniform import uniform_on_grid
from torch import Tensor, nn

from warp_unlearning.attacks.membership.background import parts_of
from warp_unlearning.attacks.membership.base import Batch, Pair
from warp_unlearning.attacks.membership.gradient_difference import GradientDifference, gradient_difference, log_tail
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.errors import InputError, WarpError, WarpWarning
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import MLP, SmallResNet
from warp_unlearning.randomness import Streams
from warp_unlearning.stats.roc import roc
from warp_unlearning.training.scoring import accuracy
from warp_unlearning.training.training import Recipe, Training, run_training

Points = tuple[Tensor, Tensor]
Floats = NDArray[np.float64]


def pair(count: int, seed: int) -> Points:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 10, (count,), generator=generator)


@pytest.fixture(scope="module")
def models() -> tuple[nn.Module, nn.Module]:
    original = SmallResNet(width=2)
    reinitialise(original, generator=torch.Generator().manual_seed(20))
    original = original.double().eval()
    unlearned = deepcopy(original)
    generator = torch.Generator().manual_seed(21)
    with torch.no_grad():
        for p in unlearned.parameters():
            p += 0.05 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return original, unlearned


def gradients_by_loop(model: nn.Module, examples: Points) -> Floats:
    found = []
    for x, y in zip(*examples, strict=True):
        loss = F.cross_entropy(model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        found.append(torch.cat([g.flatten() for g in gradients]).numpy())
    return np.stack(found)


def brute_force(
    background: Floats, rows: Floats, *, keep: float, ridge: float, relative: bool
) -> tuple[Floats, int, float]:
    """The statistic by a d×d solve, the number of coordinates, and λ."""
    variance = background.var(0, ddof=1)
    chosen = np.argsort(-variance, kind="stable")[: round(keep * len(variance))]
    chosen = chosen[variance[chosen] > 0]
    level = ridge * variance[chosen].mean() if relative else ridge
    v = (rows - background.mean(0))[:, chosen]
    covariance = np.cov(background[:, chosen], rowvar=False) + level * np.eye(len(chosen))
    return (v * np.linalg.solve(covariance, v.T).T).sum(1), len(chosen), level


@pytest.mark.parametrize(
    ("keep", "ridge", "relative", "repetitions"),
    [(0.1, 1e-3, False, 1), (0.3, 0.05, True, 1), (0.1, 1e-3, False, 3), (0.02, 1e-2, True, 2)],
)
def test_scores_equal_brute_force(
    models: tuple[nn.Module, nn.Module], keep: float, ridge: float, relative: bool, repetitions: int
) -> None:
    original, unlearned = models
    sets = {"candidates": pair(5, 1), "background": pair(30, 2), "calibration": pair(7, 3)}
    delta = {
        what: gradients_by_loop(unlearned, examples) - gradients_by_loop(original, examples)
        for what, examples in sets.items()
    }
    found = gradient_difference(
        original, unlearned, **sets, keep=keep, ridge=ridge, relative_ridge=relative, repetitions=repetitions,
        generator=torch.Generator().manual_seed(4), batch_size=4,
    )  # fmt: skip
    parts = parts_of(30, repetitions=repetitions, generator=torch.Generator().manual_seed(4))
    statistic: dict[str, list[Floats]] = {"candidates": [], "calibration": []}
    log_p, levels = [], []
    for part in parts:
        for what, collected in statistic.items():
            s, count, level = brute_force(
                delta["background"][part.numpy()], delta[what], keep=keep, ridge=ridge, relative=relative
            )
            collected.append(s)
        log_p.append(chi2.logsf(statistic["candidates"][-1], count))
        levels.append(level)
    mean = {what: np.mean(collected, axis=0) for what, collected in statistic.items()}
    np.testing.assert_allclose(found.statistic, mean["candidates"], rtol=1e-8)
    np.testing.assert_allclose(found.calibration_statistic, mean["calibration"], rtol=1e-8)
    evidence = -np.sum(log_p, axis=0)
    known = np.isfinite(evidence)  # where p does not round to 0
    np.testing.assert_allclose(found.evidence[known], evidence[known], rtol=1e-7, atol=1e-9)
    assert np.isfinite(found.evidence).all()
    np.testing.assert_allclose(found.ridge, levels, rtol=1e-9)
    expected = [(1 + (mean["calibration"] >= s).sum()) / 8 for s in mean["candidates"]]
    np.testing.assert_allclose(found.calibrated_p, expected, rtol=1e-12)
    assert found.background == tuple(len(part) for part in parts)
    assert found.coordinates == (count,) * repetitions


def test_algorithm_ggd_is_the_sum_of_log_p_over_backgrounds(models: tuple[nn.Module, nn.Module]) -> None:
    original, unlearned = models
    candidates, background = pair(6, 1), pair(40, 2)
    before, after = (gradients_by_loop(m, candidates) for m in models)
    back = gradients_by_loop(unlearned, background) - gradients_by_loop(original, background)
    parts = parts_of(40, repetitions=4, generator=torch.Generator().manual_seed(4))
    expected = np.zeros(6)
    for part in parts:
        s, count, _ = brute_force(back[part.numpy()], after - before, keep=0.1, ridge=1e-3, relative=False)
        expected -= log_tail(s, count)
    attack = GradientDifference(
        relative=False, repetitions=4, by="log p", generator=torch.Generator().manual_seed(4), batch_size=7
    )
    examples = TensorExamples(*background)
    held = Pair(original, unlearned, examples, examples)
    np.testing.assert_allclose(attack.score(held, Batch(*candidates, original)), expected, rtol=1e-7)
    found = gradient_difference(
        *models, candidates=candidates, background=background, repetitions=4, generator=torch.Generator().manual_seed(4)
    )
    np.testing.assert_allclose(found.evidence, expected, rtol=1e-7)
    assert found.calibrated_p is found.calibration_statistic is None


@pytest.mark.parametrize("freedom", [1, 2, 481, 100_000])
def test_the_tail_of_chi_square_has_no_ties_where_p_rounds(freedom: int) -> None:
    import mpmath

    values = np.array([0.1, 0.8, 1.0, 1.2, 3.0, 40.0, 1000.0]) * freedom
    found = log_tail(values, freedom)
    with mpmath.workdps(320):
        for s, log_p in zip(values, found, strict=True):
            whole = mpmath.gammainc(mpmath.mpf(freedom) / 2, mpmath.mpf(s) / 2, mpmath.inf, regularized=True)
            expected = float(mpmath.log(whole))
            assert log_p == pytest.approx(expected, rel=1e-9, abs=1e-250)


def test_fits_together_are_fits_alone_held_or_not(models: tuple[nn.Module, nn.Module]) -> None:
    original, unlearned = models
    other = deepcopy(unlearned)
    with torch.no_grad():
        next(other.parameters()).mul_(1.1)
    background, batch = TensorExamples(*pair(30, 2)), Batch(*pair(5, 1), original)
    together = GradientDifference()
    pairs = [Pair(original, new, background, background) for new in (unlearned, other, original)]
    together.fit(pairs)
    for held, new in zip(pairs, (unlearned, other, original), strict=True):
        alone = GradientDifference(batch_size=4).score(Pair(original, new, background, background), batch)
        np.testing.assert_allclose(together.score(held, batch), alone, rtol=1e-9)
    assert not alone.any()  # the original beside itself


def test_neither_model_is_changed(models: tuple[nn.Module, nn.Module]) -> None:
    before = [{name: t.clone() for name, t in model.state_dict().items()} for model in models]
    gradient_difference(*models, candidates=pair(3, 1), background=pair(9, 2))
    for model, state in zip(models, before, strict=True):
        assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
        assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_float32_ranks_as_float64(models: tuple[nn.Module, nn.Module]) -> None:
    sets = {"candidates": pair(20, 1), "background": pair(30, 2)}
    exact = gradient_difference(*models, **sets)
    small = {what: (x.float(), y) for what, (x, y) in sets.items()}
    rounded = gradient_difference(*(deepcopy(m).float() for m in models), **small)
    np.testing.assert_allclose(rounded.statistic, exact.statistic, rtol=1e-4)


def test_identical_models_tell_nothing(models: tuple[nn.Module, nn.Module]) -> None:
    original, _ = models
    sets = {"candidates": pair(3, 1), "background": pair(9, 2), "calibration": pair(4, 3)}
    with pytest.warns(WarpWarning, match="every statistic is 0"):
        found = gradient_difference(original, deepcopy(original), **sets)
    assert found.statistic.tolist() == found.evidence.tolist() == [0.0, 0.0, 0.0]
    assert found.calibrated_p is not None
    assert found.calibrated_p.tolist() == [1.0, 1.0, 1.0]


def test_a_difference_that_is_the_same_for_all_tells_nothing() -> None:
    # One class: the loss is 0 whatever the weights are.
    one, other = nn.Linear(4, 1), nn.Linear(4, 1)
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    y = torch.zeros(9, dtype=torch.int64)
    with pytest.warns(WarpWarning, match="every statistic is 0"):
        found = gradient_difference(one.eval(), other.eval(), candidates=(x[:3], y[:3]), background=(x[3:], y[3:]))
    assert found.statistic.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": 0.0}, "keep is 0.0"),
        ({"keep": 1.5}, "keep is 1.5"),
        ({"ridge": 0.0}, "ridge is 0.0"),
        ({"ridge": -1.0}, "ridge is -1.0"),
        ({"ridge": float("nan")}, "ridge is nan"),
        ({"ridge": float("inf")}, "ridge is inf"),
        ({"repetitions": 0}, "repetitions is 0"),
        ({"repetitions": 2}, "give a `generator`"),
        ({"repetitions": 5, "generator": torch.Generator()}, "9 examples for 5 repetitions"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"background": pair(1, 2)}, "background has 1 examples"),
        ({"background": pair(3, 1)}, "also in the candidates set"),
        ({"background": None}, "background set is a NoneType"),
    ],
)
def test_bad_options(models: tuple[nn.Module, nn.Module], options: dict[str, object], said: str) -> None:
    given: dict[str, object] = {"candidates": pair(3, 1), "background": pair(9, 2), **options}
    with pytest.raises(WarpError, match=said):
        gradient_difference(*models, **given)  # type: ignore[arg-type]


def test_models_that_cannot_be_compared(models: tuple[nn.Module, nn.Module]) -> None:
    original, unlearned = models
    sets = {"candidates": pair(3, 1), "background": pair(9, 2)}
    for one, other, said in (
        (deepcopy(original).train(), unlearned, "original model is in train mode"),
        (original, deepcopy(unlearned).train(), "unlearned model is in train mode"),
        (original, deepcopy(unlearned).float(), "has type"),
        (original, SmallResNet(width=4).double().eval(), "has shape"),
        (original, nn.Linear(3, 2).eval(), "one of the two models only"),
    ):
        with pytest.raises(InputError, match=said):
            gradient_difference(one, other, **sets)
    broken = deepcopy(unlearned)
    with torch.no_grad():
        next(broken.parameters())[0] = torch.nan
    with pytest.raises(WarpError, match="row 0 of the background at the unlearned model is not finite"):
        gradient_difference(original, broken, **sets)


def planted(seed: int) -> tuple[nn.Module, nn.Module, Points, float]:
    """A network trained on digits, and the same made to misclassify 8 of them by ascent; the 8; and its accuracy on
    the test digits.
    """
    digits = load_data()
    original = SmallResNet()
    reinitialise(original, generator=Streams(seed).generator("weights"))
    recipe = Recipe(epochs=8, batch_size=64, lr=0.05)
    run_training(Training(original, digits.train, recipe=recipe, streams=Streams(seed, "training"), fill=digits.fill))
    unlearned = deepcopy(original.eval())
    order = torch.randperm(len(digits.train), generator=Streams(seed).generator("order"))
    forget, retain = digits.train.select(order[:8]), digits.train.select(order[8:])
    optimizer = torch.optim.Adam(unlearned.parameters(), lr=2e-3)
    batches = Streams(seed).generator("batches")
    for _ in range(400):
        x, y = retain.take(torch.randint(0, len(retain), (128,), generator=batches))
        losses = F.cross_entropy(unlearned(forget.x), forget.y, reduction="none")
        kept = F.cross_entropy(unlearned(x), y)
        if float(losses.detach().min()) > 2 and float(kept.detach()) < 0.1:
            break
        # Those that are forgotten already leave their weight to the others.
        ascent = losses.clamp(max=4).sum() / max(1, int((losses < 4).sum()))
        optimizer.zero_grad()
        (kept - ascent).backward()
        optimizer.step()
    unlearned.zero_grad()
    return original, unlearned, (forget.x, forget.y), accuracy(unlearned, digits.test)


def test_a_planted_leak_is_found() -> None:
    original, unlearned, forgotten, kept = planted(20)
    # Else nothing was planted, or the whole network was changed and not what it says of the forgotten.
    assert not bool((unlearned(forgotten[0]).argmax(1) == forgotten[1]).any())
    assert kept > 0.85
    test = load_data().test
    # The digits come writer by writer, so that parts in order are not of one law.
    drawn = torch.randperm(len(test), generator=Streams(20).generator("test"))
    background, calibration, others = (test.select(part) for part in drawn.split([150, 100, 147]))
    candidates = tuple(torch.cat(both) for both in zip(forgotten, (others.x, others.y), strict=True))
    for relative in (False, True):
        found = gradient_difference(
            original,
            unlearned,
            candidates=candidates,
            background=(background.x, background.y),
            calibration=(calibration.x, calibration.y),
            relative_ridge=relative,
        )
        assert roc(found.statistic[:8], found.statistic[8:]).auc > 0.9
        assert found.calibrated_p is not None
        assert np.median(found.calibrated_p[:8]) < 0.1
        assert 0.3 < np.median(found.calibrated_p[8:]) < 0.7


def test_under_the_null_calibrated_p_values_are_uniform_and_those_of_chi2_are_not() -> None:
    original: nn.Module = MLP(inputs=6, classes=3, hidden=(8,))
    reinitialise(original, generator=torch.Generator().manual_seed(20))
    unlearned = deepcopy(original.eval())
    with torch.no_grad():
        for p in unlearned.parameters():
            p *= 1.3
    draws = torch.Generator().manual_seed(21)
    found, by_chi2 = [], []
    for _ in range(250):
        x, y = torch.randn(45, 6, generator=draws), torch.randint(0, 3, (45,), generator=draws)
        scores = gradient_difference(
            original,
            unlearned,
            candidates=(x[:1], y[:1]),
            background=(x[1:26], y[1:26]),
            calibration=(x[26:], y[26:]),
            relative_ridge=True,
        )
        assert scores.calibrated_p is not None
        found.append(scores.calibrated_p[0])
        by_chi2.append(np.exp(-scores.evidence[0]))
    assert uniform_on_grid(found, 20) > 1e-3
    # The p-value of the Gaussian model is not.
    assert kstest(by_chi2, "uniform").pvalue < 1e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_scores_as_the_cpu_does(models: tuple[nn.Module, nn.Module]) -> None:
    one, other = (deepcopy(model).float() for model in models)
    sets = {what: (pair(n, n)[0].float(), pair(n, n)[1]) for what, n in (("candidates", 20), ("background", 60))}
    expected = gradient_difference(one, other, **sets, relative_ridge=True)
    found = gradient_difference(one.cuda(), other.cuda(), **sets, relative_ridge=True)
    np.testing.assert_allclose(found.statistic, expected.statistic, rtol=1e-3)
