from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from warp_unlearning.data.sources import load_table
from warp_unlearning.data.table import Table
from warp_unlearning.errors import DataError, InputError

Y = np.arange(20) % 4


def images(*shape: int, count: int = 20) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def npz(folder: Path, options: dict[str, Any] | None = None, **arrays: Any) -> Table:
    np.savez(folder / "mine.npz", **arrays)
    return load_table(None, folder / "mine.npz", **(options or {}))


def pair(folder: Path, options: dict[str, Any] | None = None, **arrays: Any) -> Table:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return load_table(None, folder, **(options or {}))


def whole(table: Table) -> np.ndarray:
    return table.x[np.arange(len(table))]


@pytest.mark.parametrize("load", [npz, pair])
@pytest.mark.parametrize(
    ("x", "layout"),
    [
        (images(6, 5), "nhw"),
        (images(6, 5, 3), "nhwc"),
        (images(3, 6, 5), "nchw"),
        (images(4, 6, 5), "nchw"),
        (images(6, 5, 3) / np.float32(255), "nhwc"),
        (images(7).astype(np.float64), "nd"),
        (images(7).astype(">f4"), "nd"),
    ],
)
def test_arrays_are_kept_as_they_are_and_all_are_for_training(
    tmp_path: Path, load: Any, x: np.ndarray, layout: str
) -> None:
    table = load(tmp_path, x=x, y=Y.astype(np.uint8))
    assert (table.layout, table.classes, len(table.unseen)) == (layout, ("0", "1", "2", "3"), 0)
    np.testing.assert_array_equal(whole(table), x)
    np.testing.assert_array_equal(table.y, Y)
    index = np.array([7, 8, 2, 2, 19, 0])
    np.testing.assert_array_equal(table.x[index], x[index])
    assert table.digests.tolist() == npz(tmp_path, x=x.astype(x.dtype.newbyteorder("=")), y=Y).digests.tolist()


@pytest.mark.parametrize("load", [npz, pair])
def test_test_rows_lie_behind(tmp_path: Path, load: Any) -> None:
    x = images(6, 5)
    table = load(tmp_path, x=x[:15], y=Y[:15], x_test=x[15:], y_test=Y[15:], ids=np.arange(15), options={"ids": "ids"})
    assert (len(table), table.train, table.unseen.tolist()) == (20, 15, [15, 16, 17, 18, 19])
    np.testing.assert_array_equal(table.x[np.array([17, 3, 15])], x[[17, 3, 15]])
    assert table.names is not None
    assert table.names[[0, 14, 15]].tolist() == ["0", "14", ""]


def test_a_test_part_may_be_another_file(tmp_path: Path) -> None:
    x = images(6, 5)
    np.savez(tmp_path / "test.npz", x=x[:3], y=Y[:3])
    table = npz(tmp_path, {"test": tmp_path / "test.npz", "ids": "who"}, x=x, y=Y, who=Y.astype(str))
    assert (len(table), table.train, table.describe(5), table.describe(21)) == (23, 20, '5 "1" class 1', "21 class 1")
    np.testing.assert_array_equal(whole(table)[20:], x[:3])
    np.save(tmp_path / "x_train.npy", x)
    np.save(tmp_path / "y_train.npy", Y)
    for name in ("x_held.npy", "y_held.npy"):
        np.save(tmp_path / name, (x if name[0] == "x" else Y)[:4])
    table = load_table(None, tmp_path / "x_train.npy", test=tmp_path / "x_held.npy")
    assert (table.name, len(table), table.train) == ("npy", 24, 20)
    with pytest.raises(InputError, match="has a test part of its own; leave out"):
        npz(tmp_path, {"test": tmp_path / "test.npz"}, x=x, y=Y, x_test=x, y_test=Y)
    with pytest.raises(DataError, match=r"there is no file .*ids_train\.npy"):
        load_table(None, tmp_path / "x_train.npy", ids="ids")
    with pytest.raises(DataError, match=r"nothing at .*none\.npz"):
        npz(tmp_path, {"test": tmp_path / "none.npz"}, x=x, y=Y)


