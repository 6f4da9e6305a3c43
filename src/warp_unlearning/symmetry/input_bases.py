"""For each linear weight the directions its inputs span, and updates of the weight that those inputs do not notice.

A layer computes W p + b for every input p, so with P = [p; 1] an update with [ΔW Δb] P = 0 leaves its output as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..errors import DataError, InputError
from ..linalg.co_subspace import AnySubspace
from ..linalg.on_host import on_host
from ..linalg.principal_subspaces import principal_subspaces
from ..linalg.rounded_products import ERROR
from ..linalg.streamed import StreamedRows
from ..linalg.subspace import Rule, Subspace, rank_for
from ..waiting import work_meanwhile
from .kernel_window import Taps, Window, kernel_of
from .layer_inputs import layer_rows, observe_inputs
from .linear_weights import LinearWeight

# Entries of unfolded patches laid out at a time. On a processor larger pieces fall out of its caches and into memory;
# an accelerator needs large ones to be busy.
_PIECE = 2**22
_PIECE_ELSEWHERE = 2**26
# How many times the energy that rounding loses has to be left out anyway.
_ROUNDING = 64


@dataclass(frozen=True, eq=False)
class InputBasis:
    """The span of the inputs of one weight, and of the bias that moves with it.

    Where there is a `bias`, the constant input 1 is the last of the d coordinates. `blocks` holds one subspace for each
    group of the layer, whose rows are equal consecutive blocks of the flattened weight; bases are (d, k), in the dtype
    of the weight, float32 where that is coarser. `reached`, bool (groups, d), is False in coordinates that were zero in
    every input. `positions` is the number of inputs seen: rows, or patches.
    """

    weight: str
    bias: str | None
    blocks: tuple[AnySubspace, ...]
    reached: Tensor
    positions: int
    # How many coordinates are reached, over all groups, where that is known without looking.
    count: int | None = None

    @property
    def d(self) -> int:
        """Coordinates of an input, the constant included."""
        return self.reached.shape[1]

    @property
    def rank(self) -> int:
        """Directions spanned, over all groups."""
        return sum(block.rank for block in self.blocks)

    @property
    def free(self) -> int:
        """Reached directions left to an update, over all groups: 0 where the layer has no null space."""
        return self.reaches - self.rank

    @property
    def reaches(self) -> int:
        """Coordinates that are reached, over all groups."""
        return int(self.reached.sum()) if self.count is None else self.count

    @property
    def captured(self) -> float:
        """The share of the inputs' energy inside the span, of the group that holds least."""
        return min(block.captured for block in self.blocks)

    def project_out(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """An update of the weight and bias, less its part in the span of the inputs, and zero where no input reaches.

        Where the bias stays (None), the weight's update alone is made orthogonal to the inputs without their constant.
        """
        if bias is not None and self.bias is None:
            raise InputError(f"no bias moves with {self.weight}; pass None for it and leave its bias where it is")
        kind = torch.promote_types(weight.dtype, torch.float32)
        rows = weight.reshape(len(self.blocks), -1, weight[0].numel()).to(kind)
        if bias is not None:
            rows = torch.cat([rows, bias.reshape(len(self.blocks), -1, 1).to(kind)], dim=2)
        blocks = self.blocks
        if bias is None and self.bias is not None:
            blocks = tuple(block.without_last() for block in blocks)
        moved = torch.stack([block.to(kind).project_out(r) for block, r in zip(blocks, rows, strict=True)])
        # A subspace may reach into coordinates that data reached once and no longer does.
        moved = moved * self.reached[:, None, : rows.shape[2]]
        if bias is None:
            return moved.reshape(weight.shape).to(weight.dtype), None
        return moved[..., :-1].reshape(weight.shape).to(weight.dtype), moved[..., -1].reshape(bias.shape).to(bias.dtype)


def exact_bases(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    energy: float,
    rule: Rule = "energy",
    dtype: torch.dtype = torch.float64,
    ranks: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, InputBasis]:
    """The basis of every linear weight's inputs that holds `energy` of them, by weight name, in one forward pass.

    The model is evaluated as it stands (put it in eval mode) and is left unchanged. Sums and decompositions are in
    `dtype`; on a GPU inputs are rounded before they are multiplied where that is small beside the energy left out. A
    weight used by several modules has the inputs of all; layers that are never called have no entry. An energy of 1
    keeps the whole span, to rounding. About how many directions each group of a weight needs, in `ranks` where that is
    known, decides how they are looked for.
    """
    rank_for(torch.ones(1), energy, rule=rule)
    rounded = may_round(energy, rule)
    seen = observed_rows(model, batches, whole=energy == 1, rounded=rounded, dtype=dtype, met=True)
    work_meanwhile()
    if energy == 1:
        return {name: seen.pop(name).basis(energy, rule=rule) for name in list(seen)}
    energies = energies_of(seen)
    # Together on a GPU; elsewhere one after the other, so that what was summed up of each can go before the next.
    together = bool(seen) and next(iter(seen.values())).weight.tensor.device.type != "cpu"
    found: dict[str, InputBasis] = {}
    for names in [list(seen)] if together else [[name] for name in seen]:
        expected = [(ranks or {}).get(name) for name in names]
        own = [seen.pop(name) for name in names]
        found |= _bases_of(own, [energies[name] for name in names], energy, rule, expected)
    return found


def may_round(energy: float, rule: Rule) -> bool:
    """Whether what rounding inputs to TF32 changes is small beside the energy that a basis leaves out."""
    return rule == "energy" and 1 - energy >= _ROUNDING * ERROR


def _rounds(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products of numbers of that type are faster there if they are rounded."""
    return device.type == "cuda" and dtype != torch.float64


def _bases_of(
    seen: list[ObservedRows], energies: list[Tensor], energy: float, rule: Rule, ranks: Sequence[Sequence[int] | None]
) -> dict[str, InputBasis]:
    """The bases of inputs whose `energies`, (groups, d), are known on the host, with one read for all of them; `ranks`
    are how many directions each group may need.
    """
    parts = [
        _Part(each, group, summed[group] > 0, rank[group] if rank and len(rank) == len(summed) else None)
        for each, summed, rank in zip(seen, energies, ranks, strict=True)
        for group in range(len(summed))
    ]
    moments = [part.moment() for part in parts]
    compressed = [(moment, part.rank) for moment, part in zip(moments, parts, strict=True) if moment is not None]
    expected = [rank for _, rank in compressed]
    found = iter(principal_subspaces([moment for moment, _ in compressed], energy, rule=rule, expected=expected))
    blocks = [
        part.dual(energy, rule) if moment is None else part.widened(next(found))
        for part, moment in zip(parts, moments, strict=True)
    ]
    taken = iter(blocks)
    bases = {}
    for each, summed in zip(seen, energies, strict=True):
        own = tuple(next(taken) for _ in summed)
        reached = (summed > 0).to(each.weight.tensor.device, non_blocking=True)
        count = int((summed > 0).sum())
        bases[each.weight.name] = InputBasis(
            each.weight.name, each.weight.bias, own, reached, each.rows.positions, count
        )
    return bases


class _Part:
    """The inputs of one group of a weight in the coordinates that are alive, bool (d) on the host; `rank` is how many
    directions they may need.
    """

    def __init__(self, observed: ObservedRows, group: int, alive: Tensor, rank: int | None) -> None:
        self.rank = rank
        self._kind = torch.promote_types(observed.weight.tensor.dtype, torch.float32)
        self._d = len(alive)
        self._columns: Tensor | None = None
        rows = observed.rows if observed.rows.groups == 1 else observed.rows.one(group)
        if not bool(alive.all()):
            columns = alive.nonzero().flatten()
            self._columns = columns.to(observed.weight.tensor.device, non_blocking=True)
            rows = replace(observed, rows=rows).within(columns)
        self._rows = rows

    def moment(self) -> Tensor | None:
        found = self._rows.compressed()
        return None if found is None else found[0]

    def dual(self, energy: float, rule: Rule) -> Subspace:
        return self.widened(self._rows.subspaces(energy, rule=rule)[0])

    def widened(self, subspace: Subspace) -> Subspace:
        subspace = subspace.to(self._kind)
        return subspace if self._columns is None else subspace.within(self._columns, self._d)


@dataclass(frozen=True, eq=False)
class ObservedRows:
    """The inputs of one weight, summed up: `rows` are all of their coordinates, or those that `taps` of its kernel
    read, where the others meet nothing but padding.
    """

    weight: LinearWeight
    rows: StreamedRows
    taps: Taps | None = None

    @property
    def columns(self) -> Tensor | None:
        """The coordinates of `rows` among all, int64 on the host; None where they are all."""
        return _columns(self.weight, self.taps)

    def spread(self, numbers: Tensor) -> Tensor:
        """A number for each coordinate of `rows`, (groups, ...), as one for each of all, zero in the others."""
        columns = self.columns
        if columns is None:
            return numbers
        wide = numbers.new_zeros(len(numbers), self.weight.d + (self.weight.bias is not None))
        return wide.index_copy_(1, columns.to(numbers.device), numbers)

    def within(self, columns: Tensor) -> StreamedRows:
        """The rows in some of all coordinates, int64 indices on the host in ascending order, of those they have."""
        own = self.columns
        if own is not None:
            if torch.equal(own, columns):
                return self.rows
            columns = torch.searchsorted(own, columns.contiguous())
        return self.rows.within(columns.to(self.weight.tensor.device, non_blocking=True))

    def whole(self) -> ObservedRows:
        """The same in all coordinates."""
        columns = self.columns
        if columns is None:
            return self
        d = self.weight.d + (self.weight.bias is not None)
        return ObservedRows(self.weight, self.rows.widened(columns.to(self.weight.tensor.device), d))

    def basis(self, energy: float, *, rule: Rule = "energy") -> InputBasis:
        """The basis that holds `energy` of them."""
        summed = self.spread(self.rows.energy())
        require_finite(self.weight.name, summed)
        kind = torch.promote_types(self.weight.tensor.dtype, torch.float32)
        blocks = tuple(subspace.to(kind) for subspace in self.rows.subspaces(energy, rule=rule))
        columns = self.columns
        if columns is not None:
            blocks = tuple(block.within(columns.to(summed.device), summed.shape[1]) for block in blocks)
        return InputBasis(self.weight.name, self.weight.bias, blocks, summed > 0, self.rows.positions)


def _columns(weight: LinearWeight, taps: Taps | None) -> Tensor | None:
    """The coordinates that `taps` of its kernel read, and the constant where a bias moves; None where they are all."""
    if taps is None:
        return None
    kernel = kernel_of(weight)
    found = taps.coordinates(kernel, weight.d // (kernel[0] * kernel[1]))
    return found if weight.bias is None else torch.cat([found, torch.tensor([weight.d])])


def energies_of(seen: Mapping[str, ObservedRows]) -> dict[str, Tensor]:
    """Σ p² of every coordinate, (groups, d), by weight name, on the host; an error where one is not finite."""
    read = on_host([observed.rows.energy() for observed in seen.values()])
    energies = {name: seen[name].spread(summed) for name, summed in zip(seen, read, strict=True)}
    for name, summed in energies.items():
        require_finite(name, summed)
    return energies


def observed_rows(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    whole: bool = False,
    rounded: bool = False,
    dtype: torch.dtype | None,
    met: bool = False,
) -> dict[str, ObservedRows]:
    """The inputs of every linear weight over all batches, by weight name, in one forward pass.

    Sums are in `dtype`; None is the type of each weight, and float32 where that is coarser. With `rounded`, inputs on a
    GPU that are no finer than float32 are multiplied as TF32 (`rounded_gram`). With `met`, taps of a kernel that meet
    nothing but padding are left out before anything is multiplied: on maps of one pixel, eight of the nine of a 3x3
    kernel, and 80 of 81 parts of the second moment.
    """
    seen: dict[str, ObservedRows] = {}

    def record(weight: LinearWeight, layer: nn.Module, x: Tensor) -> None:
        taps = _met_taps(weight, layer, x) if met else None
        known = seen.get(weight.name)
        if known is None:
            kind = dtype or torch.promote_types(weight.tensor.dtype, torch.float32)
            own = _columns(weight, taps)
            d = weight.d + (weight.bias is not None) if own is None else len(own)
            coarse = rounded and _rounds(weight.tensor.device, weight.tensor.dtype)
            known = ObservedRows(weight, StreamedRows(weight.groups, d, whole=whole, rounded=coarse, dtype=kind), taps)
        elif known.taps is not None and (taps is None or not known.taps.holds(taps)):
            known = known.whole()
        seen[weight.name] = known
        # Inputs are fewer than their patches, and better converted before they are laid out; a whole span has to know
        # how coarse they were.
        x = x if whole else x.to(torch.float32 if known.rows.rounded else known.rows.dtype)
        for part in pieces(layer, x, known.rows.d):
            known.rows.add(input_rows(weight, layer_rows(layer, part, taps=known.taps)))

    observe_inputs(model, batches, record)
    return seen


def _met_taps(weight: LinearWeight, layer: nn.Module, x: Tensor) -> Taps | None:
    """The taps that meet inputs, None for all of them."""
    if not isinstance(layer, nn.Conv1d | nn.Conv2d):
        return None
    window = Window(layer)
    met = window.met_taps(x)
    return None if met == window.all_taps or window.kernel != kernel_of(weight) else met


def pieces(layer: nn.Module, x: Tensor, d: int) -> Iterable[Tensor]:
    """The input of a layer in parts along the batch, so small that their patches find room."""
    if not isinstance(layer, nn.Conv1d | nn.Conv2d) or x.dim() != layer.weight.dim() or x.numel() == 0:
        return (x,)
    down, across = Window(layer).grid(x)
    patches = max(1, down * across) * layer.groups * d
    room = _PIECE if x.device.type == "cpu" else _PIECE_ELSEWHERE
    return torch.split(x, max(1, room // patches))


def input_rows(weight: LinearWeight, rows: Tensor) -> Tensor:
    """A layer's inputs (its groups, positions, d) for each group of the weight, with the constant last where a bias
    moves.
    """
    rows = rows.repeat_interleave(weight.groups // len(rows), 0) if weight.groups > len(rows) else rows
    if weight.bias is None:
        return rows
    return torch.cat([rows, rows.new_ones(*rows.shape[:2], 1)], dim=2)


def require_finite(name: str, energy: Tensor) -> None:
    """Refuse inputs that held NaN or infinity, by the energy they summed to."""
    if not bool(energy.isfinite().all()):
        raise DataError(
            f"inputs of the layer of {name} hold NaN or infinity, and have no span; "
            "check the data, and that the model's weights are finite"
        )
