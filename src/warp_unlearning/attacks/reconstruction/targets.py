"""What an attacker reads from pairs of models: directions to match, distances from them, and labels.

The target of a threat is the difference of its two models, with as much of a defence removed as a pre-step finds. It
points where the gradient of the forgotten examples does, at unit length. Predictions have shape (n, r, *parameter) by
name, r for each of n targets (n, *parameter). Every distance is 0 where both have one direction, and does not depend
on their lengths:

- cosine: 1 − ⟨p, t⟩ / (‖p‖‖t‖) over all parameters at once;
- euclidean: ‖cp − t‖² / ‖t‖² with the step c fitted, 1 − cos² for c > 0 and 1 else;
- kernels: 1 − Σ_k ⟨p_k, t_k/‖t_k‖⟩ / Σ_k ‖p_k‖ over kernels k, each the weights between two channels: factors of
  channels do not change it;
- rows: the same over rows, all weights that lead into one channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.linalg import vecdot

from ...errors import DataError, InputError
from ...linalg.subspace import SecondMoment, project_out
from ...symmetry.layer_inputs import LinearWeight, linear_weights
from ..undo import make_pre_step, pre_steps
from ..undo.base import Held, PreStep, Undo, Weights, checked_state, difference, undone_model, with_shared_names
from ..undo.inputs import first_layers
from ..undo.probes import single_gradients
from .threat import Threat

Distance = Literal["cosine", "kernels", "rows", "euclidean"]

# Below every length that matters, and its root still a number in float32.
TINY = 1e-30
# Examples whose gradients are taken at once.
_CHUNK = 20


@dataclass(frozen=True, eq=False)
class Targets:
    """Directions (n, *parameter) of unit length, in the models' precision, and the distance that predictions are
    compared by. `unmoved` names the parameters that are the same in all models, such as frozen ones; they are left out.
    """

    values: dict[str, Tensor]
    distance: Distance
    unmoved: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def part(self, rows: slice) -> Targets:
        """Some of the targets."""
        return Targets({name: value[rows] for name, value in self.values.items()}, self.distance, self.unmoved)


def readings() -> dict[str, str]:
    """Every way to read a difference, with what it does in a line."""
    return pre_steps() | {"filtered": "keep what the original's probe gradients span and the unlearned model's do not"}


def read_targets(threats: Sequence[Threat], *, after: str, distance: Distance = "cosine") -> Targets:
    """The targets of threats that share one original.

    After "scale-free" kernels are compared by their directions, and after "input-layer" the rows of the first layers.
    """
    first, states = threats[0], [t.unlearned.state_dict() for t in threats]
    undone: Sequence[Weights] = states
    if after not in ("naive", "scale-free", "input-layer"):
        step: PreStep = SubspaceFilter() if after == "filtered" else make_pre_step(after)
        undo = step.prepared(first.held)
        undone = [undo(state) for state in states]
    found = [difference(first.original, state) for state in undone]
    names = [weight.name for weight in first_layers(held_or_blank(first))] if after == "input-layer" else list(found[0])
    before = first.original.state_dict()
    unmoved = tuple(name for name in names if all(torch.equal(state[name], before[name]) for state in states))
    moved = [name for name in names if name not in unmoved]
    if not moved:
        same = ", ".join(unmoved[:3])
        raise InputError(f"nothing that {after!r} reads moved between the models: {same} are the same")
    stacked = {
        name: torch.stack([d[name] if t.ascent else -d[name] for d, t in zip(found, threats, strict=True)])
        for name in moved
    }
    empty = _energy(stacked) == 0
    if bool(empty.any()):
        raise InputError(
            f"nothing is left of difference {int(empty.nonzero()[0])} after {after!r}: what it read did not change "
            "between the models"
        )
    by_parts: dict[str, Distance] = {"scale-free": "kernels", "input-layer": "rows"}
    values = {name: value.to(first.dtype) for name, value in unit_length(stacked).items()}
    return Targets(values, by_parts.get(after, distance), unmoved)


def held_or_blank(threat: Threat) -> Held:
    """What finding the first layers takes: the attacker's probes, or a blank input of the right shape."""
    if threat.probes is not None:
        return threat.held
    return Held(threat.original, (threat.blank(), torch.zeros(1, dtype=torch.long)))


