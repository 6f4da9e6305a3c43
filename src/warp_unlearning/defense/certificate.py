"""The certificate of a teleport: how well it kept the function, and how far each weight moved. `teleporter` makes one
of every move, for the deletion record and for whoever called `teleport`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..symmetry.base import Compose, Probe, Symmetry, settings_of
from ..symmetry.channel_graph import PinnedChannels
from ..symmetry.layer_inputs import InputBasis, reached_inputs
from ..symmetry.moves import Move, parts_of
from ..symmetry.null_space import NullMove

SCHEMA_VERSION = 1
# These begin or end notes that other code looks for.
STAYED = "of the trainable parameters stayed where they were"
TAKEN_BACK = "taken back"


@dataclass(frozen=True)
class Drift:
    """The function before and after a move on one set of examples: the largest change of a logit, the largest logit
    before, the share of changed predictions, and mean cross-entropies.
    """

    examples: int
    largest_logit_change: float
    largest_logit: float
    changed_predictions: float
    loss_before: float
    loss_after: float

    @property
    def relative(self) -> float:
        """The largest logit change relative to the largest logit."""
        return self.largest_logit_change / self.largest_logit if self.largest_logit else self.largest_logit_change

    @property
    def loss_change(self) -> float:
        """The rise of the mean cross-entropy."""
        return self.loss_after - self.loss_before


@dataclass(frozen=True)
class LayerMove:
    """The move of one weight tensor, with its bias if both were moved by one input basis.

    `moved` is ‖Δθ‖ over entries that inputs reach. Entries that none reaches, `moved_unreached`, may move but hide
    nothing. `d`, `rank`, `captured` and `positions` describe the input basis, None for moves without one.
    """

    name: str
    moved: float
    moved_unreached: float
    norm: float
    d: int | None = None
    rank: int | None = None
    captured: float | None = None
    positions: int | None = None


@dataclass(frozen=True)
class Certificate:
    """One teleport.

    `scale` is 1 if the move was made and 0 if it was taken back (certificates of version 0.1 have shares between). The
    move was built from the examples of `retain`. `held_out` is validation data if there is any, else the judges:
    retained examples that the move has not seen (a note says where there are none). Only judges decide on `tolerance`.
    Distances are over trainable parameters that inputs reach, and from the weights an attacker holds. `energy_before`
    and `energy_after` are mean squared gradient norms over a batch of the forget set: None where they cannot be
    measured, infinite after a null-space move that went too far. `left` says why tensors stayed, `pinned` why channels.
    """

    symmetry: str
    settings: Mapping[str, Any]
    scale: float
    retain: Drift
    held_out: Drift | None
    forget: Drift | None
    energy_before: float | None
    energy_after: float | None
    moved: float
    moved_unreached: float
    norm: float
    distance_before: float
    distance_after: float
    layers: tuple[LayerMove, ...]
    left: Mapping[str, str]
    pinned: tuple[PinnedChannels, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def relative_move(self) -> float:
        """‖Δθ‖ / ‖θ‖ over weights that inputs reach."""
        return self.moved / self.norm if self.norm else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain data, with its schema version."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "relative_move": self.relative_move}


def shortfalls(certificates: Sequence[Certificate]) -> list[str]:
    """What limits a defence, for its deletion record: each note of its teleports once, and how many were taken back."""
    if not certificates:
        return ["no teleport was made"]
    notes = [note for certificate in certificates for note in certificate.notes]
    taken_back = sum(note.startswith(TAKEN_BACK) for note in notes)
    others = dict.fromkeys(note for note in notes if not note.startswith(TAKEN_BACK))
    count = [f"{taken_back} of {len(certificates)} teleports were taken back"] if taken_back else []
    return [*others, *count]


def drift(before: Tensor, after: Tensor, y: Tensor) -> Drift:
    """The change from the logits `before` (n, classes) to `after`, for the labels y (n,)."""
    old, new = before.double(), after.double()
    numbers = [
        (after - before).abs().max().double(),
        old.abs().max(),
        (after.argmax(1) != before.argmax(1)).double().mean(),
        F.cross_entropy(old, y),
        F.cross_entropy(new, y),
    ]
    return Drift(len(y), *torch.stack(numbers).tolist())


def certified(
    model: nn.Module,
    symmetry: Symmetry,
    move: Move,
    *,
    harm: str | None,
    before: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    batches: Sequence[Tensor],
    drifts: Mapping[str, Drift],
    energies: tuple[float, float] | None,
) -> Certificate:
    """Measure a move of `model` from the weights `before`, and make its certificate. `harm` says why it was taken back,
    None if it was not; `batches` are retain inputs; `energies` are sums over the forget batch.
    """
    nulls = [part for part in parts_of(move) if isinstance(part, NullMove)]
    why_unmoved = {name: why for part in nulls for name, why in part.left.items()}
    squares = measured(model, before, reference, reached_weights(model, move, batches[:1], made=harm is None))
    notes = [note for part in nulls for note in part.notes]
    notes += _notes_on(model, squares, why_unmoved) if harm is None else [f"{TAKEN_BACK}: {harm}"]
    forget = drifts.get("forget")
    if forget is not None and energies is None:
        notes.append("gradient energies could not be measured on this network")
    means = (None, None) if forget is None or energies is None else [energy / forget.examples for energy in energies]
    return Certificate(
        symmetry=type(symmetry).__name__,
        settings=settings_of(symmetry),
        scale=float(harm is None),
        retain=drifts["retain"],
        held_out=drifts.get("validation", drifts["judges"]),
        forget=forget,
        energy_before=means[0],
        energy_after=means[1],
        **lengths(squares[name] for name, p in model.named_parameters() if p.requires_grad)._asdict(),
        layers=_layer_moves(squares, {name: basis for part in nulls for name, basis in part.bases.items()}),
        left=why_unmoved,
        pinned=pinned_channels(symmetry, model, Probe(batches)),
        notes=tuple(notes),
        seconds=0.0,  # The caller's to fill in.
    )


class Lengths(NamedTuple):
    """Euclidean norms: of a move over the entries that inputs reach and over the others; and over those that inputs
    reach, of the weights before it and of their distance from the reference before and after.
    """

    moved: float
    moved_unreached: float
    norm: float
    distance_before: float
    distance_after: float


def lengths(squares: Iterable[Tensor]) -> Lengths:
    """Add up several tensors: the lengths over all of them, from the squared lengths of each."""
    return Lengths(*torch.stack([torch.zeros(5, dtype=torch.float64), *squares]).sum(0).sqrt().tolist())


@torch.no_grad()
def measured(
    model: nn.Module, before: Mapping[str, Tensor], reference: Mapping[str, Tensor], reached: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The squared `Lengths` (5,) of each tensor's move since the weights `before`. `reached` masks the entries that
    inputs reach, where not all are. A tied weight, which has several names in a state, counts once.
    """
    norms: dict[str, Tensor] = {}
    for name, now in chain(model.named_parameters(), model.named_buffers()):
        if name not in before or not now.is_floating_point():
            continue
        old, mask = before[name], reached.get(name)
        moved, *others = now - old, old, old - reference[name], now - reference[name]
        moved_unreached = moved[:0] if mask is None else moved * ~mask
        if mask is not None:
            moved, *others = (value * mask for value in (moved, *others))
        norms[name] = torch.stack(torch._foreach_norm([moved, moved_unreached, *others], 2, dtype=torch.float64))
    return dict(zip(norms, torch.stack([*norms.values()]).square().cpu(), strict=True))


