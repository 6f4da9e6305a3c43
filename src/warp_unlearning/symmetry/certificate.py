"""What one teleport did: how well the function was kept, and how far which weights went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.one_pixel_norm import one_pixel_norms
from ..linalg.on_host import on_host
from .channel_graph import PinnedChannels
from .compose import ComposedMove
from .input_bases import InputBasis
from .layer_inputs import reached_inputs
from .move import MomentumReset, Move
from .null_move import NullMove

SCHEMA_VERSION = 1

# Whether a certificate holds all that can be said of a teleport, or what is known without looking again.
Certify = Literal["full", "brief"]
BRIEF = (
    "brief certificate: `retain` is of the examples that judged the move; held-out data, layers and pins were left out"
)


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
    A brief one says so in its notes: its `retain` is of the examples that judged the move, which are retained ones that
    the move was not built from, `held_out` is None, and `layers` and `pinned` are empty.
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
    with one_pixel_norms():
        return torch.cat([model(part) for part in torch.split(x, batch_size)])


@torch.no_grad()
def logits_of_each(model: nn.Module, inputs: Sequence[Tensor], *, batch_size: int = 512) -> list[Tensor]:
    """The logits of several sets of inputs, run together on a GPU, where one pass over all is as fast as over one."""
    alike = len({(x.shape[1:], x.dtype) for x in inputs}) == 1
    if len(inputs) < 2 or not inputs[0].is_cuda or not alike:
        return [logits_of(model, x, batch_size=batch_size) for x in inputs]
    together = logits_of(model, torch.cat(list(inputs)), batch_size=batch_size * len(inputs))
    return list(torch.split(together, [len(x) for x in inputs]))


def drift(before: Tensor, after: Tensor, y: Tensor) -> Drift:
    """Two sets of logits (n, classes) for the labels y (n,) compared."""
    return read_drift(drift_numbers(before, after, y).cpu(), len(y))


def drift_numbers(before: Tensor, after: Tensor, y: Tensor) -> Tensor:
    """What `read_drift` makes a comparison of, float64 (5), not read."""
    old, new = before.double(), after.double()
    numbers = [
        (after - before).abs().max().double(),
        old.abs().max(),
        (after.argmax(1) != before.argmax(1)).double().mean(),
        F.cross_entropy(old, y),
        F.cross_entropy(new, y),
    ]
    return torch.stack(numbers)


def read_drift(numbers: Tensor, examples: int) -> Drift:
    """The comparison by its numbers, on the host."""
    return Drift(examples, *numbers.tolist())


def reached_weights(model: nn.Module, move: Move, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """For every Linear or Conv weight, True where some input reaches it, in the weight's own shape: as the bases of the
    move say, or, where it has none, as `batches` show.
    """
    known = {name: basis.reached for name, basis in bases_of(move).items()}
    state = model.state_dict()
    masks = {}
    for name, reached in (known or reached_inputs(model, batches)).items():
        masks[name] = _in_shape(reached, state[name])
    return masks


def layer_moves(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], move: Move, reached: Mapping[str, Tensor]
) -> tuple[LayerMove, ...]:
    """What moved, tensor by tensor; those that stayed bit-identical and have no basis are left out."""
    bases = bases_of(move)
    biases = {basis.bias: name for name, basis in bases.items() if basis.bias is not None}
    owned = {name: bias for bias, name in biases.items()}
    names = [name for name, old in before.items() if name not in biases and old.is_floating_point()]
    numbers = []
    for name in names:
        parts = [(after[name] - before[name], before[name], reached.get(name))]
        if name in owned:
            bias = owned[name]
            parts.append((after[bias] - before[bias], before[bias], None))
        numbers.append(_squares(parts))
    rows = []
    for name, squares in zip(names, on_host(numbers), strict=True):
        moved, unreached, norm = squares.sqrt().tolist()
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
    where, elsewhere, _ = _squares(pairs).sqrt().tolist()
    return where, elsewhere


@dataclass(frozen=True)
class Distances:
    """How far a teleport went, over trainable parameters: the fields of a certificate of the same names."""

    moved: float
    moved_unreached: float
    norm: float
    distance_before: float
    distance_after: float


def distance_numbers(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    names: Sequence[str],
    reached: Mapping[str, Tensor],
) -> Tensor:
    """What `read_distances` makes distances of, float64 (5), not read; names not in `reached` are reached in full.

    A tensor that is the same object before and after is looked at once.
    """
    if not names:
        return torch.zeros(5, dtype=torch.float64)
    changed = [name for name in names if after[name] is not before[name]]
    count, ordered = len(changed), [*changed, *(name for name in names if after[name] is before[name])]
    old, far = ([values[name] for name in ordered] for values in (before, reference))
    new = [after[name] for name in changed]
    moved, were, are = _differences(new, old[:count]), _differences(old, far), _differences(new, far[:count])
    masks = {place: reached[name].to(old[place].device) for place, name in enumerate(ordered) if name in reached}
    some = {place: mask for place, mask in masks.items() if place < count}
    elsewhere = _products([moved[place] for place in some], [~mask for mask in some.values()])
    where, norm, before_far, after_far = _where([moved, old, were, are], masks)
    squares = _squares_of_each([where, elsewhere, norm, before_far, after_far])
    squares[-1] = torch.cat([squares[-1], squares[-2][count:]])
    return torch.stack([part.sum() for part in squares]).sqrt()


def read_distances(numbers: Tensor) -> Distances:
    """The distances by their numbers, on the host."""
    return Distances(*numbers.tolist())


def partly_reached(move: Move, state: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """`reached_weights` by the bases of a move alone, without the weights of which all is reached; None where it has no
    bases.
    """
    bases = bases_of(move)
    if not bases:
        return None
    some = {n: b.reached for n, b in bases.items() if b.reaches < b.reached.numel()}
    return {name: _in_shape(reached, state[name]) for name, reached in some.items()}


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


def _in_shape(reached: Tensor, weight: Tensor) -> Tensor:
    """Which coordinates of a weight's rows are reached, (groups, d), in the shape of the weight."""
    rows = reached[:, None, : weight[0].numel()].expand(-1, len(weight) // len(reached), -1)
    return rows.reshape(weight.shape)


def _squares(pairs: Iterable[tuple[Tensor, Tensor, Tensor | None]]) -> Tensor:
    """‖Δ‖² where reached, ‖Δ‖² where not, and ‖θ‖² where reached, of (Δ, θ, mask or None for all) triples."""
    rows = []
    for change, value, mask in pairs:
        change, value = change.double(), value.double()
        if mask is None:
            rows.append(torch.stack([change.square().sum(), change.new_zeros(()), value.square().sum()]))
            continue
        mask = mask.to(change.device)
        parts = (change * mask, change * ~mask, value * mask)
        rows.append(torch.stack([part.square().sum() for part in parts]))
    return torch.stack(rows).sum(0) if rows else torch.zeros(3, dtype=torch.float64)


def _where(lists: Sequence[list[Tensor]], masks: Mapping[int, Tensor]) -> list[list[Tensor]]:
    """Each list of tensors, those at places that have a mask multiplied by it: all of them by one call."""
    places = [[place for place in masks if place < len(values)] for values in lists]
    each = [(values[place], masks[place]) for values, some in zip(lists, places, strict=True) for place in some]
    found = iter(_products([value for value, _ in each], [mask for _, mask in each]))
    pairs = zip(lists, places, strict=True)
    return [_replaced(values, {place: next(found) for place in some}) for values, some in pairs]


def _replaced(values: Sequence[Tensor], others: Mapping[int, Tensor]) -> list[Tensor]:
    return [others.get(place, value) for place, value in enumerate(values)]


def _products(values: list[Tensor], masks: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_mul(values, masks)) if values else []


def _differences(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_sub(first, second)) if first else []


def _squares_of_each(lists: Sequence[list[Tensor]]) -> list[Tensor]:
    """The squared lengths of the tensors of each list, float64."""
    every = [value for values in lists for value in values]
    squares = torch.stack(torch._foreach_norm(every, 2, dtype=torch.float64)).square()
    return list(torch.split(squares, [len(values) for values in lists]))
