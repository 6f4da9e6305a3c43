"""The files of a reconstruction: numbers in JSON, and apart from them the images, readable by their owner alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from ..data.files import write_atomically
from ..data.table import Index
from ..runs.directory import RunDirectory

SCHEMA_VERSION = 1
RECONSTRUCTION = "reconstruction.json"
IMAGES = "images.npz"
GRID = "grid.png"

# Of a picture in the grid, in screen pixels; the lines of a heading, and the characters of one.
_SIDE, _GAP, _LINES, _LETTERS, _LINE = 96, 6, 4, 15, 12

Bytes = NDArray[np.uint8]


@dataclass(eq=False)
class Grid:
    """The images attacked, (rows, channels, height, width), and beside them what was found: for each attack on each
    model a column, whose images lie in some of the rows.
    """

    positions: Index
    labels: list[int]
    classes: list[str]
    truth: Tensor
    blind: dict[int, Bytes] = field(default_factory=dict)
    columns: list[tuple[str, str, list[int], Bytes]] = field(default_factory=list)

    def rows(self, positions: Sequence[int]) -> list[int]:
        """Where these training examples stand."""
        place = {int(position): row for row, position in enumerate(self.positions)}
        return [place[position] for position in positions]

    def targets(self) -> list[dict[str, Any]]:
        """Position, label and class of every row."""
        rows = zip(self.positions.tolist(), self.labels, self.classes, strict=True)
        return [{"position": position, "label": label, "class": name} for position, label, name in rows]

    def add(self, model: str, attack: str, rows: list[int], images: Tensor) -> str:
        """One more column; returns the name of its array."""
        self.columns.append((model, attack, rows, as_bytes(images)))
        return f"found-{len(self.columns) - 1}"

    def add_blind(self, rows: list[int], images: Tensor) -> None:
        """What the class mean is for these rows."""
        self.blind |= dict(zip(rows, as_bytes(images), strict=True))

    def arrays(self) -> dict[str, Bytes]:
        """Every image by the name that the results have for it."""
        found = {f"found-{i}": images for i, (_, _, _, images) in enumerate(self.columns)}
        blind = {"class-mean": np.stack([self.blind[row] for row in range(len(self.positions))])} if self.full else {}
        return {"truth": as_bytes(self.truth), **blind, **found}

    @property
    def full(self) -> bool:
        """Whether every row has a class mean."""
        return len(self.blind) == len(self.positions)


def as_bytes(images: Tensor) -> Bytes:
    """Images with values in [0, 1] in steps of 1/255."""
    return (images.detach().clamp(0, 1) * 255).round().cpu().numpy().astype(np.uint8)


def write_reconstruction(run: RunDirectory, result: dict[str, Any], grid: Grid) -> None:
    """All files of a run and its manifest; every file is private from the moment it exists."""
    if result["images_kept"]:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **grid.arrays())  # type: ignore[arg-type]
        write_atomically(run.path / IMAGES, buffer.getvalue())
        write_atomically(run.path / GRID, drawn(grid))
    run.write_json(RECONSTRUCTION, result)
    run.finish()


def drawn(grid: Grid) -> bytes:
    """A PNG of the grid: what was forgotten, the class mean where it is known, and every column with its heading."""
    arrays = grid.arrays()
    every = range(len(grid.positions))
    columns: list[tuple[str, Sequence[int], Bytes]] = [("original", every, arrays["truth"])]
    if grid.full:
        columns.append(("class mean (blind)", every, arrays["class-mean"]))
    columns += [(f"{model}: {attack}", rows, images) for model, attack, rows, images in grid.columns]
    top = _LINES * _LINE + _GAP
    step = _SIDE + _GAP
    picture = Image.new("RGB", (step * len(columns) + _GAP, top + step * len(grid.positions)), "white")
    pen = ImageDraw.Draw(picture)
    for place, (heading, rows, images) in enumerate(columns):
        left = _GAP + place * step
        pen.multiline_text((left, 2), _wrapped(heading), fill="black", spacing=1)
        for row, image in zip(rows, images, strict=True):
            picture.paste(_tile(image), (left, top + row * step))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def _tile(image: Bytes) -> Image.Image:
    """An image (channels, height, width) at the size of a tile; of more channels than three the mean is shown."""
    shown = image if image.shape[0] in (1, 3) else image.mean(0, keepdims=True).astype(np.uint8)
    found = Image.fromarray(shown[0] if len(shown) == 1 else np.ascontiguousarray(shown.transpose(1, 2, 0)))
    return found.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.NEAREST)


def _wrapped(text: str) -> str:
    """The text in the lines that a heading has.

    >>> _wrapped("ngp + cob: canonical+filter")
    'ngp + cob:\\ncanonical+filte\\nr'
    """
    lines = [""]
    for word in text.encode("ascii", "replace").decode().split():
        for part in (word[i : i + _LETTERS] for i in range(0, len(word), _LETTERS)):
            if len(lines[-1]) + len(part) + 1 > _LETTERS:
                lines.append(part)
            else:
                lines[-1] = f"{lines[-1]} {part}".strip()
    return "\n".join(line for line in lines[-_LINES:] if line)
