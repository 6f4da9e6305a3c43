"""Second moments of a random part of what enters each linear weight, and some of those inputs as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..linalg.fine_type import fine_type
from ..linalg.gram import add_gram, gram
from .input_bases import input_rows
from .kept_columns import KeptColumns
from .layer_inputs import observe_inputs
from .linear_weights import LinearWeight
from .sampled_inputs import Draw, generator_on, sampled_examples, sampled_rows

_AT_A_TIME = 128
_AT_A_TIME_ELSEWHERE = 4096
# Entries of the inputs that a refreshed basis is measured on.
_MEASURED = 2**21


class SampledMoment:
    """Inputs of one weight: the sum of p pᵀ on and below the diagonal, how many, and some of them as they were.

    Where the layer keeps some `columns` alone, all is within those. `stray` is the largest number that was met in any
    of the others, None where the shapes of inputs say that there is none; all inputs are kept until it is known to be
    zero.
    """

    def __init__(self, weight: LinearWeight, columns: KeptColumns | None) -> None:
        self.weight, self.columns = weight, columns
        self._kind = fine_type(weight.tensor.dtype)
        self.positions = 0
        self.stray: Tensor | None = None
        self._total: Tensor | None = None
        self._some: list[Tensor] = []
        self._every: list[tuple[Tensor, bool]] = []

    @property
    def total(self) -> Tensor:
        """The sum, (groups, d, d)."""
        assert self._total is not None
        return self._total

    def add(self, rows: Tensor, *, share: float, narrow: bool) -> None:
        """Take in rows (groups, n, d) of their own memory, which are not written to; `narrow` ones are within the
        columns.
        """
        rows = rows.to(self._kind)
        if self.columns is not None:
            self._every.append((rows, narrow))
            if not narrow:
                stray = rows.index_select(2, self.columns.others).abs().max()
                self.stray = stray if self.stray is None else torch.maximum(self.stray, stray)
                rows = rows.index_select(2, self.columns.kept)
        if self._total is None:
            self._total = gram(rows)
        else:
            add_gram(self._total, rows)
        self.positions += rows.shape[1]
        self._some.append(some_of(rows, share=share))

    def some_rows(self) -> Tensor:
        """Those of the inputs that were kept as they were, (groups, n, d)."""
        return self._some[0] if len(self._some) == 1 else torch.cat(self._some, dim=1)

    def all_rows(self) -> Tensor:
        """All inputs in all coordinates."""
        return torch.cat([self._widened(rows) if narrow else rows for rows, narrow in self._every], dim=1)

    def _widened(self, rows: Tensor) -> Tensor:
        assert self.columns is not None
        wide = rows.new_zeros(*rows.shape[:2], self.columns.d)
        return wide.index_copy_(2, self.columns.kept, rows)


class Asking(NamedTuple):
    """What decides a sample beside the network and what is drawn: examples in batches, how many patches of each, and
    the columns that layers keep, by weight name.
    """

    parts: Sequence[Tensor]
    patches: int
    known: Mapping[str, KeptColumns]


# What `moments_of` gives for one model by a captured graph; None, and nothing is drawn, where there is none.
Replay = Callable[[Sequence[Tensor], int, torch.Generator, Mapping[str, KeptColumns]], dict[str, SampledMoment] | None]


def sampled_moments(
    model: nn.Module,
    batches: Iterable[Tensor],
    examples: int,
    patches: int,
    generator: torch.Generator,
    known: Mapping[str, KeptColumns],
    *,
    replay: Replay | None = None,
) -> dict[str, SampledMoment]:
    """What is seen of every linear weight's inputs, by weight name, in one forward pass over so many `examples` of all
    batches, drawn without replacement, and so many `patches` of each in a convolution (or tokens).

    The model is evaluated as it stands and is left unchanged. `known` are the columns that layers keep, by weight name.
    Where `replay` gives something for the examples, it is that, which may be overwritten by the next sample.
    """
    parts = sampled_parts(batches, examples, generator=generator)
    draw = generator_on(parts[0].device, generator) if parts else generator
    found = None if replay is None else replay(parts, patches, draw, known)
    return moments_of(model, parts, patches, draw, known) if found is None else found


def moments_of(
    model: nn.Module, parts: Sequence[Tensor], patches: int, draw: Draw, known: Mapping[str, KeptColumns]
) -> dict[str, SampledMoment]:
    """The same of all examples, at places that are drawn on their device."""
    samples: dict[str, SampledMoment] = {}

    def record(weight: LinearWeight, layer: nn.Module, x: Tensor) -> None:
        sample = samples.get(weight.name)
        if sample is None:
            columns = known.get(weight.name)
            fits = columns is not None and columns.kept.device == x.device and columns.d == _width(weight)
            sample = samples[weight.name] = SampledMoment(weight, columns if fits else None)
        taps = None if sample.columns is None else sample.columns.taps_on(layer, x)
        rows = input_rows(weight, sampled_rows(layer, x, patches, generator=draw, taps=taps))
        aliased = rows.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        sample.add(rows.clone() if aliased else rows, share=1 / len(parts), narrow=taps is not None)

    observe_inputs(model, parts, record)
    return samples


def sampled_parts(batches: Iterable[Tensor], examples: int, *, generator: torch.Generator) -> list[Tensor]:
    """So many examples of all batches, drawn without replacement, in batches of a good size."""
    return _joined(sampled_examples(batches, examples, generator=generator))


def some_of(rows: Tensor, *, share: float) -> Tensor:
    """As many of the rows (groups, n, d) as a share of the measure has room for."""
    room = max(1, int(share * _MEASURED / (rows.shape[0] * rows.shape[2])))
    every = -(-rows.shape[1] // room)
    return rows if every == 1 else rows[:, ::every]


def _width(weight: LinearWeight) -> int:
    return weight.d + (weight.bias is not None)


def _joined(parts: list[Tensor]) -> list[Tensor]:
    """The same examples in batches of a good size, where they have one shape."""
    if len({part.shape[1:] for part in parts}) != 1:
        return parts
    size = _AT_A_TIME if parts[0].device.type == "cpu" else _AT_A_TIME_ELSEWHERE
    return list(torch.split(torch.cat(parts), size))