def distances(predicted: Weights, targets: Weights, kind: Distance) -> Tensor:
    """The distance of every prediction from its target, shape (n, r); targets have unit length."""
    if kind in ("kernels", "rows"):
        pairs = [_by_parts(predicted[name], t, axes=2 if kind == "kernels" else 1) for name, t in targets.items()]
        agreement, length = (torch.stack(parts).sum(0) for parts in zip(*pairs, strict=True))
        return 1 - agreement / length.clamp(min=TINY)
    rows = [(_rows(predicted[name], 2), _rows(t, 1)[:, None]) for name, t in targets.items()]
    products = [(vecdot(p, t), vecdot(p, p)) for p, t in rows]
    product, energy = (torch.stack(parts).sum(0) for parts in zip(*products, strict=True))
    return distance_of(product, energy, kind)


def distance_of(product: Tensor, energy: Tensor, kind: Distance) -> Tensor:
    """The distance "cosine" or "euclidean" from ⟨p, t⟩ and ‖p‖²."""
    cosine = product / energy.clamp(min=TINY).sqrt()
    return 1 - cosine if kind == "cosine" else 1 - cosine.clamp(min=0).square()


def unit_length(updates: Weights) -> dict[str, Tensor]:
    """Each update (n, *parameter) at length 1 over all parameters; one of length 0 stays."""
    length = _energy(updates).sqrt()
    factor = torch.where(length > 0, 1 / length.clamp(min=torch.finfo(length.dtype).tiny), 0.0)
    return {name: u * factor.reshape(-1, *[1] * (u.dim() - 1)) for name, u in updates.items()}


def inferred_labels(model: nn.Module, x: Tensor, targets: Mapping[str, Tensor], *, count: int) -> Tensor | None:
    """The labels (n, count) of the examples whose gradients the targets (n, *parameter) are; None where the model does
    not end in a linear layer, or targets do not hold it. Examples forgotten together are assumed to differ in label.
    `x` is any input of the model, which is in eval mode.

    The gradient of the cross-entropy at the logits is p − onehot(y), negative at y alone, and features after a ReLU are
    not negative: the label is where the last bias is least, or the row sums of the last weight.
    """
    last = _last_linear(model, x)
    if last is None or last.name not in targets:
        return None
    by_bias = last.bias is not None and last.bias in targets
    rows = targets[last.bias or ""] if by_bias else targets[last.name].sum(-1)
    if bool((rows == 0).all(-1).any()):
        return None
    return rows.topk(min(count, rows.shape[1]), largest=False).indices.sort(-1).values


def tried_labels(model: nn.Module, threats: Sequence[Threat], *, restarts: int) -> tuple[Tensor, str]:
    """The labels (n, r, count) that restarts try: those given, those inferred, or every class in turn; and a note on
    where they come from, empty where they were given. r is `restarts`, or as many for every class.
    """
    first = threats[0]
    classes = _classes(model, first.blank())
    if first.labels is not None:
        known = torch.stack([t.labels for t in threats if t.labels is not None]).to(first.device).long()
        wrong = known[(known < 0) | (known >= classes)]
        if len(wrong):
            raise DataError(
                f"a label is {int(wrong[0])} and the model has {classes} classes; give labels 0 to {classes - 1}"
            )
        return known[:, None].repeat(1, restarts, 1), ""
    # Undoing may leave the last layer out, so labels are read from the difference as it is.
    found = inferred_labels(model, first.blank(), read_targets(threats, after="naive").values, count=first.count)
    if found is not None and found.shape[1] == first.count:
        return found[:, None].repeat(1, restarts, 1), "labels were inferred from the last layer"
    if first.count > 1:
        raise InputError("the labels of examples forgotten together cannot be inferred here; give them in the threat")
    each = torch.arange(classes, device=first.device).repeat_interleave(restarts)
    note = f"labels were not known and the model does not end in a linear layer: all {classes} were tried"
    return each[None, :, None].repeat(len(threats), 1, 1), note


