"""The original's side of a gradient-difference test, which many unlearned models of one original share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from ...data.examples import TensorExamples, as_examples, as_tensors
from ...errors import DataError
from ...models.modes import full_precision
from ...models.own import check_examples
from ...unlearning.checks import copies_of
from .gradient_rows import ComputedRows, HeldRows, Rows, held, width
from .model_pair import compared_parameters, device_of, gradient_copy
from .spare_memory import GPU_BATCH, can_hold, rows_at_once


@dataclass(frozen=True, eq=False)
class OriginalGradients:
    """A copy of the original model in eval mode, the checked example sets, and the gradients of each at the original,
    held in memory or to be computed again.

    `sets` and `rows` have the keys "candidates", "background" and, where there is one, "calibration".
    """

    model: nn.Module
    names: tuple[str, ...]
    sets: Mapping[str, TensorExamples]
    rows: Mapping[str, Rows]
    batch_size: int | None

    @property
    def held(self) -> frozenset[str]:
        """The sets whose gradients are in memory."""
        return frozenset(what for what, rows in self.rows.items() if isinstance(rows, HeldRows))

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return self.sets["background"].y.device

    @property
    def row_bytes(self) -> int:
        """The size of one gradient."""
        return row_bytes(self.model)

    def rows_at_once(self, *, share: float = GPU_BATCH) -> int:
        """How many gradients make a batch, as much memory is free; on a GPU they may take `share` of it."""
        return self.batch_size or rows_at_once(self.row_bytes, self.device, share=share)


def prepare_original(
    original: nn.Module,
    *,
    candidates: object,
    background: object,
    calibration: object | None = None,
    batch_size: int | None = None,
) -> OriginalGradients:
    """What `gradient_difference` needs of the original, for many unlearned models of it.

    The gradients of a set are held on the model's device where there is ample room for them (on a GPU at most 60 % of
    what is free; on a CPU at most 2 GiB for all sets), in the order background, candidates, calibration; those of the
    other sets are computed again for each unlearned model. `batch_size` is the number of examples whose gradients are
    computed at once; by default as memory allows.
    """
    side = original_side(
        original, candidates=candidates, background=background, calibration=calibration, batch_size=batch_size
    )
    return with_held(side, ("background", "candidates", "calibration"))


def with_held(side: OriginalGradients, sets: Sequence[str]) -> OriginalGradients:
    """The same with the gradients of these sets, as far as there is room for them, in memory."""
    rows = dict(side.rows)
    total = sum(len(side.sets[what]) for what in side.held) * side.row_bytes
    for what in sets:
        size = len(side.sets[what]) * side.row_bytes if what in side.sets else 0
        if what in side.sets and what not in side.held and can_hold(size, side.device, already=total):
            with full_precision():
                rows[what] = held(side.rows[what], batch_size=side.rows_at_once())
            total += size
    return replace(side, rows=rows)


def original_side(
    original: nn.Module, *, candidates: object, background: object, calibration: object | None, batch_size: int | None
) -> OriginalGradients:
    """The checked sets and the original, with nothing held."""
    device = device_of(original, what="original")
    names = tuple(compared_parameters(original))
    model = gradient_copy(original, names, what="original")
    given = {"candidates": candidates, "background": background, "calibration": calibration}
    # A data set may augment: every model must see the same inputs.
    sets = {
        what: as_tensors(as_examples(source, what=what).to(device))
        for what, source in given.items()
        if source is not None
    }
    check_examples(model, dict(sets))
    _check_disjoint(sets)
    rows = {what: ComputedRows(model, examples, what, "original") for what, examples in sets.items()}
    return OriginalGradients(model, names, sets, rows, batch_size)


def row_bytes(model: nn.Module) -> int:
    """The size of one gradient of `model`, over its trainable parameters."""
    return width(model) * max(p.element_size() for p in model.parameters() if p.requires_grad)


def _check_disjoint(sets: Mapping[str, TensorExamples]) -> None:
    for one, other in (("candidates", "background"), ("candidates", "calibration"), ("background", "calibration")):
        if one in sets and other in sets:
            copies = copies_of(sets[one], sets[other])
            if len(copies):
                raise DataError(
                    f"{len(copies)} examples of the {other} set are also in the {one} set (first: {other} row "
                    f"{int(copies[0])}); the test compares with examples apart: remove them from the {other} set"
                )
