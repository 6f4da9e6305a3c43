"""The images of a reconstruction: the grid of originals and what was found beside them, as a PNG or for a page.

`images.npz` holds them in steps of 1/255, (images, channels, height, width): "truth", the "class-mean" where labels
were known, and what each attack found under the name that the results give it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..errors import DataError, InputError
from .schema import Reconstruction

IMAGES = "images.npz"
GRID = "grid.png"
_AGAIN = "make the reconstruction again"
# Of a picture in the grid, in screen pixels; the lines of a heading, and the characters of one.
_SIDE, _GAP, _LINES, _LETTERS, _LINE = 96, 6, 4, 15, 12

Bytes = NDArray[np.uint8]
Column = tuple[str, Sequence[int], Bytes]
"""A heading, and images with the rows of the grid that they stand in."""


def draw_grid(columns: Sequence[Column]) -> bytes:
    """A PNG of the columns, the first of which has an image in every row."""
    top, step = _LINES * _LINE + _GAP, _SIDE + _GAP
    picture = Image.new("RGB", (step * len(columns) + _GAP, top + step * len(columns[0][1])), "white")
    pen = ImageDraw.Draw(picture)
    for place, (heading, rows, images) in enumerate(columns):
        left, text = _GAP + place * step, heading.encode("ascii", "replace").decode()
        pen.multiline_text((left, 2), "\n".join(wrap(text, _LETTERS)[-_LINES:]), fill="black", spacing=1)
        for row, image in zip(rows, images, strict=True):
            tile = _shown(image).convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
            picture.paste(tile, (left, top + row * step))
    return _png(picture)


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


def read_pictures(results: Reconstruction, folder: Path) -> Pictures:
    """The grid from the images beside the results."""
    if not results.images_kept:
        raise InputError("this reconstruction did not keep its images; make it again without --no-images")
    arrays = _arrays(folder / IMAGES)
    count = len(results.targets)
    shape = _checked(arrays, "truth", count, folder)[0].shape
    columns: list[Column] = [("original", range(count), arrays["truth"])]
    if "class-mean" in arrays:
        columns.append(("class mean, saw nothing", range(count), _checked(arrays, "class-mean", count, folder)))
    for model in results.models:
        for attack in model.attacks:
            images = _checked(arrays, attack.array, len(model.rows), folder)
            columns.append((f"{model.name}: {attack.name}", model.rows, images))
    if any(images.shape[1:] != shape for _, _, images in columns):
        raise DataError(f"{folder / IMAGES} holds images of different sizes; {_AGAIN}")
    return Pictures(
        tuple(heading for heading, _, _ in columns),
        tuple(f"{row + 1}: {name}" for row, name in enumerate(results.shown_classes)),
        tuple(tuple(_picture(column, row) for column in columns) for row in range(count)),
    )


def _picture(column: Column, row: int) -> Picture:
    heading, rows, images = column
    if row not in rows:
        return Picture()
    encoded = base64.b64encode(_png(_shown(images[rows.index(row)]))).decode()
    return Picture(f"data:image/png;base64,{encoded}", f"image {row + 1}, {heading}")


def _shown(image: Bytes) -> Image.Image:
    """An image (channels, height, width); of other channels than one or three the mean."""
    shown = image if len(image) in (1, 3) else image.mean(0, keepdims=True).round().astype(np.uint8)
    return Image.fromarray(shown[0] if len(shown) == 1 else np.ascontiguousarray(shown.transpose(1, 2, 0)))


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
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