def test_a_share_is_held_out_of_each_class_once_and_row_numbers_stay(tmp_path: Path) -> None:
    x = images(6, 5)
    tables = [npz(tmp_path, {"holdout": 0.2, "seed": seed}, x=x, y=Y) for seed in (0, 0, 1)]
    assert all(np.bincount(Y[table.unseen]).tolist() == [1, 1, 1, 1] for table in tables)
    assert tables[0].unseen.tolist() == tables[1].unseen.tolist() != tables[2].unseen.tolist()
    assert (tables[0].train, len(tables[0].learned)) == (20, 16)
    np.testing.assert_array_equal(whole(tables[0]), x)
    for share in (0.0, 1.0, 0.01):
        with pytest.raises((DataError, InputError), match=r"hold out some, and not all|above 0 and below 1"):
            npz(tmp_path, {"holdout": share}, x=x, y=Y)
    with pytest.raises(InputError, match="397 rows to test on already"):
        load_table("digits", holdout=0.2)


@pytest.mark.parametrize("load", [npz, pair])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": None}, r"no array 'y' but|there is no file .*y\.npy"),
        ({"y": Y[:19]}, r"\(20,\), \(19,\)\] rows in x, y"),
        ({"y": Y + 0.5}, "type float64; give whole-number classes, from 0: real numbers are not classes"),
        ({"y": Y > 1}, "type bool"),
        ({"y": Y - 1}, "-1 in row 0; number the classes from 0"),
        ({"x": images(6, 5).astype(int)}, r"type int64; .*x.astype\('uint8'\)"),
        ({"x": np.where(Y[:, None] == 3, np.nan, np.ones((20, 3)))}, "row 3 of x is not finite"),
        ({"x": np.where(Y[:, None] == 1, 1e300, np.ones((20, 3)))}, "row 1 of x is not finite in 32 bits"),
        ({"x_test": np.full((20, 6, 5), np.inf), "y_test": Y}, "row 0 of x_test is not finite"),
        ({"x_test": images(5, 5), "y_test": Y}, "give parts alike"),
        ({"x_test": images(6, 5)}, "y_test"),
        ({"x": images(6, 5, 5)}, "of 1, 3 or 4 channels"),
        ({"x": images(3, 2, 4)}, "where both axes could be the channels"),
        ({"x": images(6)}, r"x of shape \(20, 6\) and type uint8"),
        ({"x": np.zeros((20, 0))}, r"x of shape \(20, 0\)"),
        ({"x": np.zeros((0, 3)), "y": Y[:0]}, r"shape \(0,\)"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(
    tmp_path: Path, load: Any, arrays: dict[str, Any], message: str
) -> None:
    given = {"x": images(6, 5), "y": Y} | arrays
    with pytest.raises(DataError, match=message):
        load(tmp_path, **{key: value for key, value in given.items() if value is not None})


def test_layout_classes_and_ids_of_an_npz(tmp_path: Path) -> None:
    x, y = images(3, 2, 4), np.where(Y == 2, 3, Y)
    assert npz(tmp_path, x=images(6, 5), y=y).classes == ("0", "1", "2", "3")
    assert npz(tmp_path, {"classes": list("abcde")}, x=images(6, 5), y=y).classes == tuple("abcde")
    with pytest.raises(DataError, match="labels up to 3 and 3 classes"):
        npz(tmp_path, {"classes": list("abc")}, x=images(6, 5), y=y)
    assert npz(tmp_path, x=x, y=Y, layout="nhwc").layout == "nhwc"
    with pytest.raises(DataError, match="layout hwcn"):
        npz(tmp_path, x=x, y=Y, layout="hwcn")
    for ids, message in ((Y[:5], "as many"), (Y[:, None], r"ids of shape \(20, 1\)"), (Y / 2, "type float64")):
        with pytest.raises(DataError, match=message):
            npz(tmp_path, {"ids": "ids"}, x=images(6, 5), y=Y, ids=ids)
    with pytest.raises(DataError, match="no array 'number'"):
        npz(tmp_path, {"ids": "number"}, x=images(6, 5), y=Y)


def test_damaged_array_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, x=images(6, 5), y=Y)
    content = path.read_bytes()
    for damaged in (b"", b"not a zip file", content[: len(content) // 2], content[:80] + b"?" * 40 + content[120:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"is not a whole \.npz"):
            load_table("npz", path)
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", images(6, 5) if name == "x" else Y)
    content = (tmp_path / "x.npy").read_bytes()
    for damaged in (b"", b"\x93NUMPY", content[:100], content[:-1]):
        (tmp_path / "x.npy").write_bytes(damaged)
        with pytest.raises(DataError, match=r"x\.npy is no whole \.npy"):
            load_table(None, tmp_path)
    for name in ("pipe.npz", "xpipe.npy"):
        os.mkfifo(tmp_path / name)
        np.save(tmp_path / "ypipe.npy", Y)
        with pytest.raises(DataError, match="there is no file"):
            load_table(None, tmp_path / name)
    for bad in (np.array([{}] * 20), np.array(3)):
        np.save(tmp_path / "x.npy", bad)
        with pytest.raises(DataError, match=r"of a plain array|holds a single value|must be as many"):
            load_table(None, tmp_path / "x.npy")


@pytest.mark.parametrize("kind", ["npy", "folder"])
def test_a_table_larger_than_memory_is_read_by_row(tmp_path: Path, kind: str) -> None:
    """300 MB of inputs are checked, digested and read in batches, in far less memory beyond what the imports take."""
    count, shape = 300, (577, 601, 3)
    x = np.zeros((count, *shape), np.uint8)
    x[:, 0, 0] = np.random.default_rng(0).integers(0, 256, (count, 3))
    if kind == "npy":
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "y.npy", np.arange(count) % 2)
    else:
        for k in range(count):
            (tmp_path / "ab"[k % 2]).mkdir(exist_ok=True)
            Image.fromarray(x[k]).save(tmp_path / "ab"[k % 2] / f"{k:03d}.png", compress_level=1)
    del x
    program = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from warp_unlearning.data.preprocess import Preprocess, table_examples
from warp_unlearning.data.sources import load_table
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
table = load_table(None, Path(sys.argv[1]))
assert len(set(table.digests.tolist())) > 290
examples = table_examples(table, table.learned, Preprocess.standard(table), keep=0)
for index in torch.split(torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)), 8):
    assert examples.take(index).x.shape[1:] == (3, 577, 601)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 200


