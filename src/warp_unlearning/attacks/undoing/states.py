"""States of a network and their differences, with the checks that an unlearned state fits its original."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...errors import InputError
from .asked import Asked, asked
from .protocol import Held, Weights


def difference(original: nn.Module, state: Weights) -> dict[str, Tensor]:
    """θ − θ_org of every floating-point parameter, in float64 on the original's device; `state` may hold more."""
    own = {name: p for name, p in original.named_parameters() if p.is_floating_point()}
    return {name: value - own[name].detach().double() for name, value in _fitting(own, state).items()}


def undone_model(original: nn.Module, state: Weights) -> nn.Module:
    """A copy of the original with the given entries in place of its own, in its precision and mode."""
    model = deepcopy(original)
    own = model.state_dict()
    unknown = sorted(set(state) - set(own))
    if unknown:
        raise InputError(f"{unknown[0]!r} is no entry of {type(original).__name__}; give a state of that network")
    with torch.no_grad():
        for name, value in state.items():
            own[name].copy_(value)
    return model


def checked_state(held: Held, state: Weights) -> dict[str, Tensor]:
    """Every floating-point entry of the original's state dict, taken from `state`, in float64 on its device."""
    if not isinstance(state, Asked):
        return _fitting(held.weights, state)
    return dict(state.once(("checked", held), lambda: _fitting(held.weights, state)))


def checked_difference(held: Held, state: Weights) -> dict[str, Tensor]:
    """`difference` from the original of `held`, of a state that is whole."""
    given = asked(state)

    def less_original() -> dict[str, Tensor]:
        found = checked_state(held, given)
        return {name: found[name] - held.weights[name] for name in held.parameters}

    return dict(given.once(("difference", held), less_original))


@dataclass(frozen=True, eq=False)
class CleanedDifference:
    """An undo that cleans the difference of the parameters and leaves other entries as the unlearned model has them.

    `clean` gets every parameter's difference and returns those that it changes.
    """

    held: Held
    clean: Callable[[dict[str, Tensor]], dict[str, Tensor]]

    def __call__(self, unlearned: Weights) -> dict[str, Tensor]:
        """The original plus the cleaned difference."""
        given = asked(unlearned)
        found, origin = checked_state(self.held, given), self.held.weights
        for name, value in self.clean(checked_difference(self.held, given)).items():
            found[name] = origin[name] + value
        return with_shared_names(self.held, found)


def with_shared_names(held: Held, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state in which all names of a shared tensor have the value of the first."""
    first: dict[int, str] = {}
    for name, value in held.model.state_dict(keep_vars=True).items():
        if name in state:
            state[name] = state[first.setdefault(id(value), name)]
    return state


def length(weights: Weights) -> Tensor:
    """‖θ‖ over all tensors."""
    return torch.stack([value.square().sum() for value in weights.values()]).sum().sqrt()


def at_length_of(cleaned: dict[str, Tensor], given: Weights) -> dict[str, Tensor]:
    """The cleaned difference at the length of the given one: for steps that know directions alone."""
    before, after = length(given), length(cleaned)
    factor = torch.where(after > 0, before / torch.where(after > 0, after, 1.0), 0.0)
    return {name: factor * value for name, value in cleaned.items()}


def _fitting(own: Weights, state: Weights) -> dict[str, Tensor]:
    """The entries of `state` that `own` names, in float64 on its device, checked to fit and to be finite."""
    found = {name: _fitted(name, value, state) for name, value in own.items()}
    # One read for all of them. Sums of finite numbers may overflow, so a look at each has the last word.
    if found and not bool(torch.stack([value.sum() for value in found.values()]).isfinite().all()):
        for name, value in found.items():
            if not bool(value.isfinite().all()):
                raise InputError(f"{name!r} of the unlearned state holds NaN or infinity; the unlearning diverged")
    return found


def _fitted(name: str, own: Tensor, state: Weights) -> Tensor:
    if name not in state:
        raise InputError(f"the unlearned state lacks {name!r}; give the whole state dict of the same network")
    value = state[name]
    if value.shape != own.shape:
        raise InputError(
            f"{name!r} has shape {tuple(value.shape)} in the unlearned state and {tuple(own.shape)} in the original; "
            "give two states of one network"
        )
    return value.detach().to(device=own.device, dtype=torch.float64)
