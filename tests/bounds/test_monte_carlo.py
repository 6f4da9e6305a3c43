import numpy as np
import pytest

from warp_unlearning.bounds.monte_carlo import mean_of
from warp_unlearning.errors import InputError


def test_the_standard_error_is_that_of_the_mean() -> None:
    means = [mean_of(row) for row in np.random.default_rng(0).normal(3.0, 2.0, size=(4000, 25))]
    values = np.array([m.value for m in means])
    assert values.std() == pytest.approx(2.0 / 5, rel=0.05)
    assert np.mean([m.standard_error for m in means]) == pytest.approx(2.0 / 5, rel=0.05)
    assert {m.draws for m in means} == {25}


@pytest.mark.parametrize("samples", [np.zeros(1), np.zeros((2, 2))])
def test_too_few_samples_are_refused(samples: np.ndarray) -> None:
    with pytest.raises(InputError, match="at least 2 in a row"):
        mean_of(samples)
