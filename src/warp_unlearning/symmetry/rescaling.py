"""Hidden channels rescaled wherever they are made or read.

For every linear map between channels with factors τ_in and τ_out, W′ = τ_out W τ_in⁻¹ and b′ = τ_out b; what lies
between commutes with positive factors. Through batch norm the running statistics follow: m′ = τm, v′ = τ²(v + ε) − ε.
That is exact in eval mode, and in train mode only up to ε, as batch statistics know nothing of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import InputError, nearest
from .base import Probe, Sizes, option
from .channel_graph import ChannelGraph, ChannelReport
from .moves import AxisMap, ChannelMove, TensorMap, in_blocks

Law = Literal["uniform", "lognormal", "truncated_normal"]

LEAST_NORMAL = 0.05
# Beyond it the factors of one network span more orders of magnitude than float32 weights bear.
_LARGEST_LOG_SPREAD = 3.0


def check_law(law: str, spread: float) -> None:
    """Refuse an unknown law, and a spread that would make a scale zero, negative or infinite."""
    if law not in get_args(Law):
        raise InputError(f"law is {law!r}; {nearest(str(law), get_args(Law))}")
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not math.isfinite(spread) or spread <= 0:
        raise InputError(f"spread is {spread!r}; give a number above 0")
    if law == "uniform" and spread >= 1:
        raise InputError(
            f"spread is {spread}: uniform factors on 1 ± spread could be zero or negative; "
            "give a spread below 1, or law='lognormal'"
        )
    if law == "lognormal" and spread > _LARGEST_LOG_SPREAD:
        raise InputError(
            f"spread is {spread}: it is the standard deviation of log τ; give at most {_LARGEST_LOG_SPREAD:g}"
        )


def draw_scales(law: Law, count: int, *, spread: float, generator: torch.Generator) -> Tensor:
    """`count` independent positive factors τ in float64, on the CPU.

    - uniform: τ ~ U(1 − s, 1 + s), 0 < s < 1;
    - lognormal: log τ ~ N(−s², s²), so that E[r²] = 1 for r = τ, the factor of the weights that lead into one free
      channel from a pinned one, and of the gradients that lead out of it into a pinned one. A weight between two free
      channels has the factor τ_out / τ_in, with E = exp(4s²) for its square, whatever the mean of log τ is;
    - truncated_normal: τ ~ N(1, s²) given τ > 0.05. (Without the truncation, s = 0.8 makes 10.6 % of the factors
      negative, which no ReLU network survives.)
    """
    check_law(law, spread)
    device = generator.device
    if law == "lognormal":
        normal = torch.randn(count, generator=generator, dtype=torch.float64, device=device)
        return (spread * normal - spread**2).exp().cpu()
    uniform = torch.rand(count, generator=generator, dtype=torch.float64, device=device)
    if law == "uniform":
        return (1 + spread * (2 * uniform - 1)).cpu()
    below = torch.special.ndtr(torch.tensor((LEAST_NORMAL - 1) / spread, dtype=torch.float64, device=device))
    standard = torch.special.ndtri(below + (1 - below) * uniform)
    drawn: Tensor = (1 + spread * standard).clamp(min=LEAST_NORMAL).cpu()
    return drawn


@dataclass(kw_only=True)
class ChangeOfBasis:
    """Factors of the channels of any traceable network, independent and from one law (see `draw_scales`).

    Frozen parameters move like all others, since the function is kept. A network without a free channel gets the
    identity, and `report` says why. A factor that would make a running variance negative is 1 instead.
    `through_norm=False` leaves out factors between a layer and its batch norm, so that train mode is exact too.
    """

    looks_at: ClassVar[Sizes] = Sizes()

    spread: float = option(0.8, "width of the law of the scales")
    law: Law = option("uniform", "law of the scales: uniform on 1 ± spread, or log-normal or normal of that deviation")
    through_norm: bool = option(True, "rescale also between a layer and its batch norm, running statistics included")

    def __post_init__(self) -> None:
        check_law(self.law, self.spread)

    def report(self, model: nn.Module, *, probe: Probe | None = None) -> ChannelReport:
        """How many channels of `model` are free, and which operations pin the others."""
        return ChannelGraph(model, kind="scale", through_norm=self.through_norm).report()

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> ChannelMove:
        """Draw a factor for every free channel; each use of a channel in the weights gets its power of the factor."""
        graph = ChannelGraph(model, kind="scale", through_norm=self.through_norm)
        free = torch.tensor(graph.free_channels(), dtype=torch.long)
        scales = torch.ones(len(graph.roots), dtype=torch.float64)
        scales[free] = draw_scales(self.law, len(free), spread=self.spread, generator=generator)
        state = model.state_dict()
        _keep_variances_positive(scales, graph, state)
        axes: dict[str, tuple[TensorMap, ...]] = {}
        offsets: dict[str, float] = {}
        for use in graph.uses:
            factors = scales[graph.channels(use)] ** use.power
            if bool((factors == 1).all()):
                continue
            if state[use.name].dtype not in (torch.float32, torch.float64):
                raise InputError(
                    f"{use.name} is {state[use.name].dtype}: rescaling would round it and change the function; "
                    "convert the model with .float() first, or use Permutation, which is exact in any precision"
                )
            maps = [AxisMap(use.axis, scale=part) for part in factors.chunk(use.blocks)]
            axes[use.name] = (*axes.get(use.name, ()), in_blocks(maps))
            if use.offset:
                offsets[use.name] = use.offset
        return ChannelMove(axes, offsets)


def _keep_variances_positive(scales: Tensor, graph: ChannelGraph, state: dict[str, Tensor]) -> None:
    """Set to 1, in place, each factor τ that would make a running variance v negative, as τ²(v + ε) − ε."""
    for use in graph.uses:
        if use.offset:
            channels = graph.channels(use)
            shifted = state[use.name].detach().double().cpu() + use.offset
            negative = ~(scales[channels] ** 2 * shifted > use.offset)
            scales[channels[negative]] = 1.0
