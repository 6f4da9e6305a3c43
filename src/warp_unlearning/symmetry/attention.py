"""Attention basis: exact symmetries of transformers that act on the weights alone.

- heads: Q′ = M Q, K′ = M⁻ᵀ K for queries and keys of each head, V′ = N V, W_o′ = W_o N⁻¹ for values and output, where
  Q, K, V are rows of weights with their biases. Q′ᵀ K′ = Qᵀ K, and softmax weights mix tokens, not channels.
- norms: γ′ = τ γ, β′ = τ β where linear layers alone read the output, W′ = W diag(τ)⁻¹ in each of them.
- units: the hidden units of the MLP in another order. GELU is not homogeneous, so they are not rescaled.

The residual stream itself has no such freedom, as LayerNorm measures it. Exact in eval and in train mode, where only
dropout of units falls on others than before, and is as likely to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from ..errors import InputError
from .attention_check import checked_parts, draw_axes
from .attention_layouts import Part, described, known_parts
from .base import Probe, Sizes, option
from .channel_graph import ChannelReport, PinnedChannels
from .moves import ChannelMove
from .rescaling import Law, check_law


@dataclass(kw_only=True)
class AttentionBasis:
    """Independent random maps of all heads, norms and units of the attention blocks whose layout is known.

    `heads`, `norms` and `units` switch a kind off. Singular values of the matrices of heads and factors of norms are
    independent and from one law (see `draw_scales`); at the default, uniform on 1 ± 0.5, no matrix has a condition
    number above 3. Matrices are rotated at random, so a smaller spread does not make the move short.

    What a layout says is tried on a random copy of the network before it is relied on, at the cost of some forward
    passes and a backward pass of two inputs in float64. What cannot be confirmed stays, and `report` says why. Without
    a known attention layer the move is the identity. A probe lends the shape of an input, for networks whose input
    cannot be guessed; of its values, only whole numbers are used.
    """

    looks_at: ClassVar[Sizes] = Sizes()

    spread: float = option(0.5, "width of the law of the scales")
    law: Law = option("uniform", "law of the scales: uniform on 1 ± spread, or log-normal or normal of that deviation")
    heads: bool = option(True, "move the bases of attention heads")
    norms: bool = option(True, "rescale between layer norms and the layers that read them")
    units: bool = option(True, "reorder the hidden units of MLPs")

    def __post_init__(self) -> None:
        check_law(self.law, self.spread)
        if not (self.heads or self.norms or self.units):
            raise InputError("AttentionBasis moves neither heads nor norms nor units; leave one of them on")

    def report(self, model: nn.Module, *, probe: Probe | None = None) -> ChannelReport:
        """How many channels of `model` move, and what pins the others, by the tensor that makes them."""
        parts = self._parts(model, probe)
        pinned = [
            PinnedChannels(part.made[0].name if part.made else part.label, part.channels, (part.pinned,))
            for part in parts
            if part.pinned
        ]
        return ChannelReport(sum(part.channels for part in _moving(parts)), (*pinned, *_outside(model, parts)))

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> ChannelMove:
        """Draw a map of every free part; weights too coarse to be rescaled are refused."""
        parts = _moving(self._parts(model, probe))
        state = model.state_dict()
        for name in (place.name for part in parts if part.kind != "units" for place in part.places):
            if state[name].dtype not in (torch.float32, torch.float64):
                raise InputError(
                    f"{name} is {state[name].dtype}: rescaling would round it and change the function; convert the "
                    "model with .float() first, or use AttentionBasis(heads=False, norms=False), which is exact in "
                    "any precision"
                )
        return ChannelMove(draw_axes(parts, law=self.law, spread=self.spread, generator=generator))

    def _parts(self, model: nn.Module, probe: Probe | None) -> tuple[Part, ...]:
        """Every part of the model, free to move or pinned with the reason: a kind switched off, or a failed check."""
        off = [kind for kind in ("heads", "norms", "units") if not getattr(self, kind)]
        parts = known_parts(model)
        wanted = [
            part if part.kind not in off else replace(part, pinned=part.pinned or f"{part.kind}=False")
            for part in parts
        ]
        return checked_parts(model, wanted, probe=probe, outer_norms=self.norms) if parts else ()


def _moving(parts: Sequence[Part]) -> list[Part]:
    """The parts that are free to move; a single unit cannot be reordered."""
    return [part for part in parts if not part.pinned and (part.kind != "units" or part.width > 1)]


def _outside(model: nn.Module, parts: Sequence[Part]) -> list[PinnedChannels]:
    """Weights whose own channels belong to no part; layers that only read a norm's output are among them."""
    covered = {place.name for part in parts for place in (part.made if part.kind == "norms" else part.places)}
    outside = []
    for name, value in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        if name in covered or not leaf.endswith("weight") or isinstance(value, nn.UninitializedParameter):
            continue
        owner = described(path, model.get_submodule(path))
        reason = f"{owner}, which belongs to no attention block of a known layout"
        outside.append(PinnedChannels(name, len(value) if value.dim() else 1, (reason,)))
    return outside
