"""The labels that restarts try: those given, those read off the last layer, or every class in turn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...errors import DataError, InputError
from .labels import inferred_labels
from .reading import read_targets
from .threat import Threat


def tried_labels(model: nn.Module, threats: Sequence[Threat], *, restarts: int) -> tuple[Tensor, str]:
    """Labels (n, r, count) and a note on where they come from, empty where they were given. r is `restarts`, or as many
    for every class.
    """
    first = threats[0]
    blank = torch.zeros(1, *first.pixels.shape, device=first.device, dtype=next(model.parameters()).dtype)
    classes = _classes(model, blank)
    if first.labels is not None:
        known = torch.stack([t.labels for t in threats if t.labels is not None]).to(first.device).long()
        if int(known.min()) < 0 or int(known.max()) >= classes:
            bad = int(known[(known < 0) | (known >= classes)][0])
            raise DataError(f"a label is {bad} and the model has {classes} classes; give labels 0 to {classes - 1}")
        return known[:, None].repeat(1, restarts, 1), ""
    # Undoing may leave the last layer out, so it is read off the difference as it is.
    found = inferred_labels(model, blank, read_targets(threats, after="naive").values, count=first.count)
    if found is not None and found.shape[1] == first.count:
        return found[:, None].repeat(1, restarts, 1), "labels were inferred from the last layer"
    if first.count > 1:
        raise InputError("the labels of examples forgotten together cannot be inferred here; give them in the threat")
    each = torch.arange(classes, device=first.device).repeat_interleave(restarts)
    note = f"labels were not known and the model does not end in a linear layer: all {classes} were tried"
    return each[None, :, None].repeat(len(threats), 1, 1), note


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
