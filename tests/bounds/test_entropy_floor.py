from math import e, inf, log, pi

import pytest

from warp_unlearning.bounds.entropy_floor import entropy_floor, floor_ratio
from warp_unlearning.errors import InputError


@pytest.mark.parametrize("dimensions", [1, 3, 3072])
def test_a_gaussian_of_one_variance_meets_the_floor(dimensions: int) -> None:
    entropy = 0.5 * dimensions * log(2 * pi * e * 9.0)
    assert entropy_floor(entropy, dimensions=dimensions) == pytest.approx(9.0, rel=1e-12)


def test_the_ratio_is_that_of_two_floors() -> None:
    ratio = entropy_floor(2.5, dimensions=4) / entropy_floor(1.0, dimensions=4)
    assert floor_ratio(1.5, dimensions=4) == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize("dimensions", [0, -1, 2.0, True])
def test_dimensions_that_are_none_are_refused(dimensions: int) -> None:
    with pytest.raises(InputError, match="whole number of at least 1"):
        entropy_floor(0.0, dimensions=dimensions)


def test_an_entropy_that_is_not_finite_is_refused() -> None:
    with pytest.raises(InputError, match="the entropy is inf"):
        entropy_floor(inf, dimensions=2)
