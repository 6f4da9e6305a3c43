import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from warp_unlearning.data.files import array_digest
from warp_unlearning.data.split_folder import load_split, save_split
from warp_unlearning.data.splits import ForgetRule, Indices, RandomFraction, Split, WholeClass
from warp_unlearning.errors import DataError

PARTS = ("forget", "retain", "validation", "test")


def a_split(**changed: list[int]) -> Split:
    given = {"forget": [0, 5], "retain": [1, 2, 3], "validation": [4], "test": [0, 1]} | changed
    return Split(**{name: np.array(value, dtype=np.int64) for name, value in given.items()})


def saved(folder: Path, split: Split | None = None) -> Path:
    save_split(split or a_split(), folder, rule=WholeClass(1))
    return folder


def test_a_saved_split_comes_back(tmp_path: Path) -> None:
    loaded = load_split(saved(tmp_path / "deep" / "split"), train_count=6, test_count=2)
    for name in PARTS:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(a_split(), name))
    assert loaded.digest == a_split().digest


def test_an_empty_validation_part_comes_back(tmp_path: Path) -> None:
    assert len(load_split(saved(tmp_path, a_split(validation=[]))).validation) == 0


def test_every_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    saved(tmp_path)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys([*(f"{name}.npy" for name in PARTS), "split.json"], 0o600)


@pytest.mark.parametrize(
    ("rule", "described"),
    [
        (RandomFraction(0.1), {"kind": "random_fraction", "fraction": 0.1, "per_class": True}),
        (WholeClass(3), {"kind": "whole_class", "label": 3}),
        (Indices(np.array([5, 0])), {"kind": "indices", "digest": array_digest(np.array([5, 0]))}),
    ],
)
def test_split_json_describes_the_split(tmp_path: Path, rule: ForgetRule, described: dict[str, object]) -> None:
    save_split(a_split(), tmp_path, rule=rule)
    assert json.loads((tmp_path / "split.json").read_text()) == {
        "schema_version": 1,
        "digest": a_split().digest,
        "counts": {"forget": 2, "retain": 3, "validation": 1, "test": 2},
        "rule": described,
    }


def test_split_json_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    real = os.replace

    def stop_at_test(source: str, target: Path) -> None:
        if target.name == "test.npy":
            raise OSError("disk full")
        real(source, target)

    monkeypatch.setattr("warp_unlearning.data.files.os.replace", stop_at_test)
    with pytest.raises(OSError, match="disk full"):
        saved(tmp_path, a_split(forget=[0], validation=[4, 5]))
    with pytest.raises(DataError, match=r"its split\.json says"):
        load_split(tmp_path)


@pytest.mark.parametrize("name", PARTS)
def test_a_changed_part_is_found(tmp_path: Path, name: str) -> None:
    saved(tmp_path)
    np.save(tmp_path / f"{name}.npy", np.array([77], dtype=np.int64))
    with pytest.raises(DataError, match="has digest"):
        load_split(tmp_path)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (a_split(retain=[1, 2, 5]), "1 examples are in forget and in retain, first 5"),
        (a_split(forget=[5, 0]), "forget.npy is not sorted"),
        (a_split(forget=[]), "forget indices are empty"),
        (a_split(retain=[1, 2, 6]), "retain index 6 is out of range; there are 6"),
        (a_split(test=[0, 2]), "test index 2 is out of range; there are 2"),
    ],
)
def test_a_split_that_does_not_hold_together_is_refused(tmp_path: Path, split: Split, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_split(saved(tmp_path, split), train_count=6, test_count=2)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    part = saved(tmp_path) / "retain.npy"
    whole = part.read_bytes()
    part.write_bytes(whole[:-8])
    with pytest.raises(DataError, match=r"retain\.npy is not a whole array"):
        load_split(tmp_path)
    part.unlink()
    with pytest.raises(DataError, match=r"retain\.npy is not a whole array"):
        load_split(tmp_path)
    np.save(part, np.array([1.0]))
    with pytest.raises(DataError, match="64-bit whole numbers"):
        load_split(tmp_path)


def test_pickled_objects_are_not_read(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    (saved(tmp_path) / "forget.npy").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"forget\.npy is not a whole array \(Object arrays cannot be loaded"):
        load_split(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"{", "not JSON"), (b"[]", "schema_version None"), (b'{"schema_version": 2}', "schema_version 2")],
)
def test_a_split_json_that_cannot_be_read(tmp_path: Path, text: bytes, message: str) -> None:
    (saved(tmp_path) / "split.json").write_bytes(text)
    with pytest.raises(DataError, match=message):
        load_split(tmp_path)


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no .*split\.json"):
        load_split(tmp_path)
