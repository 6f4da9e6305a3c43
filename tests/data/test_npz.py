from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warp_unlearning.data.dataset import ImageData
from warp_unlearning.data.npz import load_npz, read_arrays

from warp_unlearning.errors import DataError

Y = np.arange(20) % 4


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (20, *shape), dtype=np.uint8)


def load(folder: Path, **arrays: Any) -> ImageData:
    np.savez(folder / "mine.npz", **arrays)
    return load_npz(folder / "mine.npz")


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (images(6, 5), (1, 6, 5)),
        (images(6, 5, 3), (3, 6, 5)),
        (images(3, 6, 5), (3, 6, 5)),
        (images(6, 5, 1), (1, 6, 5)),
        (images(4, 6, 5), (4, 6, 5)),
        (images(6, 5, 3) / np.float32(255), (3, 6, 5)),
    ],
)
def test_the_channels_are_found(tmp_path: Path, x: np.ndarray, shape: tuple[int, ...]) -> None:
    assert load(tmp_path, x=x, y=Y).shape == shape


def test_channels_last_and_first_are_the_same_data(tmp_path: Path) -> None:
    x = images(6, 5, 3)
    assert load(tmp_path, x=x, y=Y).digest == load(tmp_path, x=x.transpose(0, 3, 1, 2), y=Y).digest


def test_layout_settles_a_doubt(tmp_path: Path) -> None:
    x = images(3, 2, 4)
    with pytest.raises(DataError, match="both axis 1 and axis 3 could be"):
        load(tmp_path, x=x, y=Y)
    assert load(tmp_path, x=x, y=Y, layout="nchw").shape == (3, 2, 4)
    assert load(tmp_path, x=x, y=Y, layout="nhwc").shape == (4, 3, 2)
    with pytest.raises(DataError, match="layout 'hwcn'"):
        load(tmp_path, x=x, y=Y, layout="hwcn")


def test_images_are_normalised_by_their_training_part(tmp_path: Path) -> None:
    x = images(6, 5, 3)
    data = load(tmp_path, x=x, y=Y, x_test=x[:2], y_test=Y[:2])
    assert data.mean == pytest.approx((x / 255).mean((0, 1, 2)))
    assert data.std == pytest.approx((x / 255).std((0, 1, 2)))
    expected = (x[1, 2, 3, 0] / 255 - data.mean[0]) / data.std[0]
    assert float(data.test.x[1, 0, 2, 3]) == pytest.approx(expected, abs=1e-5)
    assert (len(data.train), len(data.test), data.classes) == (20, 2, ("0", "1", "2", "3"))


def test_flat_features_are_taken_as_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    data = load(tmp_path, x=x, y=Y, x_test=x, y_test=Y)
    np.testing.assert_array_equal(data.train.x.numpy(), x)


def test_a_fixed_fifth_of_each_class_becomes_the_test_part(tmp_path: Path) -> None:
    x = np.arange(40.0).reshape(20, 2)
    data = load(tmp_path, x=x, y=Y)
    assert data.test.y.sort().values.tolist() == [0, 1, 2, 3]
    rows = sorted([*data.train.x[:, 0].tolist(), *data.test.x[:, 0].tolist()])
    assert rows == x[:, 0].tolist()
    assert data.test.x.tolist() == load(tmp_path, x=x, y=Y).test.x.tolist()


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_the_first_bad_row_of_the_file_is_named(tmp_path: Path, value: float) -> None:
    x = np.zeros((20, 3))
    x[[13, 17], 1] = value
    with pytest.raises(DataError, match="row 13 of x is not finite"):
        load(tmp_path, x=x, y=Y)
    with pytest.raises(DataError, match="row 13 of x_test is not finite"):
        load(tmp_path, x=np.zeros((20, 3)), y=Y, x_test=x, y_test=Y)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": images(6, 5)}, r"no array 'y' but \['x'\]"),
        ({"x": images(6, 5), "y": Y[:19]}, "20 rows in x and 19 in y"),
        ({"x": images(6, 5), "y": Y.astype(float)}, "y of shape .* type float64"),
        ({"x": images(6, 5), "y": Y[:, None]}, r"y of shape \(20, 1\)"),
        ({"x": images(6, 5), "y": Y * 2}, "labels from 0 to 6 but none for class 1"),
        ({"x": images(6, 5), "y": Y - 1}, "has the label -1; number the classes"),
        ({"x": images(6, 5), "y": Y, "x_test": images(6, 5)}, "only one of x_test and y_test"),
        ({"x": images(6, 5), "y": Y, "x_test": images(5, 5), "y_test": Y}, "both parts must be alike"),
        ({"x": images(6, 5, 5), "y": Y}, "neither axis 1 nor axis 3"),
        ({"x": images(6), "y": Y}, r"x of shape \(20, 6\) and type uint8"),
        ({"x": images(6, 5).astype(int), "y": Y}, "type int64"),
        ({"x": np.zeros((0, 3)), "y": Y[:0]}, r"y of shape \(0,\)"),
        ({"x": np.array([print] * 20), "y": Y}, "Object arrays cannot be loaded"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, **arrays)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with pytest.raises(DataError, match="there is no file"):
        read_arrays(path)
    np.savez_compressed(path, x=images(6, 5), y=Y)
    whole = path.read_bytes()
    for damaged in (b"", b"not a zip file", whole[: len(whole) // 2], whole[:80] + b"?" * 40 + whole[120:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"is not a whole \.npz"):
            read_arrays(path)
    with path.open("wb") as file:
        np.save(file, Y)
    with pytest.raises(DataError, match="a single array"):
        read_arrays(path)
