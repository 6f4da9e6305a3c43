"""Attention basis: exact symmetries of transformers that act on the weights alone.

- heads: Q′ = M Q, K′ = M⁻ᵀ K for queries and keys of each head, V′ = N V, W_o′ = W_o N⁻¹ for values and output, where
  Q, K, V are rows of weights with their biases. Q′ᵀ K′ = Qᵀ K, and softmax weights mix tokens, not channels.
- norms: γ′ = τ γ, β′ = τ β where linear layers alone read the output, W′ = W diag(τ)⁻¹ in each of them.
- units: the hidden units of the MLP in another order. GELU is not homogeneous, so they are not rescaled.

The residual stream itself has no such freedom, as LayerNorm measures it. Exact in eval and in train mode, where only
dropout of units falls on others than before, and is as likely to.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..errors import InputError
from .attention_check import checked_parts
from .attention_draw import draw_axes
from .attention_layouts import known_parts
from .attention_parts import Kind, Part, described
from .channel_graph import ChannelReport, PinnedChannels
from .laws import Law, check_law
from .move import ChannelMove
from .symmetry import Probe, Sizes


class AttentionBasis:
    """Independent random maps of all heads, norms and units of the attention blocks whose layout is known.

    `heads`, `norms` and `units` switch a kind off. Singular values of the matrices of heads and factors of norms are
    independent and from one law (see `laws`); at the default, uniform on 1 ± 0.5, no matrix has a condition number
    above 3. Matrices are rotated at random, so a smaller spread does not make the move short.

    What a layout says is tried on a random copy of the network before it is relied on, at the cost of some forward
    passes and a backward pass of two inputs in float64. What cannot be confirmed stays, and `report` says why. Without
    a known attention layer the move is the identity. A probe lends the shape of an input, for networks whose input
    cannot be guessed; of its values, only whole numbers are used.
    """

    def __init__(
        self, *, spread: float = 0.5, law: Law = "uniform", heads: bool = True, norms: bool = True, units: bool = True
    ) -> None:
        check_law(law, spread)
        if not (heads or norms or units):
            raise InputError("AttentionBasis was told to move neither heads nor norms nor units; leave one of them on")
        self.spread = spread
        self.law: Law = law
        self.heads, self.norms, self.units = heads, norms, units

    @property
    def looks_at(self) -> Sizes:
        """Nothing: the network is enough, and a probe that is there anyway shows the shape of an input."""
        return Sizes()

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
        """A random member of the family for `model`, which is left as it is."""
        parts = _moving(self._parts(model, probe))
        state = model.state_dict()
        for part in parts:
            for place in part.places:
                _check_precision(place.name, state[place.name], part)
        return ChannelMove(draw_axes(parts, law=self.law, spread=self.spread, generator=generator))

    def _parts(self, model: nn.Module, probe: Probe | None) -> tuple[Part, ...]:
        parts = known_parts(model)
        if not parts:
            return ()
        moved: dict[Kind, bool] = {"heads": self.heads, "norms": self.norms, "units": self.units}
        wanted = [part if part.pinned or moved[part.kind] else _switched_off(part) for part in parts]
        return checked_parts(model, wanted, probe=probe, outer_norms=self.norms)


def _switched_off(part: Part) -> Part:
    return replace(part, pinned=f"{part.kind}=False")


def _moving(parts: tuple[Part, ...]) -> list[Part]:
    """Those free to move; a single unit has no other place to go to."""
    return [part for part in parts if not part.pinned and (part.kind != "units" or part.width > 1)]


def _outside(model: nn.Module, parts: tuple[Part, ...]) -> list[PinnedChannels]:
    """Weights that no part holds; to read what a norm makes says nothing about a layer's own channels."""
    held = {place.name for part in parts for place in (part.made if part.kind == "norms" else part.places)}
    found = []
    for name, value in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        if name in held or not leaf.endswith("weight") or isinstance(value, nn.UninitializedParameter):
            continue
        owner = described(path, model.get_submodule(path))
        why = f"{owner}, which belongs to no attention block of a known layout"
        found.append(PinnedChannels(name, len(value) if value.dim() else 1, (why,)))
    return found


def _check_precision(name: str, value: Tensor, part: Part) -> None:
    if part.kind != "units" and value.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{name} is {value.dtype}: rescaling would round it and change the function; convert the model with "
            ".float() first, or use AttentionBasis(heads=False, norms=False), which is exact in any precision"
        )
