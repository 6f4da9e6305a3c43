"""From raw rows to what a model is given: channels first, (v / scale − mean) / std in each channel, in 32 bits.

8-bit images are scaled by 255 and, unless told otherwise, normalised by the moments of their training rows;
floating-point rows are taken as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError, InputError, nearest, reason
from .examples import Batch, Examples, TensorExamples
from .files import array_digest
from .sampling import fixed_test_part
from .sources import load_table
from .standard import MOMENTS
from .table import Index, Layout, Table, chunks

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """How raw rows become inputs: scale, mean and std of each channel, or the user's function, named by `spec`.

    >>> Preprocess(scale=2.0, mean=(1.0,), std=(0.5,)).inputs(np.array([[2.0, 4.0]]))
    tensor([[0., 2.]])
    """

    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: Layout = "nd"
    function: Callable[[Tensor], Tensor] | None = None
    spec: str | None = None

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise InputError(f"the layout is {self.layout!r}; {nearest(str(self.layout), get_args(Layout))}")
        finite = all(map(isfinite, (self.scale, *self.mean, *self.std)))
        if not finite or self.scale == 0 or min(self.std, default=1) <= 0 or len(self.mean) != len(self.std):
            given = f"scale {self.scale}, mean {self.mean}, std {self.std}"
            raise InputError(f"{given} are no normalisation; give finite numbers, scale and std above 0, a mean a std")

    @classmethod
    def standard(cls, table: Table) -> Preprocess:
        """How our own networks read a table: published moments of known data, else those of the learned rows."""
        if table.x.dtype != np.uint8:
            return cls(layout=table.layout)
        scale = 16.0 if table.name == "digits" else 255.0
        if table.name in MOMENTS:
            return cls(scale, *MOMENTS[table.name], layout=table.layout)
        return cls(scale, *moments(table, table.learned, scale), table.layout)

    def inputs(self, raw: NDArray[Any] | Tensor) -> Tensor:
        """What the model is given for raw rows, on the device they are on."""
        if not isinstance(raw, Tensor):
            raw = torch.from_numpy(raw if raw.dtype == np.uint8 else raw.astype(np.float32, copy=False))
        if self.function is not None:
            found = self.function(raw)
            if not isinstance(found, Tensor) or len(found) != len(raw):
                kind = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
                raise InputError(f"{self.spec} gave {kind} for {len(raw)} rows; return a tensor with one a row")
            return found.float()
        images = _channels_first(raw, self.layout)
        x: Tensor = images.to(torch.float32, copy=True, memory_format=torch.contiguous_format).div_(self.scale)
        if self.mean and x.shape[1] != len(self.mean) != 1:
            raise InputError(f"there are {len(self.mean)} means for inputs of {x.shape[1]} channels; give one of each")
        behind = max(x.dim() - 2, 0)
        return x.sub_(_column(self.mean, behind, x)).div_(_column(self.std, behind, x)) if self.mean else x

    __call__ = inputs

    def __str__(self) -> str:
        if self.function is not None:
            return str(self.spec)
        scaled = "x" if self.scale == 1 else f"x/{self.scale:g}"
        if not self.mean:
            return scaled
        texts = (", ".join(f"{v:.3g}" for v in values[:3]) for values in (self.mean, self.std))
        mean, std = (f"({text})" if "," in text else text for text in texts)
        return f"({scaled} - {mean})/{std}"

    def describe(self) -> dict[str, Any]:
        """As plain data, from which `from_plain` makes it again."""
        if self.function is not None:
            return {"function": self.spec, "layout": self.layout}
        return {"scale": self.scale, "mean": list(self.mean), "std": list(self.std), "layout": self.layout}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any], function: Callable[[Tensor], Tensor] | None = None) -> Preprocess:
        """What `describe` gave; one that named a function needs it again."""
        if "function" in data:
            if function is None:
                raise InputError(f"these data were read by {data['function']}; give that function")
            return cls(layout=data["layout"], function=function, spec=data["function"])
        try:
            mean, std = (tuple(map(float, data[key])) for key in ("mean", "std"))
            return cls(float(data["scale"]), mean, std, data["layout"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the preprocessing is damaged ({reason(error)}); make the run again") from error


def readings(table: Table, preprocess: Preprocess) -> dict[str, Preprocess]:
    """Other plausible ways to read the same rows, by the name to show."""
    layout, rows = table.layout, table.learned[:: max(len(table.learned) // 10_000, 1)]
    found = {
        "x": Preprocess(layout=layout),
        "(x - mean)/std of the training rows": Preprocess(1.0, *moments(table, rows, 1.0), layout),
    }
    if layout != "nd":
        found["x/255"] = Preprocess(255.0, layout=layout)
        found["x/127.5 - 1"] = Preprocess(127.5, (1.0,), (1.0,), layout)
    if _channels(table) == 3:
        scale, shown = (255.0, "x/255") if table.x.dtype == np.uint8 else (1.0, "x")
        found[f"({shown} - mean)/std of ImageNet"] = Preprocess(scale, *_IMAGENET, layout)
        found["in the order BGR"] = Preprocess(function=lambda raw: preprocess.inputs(raw).flip(1), spec="BGR")
    if layout != "nd" and preprocess.inputs(table.x[rows[:1]]).dim() == 4:
        found["transposed"] = Preprocess(function=lambda raw: preprocess.inputs(raw).mT, spec="transposed")
    if table.name in MOMENTS or table.name == "digits":
        found["as our own networks"] = Preprocess.standard(table)
    return {name: other for name, other in found.items() if other != preprocess}


def moments(table: Table, rows: Index, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel (or feature) of raw rows over `scale`.

    A channel that never changes has deviation 1, so that it is normalised to zeros.
    """
    count, total, squares = 0, np.array(0), np.array(0)
    for part in chunks(table.x, rows):
        raw = _channels_first(table.x[part], table.layout)
        raw = raw.astype(np.int64 if raw.dtype == np.uint8 else np.float64)
        axes = tuple(axis for axis in range(raw.ndim) if axis != 1)
        total, squares = total + raw.sum(axis=axes), squares + (raw * raw).sum(axis=axes)
        count += raw.size // raw.shape[1]
    # Of bytes, in Python's whole numbers: the difference of two large sums would lose digits in floating point.
    sums = list(zip(total.tolist(), squares.tolist(), strict=True))
    variances = [max(count * q - t * t, 0) / count**2 for t, q in sums]
    return tuple(t / count / scale for t, _ in sums), tuple(sqrt(v) / scale if v > 0 else 1.0 for v in variances)


