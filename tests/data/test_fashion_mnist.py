import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from warp_unlearning.data.dataset import ImageData
from warp_unlearning.data.fashion_mnist import load_fashion_mnist, read_idx

from warp_unlearning.errors import DataError

COUNTS = {"train": 6, "t10k": 3}
PIXELS = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def files() -> dict[str, bytes]:
    labels = np.arange(9, dtype=np.uint8)
    return {
        "train-images-idx3-ubyte": idx(PIXELS[:6]),
        "train-labels-idx1-ubyte": idx(labels[:6]),
        "t10k-images-idx3-ubyte": idx(PIXELS[6:]),
        "t10k-labels-idx1-ubyte": idx(labels[6:]),
    }


def load(folder: Path, *, packed: bool = False, **changed: bytes) -> ImageData:
    for name, content in (files() | {k.replace("_", "-"): v for k, v in changed.items()}).items():
        (folder / f"{name}{'.gz' * packed}").write_bytes(gzip.compress(content) if packed else content)
    return load_fashion_mnist(folder, _counts=COUNTS)


def test_plain_and_packed_files_are_the_same_data(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain, packed = load(tmp_path / "a"), load(tmp_path / "b", packed=True)
    assert plain.digest == packed.digest
    assert plain.shape == (1, 28, 28)
    assert plain.train.y.tolist() == [0, 1, 2, 3, 4, 5]
    assert float(plain.test.x[1, 0, 3, 5]) == pytest.approx((PIXELS[7, 3, 5] / 255 - 0.2860) / 0.3530, abs=1e-5)
    assert len(set(plain.classes)) == 10


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (files()["train-images-idx3-ubyte"][:-1], "holds only 4703"),
        (files()["train-images-idx3-ubyte"] + b"x", "holds more"),
        (files()["train-images-idx3-ubyte"][:7], "begins with 00000803000000"),
        (idx(PIXELS[:5]), "begins with 0000080300000005"),
        (idx(PIXELS[:6].reshape(-1)), "begins with 00000801"),
        (idx(PIXELS[:6].reshape(6, 14, 56)), "begins with"),
    ],
)
def test_a_file_of_another_shape_is_named(tmp_path: Path, packed: bool, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte.*{message}"):
        load(tmp_path, packed=packed, **{"train-images-idx3-ubyte": content})


@pytest.mark.parametrize("cut", [slice(None, -300), slice(5, None)])
def test_a_damaged_gz_is_named(tmp_path: Path, cut: slice) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(files()["train-images-idx3-ubyte"])[cut])
    with pytest.raises(DataError, match=r"x\.gz cannot be read to its end"):
        read_idx(tmp_path / "x.gz", shape=(6, 28, 28))


def test_a_missing_file_or_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has neither train-images-idx3-ubyte nor"):
        load_fashion_mnist(tmp_path)
    with pytest.raises(DataError, match="there is no folder"):
        load_fashion_mnist(tmp_path / "none")


def test_the_official_counts_are_asked_for(tmp_path: Path) -> None:
    load(tmp_path)
    with pytest.raises(DataError, match="begins with 0000080300000006"):
        load_fashion_mnist(tmp_path)
