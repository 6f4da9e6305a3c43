"""Named random streams drawn from one seed, so that nothing depends on the order in which others draw."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from types import TracebackType

import torch
from torch import Tensor

from .waiting import keeping_turn


class Streams:
    """Independent generators addressed by name: the same (seed, path) always gives the same draws.

    A path may end in a counter, which is how an epoch gets its own stream: a run that resumes at epoch 7 needs no saved
    generator state, only the number 7.

    >>> a = Streams(0).generator("batches", 7)
    >>> b = Streams(0).generator("batches", 7)
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
    True
    """

    def __init__(self, seed: int, *prefix: str | int) -> None:
        self.seed = seed
        self._prefix = prefix

    def number(self, *path: str | int) -> int:
        """A 63-bit seed for whatever takes one."""
        text = repr((self.seed, *self._prefix, *path)).encode()
        return int.from_bytes(sha256(text).digest()[:8], "big") >> 1

    def generator(self, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator on `device` at the start of the stream `path`."""
        return torch.Generator(device=device).manual_seed(self.number(*path))


class LayerDraws:
    """What modules such as dropout draw from torch's global generators, taken from a seed instead.

    Inside the context the global generators of the CPU and of `device` continue where the last context left them;
    outside they are as they were. They belong to the process, so a thread that takes turns keeps its turn inside. With
    `none`, for what is known to draw nothing, it does nothing.
    """

    def __init__(self, seed: int, *, device: torch.device, none: bool = False) -> None:
        of_gpu = [device] if device.type == "cuda" else []
        self._devices = [] if none else [torch.device("cpu"), *of_gpu]
        self._inside = [torch.Generator(device=d).manual_seed(seed).get_state() for d in self._devices]
        self._outside: list[Tensor] = []
        self._alone: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> None:
        self._alone = keeping_turn() if self._devices else nullcontext()
        self._alone.__enter__()
        self._outside = _exchange(self._devices, self._inside)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = _exchange(self._devices, self._outside)
        self._alone.__exit__(kind, error, trace)


def _exchange(devices: list[torch.device], states: list[Tensor]) -> list[Tensor]:
    """Put `states` into the global generators; returns those that were there."""
    before = []
    for device, state in zip(devices, states, strict=True):
        generator = (
            torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
        )
        before.append(generator.get_state())
        generator.set_state(state)
    return before
