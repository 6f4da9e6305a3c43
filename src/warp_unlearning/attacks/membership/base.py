"""What an attack on an unlearned model is: a name, what its attacker holds, and a score for each example.

An attack scores candidates, some forgotten and some never seen, given the original model and a new one. Attacks on the
new model alone are evidence for the claim *forgotten*; attacks on both models for *hidden* (`stats.verdict`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from ...data.examples import TensorExamples
from ...errors import InputError, reason
from ...gradients.energy import check_model
from ...stats.verdict import Needs
from ...training.scoring import logits
from ..undo.base import Weights, difference, once
from .gradient_rows import gradient_rows

NAIVE = "naive"  # the pre-step that undoes nothing
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Pair:
    """What the attacker holds: the `original` model, the `new` one, examples that neither has seen (`background`) and
    examples drawn as the training data were (`probes`). Both models are copies in eval mode of one architecture.

    `undone_by` names the pre-step that made `new` out of the unlearned model, and `state` is what it made, in float64.
    """

    original: nn.Module
    new: nn.Module
    background: TensorExamples
    probes: TensorExamples
    undone_by: str = NAIVE
    state: Weights | None = None
    _found: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def update(self) -> dict[str, Tensor]:
        """θ_new − θ_original of every parameter, in float64."""
        state = self.new.state_dict() if self.state is None else self.state
        return self.once("update", lambda: difference(self.original, state))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`, computed the first time that `key` is used with this pair and kept as long as the pair."""
        return once(self._found, key, make)


@dataclass(frozen=True, eq=False)
class Batch:
    """Candidates `x` with labels `y`, and what models say of them, computed at most once for all attacks and pairs.

    Batches are small enough to hold the gradients where an attack needs the weights of both models.
    """

    x: Tensor
    y: Tensor
    original: nn.Module
    known: dict[nn.Module, Tensor] = field(default_factory=dict, repr=False)

    def logits_of(self, model: nn.Module) -> Tensor:
        """The logits (k, classes) of a model."""
        if model not in self.known:
            self.known[model] = logits(model, TensorExamples(self.x, self.y))
        return self.known[model].to(self.x.device)

    @cached_property
    def rows(self) -> Tensor:
        """The loss gradients at the original, flattened one parameter after the other (k, d); not to be written to."""
        return gradient_rows(self.original, self.x, self.y)

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """The same by parameter, (k, *parameter)."""
        named = {name: p for name, p in self.original.named_parameters() if p.requires_grad}
        parts = torch.split(self.rows, [p.numel() for p in named.values()], 1)
        return {n: part.view(len(part), *p.shape) for (n, p), part in zip(named.items(), parts, strict=True)}

    @cached_property
    def squared_norms(self) -> dict[str, Tensor]:
        """‖∇ℓ‖² by parameter, (k,), in float64."""
        return {n: torch.linalg.vector_norm(g.flatten(1), dim=1).double().square() for n, g in self.gradients.items()}


class Attack(Protocol):
    """One way to tell forgotten examples from examples never seen."""

    @property
    def name(self) -> str:
        """The name in tables."""

    @property
    def needs(self) -> Needs:
        """What its attacker holds: "new outputs", "new weights", "both outputs" or "both weights"."""

    def score(self, pair: Pair, batch: Batch) -> Tensor:
        """One number for each of the k examples, shape (k,): higher where it is more likely forgotten, and known."""


@runtime_checkable
class Fitted(Protocol):
    """An attack that is fitted to the background before it scores."""

    def fit(self, pairs: Sequence[Pair]) -> None:
        """Fit several pairs of one original together, which is faster than one by one."""

    def fit_bytes(self, count: int, row_bytes: int) -> int:
        """The memory that one fit takes, for a background of `count` examples and gradients of `row_bytes`."""


def checked_score(attack: Attack, pair: Pair, batch: Batch) -> Tensor:
    """The scores of a batch in float64 on the CPU; an error names an attack that fails or gives another shape."""
    ours = type(attack).__module__.startswith(__package__ or "")
    try:
        found: object = attack.score(pair, batch)
    except (InputError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if ours:
            raise
        raise InputError(f"the attack {attack.name} failed ({reason(error)}); mend its code") from error
    k = len(batch.y)
    if not isinstance(found, Tensor) or found.shape != (k,) or found.is_complex():
        shape = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InputError(f"the attack {attack.name} returned {shape} for {k} examples; return a tensor ({k},)")
    return found.detach().double().cpu()


def gradient_copy(model: nn.Module, names: Collection[str]) -> nn.Module:
    """A copy of `model` in eval mode whose trainable parameters are those in `names`."""
    copy = deepcopy(model).eval()
    copy.zero_grad(set_to_none=True)
    for name, p in copy.named_parameters():
        p.requires_grad_(name in names)
    check_model(copy)
    return copy


def compared_parameters(model: nn.Module) -> tuple[str, ...]:
    """The names of the trainable parameters of `model`, or of all floating-point ones where none is trainable."""
    named = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    if not named:
        raise InputError("the original model has no floating-point parameters; there are no gradients to compare")
    return tuple(name for name, p in named.items() if p.requires_grad) or tuple(named)


def device_of(model: nn.Module, *, what: str) -> torch.device:
    """The one device that all parameters and buffers of `model` are on."""
    places = {t.device for t in [*model.parameters(), *model.buffers()]}
    if len(places) != 1:
        raise InputError(f"the {what} model is spread over {sorted(map(str, places))}; move it to one device")
    return places.pop()


def check_pair(original: nn.Module, unlearned: nn.Module) -> None:
    """Refuse models whose states differ in names, shapes or types, or which are on different devices."""
    before, after = original.state_dict(), unlearned.state_dict()
    if before.keys() != after.keys():
        only = sorted(before.keys() ^ after.keys())
        raise InputError(
            f"{only[0]!r}{f' and {len(only) - 1} more entries' if len(only) > 1 else ''} of the state dict are in one "
            "of the two models only; give two models of one architecture"
        )
    if [name for name, _ in original.named_parameters()] != [name for name, _ in unlearned.named_parameters()]:
        raise InputError("the two models tie or order their parameters differently; give two models of one class")
    for name, tensor in before.items():
        other = after[name]
        if tensor.shape != other.shape:
            raise InputError(
                f"{name!r} has shape {tuple(tensor.shape)} in the original and {tuple(other.shape)} in the unlearned "
                "model; give two models of one architecture"
            )
        if tensor.dtype != other.dtype:
            raise InputError(
                f"{name!r} has type {tensor.dtype} in the original and {other.dtype} in the unlearned model; "
                "bring both to one type"
            )
    places = device_of(original, what="original"), device_of(unlearned, what="unlearned")
    if places[0] != places[1]:
        raise InputError(
            f"the original model is on {places[0]} and the unlearned one on {places[1]}; move both to one device"
        )


def are_identical(original: nn.Module, unlearned: nn.Module) -> bool:
    """Whether every entry of two states that passed `check_pair` is the same number."""
    after: Mapping[str, Tensor] = unlearned.state_dict()
    return all(torch.equal(tensor, after[name]) for name, tensor in original.state_dict().items())
