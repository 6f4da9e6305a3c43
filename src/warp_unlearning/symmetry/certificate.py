"""What one teleport did: how well the function was kept, and how far which weights went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .channel_graph import PinnedChannels
from .compose import ComposedMove
from .input_bases import InputBasis
from .layer_inputs import reached_inputs
from .move import MomentumReset, Move
from .null_move import NullMove

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Drift:
    """The function before and after, on one set of examples: the largest change of a logit, the largest logit before,
    the share of predictions that changed, and the mean cross-entropies.
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
        """Mean cross-entropy after less before: positive where the move did harm."""
        return self.loss_after - self.loss_before


@dataclass(frozen=True)
class LayerMove:
    """One weight tensor, its bias included where that moves with it.

    `moved` is ‖Δθ‖ where inputs reach and `moved_unreached` where none does: a dead tap moves parameters but hides
    nothing. `d`, `rank`, `captured`, `positions` are those of the input basis, None for moves that need none.
    """

    name: str
    moved: float
    moved_unreached: float
    norm: float
    d: int | None = None
    rank: int | None = None
    captured: float | None = None
    positions: int | None = None

    @property
    def share_unreached(self) -> float:
        """The share of the squared move that lies in weights no input reaches."""
        total = self.moved**2 + self.moved_unreached**2
        return self.moved_unreached**2 / total if total else 0.0


@dataclass(frozen=True)
class Certificate:
    """One teleport.

    `scale` is the share of the proposed move that was made: 1 for all of it, 0 where it was taken back. Distances are
    over trainable parameters; `distance_before` and `distance_after` from the weights an attacker holds, where inputs
    reach. `energy_before` and `energy_after` are mean squared gradient norms over a batch of examples to forget.
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
        """Plain data, with the version of its form."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "relative_move": self.relative_move}


Labelled = tuple[Tensor, Tensor]


@torch.no_grad()
def logits_of(model: nn.Module, x: Tensor, *, batch_size: int = 512) -> Tensor:
    """The logits of all of x, shape (n, classes), with the model as it stands."""
    return torch.cat([model(part) for part in torch.split(x, batch_size)])


def drift(before: Tensor, after: Tensor, y: Tensor) -> Drift:
    """Two sets of logits (n, classes) for the labels y (n,) compared."""
    return Drift(
        examples=len(y),
        largest_logit_change=float((after - before).abs().max()),
        largest_logit=float(before.abs().max()),
        changed_predictions=float((after.argmax(1) != before.argmax(1)).double().mean()),
        loss_before=float(F.cross_entropy(before.double(), y)),
        loss_after=float(F.cross_entropy(after.double(), y)),
    )


def reached_weights(model: nn.Module, move: Move, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """For every Linear or Conv weight, True where some input reaches it, in the weight's own shape: as the bases of the
    move say, or, where it has none, as `batches` show.
    """
    known = {name: basis.reached for name, basis in bases_of(move).items()}
    state = model.state_dict()
    masks = {}
    for name, reached in (known or reached_inputs(model, batches)).items():
        weight = state[name]
        rows = reached[:, None, : weight[0].numel()].expand(-1, len(weight) // len(reached), -1)
        masks[name] = rows.reshape(weight.shape)
    return masks


def layer_moves(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], move: Move, reached: Mapping[str, Tensor]
) -> tuple[LayerMove, ...]:
    """What moved, tensor by tensor; those that stayed bit-identical and have no basis are left out."""
    bases = bases_of(move)
    biases = {basis.bias: name for name, basis in bases.items() if basis.bias is not None}
    rows = []
    for name, old in before.items():
        if name in biases or not old.is_floating_point():
            continue
        pairs = [(after[name] - old, old, reached.get(name))]
        bias = next((b for b, owner in biases.items() if owner == name), None)
        if bias is not None:
            pairs.append((after[bias] - before[bias], before[bias], None))
        moved, unreached, norm = _lengths(pairs)
        basis = bases.get(name)
        if moved == 0 and unreached == 0 and basis is None:
            continue
        known = (None,) * 4 if basis is None else (basis.d, basis.rank, basis.captured, basis.positions)
        rows.append(LayerMove(name, moved, unreached, norm, *known))
    return tuple(rows)


def distance(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], names: Iterable[str], reached: Mapping[str, Tensor]
) -> tuple[float, float]:
    """‖first − second‖ over the named tensors where inputs reach, and where none does."""
    pairs = [(first[name] - second[name], second[name], reached.get(name)) for name in names]
    return _lengths(pairs)[:2]


def bases_of(move: Move) -> dict[str, InputBasis]:
    """The input bases that the null-space parts of a move know, by weight name."""
    return {name: basis for part in _parts(move) if isinstance(part, NullMove) for name, basis in part.bases.items()}


def left_and_noted(move: Move) -> tuple[dict[str, str], tuple[str, ...]]:
    """Why parameters stayed, and notes, of all null-space parts of a move."""
    left: dict[str, str] = {}
    notes: list[str] = []
    for part in _parts(move):
        if isinstance(part, NullMove):
            left |= part.left
            notes += part.notes
    return left, tuple(notes)


def _parts(move: Move) -> Iterator[Move]:
    if isinstance(move, MomentumReset):
        yield from _parts(move.move)
    elif isinstance(move, ComposedMove):
        for part in move.moves:
            yield from _parts(part)
    else:
        yield move


def _lengths(pairs: Iterable[tuple[Tensor, Tensor, Tensor | None]]) -> tuple[float, float, float]:
    """‖Δ‖ where reached, ‖Δ‖ where not, and ‖θ‖ where reached, of (Δ, θ, mask or None for all) triples."""
    moved = unreached = norm = 0.0
    for change, value, mask in pairs:
        change, value = change.double(), value.double()
        if mask is None:
            moved, norm = moved + float(change.square().sum()), norm + float(value.square().sum())
            continue
        mask = mask.to(change.device)
        moved += float((change * mask).square().sum())
        unreached += float((change * ~mask).square().sum())
        norm += float((value * mask).square().sum())
    return moved**0.5, unreached**0.5, norm**0.5
