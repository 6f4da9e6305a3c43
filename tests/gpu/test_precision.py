from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from warp_unlearning.gpu.precision import autocast, full_precision, lay_out, lay_out_batch

CPU = torch.device("cpu")


@pytest.mark.parametrize(("precision", "dtype"), [("auto", "float32"), ("float32", "float32"), ("bf16", "bfloat16")])
def test_what_a_forward_pass_computes_in_on_a_cpu(precision: str, dtype: str) -> None:
    layer = nn.Linear(3, 2)
    with autocast(CPU, precision):  # type: ignore[arg-type]
        assert layer(torch.ones(1, 3)).dtype == getattr(torch, dtype)
    assert layer(torch.ones(1, 3)).dtype == torch.float32


def test_auto_asks_for_bf16_on_cuda_and_float32_does_not() -> None:
    cuda = torch.device("cuda")
    with warnings.catch_warnings():
        # Without a device torch says that it will switch the context off.
        warnings.simplefilter("ignore")
        context = autocast(cuda, "auto")
    assert isinstance(context, torch.autocast)
    assert context.fast_dtype == torch.bfloat16
    assert not isinstance(autocast(cuda, "float32"), torch.autocast)


def test_the_layout_stays_on_a_cpu() -> None:
    model, x = nn.Conv2d(2, 3, 3), torch.rand(2, 2, 4, 4)
    assert lay_out(model) is model
    assert lay_out_batch(x) is x
    assert model.weight.is_contiguous()
    empty = nn.ReLU()
    assert lay_out(empty) is empty


def test_nothing_is_rounded_within_the_block_and_everything_is_as_before_after_it() -> None:
    def switches() -> tuple[str, str]:
        return torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision  # type: ignore[attr-defined]

    before = switches()
    with full_precision():
        assert switches() == ("ieee", "ieee")
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