def _channels(table: Table) -> int:
    return table.x.shape[3 if table.layout == "nhwc" else 1] if len(table.x.shape) == 4 else 1


def _channels_first(raw: Any, layout: Layout) -> Any:
    if layout == "nhw":
        return raw[:, None]
    return raw.swapaxes(1, 3).swapaxes(2, 3) if layout == "nhwc" else raw


def _column(values: tuple[float, ...], behind: int, like: Tensor) -> Tensor:
    return _made_column(values, behind, like.dtype, like.device)


@lru_cache(maxsize=64)
def _made_column(values: tuple[float, ...], behind: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Kept, for a copy to a GPU cannot be part of a captured graph; and so made outside of inference mode.
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device).reshape(-1, *[1] * behind)


@dataclass(frozen=True, eq=False)
class _TableExamples:
    """Rows of a table that are read and preprocessed a batch at a time, so a table may be larger than memory."""

    table: Table
    index: Index
    preprocess: Preprocess
    y: Tensor
    dtype: torch.dtype = torch.float32

    def take(self, index: Tensor) -> Batch:
        # Bytes are sent to the device, not floats, and preprocessed there.
        raw = self.table.x[self.index[index.cpu().numpy()]]
        sent = torch.from_numpy(raw if raw.dtype == np.uint8 else raw.astype(np.float32)).to(self.y.device)
        return Batch(self.preprocess.inputs(sent).to(self.dtype), self.y[index.to(self.y.device)])

    def to(self, device: torch.device | str) -> _TableExamples:
        return replace(self, y=self.y.to(device))

    def __len__(self) -> int:
        return len(self.index)


def table_examples(
    table: Table,
    index: Index,
    preprocess: Preprocess,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    keep: int = 2**28,
) -> Examples:
    """Rows of a table as examples: tensors if the inputs take at most `keep` bytes, else read batch by batch."""
    later = _TableExamples(table, index, preprocess, torch.from_numpy(table.y[index]).to(device), dtype)
    if len(index) == 0 or (first := later.take(torch.tensor([0])).x).nbytes * len(index) > keep:
        return later
    x = first.new_empty(len(index), *first.shape[1:])
    for part in chunks(table.x, np.arange(len(index))):
        x[part] = later.take(torch.from_numpy(part)).x
    return TensorExamples(x, later.y)


