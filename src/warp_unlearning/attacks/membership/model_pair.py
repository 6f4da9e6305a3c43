"""Whether two models can be compared weight by weight, and copies of them to take gradients at."""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy

import torch
from torch import nn

from ...errors import InputError
from ...gradients.energy import check_model


def gradient_copy(model: nn.Module, names: Collection[str], *, what: str) -> nn.Module:
    """A copy of `model` whose trainable parameters are those in `names`; one in train mode is refused, since there the
    gradient of an example depends on the others or on chance.
    """
    training = [path or type(model).__name__ for path, module in model.named_modules() if module.training]
    if training:
        raise InputError(
            f"the {what} model is in train mode ({training[0]}"
            f"{f' and {len(training) - 1} more modules' if len(training) > 1 else ''}); call `{what}.eval()` first"
        )
    copy = deepcopy(model)
    copy.zero_grad(set_to_none=True)
    for name, p in copy.named_parameters():
        p.requires_grad_(name in names)
    check_model(copy)
    return copy


def compared_parameters(model: nn.Module) -> list[str]:
    """The names of the trainable parameters of `model`, or of all where none is trainable."""
    named = list(model.named_parameters())
    if not named:
        raise InputError("the original model has no parameters; there are no gradients to compare")
    return [name for name, p in named if p.requires_grad] or [name for name, _ in named]


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
    after = unlearned.state_dict()
    return all(torch.equal(tensor, after[name]) for name, tensor in original.state_dict().items())
