import hashlib
import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from warp_unlearning.data.cifar10 import BINARY_MD5, PICKLE_MD5

from warp_unlearning.data.preprocess import ImageData, load_data
from warp_unlearning.errors import DataError

NAMES = tuple(BINARY_MD5)
RNG = np.random.default_rng(0)
# Images in height, width, channel order, three in each of the six batches.
X = RNG.integers(0, 256, (6, 3, 32, 32, 3), dtype=np.uint8)
Y = RNG.integers(0, 10, (6, 3))


def binary(k: int) -> bytes:
    return b"".join(bytes([Y[k, i]]) + X[k, i].transpose(2, 0, 1).tobytes() for i in range(3))


def pickled(k: int) -> bytes:
    pixels = X[k].transpose(0, 3, 1, 2).tobytes()
    return pickle.dumps({b"labels": Y[k].tolist(), b"data": pixels}, protocol=3)


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


def load(path: Path) -> ImageData:
    return load_data(
        path,
        _binary_sums={name: md5(binary(k)) for k, name in enumerate(NAMES)},
        _pickle_sums={name: md5(pickled(k)) for k, name in enumerate(NAMES)},
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


def check(data: ImageData) -> None:
    assert (len(data.train), len(data.test), data.shape) == (15, 3, (3, 32, 32))
    assert data.train.y.tolist() == Y[:5].reshape(-1).tolist()
    assert data.test.y.tolist() == Y[5].tolist()
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    expected = ((X / 255 - mean) / std).transpose(0, 1, 4, 2, 3)
    np.testing.assert_allclose(data.train.x.numpy(), expected[:5].reshape(-1, 3, 32, 32), atol=1e-5)
    np.testing.assert_allclose(data.test.x.numpy(), expected[5], atol=1e-5)


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


def test_every_form_has_one_digest(tmp_path: Path) -> None:
    digests = {load(folder(tmp_path / form, files())).digest for form, files in FORMS.items()}
    assert digests == {load(npz(tmp_path / "x.npz")).digest}


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
        load_data(folder(tmp_path / "a", binary_files()))
    with pytest.raises(DataError, match=PICKLE_MD5["data_batch_1"]):
        load_data(folder(tmp_path / "b", pickled_files()))


def test_a_pickle_is_not_even_walked_before_its_sum_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(*_: object) -> None:
        raise AssertionError("walked")

    monkeypatch.setattr("warp_unlearning.data.cifar10_pickle.pickletools.genops", walked)
    with pytest.raises(AssertionError, match="walked"):
        load(folder(tmp_path, pickled_files()))
    with pytest.raises(DataError, match="data_batch_1 has MD5"):
        load(folder(tmp_path, {"data_batch_1": b"cos\nsystem\n."}))


def test_where_there_is_no_data_the_forms_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no CIFAR-10 at .*ask for it to be fetched"):
        load(tmp_path)
    np.savez(tmp_path / "x.npz", x=X)
    with pytest.raises(DataError, match="x_train, y_train, x_test and y_test are needed"):
        load(tmp_path / "x.npz")


@pytest.mark.slow
@pytest.mark.skipif("WARP_CIFAR10" not in os.environ, reason="WARP_CIFAR10 names no copy of CIFAR-10")
def test_the_real_data_set() -> None:
    data = load_data(Path(os.environ["WARP_CIFAR10"]))
    assert data.train.y.bincount().tolist() == [5000] * 10
    assert data.test.y.bincount().tolist() == [1000] * 10
    assert data.digest == "88e86320badeeb3222583a99746eabbb91cd9053975499ba792fc5e724718934"
    assert data.train.x.mean((0, 2, 3)).abs().max() < 1e-3