def reached_weights(model: nn.Module, move: Move, batches: Iterable[Tensor], *, made: bool = True) -> dict[str, Tensor]:
    """Masks of the entries of linear weights that some input reaches, from the bases of the move or, without any, from
    the inputs `batches`. `made` says whether the model stands after the move.
    """
    state = model.state_dict()
    masks: dict[str, Tensor] = {}
    for part in parts_of(move):
        if made:  # A later part may put entries elsewhere.
            masks = {name: part.selection(name, mask) for name, mask in masks.items()}
        if isinstance(part, NullMove):
            masks |= {name: _in_shape(basis.reached, state[name]) for name, basis in part.bases.items()}
    return masks or {name: _in_shape(mask, state[name]) for name, mask in reached_inputs(model, batches).items()}


def _in_shape(reached: Tensor, weight: Tensor) -> Tensor:
    """The reached coordinates (groups, d) of the rows of a weight, in the shape of the weight."""
    if weight.dim() == 1:
        return reached[0, : len(weight)]
    rows = reached[:, None, : weight[0].numel()].expand(-1, len(weight) // len(reached), -1)
    return rows.reshape(weight.shape)


def _layer_moves(squares: Mapping[str, Tensor], bases: Mapping[str, InputBasis]) -> tuple[LayerMove, ...]:
    """The certificate's line for each tensor that moved or has an input basis in `bases`, which covers its bias too."""
    biases = {basis.bias for basis in bases.values()}
    rows = []
    for name in squares:
        basis = bases.get(name)
        if name in biases or (basis is None and not squares[name][:2].any()):
            continue
        layer = lengths(squares[each] for each in ((name,) if basis is None else basis.names))
        of_basis = () if basis is None else (basis.d, basis.rank, basis.captured, basis.positions)
        rows.append(LayerMove(name, layer.moved, layer.moved_unreached, layer.norm, *of_basis))
    return tuple(rows)


def _notes_on(model: nn.Module, squares: Mapping[str, Tensor], why_unmoved: Mapping[str, str]) -> list[str]:
    """Sentences for the certificate where frozen parameters moved, and where most of the trainable ones did not."""
    moved = {name for name, square in squares.items() if square[:2].any()}
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad and name in moved]
    notes = [f"frozen parameters moved with the others: {_and_more(frozen, 1)}"] if frozen else []
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    stayed = sorted(sizes.keys() - moved, key=lambda name: (-sizes[name], name))
    share = sum(sizes[name] for name in stayed) / max(1, sum(sizes.values()))
    if share > 0.5:
        explained = [f"{name} ({why_unmoved[name]})" if name in why_unmoved else name for name in stayed]
        notes.append(f"{100 * share:.0f} % {STAYED}: {_and_more(explained, 3)}")
    return notes


def _and_more(names: list[str], shown: int) -> str:
    """The first `shown` names, and how many more there are."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def pinned_channels(symmetry: Symmetry, model: nn.Module, probe: Probe | None = None) -> tuple[PinnedChannels, ...]:
    """The channels that a symmetry cannot move, by its own report; an error where it cannot move the network at all."""
    if isinstance(symmetry, Compose):
        return tuple(pinned for part in symmetry.symmetries for pinned in pinned_channels(part, model, probe))
    return tuple(symmetry.report(model, probe=probe).pinned) if hasattr(symmetry, "report") else ()
