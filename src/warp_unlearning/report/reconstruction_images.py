"""The images of a reconstruction for its page: each a PNG in a data URI, in a grid of originals and what was found."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError, InputError
from .reconstruction_results import ReconstructionResults

IMAGES = "images.npz"
_AGAIN = "make the reconstruction again"

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Picture:
    """An image as a data URI, and what it shows in words; both empty where there is none."""

    uri: str = ""
    text: str = ""


@dataclass(frozen=True)
class Pictures:
    """A grid with one row for each image attacked, and headings of rows and columns."""

    columns: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[Picture, ...], ...]


def read_pictures(results: ReconstructionResults, folder: Path) -> Pictures:
    """The grid from the images beside the results."""
    if not results.images_kept:
        raise InputError("this reconstruction did not keep its images; make it again without --no-images")
    arrays = _arrays(folder / IMAGES)
    count = len(results.classes)
    shape = _checked(arrays, "truth", count, folder)[0].shape
    columns = [("original", list(range(count)), arrays["truth"])]
    if "class-mean" in arrays:
        columns.append(("class mean, saw nothing", list(range(count)), _checked(arrays, "class-mean", count, folder)))
    for model in results.models:
        for attack in model.attacks:
            images = _checked(arrays, attack.array, len(model.rows), folder)
            columns.append((f"{model.name}: {attack.name}", list(model.rows), images))
    if any(images.shape[1:] != shape for _, _, images in columns):
        raise DataError(f"{folder / IMAGES} holds images of different sizes; {_AGAIN}")
    return Pictures(
        tuple(heading for heading, _, _ in columns),
        tuple(f"{row + 1}: {name}" for row, name in enumerate(results.classes)),
        tuple(tuple(_picture(heading, rows, images, row) for heading, rows, images in columns) for row in range(count)),
    )


def _picture(heading: str, rows: list[int], images: Bytes, row: int) -> Picture:
    if row not in rows:
        return Picture()
    encoded = base64.b64encode(_png(images[rows.index(row)])).decode()
    return Picture(f"data:image/png;base64,{encoded}", f"image {row + 1}, {heading}")


def _png(image: Bytes) -> bytes:
    """An image (channels, height, width); of other channels than one or three the mean."""
    shown = image if len(image) in (1, 3) else image.mean(0, keepdims=True).round().astype(np.uint8)
    buffer = io.BytesIO()
    whole = shown[0] if len(shown) == 1 else np.ascontiguousarray(shown.transpose(1, 2, 0))
    Image.fromarray(whole).save(buffer, format="PNG")
    return buffer.getvalue()


def _arrays(file: Path) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError as error:
        raise InputError(f"there are no images {file}; leave out --images, or {_AGAIN}") from error
    except (OSError, ValueError, EOFError, KeyError, TokenError, BadZipFile, AttributeError) as error:
        raise DataError(f"{file} cannot be read ({type(error).__name__}); {_AGAIN}") from error


def _checked(arrays: dict[str, Any], name: str, count: int, folder: Path) -> Bytes:
    found = arrays.get(name)
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or found.ndim != 4 or len(found) != count:
        raise DataError(f"{folder / IMAGES} holds no {count} images {name!r}; it is damaged: {_AGAIN}")
    return found
