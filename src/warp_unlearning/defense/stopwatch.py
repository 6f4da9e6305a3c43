"""How long work took on a device that may be behind the host."""

from __future__ import annotations

from time import perf_counter

import torch

from ..waiting import idly


class Stopwatch:
    """Runs from when it is made; on a GPU from when that has done what it was given before on the current stream, such
    as updates that the host is ahead of.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._began = device, perf_counter()
        self._reached = _mark(device) if device.type == "cuda" else None

    def seconds(self) -> float:
        """Until all that was given to the device by now is done."""
        if self._reached is None:
            return perf_counter() - self._began
        done = _mark(self._device)
        with idly():
            done.synchronize()
        return float(self._reached.elapsed_time(done)) / 1000


def _mark(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
