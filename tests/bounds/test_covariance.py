import numpy as np
import pytest

from warp_unlearning.bounds.covariance import covariance, log_det_ratio, root_of
from warp_unlearning.errors import InputError


def random_covariance(generator: np.random.Generator, size: int) -> np.ndarray:
    half = generator.normal(size=(size, size))
    return half @ half.T + 0.1 * np.eye(size)


def test_the_log_det_ratio_is_that_of_two_determinants() -> None:
    generator = np.random.default_rng(0)
    noise = random_covariance(generator, 4)
    signals = np.stack([random_covariance(generator, 4) for _ in range(3)])
    found = log_det_ratio(signals, root_of(noise, what="noise"))
    expected = [np.log(np.linalg.det(s + noise) / np.linalg.det(noise)) for s in signals]
    assert found == pytest.approx(expected, rel=1e-10)


def test_determinants_beyond_the_range_of_floats_have_a_ratio() -> None:
    size = 400
    noise, signal = 1e-3 * np.eye(size), 4e-3 * np.eye(size)
    assert float(np.linalg.det(noise)) == 0.0
    found = log_det_ratio(signal, root_of(noise, what="noise"))
    assert float(found) == pytest.approx(size * np.log(5.0), rel=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.eye(3), r"N has shape \(3, 3\); give a covariance of shape \(2, 2\)"),
        ([[1.0, 0.5], [0.4, 1.0]], "N is not symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "N has the eigenvalue -1"),
        ([[1.0, np.nan], [np.nan, 1.0]], "N has an entry that is not finite"),
    ],
)
def test_what_is_no_covariance_is_named(given: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        covariance(given, size=2, what="N")  # type: ignore[arg-type]


def test_a_singular_covariance_has_no_root() -> None:
    assert covariance([[1.0, 1.0], [1.0, 1.0]], size=2, what="N").shape == (2, 2)
    with pytest.raises(InputError, match="N is not positive definite"):
        root_of(np.zeros((2, 2)), what="N")
