from __future__ import annotations

import pytest
import torch

from warp_unlearning.models.modes import full_precision


def switches() -> tuple[str, str]:
    return torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision  # type: ignore[attr-defined]


def test_nothing_is_rounded_within_the_block_and_everything_is_as_before_after_it() -> None:
    before = switches()
    with full_precision():
        assert switches() == ("ieee", "ieee")
    assert switches() == before


def test_an_error_leaves_the_switches_as_they_were() -> None:
    before = switches()
    with pytest.raises(ZeroDivisionError), full_precision():
        1 / 0
    assert switches() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_convolutions_agree_with_float64() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(8, 64, 16, 16, generator=generator, device="cuda")
    w = torch.randn(64, 64, 3, 3, generator=generator, device="cuda")
    exact = torch.nn.functional.conv2d(x.double(), w.double())
    with full_precision():
        found = torch.nn.functional.conv2d(x, w)
    assert float((found - exact).abs().max() / exact.abs().max()) < 1e-5
