"""How much memory may be taken for rows of gradients that could also be computed again."""

from __future__ import annotations

import torch

# On a CPU memory is everybody's, and too much of it ends the process; a GPU's is asked how much is left.
CPU_HELD = 2 * 2**30
CPU_BATCH = 256 * 2**20
# More examples at once are no faster; on a GPU each batch costs the host as much as any other.
LARGEST_BATCH = 128
GPU_LARGEST_BATCH = 512
# Of what is free on a GPU; the rest is for batches, the chosen columns, and activations.
GPU_HELD = 0.6
# A batch of rows exists up to five times at once, beside the activations of its examples.
GPU_BATCH = 1 / 16


def can_hold(size: int, device: torch.device, *, already: int = 0) -> bool:
    """Whether `size` bytes more may be held on `device`, where this process holds `already` bytes of the kind."""
    return size <= GPU_HELD * free(device) if device.type == "cuda" else already + size <= CPU_HELD


def held_at_once(size: int, device: torch.device) -> int:
    """How many things of `size` bytes each may be held, at least one."""
    room = GPU_HELD * free(device) if device.type == "cuda" else CPU_HELD
    return max(1, int(room) // max(1, size))


def rows_at_once(row_bytes: int, device: torch.device, *, share: float = GPU_BATCH) -> int:
    """How many rows of `row_bytes` make a batch, which may take `share` of what is free on a GPU."""
    on_gpu = device.type == "cuda"
    room = share * free(device) if on_gpu else CPU_BATCH
    return max(1, min(GPU_LARGEST_BATCH if on_gpu else LARGEST_BATCH, int(room) // max(1, row_bytes)))


def free(device: torch.device) -> int:
    """Bytes that torch could still allocate on a GPU, what its allocator keeps in reserve included, but not what it
    keeps for captured graphs, nor what is beyond the share of the GPU that this process may have.
    """
    there, whole = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    share = int(torch.cuda.get_per_process_memory_fraction(device.index) * whole)
    unused = reserved - torch.cuda.memory_allocated(device)
    return max(0, min(there, share - reserved) + unused - _kept_for_graphs(device))


def _kept_for_graphs(device: torch.device) -> int:
    index = torch.cuda.current_device() if device.index is None else device.index
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == index and tuple(segment["segment_pool_id"]) != (0, 0)
    )
