"""`teleport()`: one move of a model along a symmetry, certified."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from torch import Tensor, nn

from ..data.examples import as_examples
from ..errors import InputError
from ..models.example_checks import check_examples
from ..randomness import Streams
from ..symmetry.certificate import Certificate
from ..symmetry.symmetry import Symmetry, require_symmetry
from .probing import draw_view
from .teleporter import Teleporter


def teleport(
    model: nn.Module,
    symmetry: Symmetry,
    *,
    retain: object,
    forget: object | None = None,
    reference: nn.Module | Mapping[str, Tensor] | None = None,
    seed: int | None = None,
) -> tuple[nn.Module, Certificate]:
    """A copy of `model` moved along `symmetry`, and what the move did; `model` itself stays as it is.

    `retain` are examples whose outputs are to stay, `forget` those whose gradients a null-space move makes small; each
    is a pair of tensors (x, y), a `Dataset` of such pairs, or a `DataLoader`. `reference` are the weights an attacker
    holds, from which distances are taken: those of `model` unless given. The move is drawn from the operating system's
    entropy; `seed` fixes it for experiments, and then anybody who knows it can undo it.
    """
    require_symmetry(symmetry)
    moved = deepcopy(model)
    first = next(moved.parameters(), None)
    if first is None:
        raise InputError("the model has no parameters; there is nothing to move")
    kept = as_examples(retain, what="retain").to(first.device)
    forgotten = None if forget is None else as_examples(forget, what="forget").to(first.device)
    check_examples(moved, {"retain": kept} | ({} if forgotten is None else {"forget": forgotten}))
    streams = Streams.secret(seed)
    view = draw_view(kept, forgotten, None, symmetry.looks_at, generator=streams.generator("view"))
    teleporter = Teleporter(moved, symmetry, _reference(model, reference))
    return moved, teleporter.teleport(view, generator=streams.generator("move"))[1]


def _reference(model: nn.Module, given: nn.Module | Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
    state = model.state_dict()
    if given is None:
        return {name: value.clone() for name, value in state.items()}
    weights = given.state_dict() if isinstance(given, nn.Module) else given
    missing = [n for n, v in state.items() if n not in weights or weights[n].shape != v.shape]
    if missing:
        raise InputError(
            f"the reference has no {missing[0]} of shape {tuple(state[missing[0]].shape)}; "
            "give the weights of the same architecture"
        )
    return {name: weights[name].detach().to(value) for name, value in state.items()}
