"""Numbers brought to the host together: on a GPU every read waits for all that was launched before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..waiting import await_device


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor in float64 on the host, in its shape, by one transfer for each device they lie on."""
    found: list[Tensor | None] = [None] * len(tensors)
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        kinds: dict[torch.dtype, list[int]] = {}
        for place, tensor in enumerate(tensors):
            if tensor.device == device:
                kinds.setdefault(tensor.dtype, []).append(place)
        places = [place for own in kinds.values() for place in own]
        with torch.no_grad():
            parts = [torch.cat([_flat(tensors[place]) for place in own]).double() for own in kinds.values()]
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        await_device(device)
        joined = joined.cpu()
        for place, part in zip(places, torch.split(joined, [tensors[place].numel() for place in places]), strict=True):
            found[place] = part if tensors[place].dim() == 1 else part.reshape(tensors[place].shape)
    return [part for part in found if part is not None]


def _flat(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 1 else tensor.reshape(-1)
