"""How numbers are computed on a device: bf16 and channels-last on a GPU, float32 elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

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
    """The batch in the layout of `lay_out`."""
    if x.dim() == 4 and x.device.type == "cuda":
        return x.contiguous(memory_format=torch.channels_last)
    return x