@dataclass(frozen=True, eq=False)
class ImageData:
    """Normalised training and test examples with the moments they were normalised by, for studies and attacks; the
    `digest` is of the raw arrays.
    """

    name: str
    train: TensorExamples
    test: TensorExamples
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: (channels, height, width), or (features,)."""
        return tuple(self.train.x.shape[1:])

    @property
    def fill(self) -> tuple[float, ...]:
        """The normalised value of a black raw pixel in each channel, with which crops are padded."""
        return tuple((0.0 - m) / s for m, s in zip(self.mean, self.std, strict=True))


def image_data(table: Table, preprocess: Preprocess | None = None, *, test: Index | None = None) -> ImageData:
    """The rows learned from and the unseen rows of a table; with `test`, all training rows and these; normalised."""
    if test is None and len(table.unseen) == 0:
        raise DataError(f"{table.name} has no rows to test on; give a test part, or hold a share out")
    preprocess = preprocess or Preprocess.standard(table)
    both = (table.learned, table.unseen) if test is None else (np.arange(table.train), test)
    parts = [(table.x[rows], table.y[rows]) for rows in both]
    train, held = (TensorExamples(preprocess.inputs(x), torch.from_numpy(y)) for x, y in parts)
    digest = array_digest(*(array for x, y in parts for array in (_channels_first(x, table.layout), y)))
    mean, std = preprocess.mean or (0.0,) * _channels(table), preprocess.std or (1.0,) * _channels(table)
    return ImageData(table.name, train, held, table.classes, mean, std, digest)


def load_data(
    name: str = "digits",
    *,
    path: Path | None = None,
    fetch: bool = False,
    size: tuple[int, int] | None = None,
    examples: int | None = None,
) -> ImageData:
    """The data set `name` for studies; of one without test rows, a fixed fifth of each class is held out.

    `examples` takes the first so many training examples, and of the test part at most as many.

    >>> len(load_data("digits").train)
    1400
    """
    table = load_table(name, path, fetch=fetch, size=size)
    if len(table.unseen) == 0:
        table = replace(table, held=fixed_test_part(table.y, fraction=0.2, name=name)[1])
    data = image_data(table)
    if examples is None:
        return data
    if not 1 <= examples <= len(data.train):
        raise InputError(f"{examples} of the {len(data.train)} training examples of {name}; give 1 to all")
    train, held = (part.select(torch.arange(min(examples, len(part)))) for part in (data.train, data.test))
    digest = array_digest(np.frombuffer(bytes.fromhex(data.digest), np.uint8), np.array(examples))
    return replace(data, train=train, test=held, digest=digest)


@dataclass(frozen=True)
class Pixels:
    """The shape (channels, height, width) of an image with values in [0, 1], and the moments of its channels."""

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise InputError(f"images have shape {self.shape}; give (channels, height, width)")
        if len(Preprocess(1.0, self.mean, self.std).mean) != self.shape[0]:
            raise InputError(f"there are {len(self.mean)} means for {self.shape[0]} channels; give one of each")

    def inputs(self, images: Tensor) -> Tensor:
        """What the model sees of images (..., channels, height, width)."""
        return (images - _column(self.mean, 2, images)) / _column(self.std, 2, images)

    def images(self, inputs: Tensor) -> Tensor:
        """The images of inputs, not clamped."""
        return inputs * _column(self.std, 2, inputs) + _column(self.mean, 2, inputs)


def pixels_of(data: ImageData) -> Pixels:
    """Those of a data set of images."""
    if len(data.shape) != 3:
        raise InputError(f"an example of {data.name} has shape {data.shape}; images are (channels, height, width)")
    return Pixels((data.shape[0], data.shape[1], data.shape[2]), data.mean, data.std)


def image_digests(images: Tensor) -> list[str]:
    """64 bits of SHA-256, in hexadecimal, of each of images (n, c, h, w) with values in [0, 1], rounded to 1/4080.

    >>> white, grey = torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.5)
    >>> image_digests(white) == image_digests(white - 1e-6), image_digests(white) == image_digests(grey)
    (True, False)
    """
    # 4080 is a multiple of 255 and of 16, so that 8-bit values and those of the digits lie on a step, never between.
    found: list[str] = []
    for part in torch.split(images.detach(), 4096):
        rows = (part.double() * 4080).round().clamp(0, 4080).cpu().numpy().astype("<u2")
        found += [sha256(f"{row.shape}".encode() + row.tobytes()).hexdigest()[:16] for row in rows]
    return found
