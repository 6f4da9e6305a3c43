"""What the attacker reads off pairs of models: the difference, with as much of a defence removed as a pre-step finds,
and what of it is to be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError, nearest
from ..undo import make_pre_step, pre_steps
from ..undo.base import Held, PreStep, difference
from ..undo.inputs import first_layers
from .matching import Distance, unit_length
from .subspace_filter import SubspaceFilter
from .threat import Threat


@dataclass(frozen=True, eq=False)
class Targets:
    """Directions (n, *parameter) of unit length, in the models' precision, and how predictions are compared with them:
    a target points where the gradient of what was forgotten does. `unmoved` names the parameters that are the same in
    all models, frozen ones for instance: an update says nothing about their gradients, so that they are left out.
    """

    values: dict[str, Tensor]
    distance: Distance
    unmoved: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def part(self, rows: slice) -> Targets:
        """Some of them."""
        return Targets({name: value[rows] for name, value in self.values.items()}, self.distance, self.unmoved)


def readings() -> dict[str, str]:
    """Every way to read a difference, with what it does in a line."""
    return pre_steps() | {"filtered": "keep what the original's probe gradients span and the unlearned model's do not"}


def read_targets(threats: Sequence[Threat], *, after: str, distance: Distance = "cosine") -> Targets:
    """The targets of threats that share one original.

    After "scale-free" kernels are compared by their directions, and after "input-layer" the rows of the first layers.
    """
    if after not in readings():
        raise InputError(f"there is no way {after!r} to read a difference; {nearest(after, readings())}")
    original, kind = threats[0].original, next(threats[0].original.parameters()).dtype
    if after in ("naive", "scale-free", "input-layer"):
        found = [difference(original, t.unlearned.state_dict()) for t in threats]
    else:
        step: PreStep = SubspaceFilter() if after == "filtered" else make_pre_step(after)
        undo = step.prepared(threats[0].held)
        found = [difference(original, undo(t.unlearned.state_dict())) for t in threats]
    if after == "input-layer":
        names = [weight.name for weight in first_layers(held_or_blank(threats[0]))]
        found = [{name: delta[name] for name in names} for delta in found]
    unmoved = _unmoved(threats, found[0])
    found = [{name: v for name, v in delta.items() if name not in unmoved} for delta in found]
    if not found[0]:
        raise InputError(
            f"nothing that {after!r} reads moved between the models: {', '.join(unmoved[:3])} are the same"
        )
    signed = [{name: v if t.ascent else -v for name, v in d.items()} for d, t in zip(found, threats, strict=True)]
    stacked = unit_length({name: torch.stack([d[name] for d in signed]) for name in signed[0]})
    _require_something(stacked, after)
    by_parts: dict[str, Distance] = {"scale-free": "kernels", "input-layer": "rows"}
    return Targets({name: v.to(kind) for name, v in stacked.items()}, by_parts.get(after, distance), unmoved)


def _unmoved(threats: Sequence[Threat], names: Iterable[str]) -> tuple[str, ...]:
    before = threats[0].original.state_dict()
    states = [t.unlearned.state_dict() for t in threats]
    return tuple(name for name in names if all(torch.equal(state[name], before[name]) for state in states))


def held_or_blank(threat: Threat) -> Held:
    """What finding the first layers takes: the attacker's probes, or a blank input of the right shape."""
    if threat.probes is not None:
        return threat.held
    blank = torch.zeros(1, *threat.pixels.shape, device=threat.device, dtype=next(threat.original.parameters()).dtype)
    return Held(threat.original, (blank, torch.zeros(1, dtype=torch.long)))


def _require_something(targets: dict[str, Tensor], after: str) -> None:
    energy = torch.stack([t.reshape(len(t), -1).square().sum(1) for t in targets.values()]).sum(0)
    if bool((energy == 0).any()):
        index = int((energy == 0).nonzero()[0])
        raise InputError(
            f"nothing is left of difference {index} after {after!r}: what it read did not change between the models"
        )
