from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from warp_unlearning.gradients.ghost import precision
from warp_unlearning.gradients.ghost.precision import convolutions_round, precision_of_convolutions


@pytest.fixture(autouse=True)
def switches_as_before() -> Iterator[None]:
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.fp32_precision
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.fp32_precision = convolutions, products


@pytest.mark.parametrize("products", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("allowed", [True, False])
def test_products_follow_the_convolutions_and_then_themselves(products: str, allowed: bool) -> None:
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.fp32_precision = allowed, products
    assert convolutions_round() is allowed
    with precision_of_convolutions():
        assert (torch.backends.cuda.matmul.fp32_precision == "tf32") is allowed
    assert torch.backends.cuda.matmul.fp32_precision == products


def test_switches_are_read_without_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_read", None)
    for allowed in (True, False):
        test_products_follow_the_convolutions_and_then_themselves("ieee", allowed)


def test_an_error_leaves_the_switch_as_it_was() -> None:
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.fp32_precision = True, "none"
    with pytest.raises(ZeroDivisionError), precision_of_convolutions():
        raise ZeroDivisionError
    assert torch.backends.cuda.matmul.fp32_precision == "none"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("allowed", "lowest", "highest"), [(True, 1e-5, 1e-3), (False, 0.0, 1e-6)])
def test_products_on_a_gpu(allowed: bool, lowest: float, highest: float) -> None:
    torch.backends.cudnn.allow_tf32 = allowed
    x = torch.randn(4, 256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    on_gpu = x.float().cuda()
    with precision_of_convolutions():
        found = (on_gpu @ on_gpu).cpu()
    expected = x.float().double() @ x.float().double()
    assert lowest <= float((found - expected).norm() / expected.norm()) <= highest
