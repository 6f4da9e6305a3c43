"""Named random streams: reproducible ones drawn from a seed, and secret ones that a defence draws from.

Nothing depends on the order in which others draw. torch's generators take a seed of 32 bits in effect, few enough to
try them all; the generators of a secret stream have their whole state, 624 words, filled by SHAKE-256. Methods draw
from the task's streams, defences from secret ones.
"""

from __future__ import annotations

import secrets
from hashlib import sha256, shake_256
from numbers import Integral
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from .errors import InputError

# The state of torch's CPU generator: a header, then the words of the Mersenne Twister in 8 bytes each.
_HEADER, _WORDS = 24, 624
_MARK = 0x5EED1234


def whole(value: object, what: str = "seed") -> int:
    """`value` as an int, an error unless it is a whole number; `what` names it there."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{what} is {value!r}; give a whole number")
    return int(value)


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

    @classmethod
    def secret(cls, seed: int | None = None) -> Streams:
        """Streams for a defence, from 256 bits of the operating system's entropy; `seed` repeats an experiment."""
        return _SecretStreams(secrets.token_bytes(32) if seed is None else repr(int(seed)).encode())

    def of(self, *path: str | int) -> Streams:
        """The streams below `path`."""
        return Streams(self.seed, *self._prefix, *path)

    def number(self, *path: str | int) -> int:
        """A seed for whatever takes one: 63 bits, or 256 bits of a secret stream."""
        text = repr((self.seed, *self._prefix, *path)).encode()
        return int.from_bytes(sha256(text).digest()[:8], "big") >> 1

    def generator(self, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator on `device` at the start of the stream `path`; those of secret streams are on the CPU."""
        return torch.Generator(device=device).manual_seed(self.number(*path))


class _SecretStreams(Streams):
    """Streams from a key. Whoever learns a child, or all its draws, learns nothing of its parent or its sisters."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, *path: str | int) -> Streams:
        return _SecretStreams(self._bits(32, "of", *path))

    def number(self, *path: str | int) -> int:
        return int.from_bytes(self._bits(32, "number", *path), "big")

    def generator(self, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator on the CPU, whose whole state comes from the key."""
        if torch.device(device).type != "cpu":
            raise ValueError(f"a secret stream was asked to draw on {device}; draw on the CPU and copy")
        generator = torch.Generator().manual_seed(_MARK)
        state = generator.get_state()
        words = state.numpy()[_HEADER : _HEADER + 8 * _WORDS].view("<u8")
        if words[0] != _MARK:
            raise RuntimeError("this torch keeps the state of its CPU generator in a form that is not known here")
        words[:] = np.frombuffer(self._bits(4 * _WORDS, "generator", *path), dtype="<u4")
        return generator.set_state(state)

    def _bits(self, count: int, *path: str | int) -> bytes:
        """`count` bytes that belong to the path alone; its first word keeps keys, seeds and states apart."""
        text = len(self._key).to_bytes(8, "big") + self._key + repr(path).encode()
        return shake_256(text).digest(count)

    def __repr__(self) -> str:
        return "Streams(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret stream is not pickled; draw the secret in the process that uses it")


class LayerDraws:
    """What modules such as dropout draw from torch's global generators, taken from a seed instead.

    Inside the context the global generators of the CPU and of `device` continue where the last context left them;
    outside they are as they were. With `none`, for what is known to draw nothing, it does nothing.
    """

    def __init__(self, seed: int, *, device: torch.device, none: bool = False) -> None:
        of_gpu = [device] if device.type == "cuda" else []
        self._devices = [] if none else [torch.device("cpu"), *of_gpu]
        # States of the global generators, a list by device: for the next block, and those put back after it.
        self._inside = [torch.Generator(device=d).manual_seed(seed).get_state() for d in self._devices]
        self._outside: list[Tensor] = []

    def __enter__(self) -> None:
        self._outside = _exchange(self._devices, self._inside)

    def __exit__(self, *error: object) -> None:
        self._inside = _exchange(self._devices, self._outside)


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
