"""scikit-learn's handwritten digits: 1,797 grey images of 8 by 8, values 0 to 16, split once and for all."""

from __future__ import annotations

import numpy as np

from .dataset import ImageData, image_data
from .stratified import fixed_test_part

_TEST_FRACTION = 397 / 1797


def load_digits() -> ImageData:
    """1,400 training and 397 test digits, the classes in proportion."""
    # Takes a second to import, also where other data are asked for.
    from sklearn.datasets import load_digits as read_digits

    x, y = read_digits(return_X_y=True)
    images = x.reshape(-1, 8, 8).astype(np.uint8)
    train, test = fixed_test_part(y, fraction=_TEST_FRACTION, name="digits")
    return image_data(
        "digits",
        train=(images[train], y[train]),
        test=(images[test], y[test]),
        classes=[str(digit) for digit in range(10)],
        layout="nhw",
        scale=16.0,
    )
