"""Named random streams drawn from one seed, so that nothing depends on the order in which others draw."""

from __future__ import annotations

from hashlib import sha256

import torch


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

    def child(self, *path: str | int) -> Streams:
        """The streams below `path`, for a part that names its own."""
        return Streams(self.seed, *self._prefix, *path)
