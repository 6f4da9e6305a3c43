"""The tensors of a state dict, checked to be what a weight file can hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..errors import WeightsError


def tensors_of(model_or_state: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a model, or the one given, detached; every entry must be a dense tensor with data."""
    state = model_or_state.state_dict() if isinstance(model_or_state, nn.Module) else model_or_state
    return plain_tensors(state, source="the state dict")


def plain_tensors(state: Mapping[str, object], *, source: str) -> dict[str, Tensor]:
    """The entries of `state`, detached; `source` names it in the error about one that is no dense tensor."""
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise WeightsError(
                f"{name!r} in {source} is a {type(tensor).__name__}, no named tensor; keep only the weights"
            )
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise WeightsError(
                f"{name!r} in {source} is no dense tensor with data; densify, dequantise or load it first"
            )
        plain[name] = tensor.detach()
    if not plain:
        raise WeightsError(f"{source} holds no weights; give the state dict of a model")
    return plain


def host_copy(tensor: Tensor) -> Tensor:
    """A copy on the CPU whose bytes lie in the order of its entries."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def check_finite(state: Mapping[str, Tensor], *, source: str) -> None:
    """Refuse NaN and infinities in `state`."""
    for name, tensor in state.items():
        # torch cannot ask an 8-bit float whether it is finite.
        wide = tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
        count = int((~torch.isfinite(wide)).sum())
        if count:
            raise WeightsError(
                f"{name!r} in {source} has {count} entries that are not finite; use weights saved earlier"
            )
