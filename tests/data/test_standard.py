import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from warp_unlearning.data.preprocess import image_data
from warp_unlearning.data.sources import load_table
from warp_unlearning.data.standard import BINARY_MD5, PACKAGE, TARBALL, fetch_cifar10, load_cifar10, load_fashion_mnist
from warp_unlearning.data.table import Table
from warp_unlearning.errors import DataError

NAMES = tuple(BINARY_MD5)
RNG = np.random.default_rng(0)
# Images in height, width, channel order, three in each of the six batches.
X = RNG.integers(0, 256, (6, 3, 32, 32, 3), dtype=np.uint8)
Y = RNG.integers(0, 10, (6, 3))


def binary(k: int, x: np.ndarray = X) -> bytes:
    return b"".join(bytes([Y[k, i]]) + x[k, i].transpose(2, 0, 1).tobytes() for i in range(3))


def text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def python2_batch(labels: list[int], pixels: bytes, *, last: bool = False) -> bytes:
    """A batch as the cPickle of Python 2 wrote it: a dictionary, in either order, with an array of bytes."""
    numbers = text(b"labels") + b"q\x04]q\x05(" + b"".join(b"K" + bytes([v]) for v in labels) + b"e"
    shape = b"K" + bytes([len(labels)]) + b"M\x00\x0c\x86q\x0b"
    array = (
        text(b"data")
        + b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09(K\x01"
        + shape
        + b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87R"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + (b"T" + struct.pack("<I", len(pixels)) + pixels)
        + b"tb"
    )
    names = text(b"filenames") + b"](" + b"".join(text(b"name_%d.png" % i) for i in range(len(labels))) + b"e"
    # What would call a function, were it carried out.
    call = b"cwarp_no_such_module\ncall\n(tR0"
    parts = [array, names, numbers] if last else [numbers, array, names]
    label = text(b"batch_label") + b"q\x02" + text(b"training batch 1 of 5") + b"q\x03"
    return b"\x80\x02" + call + b"}q\x01(" + label + b"".join(parts) + b"u."


def binary_files(x: np.ndarray) -> dict[str, bytes]:
    return {f"{name}.bin": binary(k, x) for k, name in enumerate(NAMES)}


def pickled_files(x: np.ndarray) -> dict[str, bytes]:
    pixels = [part.transpose(0, 3, 1, 2).tobytes() for part in x]
    return {name: python2_batch(Y[k].tolist(), pixels[k], last=k % 2 == 0) for k, name in enumerate(NAMES)}


def package_files(x: np.ndarray) -> dict[str, bytes]:
    labels = {"train_lables.json": Y[:5].reshape(-1).tolist(), "test_lables.json": Y[5].tolist()}
    files = {name: json.dumps(value).encode() for name, value in labels.items()}
    for name, part in zip(NAMES, x, strict=True):
        buffer = io.BytesIO()
        Image.fromarray(part.reshape(3, 1024, 3)).save(buffer, "PNG")
        files[f"{name}.png"] = buffer.getvalue()
    return files


FORMS = {"binary": binary_files, "pickled": pickled_files, "package": package_files}


def load(path: Path) -> Table:
    sums = {name: hashlib.md5(binary(k), usedforsecurity=False).hexdigest() for k, name in enumerate(NAMES)}
    return load_cifar10(path, sums=sums)


def folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def tarball(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def npz(path: Path, **changed: np.ndarray) -> Path:
    x = X[:5].reshape(-1, 32, 32, 3)
    arrays = {"x_train": x, "y_train": Y[:5].reshape(-1, 1), "x_test": X[5], "y_test": Y[5]}
    np.savez(path, **(arrays | changed))
    return path


def check(table: Table) -> None:
    assert (len(table), table.train, table.layout, table.name) == (18, 15, "nchw", "cifar10")
    assert table.y.tolist() == Y.reshape(-1).tolist()
    np.testing.assert_array_equal(table.x[np.arange(18)], X.transpose(0, 1, 4, 2, 3).reshape(-1, 3, 32, 32))
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    expected = ((X[5] / 255 - mean) / std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(image_data(table).test.x.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "below"),
    [("binary", ""), ("binary", "cifar-10-batches-bin"), ("pickled", "cifar-10-batches-py"), ("package", "package")],
)
def test_every_form_is_read_from_a_folder_and_a_tarball(tmp_path: Path, form: str, below: str) -> None:
    files = FORMS[form](X)
    check(load(tarball(tmp_path / "x.tgz", files)))
    folder(tmp_path / below, files)
    check(load(tmp_path))
    with pytest.raises(DataError, match=BINARY_MD5["data_batch_1"]):
        load_table(None, tmp_path)


@pytest.mark.parametrize("k", [0, 3, 5])
@pytest.mark.parametrize("form", [*FORMS, "npz"])
def test_one_changed_byte_is_found_and_named(tmp_path: Path, form: str, k: int) -> None:
    x = X.copy()
    x[k, 2, 31, 31, 1] ^= 1
    if form == "npz":
        path = npz(tmp_path / "x.npz", x_train=x[:5].reshape(-1, 32, 32, 3), x_test=x[5])
    else:
        path = folder(tmp_path, FORMS[form](x))
    with pytest.raises(DataError, match=rf"{NAMES[k]}: the records have MD5"):
        load(path)


WHOLE = python2_batch(Y[0].tolist(), X[0].tobytes())
PNG = package_files(X)["data_batch_2.png"]


@pytest.mark.parametrize(
    ("form", "file", "content", "message"),
    [
        ("binary", "data_batch_2.bin", binary(1)[:-1], "data_batch_2 cannot be read"),
        ("binary", "data_batch_2.bin", None, "data_batch_2 cannot be read"),
        ("package", "data_batch_2.png", PNG[:-2000], "data_batch_2 cannot be read"),
        ("package", "test_lables.json", b"[1, 2", "test_batch cannot be read"),
        ("package", "test_lables.json", b'["a"]', "test_batch cannot be read"),
        ("package", "test_lables.json", b"[1, 2, 3]", "test_batch: the records have MD5"),
        ("package", "test_lables.json", None, "test_batch cannot be read .'test_lables.json'"),
        ("pickled", "data_batch_1", b"cos\nsystem\n.", "data_batch_1: the records have MD5"),
        ("pickled", "data_batch_1", WHOLE[:5000], "data_batch_1 cannot be read"),
        ("pickled", "data_batch_1", python2_batch([1, 2], X[0].tobytes()), "data_batch_1 cannot be read"),
        ("pickled", "data_batch_1", python2_batch([1, 2, 3], X[0].tobytes()[:-1]), "data_batch_1 cannot be read"),
    ],
)
def test_damaged_and_missing_files_are_named(
    tmp_path: Path, form: str, file: str, content: bytes | None, message: str
) -> None:
    files = {name: old for name, old in FORMS[form](X).items() if name != file}
    with pytest.raises(DataError, match=message):
        load(folder(tmp_path, files if content is None else files | {file: content}))


@pytest.mark.parametrize("content", [b"", b"no tarball", None])
def test_a_damaged_tarball_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tarball(tmp_path / "x.tgz", binary_files(X))
    path.write_bytes(path.read_bytes()[:20_000] if content is None else content)
    with pytest.raises(DataError, match=r"x\.tgz is not a whole tarball"):
        load(path)


def test_an_npz_with_channels_last_or_first_is_read_and_one_of_something_else_refused(tmp_path: Path) -> None:
    check(load(npz(tmp_path / "x.npz")))
    check(load(npz(tmp_path / "y.npz", x_train=X[:5].reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))))
    for changed in ({"x_test": np.zeros((3, 16, 32, 3), np.uint8)}, {"y_test": np.array([1, 2])}):
        with pytest.raises(DataError, match="test_batch cannot be read"):
            load(npz(tmp_path / "x.npz", **changed))
    np.savez(tmp_path / "x.npz", x=X)
    with pytest.raises(DataError, match=r"cannot be read .'x_train"):
        load(tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"there is no CIFAR-10 at .*ask for it to be fetched"):
        load(tmp_path / "none")


@pytest.mark.slow
@pytest.mark.skipif("WARP_CIFAR10" not in os.environ, reason="WARP_CIFAR10 names no copy of CIFAR-10")
def test_the_real_data_set() -> None:
    table = load_cifar10(Path(os.environ["WARP_CIFAR10"]))
    assert np.bincount(table.y[:50_000]).tolist() == [5000] * 10
    assert np.bincount(table.y[50_000:]).tolist() == [1000] * 10
    assert image_data(table).digest == "88e86320badeeb3222583a99746eabbb91cd9053975499ba792fc5e724718934"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f'echo "$@" > {TARBALL}', None),
        (f"echo half > {TARBALL}; echo E404 not found >&2; exit 3", "failed: E404 not found; install npm"),
        ("exit 0", f"failed: .*No such file.*{TARBALL}"),
        (None, "failed: .*No such file.*npm"),
    ],
)
def test_fetch_brings_the_package_once_and_a_failure_leaves_nothing(
    tmp_path: Path, script: str | None, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm, place = tmp_path / "npm", tmp_path / "deep" / "data"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=None if script is None else os.pathsep)
    if script is not None:
        npm.write_text(f"#!/bin/sh\n{script}\n")
        npm.chmod(0o755)
    if message is not None:
        with pytest.raises(DataError, match=message):
            fetch_cifar10(place)
        assert os.listdir(place) == []
        return
    assert fetch_cifar10(place).read_text().split()[:2] == ["pack", PACKAGE]
    assert os.listdir(place) == [TARBALL]
    npm.unlink()
    with pytest.raises(DataError, match=rf"{TARBALL} is not a whole tarball"):
        load_table("cifar10", place, fetch=True)


