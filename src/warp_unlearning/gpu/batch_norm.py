"""Batch norm in train mode of images whose channels are last in memory, together with a sum and a ReLU behind it.

An image batch (n, c, h, w) is a matrix of M = n·h·w rows and c columns. Forward and backward are two kernels each: sums
over stretches of rows, then a pass over all entries in which every program adds up the sums of its own columns. No sum
depends on the order in which programs run, so results are the same each time. `FastLayers` calls it.
"""

# Triton's language is not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

# Most stretches, least rows of a stretch, and rows and columns of a program's block.
_STRETCHES, _LEAST_ROWS, _ROWS, _COLUMNS = 32, 128, 128, 64
# Arguments that depend on the batch size: Triton would compile the kernels anew for multiples of 16.
_BY_BATCH = ("m", "stretch", "stretches")


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    momentum: float,
    eps: float,
    residual: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """(x − μ) / √(σ² + eps) · weight + bias with the batch's own mean and (biased) variance of each channel; running
    statistics move by `momentum` towards the mean and the unbiased variance. A `residual` laid out as x is added, and
    with `relu` what is negative becomes zero.
    """
    output: Tensor = _BatchNorm.apply(x, weight, bias, running_mean, running_var, residual, momentum, eps, relu)
    return output


def suits(x: Tensor, *others: Tensor | None) -> bool:
    """Whether `batch_norm` can be used: half-precision images with channels last, all else in float32."""
    return (
        x.dim() == 4
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[0] * x.shape[2] * x.shape[3] > 1
        and x.numel() < 2**31
        and all(t is not None and t.dtype == torch.float32 and t.is_contiguous() for t in others)
    )


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, weight, bias, running_mean, running_var, residual, momentum, eps, relu):
        """Sum the columns, then normalise; `saved` keeps each column's mean and 1 / √(σ² + eps) for the way back."""
        plan = _Plan(x)
        y, saved = torch.empty_like(x), plan.empty(2)
        sums = plan.empty(plan.stretches, 2)
        _column_sums[plan.by_stretch](x, sums, plan.rows, plan.columns, plan.stretch, **plan.block)
        _normalise[plan.by_rows](
            x, y, x if residual is None else residual, sums, weight, bias, running_mean, running_var, saved,
            plan.rows, plan.columns, plan.stretches, eps, momentum, **plan.block, SUMS=plan.block_of_sums,
            ADDS=residual is not None, RELU=relu,
        )  # fmt: skip
        # Where a ReLU follows, its output says which slopes pass.
        ctx.save_for_backward(x, y if relu else x, weight, saved)
        ctx.adds, ctx.relu = residual is not None, relu
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy):
        """Sum dy and dy·x̂ by column, then make dx; these sums, `found`, are the gradients of bias and weight."""
        x, y, weight, saved = ctx.saved_tensors
        if dy.stride() != x.stride():
            dy = torch.empty_like(x).copy_(dy)
        plan = _Plan(x)
        dx, found = torch.empty_like(x), plan.empty(2)
        # Without a ReLU the slopes of what was added are those of the sum.
        for_residual = torch.empty_like(x) if ctx.adds and ctx.relu else dy
        sums = plan.empty(plan.stretches, 2)
        _backward_sums[plan.by_stretch](
            x, y, dy, saved, sums, plan.rows, plan.columns, plan.stretch, **plan.block, RELU=ctx.relu
        )
        _backward[plan.by_rows](
            x, y, dy, dx, for_residual, sums, weight, saved, found, plan.rows, plan.columns, plan.stretches,
            **plan.block, SUMS=plan.block_of_sums, ADDS=ctx.adds and ctx.relu, RELU=ctx.relu,
        )  # fmt: skip
        return dx, found[1], found[0], None, None, for_residual if ctx.adds else None, None, None, None


