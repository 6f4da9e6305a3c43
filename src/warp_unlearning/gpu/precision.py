"""How numbers are computed: bf16 and channels-last on a GPU, float32 elsewhere, and exactly to compare two networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Precision = Literal["auto", "float32", "bf16"]


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """The context a forward pass runs in; "auto" is bf16 on a CUDA device and float32 elsewhere."""
    if precision == "bf16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def lay_out(model: nn.Module) -> nn.Module:
    """The model in the memory layout its device is fastest with (channels-last on CUDA); shapes are unchanged."""
    first = next(model.parameters(), None)
    if first is not None and first.device.type == "cuda":
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return model


def lay_out_batch(x: Tensor) -> Tensor:
    """Images in the memory layout that `lay_out` gives a model: channels last on a GPU, as they are elsewhere."""
    if x.dim() == 4 and x.device.type == "cuda":
        return x.contiguous(memory_format=torch.channels_last)
    return x


@contextmanager
def full_precision() -> Iterator[None]:
    """Within the block nothing is rounded to TF32, whose 10 bits are too coarse to see whether a function was kept.

    The switches belong to the process, not to a thread.
    """
    switches = [torch.backends.cudnn.conv, torch.backends.cuda.matmul]  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


def math_attention() -> AbstractContextManager[None]:
    """Within the block attention is plain products, which can be differentiated twice, by rule and by example."""
    return sdpa_kernel(SDPBackend.MATH)
