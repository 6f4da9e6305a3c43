import numpy as np
import pytest

from warp_unlearning.bounds.gradient_fit import fit_gradients
from warp_unlearning.errors import DataError, InputError


def test_one_component_and_one_set_have_the_batch_as_their_ratio() -> None:
    """At any scale of the gradients: the fit does not know their units."""
    rows = np.random.default_rng(0).normal(size=(300, 4)) * np.array([1e-5, 1.0, 3.0, 1e-3])
    fit = fit_gradients(rows, rows, components=1, batch=5, seed=0)
    assert fit.weights == pytest.approx([1.0])
    assert fit.snr == pytest.approx(np.full((1, 4), 5.0), rel=1e-4)
    assert fit.silent == 0


def test_two_clusters_are_found_with_their_weights_and_variances() -> None:
    generator = np.random.default_rng(1)
    many, few = generator.normal([0.0, 0.0], [1.0, 0.5], (3000, 2)), generator.normal([9.0, 9.0], [2.0, 0.1], (1000, 2))
    retained = generator.normal(0.0, [3.0, 0.2], (50_000, 2))
    fit = fit_gradients(np.concatenate([many, few]), retained, components=2, batch=4, seed=0)
    order = np.argsort(fit.weights)
    assert fit.weights[order] == pytest.approx([0.25, 0.75], abs=0.01)
    noise = np.array([9.0, 0.04]) / 4
    assert fit.snr[order] == pytest.approx(np.array([[4.0, 0.01], [1.0, 0.25]]) / noise, rel=0.1)
    assert fit.notes == ()


def test_silent_coordinates_tell_nothing_and_tiny_noise_has_a_floor() -> None:
    generator = np.random.default_rng(2)
    rows = generator.normal(size=(200, 3))
    rows[:, 1] = 0.25
    retained = generator.normal(size=(200, 3))
    retained[:, 2] = 0.0
    fit = fit_gradients(rows, retained, components=1, batch=5, seed=0)
    assert (fit.silent, float(fit.snr[0, 1])) == (1, 0.0)
    level = 1e-12 * (retained.var(0) / 5).mean()
    assert float(fit.snr[0, 2]) == pytest.approx(rows[:, 2].var() / level, rel=1e-4)


def test_a_fit_that_does_not_settle_is_noted_and_no_warning() -> None:
    rows = np.repeat(np.random.default_rng(3).normal(size=(2, 3)), 10, axis=0)
    fit = fit_gradients(rows, rows, components=4, batch=5, seed=0)
    assert len(fit.notes) == 1
    assert fit.notes[0].startswith("the fit of the mixture did not settle: ")
    assert fit.weights.sum() == pytest.approx(1.0)


def test_the_seed_decides() -> None:
    rows = np.random.default_rng(4).normal(size=(100, 5))
    found = [fit_gradients(rows, rows, components=3, batch=5, seed=s).snr for s in (1, 1, 2)]
    assert (found[0] == found[1]).all()
    assert not np.allclose(found[0], found[2])


def test_bad_input_is_named() -> None:
    rows = np.random.default_rng(0).normal(size=(10, 2))
    for what in ("components", "batch"):
        for value in (0, 1.5, True):
            with pytest.raises(InputError, match=f"{what} is {value}; give a whole number"):
                fit_gradients(rows, rows, **({"components": 1, "batch": 5, "seed": 0} | {what: value}))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="10 examples for 6 components"):
        fit_gradients(rows, rows, components=6, batch=5, seed=0)
    with pytest.raises(DataError, match="and 1 for the noise"):
        fit_gradients(rows, rows[:1], components=1, batch=5, seed=0)
    with pytest.raises(DataError, match="there is no noise to compare with"):
        fit_gradients(rows, np.ones((5, 2)), components=1, batch=5, seed=0)
    with pytest.raises(DataError, match="choose other parameters"):
        fit_gradients(np.ones((10, 2)), rows, components=1, batch=5, seed=0)
