"""The channels of a network: where they stand in the weights, and sums of weights between pairs of them.

A kernel is the weight between one input and one output channel: the taps of a convolution (out, in, *taps), a single
number in every other parameter. A kernel that class a multiplies and class b divides is rescaled to v exp(x_a − x_b), x
being the logarithms of the factors; nothing multiplies or divides it twice. A running variance v appears as the
deviation √(v + ε), which is multiplied once.

With S_ab the sum of the weights between a and b, the total of all rescaled weights is Φ(x) = Σ_ab S_ab exp(x_a − x_b),
whatever tensors they lie in. So a network of many tensors has one matrix, and a step of a solver takes a few
operations. With S at x, its row sums r and column sums c, ∂Φ/∂x = r − c and ∂²Φ/∂x∂xᵀ = diag(r + c) − S − Sᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError
from ...symmetry.channel_graph import ChannelGraph
from ...symmetry.channels import Kind, Use
from .base import Held, NotApplicable, Weights


@dataclass(frozen=True, eq=False)
class Channels:
    """The class of tied channels that multiplies, and the one that divides, each kernel of a tensor, by its name.

    Both have shapes that broadcast to the kernels of the tensor. Classes that may be rescaled are numbered from 0 to
    `free` − 1; all others are the class `free`. `offsets` holds the ε of running variances, by name.
    """

    ends: Mapping[str, tuple[Tensor, Tensor]]
    free: int
    offsets: Mapping[str, float]

    def embedded(self, values: Tensor) -> Tensor:
        """One number for each free class as one for each class, with 0 for the channels that stay."""
        return torch.cat([values, values.new_zeros(1)])


def traced(held: Held, kind: Kind) -> ChannelGraph:
    """The traced channels of the original; raises `NotApplicable` where torch.fx cannot trace it."""
    try:
        return ChannelGraph(held.model, kind=kind)
    except InputError as error:
        raise NotApplicable(str(error)) from error


def channels_of(held: Held) -> Channels:
    """The channels of the original that may be rescaled; there may be none."""
    graph = traced(held, "scale")
    roots = torch.tensor(graph.free_channels(), dtype=torch.long)
    number = torch.full((len(graph.roots),), len(roots), dtype=torch.long)
    number[roots] = torch.arange(len(roots))
    fixed = torch.tensor([len(roots)], device=held.device)
    ends: dict[str, tuple[Tensor, Tensor]] = {}
    for use in graph.uses:
        classes = _by_kernel_of(held.weights[use.name], use, number[graph.channels(use)].to(held.device))
        multiplies, divides = ends.get(use.name, (fixed, fixed))
        ends[use.name] = (classes, divides) if use.power > 0 else (multiplies, classes)
    return Channels(ends, len(roots), {use.name: use.offset for use in graph.uses if use.power == 2})


def all_pinned(held: Held) -> NotApplicable:
    """The error that no channel may be rescaled, and what keeps them in place."""
    reasons = dict.fromkeys(reason for tensor in traced(held, "scale").report().pinned for reason in tensor.reasons)
    pins = f": pinned by {', '.join(list(reasons)[:3])}" if reasons else ""
    return NotApplicable(f"no channel of {type(held.original).__name__} may be rescaled{pins}")


def with_deviations(channels: Channels, state: Weights) -> dict[str, Tensor]:
    """Every tensor that channels stand in, running variances as deviations."""
    found = {name: state[name] for name in channels.ends}
    return found | {name: (state[name] + offset).sqrt() for name, offset in channels.offsets.items()}


def with_variances(channels: Channels, values: Weights) -> dict[str, Tensor]:
    """The values with deviations as running variances again."""
    return {**values, **{name: values[name].square() - offset for name, offset in channels.offsets.items()}}


def rescaled(channels: Channels, values: Weights, logs: Tensor) -> dict[str, Tensor]:
    """Each tensor times the factors of its channels, whose logarithms are given for every class."""
    found = dict(values)
    for name, value in values.items():
        if name in channels.ends:
            multiplies, divides = channels.ends[name]
            for factors in ((-logs[divides]).exp(), logs[multiplies].exp()):
                found[name] = found[name] * over_taps(factors, value)
    return found


@dataclass(frozen=True, eq=False)
class PairSums:
    """S, shape (free + 1, free + 1); the last class stands for "nothing", and its logarithm is 0."""

    matrix: Tensor

    def first(self, logs: Tensor | None = None) -> Tensor:
        """∂Φ/∂x_c for every free class c, at the logarithms of all classes, or at 0."""
        rows, columns = self._rows_and_columns(logs)
        return (rows - columns)[:-1]

    def totals(self, logs: Tensor | None = None) -> Tensor:
        """The sum of the rescaled weights that stand in each free class."""
        rows, columns = self._rows_and_columns(logs)
        return (rows + columns)[:-1]

    def second(self, logs: Tensor | None = None) -> Tensor:
        """∂²Φ/∂x_c∂x_d for all free classes, as a new tensor."""
        inner = self.matrix[:-1, :-1]
        if logs is not None:
            inner = (inner * logs[:-1, None].exp()).mul_((-logs[:-1]).exp())
        found = (inner + inner.mT).neg_()
        found.diagonal().add_(self.totals(logs))
        return found

    def _rows_and_columns(self, logs: Tensor | None) -> tuple[Tensor, Tensor]:
        if logs is None:
            return self.matrix.sum(1), self.matrix.sum(0)
        up, down = logs.exp(), (-logs).exp()
        return up * (self.matrix @ down), down * (self.matrix.mT @ up)


def pair_sums(channels: Channels, values: Weights) -> PairSums:
    """S of weights by name, or of their sums over taps; tensors without channels are left out."""
    n = channels.free + 1
    device = next(iter(values.values())).device
    sums = torch.zeros(n * n, dtype=torch.float64, device=device)
    for name, value in values.items():
        if name in channels.ends:
            multiplies, divides = channels.ends[name]
            summed = tap_sums(value).double()
            sums.index_add_(0, (multiplies * n + divides).expand_as(summed).flatten(), summed.flatten())
    return PairSums(sums.reshape(n, n))


def tap_sums(value: Tensor) -> Tensor:
    """One sum for each kernel of a parameter."""
    return value.flatten(2).sum(2) if value.dim() > 2 else value


def over_taps(factors: Tensor, value: Tensor) -> Tensor:
    """Factors for leading axes of `value`, kernels or rows, in a shape that multiplies it."""
    return factors.reshape(*factors.shape, *[1] * (value.dim() - factors.dim()))


def kernels(value: Tensor, dims: int) -> Tensor:
    """A parameter of `dims` dimensions, or a stack of such, with the taps of each kernel along the last axis."""
    return value.flatten(2 - dims) if dims > 2 else value.unsqueeze(-1)


def kernel_lengths(value: Tensor, dims: int) -> Tensor:
    """The length of each kernel of a parameter, or a stack of them."""
    found: Tensor = kernels(value, dims).norm(dim=-1)
    return found


def kernel_directions(value: Tensor, dims: int) -> Tensor:
    """The parameter, or the stack, with every kernel at length 1; kernels of zeros stay."""
    found = kernels(value, dims)
    unit: Tensor = found / found.norm(dim=-1, keepdim=True).clamp(min=tiny(value))
    return unit.reshape(value.shape)


def tiny(value: Tensor) -> float:
    """A length that is safe to divide by in the precision of `value`."""
    return 1e-300 if value.dtype.itemsize == 8 else 1e-36


def solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """The x with matrix · x = right for a symmetric positive definite matrix.

    A matrix that rounding left indefinite is solved by LU. Raises `NotApplicable` for a singular one, as of two models
    that do not differ.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    found: Tensor = torch.cholesky_solve(right[:, None], factor)[:, 0]
    if bool(found.isfinite().all() & (failed == 0)):
        return found
    found, failed = torch.linalg.solve_ex(matrix, right)
    if bool(found.isfinite().all() & (failed == 0)):
        return found
    raise NotApplicable("the difference of the two models leaves the scales of channels undetermined")


def _by_kernel_of(value: Tensor, use: Use, classes: Tensor) -> Tensor:
    if use.blocks > 1:
        # In a grouped convolution the channel that an entry of axis 1 reads depends on its row.
        return classes.reshape(use.blocks, -1).repeat_interleave(len(value) // use.blocks, 0)
    if value.dim() == 1:
        return classes
    return classes[:, None] if use.axis == 0 else classes[None]
