"""Arrays and weights as the bytes of files that a store keeps."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor


def array_bytes(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """An .npz file; the same arrays give the same bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **{name: np.asarray(value, order="C") for name, value in arrays.items()})  # type: ignore[arg-type]
    return buffer.getvalue()


def arrays_of(data: bytes) -> dict[str, NDArray[np.generic]]:
    """The arrays of an .npz file; nothing in it is unpickled."""
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def weight_bytes(state: Mapping[str, Tensor]) -> bytes:
    """A safetensors file of a state dict, on the CPU. Tensors that share memory are written each by itself."""
    return save({name: value.detach().cpu().contiguous().clone() for name, value in state.items()})


def weights_of(data: bytes) -> dict[str, Tensor]:
    """The state dict of a safetensors file."""
    return load(data)
