"""Change of basis: hidden channels rescaled by τ > 0 where they are made and by 1/τ where they are read.

For every linear map between channels with factors τ_in and τ_out, W′ = τ_out W τ_in⁻¹ and b′ = τ_out b; what lies
between commutes with positive factors, so that the function is the same and the architecture and its keys stay.

Through batch norm the running statistics follow: m′ = τm, v′ = τ²(v + ε) − ε. That is exact in eval mode, and in train
mode only up to ε, as batch statistics know nothing of it; `through_norm=False` leaves these factors out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import InputError
from .channel_graph import ChannelGraph, ChannelReport
from .channel_walk import Use
from .laws import Law, check_law, draw_scales
from .move import AxisMap, BlockMap, ChannelMove
from .symmetry import Probe, Sizes


class ChangeOfBasis:
    """Factors of the channels of any traceable network, independent and from one law (see `laws`).

    Frozen parameters move like all others, since the function is kept. A network without a free channel gets the
    identity, and `report` says why. A factor that would make a running variance negative is 1 instead.
    """

    def __init__(self, *, spread: float = 0.8, law: Law = "uniform", through_norm: bool = True) -> None:
        check_law(law, spread)
        self.spread = spread
        self.law: Law = law
        self.through_norm = through_norm

    @property
    def looks_at(self) -> Sizes:
        """Nothing: the network is enough."""
        return Sizes()

    def report(self, model: nn.Module, *, probe: Probe | None = None) -> ChannelReport:
        """How many channels of `model` are free, and which operations pin the others."""
        return ChannelGraph(model, kind="scale", through_norm=self.through_norm).report()

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> ChannelMove:
        """A random rescaling of `model`, which is left as it is."""
        graph = ChannelGraph(model, kind="scale", through_norm=self.through_norm)
        free = torch.tensor(graph.free_channels(), dtype=torch.long)
        scales = torch.ones(len(graph.roots), dtype=torch.float64)
        scales[free] = draw_scales(self.law, len(free), spread=self.spread, generator=generator)
        state = model.state_dict()
        _keep_variances_positive(scales, graph, state)
        axes: dict[str, tuple[AxisMap | BlockMap, ...]] = {}
        offsets: dict[str, float] = {}
        for use in graph.uses:
            factors = scales[graph.roots[list(use.ids)]] ** use.power
            if bool((factors == 1).all()):
                continue
            _check_precision(use.name, state[use.name])
            axes[use.name] = (*axes.get(use.name, ()), _map(use, factors))
            if use.offset:
                offsets[use.name] = use.offset
        return ChannelMove(axes, offsets)


def _map(use: Use, factors: Tensor) -> AxisMap | BlockMap:
    if use.blocks == 1:
        return AxisMap(use.axis, None, factors)
    return BlockMap(tuple(AxisMap(use.axis, None, part) for part in factors.chunk(use.blocks)))


def _keep_variances_positive(scales: Tensor, graph: ChannelGraph, state: dict[str, Tensor]) -> None:
    for use in graph.uses:
        if use.offset:
            roots = graph.roots[list(use.ids)]
            deviation = state[use.name].detach().double().cpu() + use.offset
            negative = ~(scales[roots] ** 2 * deviation > use.offset)
            scales[roots[negative]] = 1.0


def _check_precision(name: str, value: Tensor) -> None:
    if value.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{name} is {value.dtype}: rescaling would round it and change the function; "
            "convert the model with .float() first, or use Permutation, which is exact in any precision"
        )