COUNTS = {"train": 6, "t10k": 3}
FASHION = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


IMAGES = "train-images-idx3-ubyte"
FILES = {
    IMAGES: idx(FASHION[:6]),
    "train-labels-idx1-ubyte": idx(np.arange(6, dtype=np.uint8)),
    "t10k-images-idx3-ubyte": idx(FASHION[6:]),
    "t10k-labels-idx1-ubyte": idx(np.arange(6, 9, dtype=np.uint8)),
}


def fashion(path: Path, changed: dict[str, bytes], packed: bool) -> Table:
    files = FILES | changed
    named = {f"{k}.gz": gzip.compress(v) for k, v in files.items()} if packed else files
    return load_fashion_mnist(folder(path, named), counts=COUNTS)


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_is_read_plain_and_packed(tmp_path: Path, packed: bool) -> None:
    with pytest.raises(DataError, match="has neither train-images-idx3-ubyte nor"):
        load_fashion_mnist(tmp_path)
    table = fashion(tmp_path, {}, packed)
    np.testing.assert_array_equal(table.x[np.arange(9)], FASHION)
    assert (table.y.tolist(), table.train, len(set(table.classes))) == (list(range(9)), 6, 10)
    value = float(image_data(table).test.x[1, 0, 3, 5])
    assert value == pytest.approx((FASHION[7, 3, 5] / 255 - 0.2860) / 0.3530, abs=1e-5)
    with pytest.raises(DataError, match=r"does not hold bytes of shape \(60000, 28, 28\)"):
        load_table(None, tmp_path)
    with pytest.raises(DataError, match="classes of several sizes, so it is not Fashion-MNIST"):
        fashion(tmp_path, {"train-labels-idx1-ubyte": idx(np.array([0, 1, 2, 2, 2, 1], dtype=np.uint8))}, packed)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    "content", [FILES[IMAGES][:-1], FILES[IMAGES] + b"x", FILES[IMAGES][:7], idx(FASHION[:6].reshape(6, 14, 56))]
)
def test_a_file_of_another_shape_is_named(tmp_path: Path, packed: bool, content: bytes) -> None:
    with pytest.raises(DataError, match=rf"{IMAGES}\S* does not hold bytes of shape \(6, 28, 28\)"):
        fashion(tmp_path, {IMAGES: content}, packed)


@pytest.mark.parametrize("cut", [slice(None, -300), slice(5, None)])
def test_a_damaged_gz_is_named(tmp_path: Path, cut: slice) -> None:
    fashion(tmp_path, {}, True)
    path = tmp_path / f"{IMAGES}.gz"
    path.write_bytes(path.read_bytes()[cut])
    with pytest.raises(DataError, match=r"ubyte\.gz cannot be read to its end"):
        load_fashion_mnist(tmp_path, counts=COUNTS)
