"""One name for the exact weights of a model: SHA-256 over names, types, shapes and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import torch
from torch import Tensor, nn

from .state_tensors import host_copy, tensors_of


def model_digest(model_or_state: nn.Module | Mapping[str, Tensor]) -> str:
    """The SHA-256 of the state dict, in hexadecimal: equal exactly when every name, type, shape and bit is.

    It does not depend on the order of the entries, their memory layout or their device.

    >>> model_digest({"a": torch.zeros(2)}) == model_digest({"a": torch.zeros(2, dtype=torch.bfloat16)})
    False
    """
    total = sha256()
    for name, tensor in sorted(tensors_of(model_or_state).items()):
        # Type and shape fix the number of bytes that follow, so no two states feed the same stream.
        total.update(f"{(name, str(tensor.dtype), tuple(tensor.shape))!r}\n".encode())
        total.update(host_copy(tensor).reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
