from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.attacks.reconstruction.blind import class_means, overall_mean
from warp_unlearning.attacks.reconstruction.image_metrics import mse
from warp_unlearning.errors import InputError


@given(
    st.lists(st.sampled_from([0, 2, 7]), min_size=1, max_size=12),
    st.lists(st.integers(0, 8), min_size=1, max_size=6),
    st.integers(0, 999),
)
def test_each_target_has_the_mean_of_its_class_or_of_all(probe, wanted, seed) -> None:
    x = torch.rand(len(probe), 2, 3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    guess = class_means(x, torch.tensor(probe), torch.tensor(wanted))
    for image, label in zip(guess.images, wanted, strict=True):
        own = [v for v, y in zip(x, probe, strict=True) if y == label] or list(x)
        torch.testing.assert_close(image, sum(own) / len(own))
    missing = sorted(set(wanted) - set(probe))
    assert bool(guess.note) == bool(missing)
    if missing:
        targets = sum(label in missing for label in wanted)
        assert f"class {', '.join(map(str, missing))}:" in guess.note
        assert f"({targets} targets)" in guess.note


def test_no_constant_guess_has_a_smaller_error_on_the_probe() -> None:
    x = torch.rand(40, 1, 5, 5, generator=torch.Generator().manual_seed(20), dtype=torch.float64)
    mean = overall_mean(x, count=40)
    assert mean.images.shape == x.shape
    error = mse(mean.images, x).mean()
    for step in (0.01, -0.01):
        assert mse(mean.images + step, x).mean() > error
    torch.testing.assert_close(mean.images[3], x.mean(0))


def test_the_type_is_the_images() -> None:
    x = torch.rand(6, 1, 2, 2)
    assert class_means(x, torch.arange(6), torch.arange(6)).images.dtype == torch.float32
    assert overall_mean(x, count=2).images.dtype == torch.float32
    assert (class_means(x, torch.arange(6), torch.arange(6)).name, overall_mean(x, count=1).name) == (
        "class mean",
        "overall mean",
    )


def test_bad_input_is_refused() -> None:
    x, y = torch.rand(4, 1, 3, 3), torch.tensor([0, 1, 1, 0])
    with pytest.raises(InputError, match="4 probe images have labels of shape"):
        class_means(x, y[:3], y)
    with pytest.raises(InputError, match="labels of the targets"):
        class_means(x, y, y.float())
    with pytest.raises(InputError, match="labels of the targets"):
        class_means(x, y, y[:0])
    with pytest.raises(InputError, match="labels of the probe images"):
        class_means(x, y.float(), y)
    with pytest.raises(InputError, match="0 targets"):
        overall_mean(x, count=0)
    with pytest.raises(InputError, match="not finite"):
        overall_mean(x / 0, count=1)
