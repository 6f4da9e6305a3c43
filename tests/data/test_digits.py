import numpy as np
import torch
from sklearn.datasets import load_digits as read_digits
from warp_unlearning.data.digits import load_digits


def test_every_digit_is_in_one_part_and_the_classes_are_in_proportion() -> None:
    data = load_digits()
    x, y = read_digits(return_X_y=True)
    assert (len(data.train), len(data.test), data.shape) == (1400, 397, (1, 8, 8))
    raw = torch.cat([data.train.x, data.test.x]).mul(data.std[0]).add(data.mean[0]).mul(16).round().reshape(-1, 64)
    labels = torch.cat([data.train.y, data.test.y])
    ours = sorted([*row, label] for row, label in zip(raw.int().tolist(), labels.tolist(), strict=True))
    assert ours == sorted([*row, label] for row, label in zip(x.astype(int).tolist(), y.tolist(), strict=True))
    expected = np.bincount(y) * 397 / 1797
    assert np.abs(data.test.y.bincount().numpy() - expected).max() < 1


def test_the_split_never_changes() -> None:
    torch.manual_seed(1)
    assert load_digits().digest == "2ab58d21a0156647c67bd0659233604f2ead9323bac96e5e1c180790c983a741"
