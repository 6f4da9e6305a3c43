"""Gradients of examples as rows of a matrix (n, d), read a few rows at a time, and how many of them fit in memory.

Row i is ∇θ ℓ(f(xᵢ; θ), yᵢ), cross-entropy, over the d trainable parameters of the model, flattened one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...data.examples import TensorExamples
from ...errors import DataError
from ...gradients.per_sample import each_gradient

# On a CPU memory is everybody's, and too much of it ends the process; a GPU is asked how much is left.
CPU_HELD = 2 * 2**30
CPU_BATCH = 256 * 2**20
# More examples at once are no faster; on a GPU each batch costs the host as much as any other.
LARGEST_BATCH = 128
GPU_LARGEST_BATCH = 512
# Of what is free on a GPU; the rest is for batches, the chosen columns, and activations.
GPU_HELD = 0.6
# A batch of rows exists up to five times at once, beside the activations of its examples.
GPU_BATCH = 1 / 16


def gradient_rows(model: nn.Module, x: Tensor, y: Tensor, *, less: Tensor | None = None) -> Tensor:
    """The gradients of a batch (k, d), less as many other rows; a tensor of its own."""
    trained = [p for p in model.parameters() if p.requires_grad]
    kind = torch.float64 if any(p.dtype == torch.float64 for p in trained) else torch.float32
    rows = torch.empty(len(x), sum(p.numel() for p in trained), dtype=kind, device=x.device)
    filled = 0
    for _, gradient in each_gradient(model, x, y):
        span = slice(filled, filled + gradient[0].numel())
        # Each number is read and written once, in whatever order a gradient lies in memory.
        place = rows[:, span].view(gradient.shape)
        if less is None:
            place.copy_(gradient)
        else:
            torch.sub(gradient, less[:, span].view(gradient.shape), out=place)
        filled = span.stop
    return rows


class GradientRows:
    """The gradients of `examples` at `model`, less those of other rows: computed when they are read, or held.

    `what` names the set and the model in errors.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: TensorExamples,
        *,
        what: str,
        less: GradientRows | None = None,
        batch_size: int | None = None,
    ) -> None:
        self._model, self._examples, self._what, self._less = model, examples, what, less
        self._held: Tensor | None = None
        self._finite: list[tuple[int, Tensor]] = []
        self._size = len(examples) * row_bytes(model)
        self.batch_size = batch_size or rows_at_once(row_bytes(model), examples.y.device)

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def held_bytes(self) -> int:
        """The memory that is held."""
        return 0 if self._held is None else self._size

    def part(self, begin: int, end: int) -> Tensor:
        """Rows `begin` to `end` − 1, to be read only."""
        if self._held is not None:
            return self._held[begin:end]
        less = None if self._less is None else self._less.part(begin, end)
        rows = gradient_rows(self._model, self._examples.x[begin:end], self._examples.y[begin:end], less=less)
        # Looked at in the end: a look waits for all that a GPU was given.
        self._finite.append((begin, rows.sum(1).isfinite()))
        return rows

    def hold(self, *, already: int = 0) -> None:
        """Compute all rows now and keep them, where there is room for them beside `already` bytes of the kind."""
        device = self._examples.y.device
        if self._size > GPU_HELD * free(device) if device.type == "cuda" else already + self._size > CPU_HELD:
            return
        whole: Tensor | None = None
        for begin, end in spans(len(self), self.batch_size):
            part = self.part(begin, end)
            whole = part.new_empty(len(self), part.shape[1]) if whole is None else whole
            whole[begin:end] = part
        self._held = whole

    def require_finite(self) -> None:
        """Refuse the first row so far that is not finite."""
        seen, self._finite = self._finite, []
        if not seen or bool(torch.cat([finite for _, finite in seen]).all()):
            return
        begin, finite = next(each for each in seen if not bool(each[1].all()))
        raise DataError(
            f"the gradient of row {begin + int((~finite).nonzero()[0])} of {self._what} is not finite; the weights are "
            "damaged or the loss overflows: use finite weights, or remove the row"
        )


def spans(count: int, batch_size: int) -> Iterator[tuple[int, int]]:
    """0 to `count` in steps of at most `batch_size`.

    >>> list(spans(5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    return ((begin, min(begin + batch_size, count)) for begin in range(0, count, batch_size))


def row_bytes(model: nn.Module) -> int:
    """The size of one gradient of `model`, over its trainable parameters."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return sum(p.numel() for p in trained) * max((p.element_size() for p in trained), default=0)


def held_at_once(size: int, device: torch.device) -> int:
    """How many things of `size` bytes each may be held, at least one."""
    room = GPU_HELD * free(device) if device.type == "cuda" else CPU_HELD
    return max(1, int(room) // max(1, size))


def rows_at_once(size: int, device: torch.device, *, share: float = GPU_BATCH) -> int:
    """How many rows of `size` bytes make a batch, which may take `share` of what is free on a GPU."""
    on_gpu = device.type == "cuda"
    room = share * free(device) if on_gpu else CPU_BATCH
    return max(1, min(GPU_LARGEST_BATCH if on_gpu else LARGEST_BATCH, int(room) // max(1, size)))


def free(device: torch.device) -> int:
    """Bytes that torch could still allocate on a GPU, what its allocator keeps in reserve included, but not what it
    keeps for captured graphs, nor what is beyond the share of the GPU that this process may have.
    """
    there, whole = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    share = int(torch.cuda.get_per_process_memory_fraction(device.index) * whole)
    unused = reserved - torch.cuda.memory_allocated(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    for_graphs = sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == index and tuple(segment["segment_pool_id"]) != (0, 0)
    )
    return max(0, min(there, share - reserved) + unused - for_graphs)