class _Plan:
    """How the work on images `x` is divided between programs. Sums take a program for each stretch of `stretch` rows
    (grid `by_stretch`), the pass over entries one for each block of rows (grid `by_rows`).
    """

    def __init__(self, x: Tensor) -> None:
        self._device = x.device
        self.columns = x.shape[1]
        self.rows = x.numel() // self.columns
        self.stretches = max(1, min(_STRETCHES, self.rows // _LEAST_ROWS))
        self.stretch = triton.cdiv(self.rows, self.stretches)
        self.block_of_sums = triton.next_power_of_2(self.stretches)
        columns = min(_COLUMNS, triton.next_power_of_2(self.columns))
        self.block = {"ROWS": _ROWS, "COLUMNS": columns}
        across = triton.cdiv(self.columns, columns)
        self.by_stretch = (across, self.stretches)
        self.by_rows = (triton.cdiv(self.rows, _ROWS), across)

    def empty(self, *shape: int) -> Tensor:
        """An empty tensor (*shape, columns) for results of every column."""
        return torch.empty(*shape, self.columns, device=self._device, dtype=torch.float32)


@triton.jit(do_not_specialize=_BY_BATCH)
def _column_sums(x, sums, m, n, stretch, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Σ (x − x₀) and Σ (x − x₀)² over a stretch of rows; x₀ is the first row, so that no large mean cancels."""
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    s = tl.program_id(1)
    is_column = c < n
    shift = tl.load(x + c, mask=is_column, other=0.0).to(tl.float32)
    first, second = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    last = tl.minimum((s + 1) * stretch, m)
    for i in range(s * stretch, last, ROWS):
        r = i + tl.arange(0, ROWS)
        inside = (r < last)[:, None] & is_column[None, :]
        value = tl.load(x + r[:, None] * n + c[None, :], mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - shift[None, :], 0.0)
        first += tl.sum(value, 0)
        second += tl.sum(value * value, 0)
    tl.store(sums + 2 * s * n + c, first, mask=is_column)
    tl.store(sums + (2 * s + 1) * n + c, second, mask=is_column)


@triton.jit
def _added(sums, c, is_column, n, stretches, SUMS: tl.constexpr):
    """Add up both sums of the columns `c`, which the programs of all stretches have stored in `sums`."""
    s = tl.arange(0, SUMS)
    inside = (s < stretches)[:, None] & is_column[None, :]
    at = 2 * s[:, None] * n + c[None, :]
    first = tl.sum(tl.load(sums + at, mask=inside, other=0.0), 0)
    second = tl.sum(tl.load(sums + at + n, mask=inside, other=0.0), 0)
    return first, second


@triton.jit(do_not_specialize=_BY_BATCH)
def _normalise(
    x, y, residual, sums, weight, bias, running_mean, running_var, saved, m, n, stretches, eps, momentum,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SUMS: tl.constexpr, ADDS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """One block of y from the sums; programs of the first rows also save mean and scale, and move the statistics."""
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = c < n
    first, second = _added(sums, c, is_column, n, stretches, SUMS)
    first, second = first / m, second / m
    mean = first + tl.load(x + c, mask=is_column, other=0.0).to(tl.float32)
    # Not tl.maximum, which may turn what is not a number into one.
    variance = second - first * first
    variance = tl.where(variance < 0, 0.0, variance)
    scale = 1.0 / tl.sqrt(variance + eps)
    if tl.program_id(0) == 0:
        tl.store(saved + c, mean, mask=is_column)
        tl.store(saved + n + c, scale, mask=is_column)
        old_mean = tl.load(running_mean + c, mask=is_column)
        old_variance = tl.load(running_var + c, mask=is_column)
        unbiased = variance * (m / (m - 1.0))
        tl.store(running_mean + c, (1 - momentum) * old_mean + momentum * mean, mask=is_column)
        tl.store(running_var + c, (1 - momentum) * old_variance + momentum * unbiased, mask=is_column)
    factor = tl.load(weight + c, mask=is_column, other=0.0) * scale
    offset = tl.load(bias + c, mask=is_column, other=0.0) - mean * factor
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (r < m)[:, None] & is_column[None, :]
    at = r[:, None] * n + c[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * factor[None, :] + offset[None, :]
    if ADDS:
        value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0, 0.0, value)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_BY_BATCH)
def _backward_sums(x, y, dy, saved, sums, m, n, stretch, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RELU: tl.constexpr):
    """Σ dy and Σ dy·x̂ over a stretch of rows, with x̂ the normalised entries."""
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    s = tl.program_id(1)
    is_column = c < n
    mean = tl.load(saved + c, mask=is_column, other=0.0)
    scale = tl.load(saved + n + c, mask=is_column, other=0.0)
    first, second = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    last = tl.minimum((s + 1) * stretch, m)
    for i in range(s * stretch, last, ROWS):
        r = i + tl.arange(0, ROWS)
        inside = (r < last)[:, None] & is_column[None, :]
        at = r[:, None] * n + c[None, :]
        slope = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            slope = tl.where(tl.load(y + at, mask=inside, other=0.0) > 0, slope, 0.0)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        first += tl.sum(slope, 0)
        second += tl.sum(slope * (value - mean[None, :]) * scale[None, :], 0)
    tl.store(sums + 2 * s * n + c, first, mask=is_column)
    tl.store(sums + (2 * s + 1) * n + c, second, mask=is_column)


@triton.jit(do_not_specialize=_BY_BATCH)
def _backward(
    x, y, dy, dx, for_residual, sums, weight, saved, found, m, n, stretches,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SUMS: tl.constexpr, ADDS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The gradients of bias and weight, the sums, and dx = weight / √(σ² + eps) · (dy − mean(dy) − x̂ · mean(dy·x̂))."""
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = c < n
    first, second = _added(sums, c, is_column, n, stretches, SUMS)
    if tl.program_id(0) == 0:
        tl.store(found + c, first, mask=is_column)
        tl.store(found + n + c, second, mask=is_column)
    mean = tl.load(saved + c, mask=is_column, other=0.0)
    scale = tl.load(saved + n + c, mask=is_column, other=0.0)
    factor = tl.load(weight + c, mask=is_column, other=0.0) * scale
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (r < m)[:, None] & is_column[None, :]
    at = r[:, None] * n + c[None, :]
    slope = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        slope = tl.where(tl.load(y + at, mask=inside, other=0.0) > 0, slope, 0.0)
    if ADDS:
        tl.store(for_residual + at, slope.to(for_residual.dtype.element_ty), mask=inside)
    value = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
    value = factor[None, :] * (slope - (first / m)[None, :] - value * (second / m)[None, :])
    tl.store(dx + at, value.to(dx.dtype.element_ty), mask=inside)