def put(path: Path, pixels: np.ndarray, *, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path)


def grey(value: int, height: int = 4, width: int = 3) -> np.ndarray:
    return np.full((height, width), value, dtype=np.uint8)


def two_classes(root: Path, count: int = 5) -> None:
    for i in range(count):
        put(root / "cat" / f"{i}.png", grey(10 * i))
        put(root / "dog" / f"{i}.bmp", grey(10 * i + 5))


def test_each_folder_is_a_class(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".cache").mkdir()
    put(tmp_path / "train" / "a.png", grey(1))
    table = load_table(None, tmp_path)
    assert (table.classes, table.x.shape, len(table.unseen)) == (("cat", "dog", "train"), (11, 4, 3, 1), 0)
    assert whole(table)[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 5, 15, 25, 35, 45, 1]
    assert table.names is not None
    assert table.names[[0, 9, 10]].tolist() == ["cat/0.png", "dog/4.bmp", "train/a.png"]
    assert table.describe(0) == '0 "cat/0.png" class cat'
    assert load_table("folder", tmp_path, classes=["dog", "cat", "train", "bird"]).y.tolist() == [1] * 5 + [0] * 5 + [2]


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    two_classes(tmp_path / "train")
    put(tmp_path / "test" / "dog" / "a.png", grey(255))
    table = load_table("folder", tmp_path)
    assert (table.train, table.unseen.tolist(), table.y[10], table.classes) == (10, [10], 1, ("cat", "dog"))
    assert whole(table)[10].max() == 255
    other = load_table("folder", tmp_path / "train", test=tmp_path / "test")
    assert (other.train, other.digests.tolist()) == (10, table.digests.tolist())


def test_images_of_other_kinds_and_sizes_are_read_as_one(tmp_path: Path) -> None:
    two_classes(tmp_path)
    put(tmp_path / "dog" / "bit.png", grey(255), mode="1")
    assert load_table("folder", tmp_path).x.shape == (11, 4, 3, 1)
    palette = Image.fromarray(grey(3)).convert("P")
    palette.save(tmp_path / "dog" / "palette.png", transparency=bytes([0, 100]))
    for name in ("c.jpg", "c.JPEG", "c.webp", "c.png"):
        put(tmp_path / "dog" / name, np.array([200, 0, 0], dtype=np.uint8) * np.ones((4, 3, 1), dtype=np.uint8))
    spread = np.ptp(whole(load_table("folder", tmp_path)).astype(int), axis=3).max(axis=(1, 2))
    assert ((spread > 150).sum(), (spread == 0).sum()) == (4, 12)
    put(tmp_path / "dog" / "z.png", grey(7, height=8, width=8))
    with pytest.raises(DataError, match=r"z\.png is \(8, 8\).*give a size"):
        load_table("folder", tmp_path)
    assert whole(load_table("folder", tmp_path, size=(6, 5))).shape == (17, 6, 5, 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "cut", "deep", "huge"])
