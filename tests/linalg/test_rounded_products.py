"""Second moments by products that a GPU rounds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from warp_unlearning import waiting
from warp_unlearning.linalg.gram import mirrored
from warp_unlearning.linalg.rounded_products import ERROR, rounded_gram, rounded_products

ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def rows() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3000, 40, generator=generator) * 0.8 ** torch.arange(40)


def to_tf32(x: Tensor) -> Tensor:
    """Numbers with 10 bits behind the first, to the nearest."""
    bits = x.view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, ON_A_GPU])])
def test_it_is_the_second_moment_up_to_rounding(device: str) -> None:
    x = rows()
    found = mirrored(rounded_gram(x.to(device)).cpu())
    exact = x.double().mT @ x.double()
    lengths = exact.diagonal(dim1=1, dim2=2).sqrt()
    assert found.dtype == torch.float32
    # Each entry is off by less than twice what rounding takes of both factors, at most 2^-10 of each.
    assert float(((found - exact).abs() / (lengths[:, :, None] * lengths[:, None])).max()) < 2**-9


def test_rounding_takes_no_more_energy_than_it_says() -> None:
    x = rows()
    lost = (x - to_tf32(x)).double().square()
    truncated = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    for error in (lost, (x - truncated).double().square()):
        assert float((error / x.double().square()).max()) <= ERROR


def test_the_switch_is_put_back() -> None:
    switch = torch.backends.cuda.matmul

    def fail() -> None:
        with rounded_products():
            assert switch.fp32_precision == "tf32"
            raise RuntimeError("within")

    before = switch.fp32_precision
    try:
        switch.fp32_precision = "ieee"
        with pytest.raises(RuntimeError, match="within"):
            fail()
        assert switch.fp32_precision == "ieee"
    finally:
        switch.fp32_precision = before


def test_a_lane_keeps_its_turn_while_the_switch_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting._THIS, "leave", lambda: None, raising=False)
    assert waiting.may_leave()
    with rounded_products():
        assert not waiting.may_leave()
