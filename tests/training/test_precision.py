from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from warp_unlearning.training.precision import autocast, lay_out, lay_out_batch

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
