"""A tiny network and data for the tests of training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.symmetry.moves import AxisMap, ChannelMove


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)
        model(torch.randn(20, 5, dtype=dtype))
    return model


def points(count: int = 20, seed: int = 1, dtype: torch.dtype = torch.float64) -> TensorExamples:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count,), generator=generator)
    x = torch.randn(count, 5, generator=generator, dtype=dtype) + y.unsqueeze(1)
    return TensorExamples(x, y)


def hidden_move(order: list[int], scale: Tensor | None = None) -> ChannelMove:
    """The hidden units of the network permuted; with a scale, their responses rescaled after batch norm as well."""
    index = torch.tensor(order)
    rows, after = AxisMap(0, index), AxisMap(0, index, scale)
    back = AxisMap(1, index, None if scale is None else 1 / scale)
    names = ("0.weight", "1.running_mean", "1.running_var")
    return ChannelMove(dict.fromkeys(names, (rows,)) | {"1.weight": (after,), "1.bias": (after,), "3.weight": (back,)})