@dataclass(frozen=True)
class SubspaceFilter:
    """*filtered*: the part of the difference that probe gradients of the original span and the unlearned model's do
    not, Π_org Π_u⊥ Δθ for each parameter.

    Π_org and Π_u project on the leading directions of `points` probe gradients, those that hold `energy` of them. Since
    Δθ ≈ −η(g_r − α g_f), the forget gradient stands in Δθ with a positive sign.
    """

    name: ClassVar[str] = "filtered"

    energy: float = 0.9
    points: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.energy <= 1:
            raise InputError(f"the energy of the filter is {self.energy}; it must be above 0 and at most 1")
        if self.points < 1:
            raise InputError(f"the filter has {self.points} probe points; give at least 1")

    def prepared(self, held: Held) -> Undo:
        """Decompose the original's gradients."""
        if len(held.y) < self.points:
            raise InputError(
                f"the filter asks for {self.points} probes and there are {len(held.y)}; give at least as many"
            )
        before = dict(self._bases(held, held.model))

        def undo(unlearned: Weights) -> dict[str, Tensor]:
            found, origin = checked_state(held, unlearned), held.weights
            after = undone_model(held.model, unlearned).eval()
            for name, theirs in self._bases(held, after):
                kept = project_out((found[name] - origin[name]).flatten(), theirs)
                inside = before[name] @ (before[name].mT @ kept)
                found[name] = origin[name] + inside.reshape(origin[name].shape)
            return with_shared_names(held, found)

        return undo

    def _bases(self, held: Held, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """A basis (d, k) for each parameter."""
        x, y = held.x[: self.points], held.y[: self.points]
        pieces = zip(torch.split(x, _CHUNK), torch.split(y, _CHUNK), strict=True)
        parts = [single_gradients(model, some_x, some_y) for some_x, some_y in pieces]
        for name in held.parameters:
            moment = SecondMoment(torch.float64)
            moment.add(torch.cat([part.pop(name).flatten(1) for part in parts]).mT[None])
            yield name, moment.leading(self.energy).basis[0]


def _by_parts(p: Tensor, t: Tensor, *, axes: int) -> tuple[Tensor, Tensor]:
    """Σ_k ⟨p_k, t_k/‖t_k‖⟩ and Σ_k ‖p_k‖, shapes (n, r), over the parts that the target moved."""
    axes = min(axes, t.dim() - 1)
    t = t.flatten(1 + axes) if t.dim() > 1 + axes else t[..., None]
    p = p.flatten(2 + axes) if p.dim() > 2 + axes else p[..., None]
    length = t.norm(dim=-1, keepdim=True)
    moved = length > 0
    direction = torch.where(moved, t / length.clamp(min=torch.finfo(t.dtype).tiny), 0.0)
    lengths = (p.square().sum(-1) + TINY).sqrt() * moved[:, None, ..., 0]
    return _rows(p * direction[:, None], 2).sum(2), _rows(lengths, 2).sum(2)


def _energy(updates: Weights) -> Tensor:
    """‖u‖² over all parameters, shape (n,)."""
    return torch.stack([_rows(u, 1).square().sum(1) for u in updates.values()]).sum(0)


def _rows(value: Tensor, leading: int) -> Tensor:
    """All axes after the first `leading` as one; a scalar parameter gets such an axis too."""
    return value.reshape(*value.shape[:leading], -1)


def _last_linear(model: nn.Module, x: Tensor) -> LinearWeight | None:
    """The fully connected layer whose output for x is the model's own."""
    outputs: dict[nn.Module, Tensor] = {}

    def note(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        outputs[layer] = output

    weights = [w for w in linear_weights(model) if len(w.layers) == 1 and isinstance(w.layers[0], nn.Linear)]
    handles = [w.layers[0].register_forward_hook(note) for w in weights]
    try:
        with torch.no_grad():
            logits = model(x)
    finally:
        for handle in handles:
            handle.remove()
    # torch.equal is False for shapes that differ.
    found = [w for w in weights if w.layers[0] in outputs and torch.equal(outputs[w.layers[0]], logits)]
    return found[-1] if found else None


def _classes(model: nn.Module, blank: Tensor) -> int:
    try:
        with torch.no_grad():
            logits = model(blank)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(
            f"the model cannot take an image of shape {tuple(blank.shape[1:])} ({str(error).splitlines()[0]}); give "
            "pixels of the images that it was trained on"
        ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        raise InputError(
            f"the model returns a {type(logits).__name__}; wrap it so that it returns logits (batch, classes)"
        )
    return int(logits.shape[-1])
