"""Images in one folder a class: `root/class/*.png`, or `root/train/class/*` and `root/test/class/*`.

Without a test folder, a fixed fifth of the images, the classes in proportion, becomes the test part.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError
from .dataset import ImageData, image_data
from .stratified import fixed_test_part

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")

_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
_GREY = {"1", "L", "LA"}
_UNDECODABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


class _Found(NamedTuple):
    files: list[Path]
    labels: list[int]


def load_image_folder(root: Path, *, size: tuple[int, int] | None = None) -> ImageData:
    """Read every image below `root`; `size` (height, width) resizes them, else all must be of one size.

    The images are grey only if all of them are.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; give a folder with one folder of images for each class")
    train_root = root / "train" if _folders(root / "train") else root
    classes = [folder.name for folder in _folders(train_root)]
    if not classes:
        raise DataError(f"{train_root} has no folders; put the images of each class in a folder of its own")
    found = _find(train_root, classes)
    test_root = root / "test" if train_root != root and _folders(root / "test") else None
    held = _find(test_root, classes) if test_root else _Found([], [])
    images = _stack([*found.files, *held.files], size)
    labels = np.array(found.labels + held.labels)
    if test_root:
        kept, test = np.arange(len(found.files)), np.arange(len(found.files), len(images))
    else:
        kept, test = fixed_test_part(labels, fraction=0.2, name="folder")
    return image_data(
        "folder",
        train=(images[kept], labels[kept]),
        test=(images[test], labels[test]),
        classes=classes,
        layout="nhwc",
    )


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _find(root: Path, classes: Sequence[str]) -> _Found:
    found = _Found([], [])
    for folder in _folders(root):
        if folder.name not in classes:
            raise DataError(f"{folder} is a class without training images; the classes are {', '.join(classes)}")
        files = sorted(f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and not f.name.startswith("."))
        if not files:
            raise DataError(f"{folder} has no images ({', '.join(SUFFIXES)}); add some or remove the folder")
        found.files.extend(files)
        found.labels.extend([classes.index(folder.name)] * len(files))
    return found


def _stack(files: Sequence[Path], size: tuple[int, int] | None) -> NDArray[np.uint8]:
    images = [_decode(file, size) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape[:2] != images[0].shape[:2]:
            raise DataError(
                f"{file} is {image.shape[:2]} (height, width) and {files[0]} is {images[0].shape[:2]}; "
                "make them equal, or give a size to resize to (the setting data.size)"
            )
    channels = max(image.shape[2] for image in images)
    return np.stack([np.broadcast_to(image, (*image.shape[:2], channels)) for image in images])


def _decode(file: Path, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_FORMATS) as image:
                plain = _eight_bit(image, file)
    except _UNDECODABLE as error:
        raise DataError(f"{file} cannot be decoded as an image ({error}); replace or remove it") from error
    if size is not None:
        plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _eight_bit(image: Image.Image, file: Path) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        raise DataError(f"{file} has more than 8 bits a channel (mode {image.mode}); convert it to 8 bits")
    if image.mode in _GREY:
        return image.convert("L")
    # Pillow warns about a palette with transparency unless it goes through RGBA.
    return (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")