def test_an_image_that_cannot_be_decoded_is_named(
    tmp_path: Path, content: bytes | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_classes(tmp_path)
    path = tmp_path / "cat" / "bad.png"
    put(path, np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8))
    if content == "deep":
        put(path, grey(0).astype(np.uint16))
    if content == "huge":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)
    if content == "cut" or isinstance(content, bytes):
        path.write_bytes(content if isinstance(content, bytes) else path.read_bytes()[:-400])
    with pytest.raises(DataError, match=r"bad\.png cannot be decoded"):
        whole(load_table("folder", tmp_path, size=(4, 4)))


def test_folders_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing at .*none; .* folder of images for each class"):
        load_table("folder", tmp_path / "none")
    with pytest.raises(DataError, match="has no folders"):
        load_table("folder", tmp_path)
    two_classes(tmp_path / "train")
    put(tmp_path / "test" / "bird" / "a.png", grey(1))
    with pytest.raises(DataError, match="bird is a class without training images; the classes are cat, dog"):
        load_table("folder", tmp_path)
    (tmp_path / "train" / "bird").mkdir()
    with pytest.raises(DataError, match="bird has no images"):
        load_table("folder", tmp_path)


def test_a_csv_lists_files_beside_it(tmp_path: Path) -> None:
    two_classes(tmp_path / "images", 2)
    path = tmp_path / "mine.csv"
    path.write_text("label,customer,file\n1,x,images/dog/1.bmp\n0,y,images/cat/0.png\n1,x,images/dog/0.bmp\n")
    table = load_table(None, path, ids="customer")
    assert (table.name, table.y.tolist(), whole(table)[:, 0, 0, 0].tolist()) == ("csv", [1, 0, 1], [15, 0, 5])
    assert table.names is not None
    assert table.names.tolist() == ["x", "y", "x"]
    other = load_table(None, path)
    assert other.names is not None
    assert other.names[0] == "images/dog/1.bmp"
    for text, message in (
        ("file,label\na.png,cat", "names such as 'cat'; number the classes"),
        ("file,label\na.png,-1", "-1 in row 0"),
        ("file,label\na.png,0.5", "names such as '0.5'"),
        ("file,label\nnone.png,0", r"none\.png cannot be decoded"),
        ("file,kind\na.png,0", "no column 'label' but file, kind"),
        ("file,label\n", r"shape \(0,\)"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            load_table(None, path)


def test_options_of_other_data_are_refused(tmp_path: Path) -> None:
    for kind, options, message in (
        ("digits", {"path": tmp_path}, "digits takes no path"),
        ("digits", {"fetch": True}, "digits takes no fetch"),
        ("digits", {"size": (4, 4)}, r"digits takes no size, such as \(4, 4\)"),
        ("folder", {"path": tmp_path, "ids": "id"}, "folder takes no ids"),
        ("folder", {"path": tmp_path, "size": (0, 4)}, r"size is \(0, 4\); give height and width"),
        ("cifar", {}, "no data set 'cifar'; did you mean 'cifar10'"),
    ):
        with pytest.raises(InputError, match=message):
            load_table(kind, **options)
    for kind in ("cifar10", "fashion_mnist", "npz", "npy", "folder", "csv"):
        with pytest.raises(InputError, match=f"{kind} needs a path; give"):
            load_table(kind)
    with pytest.raises(DataError, match=r"nothing at mine\.npz, seen from .*the setting data\.path"):
        load_table("npz", Path("mine.npz"))
    (tmp_path / "mine.xlsx").touch()
    with pytest.raises(DataError, match=r"mine\.xlsx is no kind of data that is known"):
        load_table(None, tmp_path / "mine.xlsx")


def test_digits_hold_the_same_rows_out_for_everybody() -> None:
    from sklearn.datasets import load_digits

    table = load_table(None)
    x, y = load_digits(return_X_y=True)
    assert (table.name, len(table), table.train) == ("digits", 1797, 1400)
    ours = sorted([*row, label] for row, label in zip(whole(table).reshape(-1, 64).tolist(), table.y, strict=True))
    assert ours == sorted([*row, label] for row, label in zip(x.astype(int).tolist(), y, strict=True))
    assert np.abs(np.bincount(table.y[1400:]) - np.bincount(y) * 397 / 1797).max() < 1
