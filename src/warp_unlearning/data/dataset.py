"""A data set ready for training: normalised train and test tensors, and what is needed to know it again.

Raw values v become (v / scale − mean) / std in each channel. 8-bit images are scaled by 255 and, unless told
otherwise, normalised by the moments of their training part; floating-point arrays are taken as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError, InputError
from .digest import array_digest
from .examples import TensorExamples

Layout = Literal["nchw", "nhwc", "nhw", "nd"]
RawPart = tuple[NDArray[Any], NDArray[Any]]

_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class ImageData:
    """Named training and test examples with the moments they were normalised by.

    `digest` is over the raw arrays, so it does not depend on the normalisation or on the file they came in.
    """

    name: str
    train: TensorExamples
    test: TensorExamples
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str

    def first(self, count: int) -> ImageData:
        """The first `count` training examples and at most as many of the test part, normalised as they are."""
        if not 1 <= count <= len(self.train):
            raise InputError(f"{count} of the {len(self.train)} training examples of {self.name}; give 1 to all")
        train, test = (part.select(torch.arange(min(count, len(part)))) for part in (self.train, self.test))
        digest = array_digest(np.frombuffer(bytes.fromhex(self.digest), np.uint8), np.array(count))
        return replace(self, train=train, test=test, digest=digest)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: (channels, height, width), or (features,)."""
        return tuple(self.train.x.shape[1:])

    @property
    def fill(self) -> tuple[float, ...]:
        """The normalised value of a black raw pixel in each channel, with which crops are padded."""
        return tuple((0.0 - m) / s for m, s in zip(self.mean, self.std, strict=True))


def image_data(
    name: str,
    *,
    train: RawPart,
    test: RawPart,
    classes: Sequence[str],
    layout: Layout,
    scale: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> ImageData:
    """Check raw (x, y) parts and normalise them. `layout` says what the axes of both x are."""
    raw, labels = (
        _channels_first(train[0], layout, f"{name} train x"),
        _labels(train, classes, f"{name} train"),
    )
    test_raw, test_labels = (
        _channels_first(test[0], layout, f"{name} test x"),
        _labels(test, classes, f"{name} test"),
    )
    if raw.shape[1:] != test_raw.shape[1:] or raw.dtype != test_raw.dtype:
        raise DataError(
            f"{name}: train examples are {raw.shape[1:]} {raw.dtype} and test examples {test_raw.shape[1:]} "
            f"{test_raw.dtype}; both parts must be alike"
        )
    scale = scale or (255.0 if raw.dtype == np.uint8 else 1.0)
    if mean is None or std is None:
        mean, std = channel_moments(raw, scale=scale) if raw.dtype == np.uint8 else _no_moments(raw)
    _check_moments(mean, std, raw)
    return ImageData(
        name=name,
        train=_normalised(raw, labels, scale, mean, std, f"{name} train x"),
        test=_normalised(test_raw, test_labels, scale, mean, std, f"{name} test x"),
        classes=tuple(classes),
        mean=tuple(mean),
        std=tuple(std),
        digest=array_digest(raw, labels, test_raw, test_labels),
    )


def channel_moments(raw: NDArray[np.uint8], *, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of 8-bit (n, c, h, w) images over `scale`.

    A channel that never changes has deviation 1, so that it is normalised to zeros.
    """
    total = np.zeros(raw.shape[1], dtype=np.int64)
    squares = np.zeros_like(total)
    for start in range(0, len(raw), _CHUNK):
        chunk = raw[start : start + _CHUNK].astype(np.int64)
        total += chunk.sum(axis=(0, 2, 3))
        squares += (chunk * chunk).sum(axis=(0, 2, 3))
    count = raw.size // raw.shape[1]
    # Whole numbers up to the last step: the difference of two large sums would lose digits in floating point.
    spread = [max(count * int(q) - int(t) ** 2, 0) / count**2 for t, q in zip(total, squares, strict=True)]
    std = tuple(float(np.sqrt(v)) / scale if v > 0 else 1.0 for v in spread)
    return tuple(float(t) / count / scale for t in total), std


def _no_moments(raw: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    channels = raw.shape[1] if raw.ndim == 4 else 1
    return (0.0,) * channels, (1.0,) * channels


def _check_moments(mean: Sequence[float], std: Sequence[float], raw: NDArray[Any]) -> None:
    channels = raw.shape[1] if raw.ndim == 4 else 1
    if len(mean) != channels or len(std) != channels or not all(s > 0 for s in std):
        raise InputError(f"mean {tuple(mean)} and std {tuple(std)} must have {channels} values each, std above 0")


def _channels_first(x: NDArray[Any], layout: Layout, what: str) -> NDArray[Any]:
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise DataError(f"{what} has type {x.dtype}; give 8-bit images (uint8) or floating-point numbers")
    if x.ndim != len(layout):
        raise DataError(f"{what} has shape {x.shape}; {len(layout)} axes ({', '.join(layout)}) are needed")
    if x.size == 0:
        raise DataError(f"{what} has shape {x.shape}, which is empty; give at least one example")
    if layout == "nd" and x.dtype == np.uint8:
        raise DataError(f"{what} has shape {x.shape} and type uint8; convert flat features to floating point")
    if layout == "nhw":
        x = x[:, None]
    if layout == "nhwc":
        x = x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


def _labels(part: RawPart, classes: Sequence[str], what: str) -> NDArray[np.int64]:
    x, y = part
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"{what} y has shape {y.shape} and type {y.dtype}; give one whole-number class a row")
    if len(x) != len(y):
        raise DataError(f"{what} has {len(x)} examples and {len(y)} labels; they must be as many")
    wrong = np.flatnonzero((y < 0) | (y >= len(classes)))
    if len(wrong):
        raise DataError(f"{what} y has {y[wrong[0]]} in row {wrong[0]}; labels are 0 to {len(classes) - 1}")
    return y.astype(np.int64)


def _normalised(
    raw: NDArray[Any],
    labels: NDArray[np.int64],
    scale: float,
    mean: Sequence[float],
    std: Sequence[float],
    what: str,
) -> TensorExamples:
    with np.errstate(over="ignore"):
        x = torch.from_numpy(raw.astype(np.float32))
    bad = (~torch.isfinite(x)).flatten(1).any(dim=1).nonzero()
    if len(bad):
        raise DataError(f"{what} row {int(bad[0])} has a value that is not finite in 32 bits; mend or drop that row")
    x.div_(scale).sub_(_by_channel(mean, x)).div_(_by_channel(std, x))
    return TensorExamples(x, torch.from_numpy(labels))


def _by_channel(values: Sequence[float], x: Tensor) -> Tensor:
    return torch.tensor(values, dtype=x.dtype).reshape(1, -1, *[1] * (x.dim() - 2))
