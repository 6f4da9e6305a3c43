from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from warp_unlearning.data.sources import load_table
from warp_unlearning.data.table import (
    FORGET,
    FORGOTTEN,
    RETAIN,
    TEST,
    VALIDATION,
    Parts,
    Table,
    close,
    find,
    read_request,
)
from warp_unlearning.errors import DataError, InputError

NAMES = np.array([f"cust-{k}" for k in (7, 7, 3, 4, 5, 6, 8, 9, 90, 91)])


def table(contents: Any = range(10), labels: Any = None, train: int = 8, names: Any = NAMES, **more: Any) -> Table:
    """Rows of one number each: equal numbers are copies."""
    x = np.array([[float(c)] for c in contents], dtype=np.float32)
    y = np.zeros(len(x), dtype=np.int64) if labels is None else np.array(labels, dtype=np.int64)
    return Table(x, y, train, ("a", "b", "c"), None if names is None else np.array(names)[: len(x)], **more)


def write(path: Path, content: bytes | np.ndarray) -> Path:
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    return path


@pytest.mark.parametrize(
    ("file", "content", "options"),
    [
        ("rows.npy", np.array([4, 2, 4]), {}),
        ("rows.npy", np.array([2, 4], dtype=np.uint8), {}),
        ("mask.npy", np.isin(np.arange(8), (2, 4)), {}),
        ("names.npy", np.array(["cust-3", "cust-5"]), {}),
        ("names.npy", np.array([b"cust-3", b"cust-5"]), {}),
        ("rows.txt", b"2\n\n 4 \n", {}),
        ("rows.txt", b"\xef\xbb\xbf2\r\n4\r\n", {}),
        ("names.txt", b"cust-5\ncust-3\n", {}),
        ("rows.csv", b"row\n2\n4\n", {}),
        ("rows.csv", b"\xef\xbb\xbfrow;why\r\n2;x\r\n4;\r\n", {"column": "row"}),
        ("ids.csv", b'why,id\n"a, b",cust-3\nc,cust-5\n', {"column": "id"}),
        ("ids.csv", b"customer\ncust-3\ncust-5\n", {}),
    ],
)
def test_however_rows_are_asked_for_they_are_the_same(
    tmp_path: Path, file: str, content: Any, options: dict[str, str]
) -> None:
    asked = read_request(write(tmp_path / file, content), **options)
    assert find(asked, table()).tolist() == [2, 4]


@pytest.mark.parametrize(
    ("file", "content", "options", "message"),
    [
        ("r.npy", np.array([1, 8]), {}, "1 of 2 are no row numbers, first 8; training rows are numbered 0 to 7"),
        ("r.npy", np.array([-1]), {}, "first -1"),
        ("r.txt", b"123456789012345678901234567890", {}, "no row numbers, first 1234567"),
        ("r.npy", np.array([1.0]), {}, r"shape \(1,\), type float64"),
        ("r.npy", np.zeros((2, 2), dtype=int), {}, r"shape \(2, 2\)"),
        ("r.npy", np.array([], dtype=int), {}, "the request is empty; give at least one row"),
        ("r.txt", b"\n", {}, "the request is empty"),
        ("m.npy", np.ones(10, dtype=bool), {}, "mask has 10 values; it needs one for each of 8"),
        ("m.npy", np.zeros(8, dtype=bool), {}, "names no rows"),
        ("m.npy", np.arange(8) % 2, {}, "all 0 or 1; if it is a mask, make it bool"),
        ("n.txt", b"cust-3\ncust-1\nnobody", {}, "2 of 3 names belong to no training row, first 'cust-1'"),
        ("n.txt", b"cust-90", {}, "first 'cust-90' .it names a test row"),
        ("n.csv", b"cust-3\ncust-5\n", {}, "begins with 'cust-3', which is a row and no heading"),
        ("n.csv", b"17\n18\n", {}, "begins with '17'"),
        ("n.csv", b"row\ncust-3\n", {}, "1 of 1 are no row numbers, first cust-3"),
        ("n.csv", b"id,why\n1,x\n", {}, "columns id, why; say which"),
        ("n.csv", b"id,why\n1,x\n", {"column": "row"}, "no column 'row' but id, why"),
        ("n.csv", b"id,why\n,x\n", {"column": "id"}, "nothing in column 'id' of data row 1"),
        ("n.csv", b"id,why\n1\n", {"column": "id"}, "1 cells in data row 1 and 2 headings"),
        ("n.csv", b"", {}, "no line of headings"),
        ("n.csv", b"id\n\xff\xfe", {}, "cannot be read as text"),
        ("n.txt", b"1", {"column": "id"}, "no column"),
        ("r.npy", b"not an array", {}, "no whole .npy"),
        ("r.npy", np.array(3.0), {}, "holds a single value; write an array with one row"),
        ("r.xlsx", b"x", {}, "no request that can be read; give .* as .npy, .txt or .csv"),
    ],
)
def test_a_wrong_request_is_one_clear_error(
    tmp_path: Path, file: str, content: Any, options: dict[str, str], message: str
) -> None:
    with pytest.raises((DataError, InputError), match=message):
        find(read_request(write(tmp_path / file, content), **options), table())


def test_numbers_that_are_rows_and_ids_need_a_word() -> None:
    assert find(["cust-7"], table()).tolist() == [0, 1]
    assert find(np.array(["cust-3"], dtype=object), table()).tolist() == [2]
    assert table(labels=[1] * 10).describe(2) == '2 "cust-3" class b'
    assert table(names=None).describe(2) == "2 class a"
    both = table(names=[str(k) for k in (5, 4, 3, 2, 1, 0, 70, 71, 8, 9)])
    for asked in ([1], ["1"], [6]):
        with pytest.raises(InputError, match="may be a row or an id"):
            find(asked, both)
    assert find([1], both, by="row").tolist() == [1]
    assert find([1], both, by="id").tolist() == [4]
    assert find(np.array([("1",)], dtype=[("row", "U1")]), both).tolist() == [1]
    assert find(np.array([("1",)], dtype=[("id", "U1")]), both).tolist() == [4]
    with pytest.raises(DataError, match="the data have no ids"):
        find(["x"], table(names=None))


def codes(parts: Parts) -> list[int]:
    return parts.part.tolist()


def test_copies_leave_the_sets_they_are_in_whatever_their_label() -> None:
    whole = table([1, 2, 1, 3, 1, 4, 5, 6, 1, 7], [0, 0, 1, 0, 0, 0, 0, 0, 2, 0])
    parts = Parts.start(whole, validation=np.array([4, 5]))
    assert codes(parts) == [RETAIN] * 4 + [VALIDATION] * 2 + [RETAIN] * 2 + [TEST] * 2
    asked = parts.request(whole, np.array([0]))
    assert codes(asked)[:5] == [FORGET, RETAIN, FORGET, RETAIN, FORGOTTEN]
    assert codes(asked)[8:] == [FORGOTTEN, TEST]
    assert close(np.array([0]), whole.digests).tolist() == [0, 2, 4, 8]
    # Where copies with one label are gone, what is left is known as the row that was asked for.
    today = table([2, 3, 1, 4, 5, 6, 7], train=6, names=None)
    assert codes(asked.align(today)) == [RETAIN, RETAIN, FORGET, VALIDATION, RETAIN, RETAIN, TEST]


def test_a_second_request_follows_the_first() -> None:
    whole = table(range(10), names=None)
    first = Parts.start(whole).request(whole, np.array([1, 2]))
    second = first.request(whole, np.array([3]))
    assert codes(second)[:4] == [RETAIN, FORGOTTEN, FORGOTTEN, FORGET]
    with pytest.raises(InputError, match=r"1 of 2 rows have been forgotten already, first row 2; .*--again"):
        second.request(whole, np.array([2, 4]))
    again = second.request(whole, np.array([2, 4]), again=True)
    assert codes(again)[:5] == [RETAIN, FORGOTTEN, FORGET, FORGOTTEN, FORGET]
    with pytest.raises(InputError, match="leaves none to retain"):
        first.request(whole, np.array([0, 3, 4, 5, 6, 7]))
    held = Parts.start(whole, validation=np.array([0]))
    with pytest.raises(InputError, match=r"learned none of the 1 rows asked for \(first 0\)"):
        held.request(whole, np.array([0]))
    with pytest.raises(InputError, match="are of other data"):
        first.request(table(range(5, 15)), np.array([0]))


@pytest.mark.parametrize(
    ("contents", "labels", "train", "message"),
    [
        ([0, 2, 3, 4, 5, 8, 9], None, 5, "2 rows that the model knows or was tested on are gone .*first row 6"),
        ([0, 2, 3, 4, 5, 6, 7, 8], None, 7, "1 rows .* first row 9"),
        ([0, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 2] + [0] * 6, 7, "1 rows .* in content or label, first row 3"),
        ([0, 2, 3, 4, 5, 6, 7, 9, 8], None, 9, "2 rows .* first row 8"),
        ([0, 2, 3, 4, 5, 6, 7, 77, 8, 9], None, 8, "1 rows are new to the model, first row 7"),
        ([0, 2, 2, 3, 4, 5, 6, 7, 8, 9], None, 8, "1 rows are new to the model, first row 2"),
        ([0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9], None, 9, "1 rows are new to the model, first row 2"),
    ],
)
def test_a_known_row_that_is_gone_or_a_new_one_is_an_error(
    contents: list[int], labels: Any, train: int, message: str
) -> None:
    whole = table(range(10), names=None)
    parts = Parts.start(whole).request(whole, np.array([1]))
    with pytest.raises(DataError, match=message):
        parts.align(table(contents, labels, train, None))


def by_content(parts: Parts) -> Counter[tuple[str, int, int]]:
    return Counter(zip(parts.digests.tolist(), parts.labels.tolist(), parts.part.tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_parts_follow_their_content_through_requests_removals_and_shuffles(data: st.DataObject) -> None:
    count = data.draw(st.integers(4, 25))
    contents = data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))
    labels = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    train = data.draw(st.integers(2, count))
    numbers = st.lists(st.integers(0, train - 1), min_size=1, max_size=4, unique=True).map(np.array)
    held = np.array(sorted(data.draw(st.sets(st.integers(0, train - 1), max_size=3))), dtype=np.int64)
    now = table(contents, labels, train, None, held=held)
    parts = Parts.start(now, validation=np.setdiff1d(data.draw(numbers), held))
    asked: set[float] = set()
    for _ in range(data.draw(st.integers(1, 3))):
        rows = np.array(sorted(data.draw(st.sets(st.integers(0, now.train - 1), min_size=1, max_size=4))))
        before = np.asarray(now.x[np.arange(len(now))])[:, 0]
        try:
            parts = parts.request(now, rows, again=data.draw(st.booleans()))
        except InputError:
            continue
        asked |= set(before[rows].tolist())
        gone = np.isin(parts.part, (FORGET, FORGOTTEN))
        # No content asked for is kept or measured on, under any label, and nothing else left its part.
        assert set(before[gone].tolist()) == asked & set(before.tolist())
        assert not set(before[~gone].tolist()) & asked
        # The file may lose any of these rows, and be in any order within its parts.
        stay = [i for i in range(len(now)) if not gone[i] or data.draw(st.booleans())]
        parted = ([i for i in stay if i < now.train], [i for i in stay if i >= now.train])
        order = [i for part in parted for i in data.draw(st.permutations(part))]
        train = sum(i < now.train for i in order)
        if train == 0:
            return
        today = table(before[order], now.y[order], train, None)
        aligned = parts.align(today)
        kept = {key: n for key, n in by_content(parts).items() if key[2] not in (FORGET, FORGOTTEN)}
        assert {key: n for key, n in by_content(aligned).items() if key[2] not in (FORGET, FORGOTTEN)} == kept
        assert np.isin(aligned.part, (FORGET, FORGOTTEN)).sum() == sum(gone[i] for i in order)
        if len(stay) == len(now):
            assert by_content(aligned) == by_content(parts)
        now, parts = today, aligned


def test_check_finds_a_kept_copy_and_a_test_row_that_is_learned_from() -> None:
    whole = table([1, 1, 2, 3], train=3, names=None)
    digests, labels = whole.digests, whole.y
    for part in ([FORGET, RETAIN, RETAIN, TEST], [RETAIN, FORGOTTEN, RETAIN, TEST]):
        with pytest.raises(DataError, match="have copies that are kept"):
            Parts(digests, labels, np.array(part, dtype=np.uint8), 3).check()
    with pytest.raises(DataError, match="1 test rows are learned from"):
        Parts(digests, labels, np.array([RETAIN] * 4, dtype=np.uint8), 3).check()


def test_parts_are_kept_in_a_file_for_their_owner_without_names(tmp_path: Path) -> None:
    whole = table(labels=np.arange(10) % 3)
    parts = Parts.start(whole).request(whole, np.array([1, 5]))
    parts.save(tmp_path / "rows.npz")
    again = Parts.load(tmp_path / "rows.npz")
    assert by_content(again) == by_content(parts)
    assert (again.train, (tmp_path / "rows.npz").stat().st_mode & 0o777) == (8, 0o600)
    content = (tmp_path / "rows.npz").read_bytes()
    assert b"cust" not in content
    damaged = [b"", content[:200], content[:-40], content[:150] + b"??" + content[152:], b"x" * 500]
    for bad in damaged:
        (tmp_path / "rows.npz").write_bytes(bad)
        with pytest.raises(DataError) as caught:
            Parts.load(tmp_path / "rows.npz")
        assert "\n" not in str(caught.value)
    for change in (
        {"part": np.full(10, 9, np.uint8)},
        {"train": np.array(11)},
        {"label": whole.y[:5]},
        {"more": whole.y},
    ):
        arrays = {"digest": np.zeros((10, 16), np.uint8), "label": whole.y, "part": parts.part, "train": np.array(8)}
        np.savez(tmp_path / "rows.npz", **(arrays | change))
        with pytest.raises(DataError, match=r"rows\.npz does not hold|fit no table|copies"):
            Parts.load(tmp_path / "rows.npz")


X = np.random.default_rng(0).integers(0, 256, (30, 4, 4), dtype=np.uint8)
Y = np.arange(30) % 3
IDS = np.array([f"id{k // 2}" for k in range(30)])


def stored(root: Path, kind: str, rows: list[int], test: list[int] | None) -> Path:
    """The same pictures as an npz, a pair of npy files, a folder or a csv of images."""
    root.mkdir()
    arrays = {"x": X[rows], "y": Y[rows], "ids": IDS[rows]}
    if test is not None:
        arrays |= {"x_test": X[test], "y_test": Y[test], "ids_test": IDS[test]}
    if kind == "npz":
        np.savez(root / "mine.npz", **arrays)
        return root / "mine.npz"
    if kind == "npy":
        for name, array in arrays.items():
            np.save(root / f"{name}.npy", array)
        return root
    lines = {"": ["file,label,ids"], "test": ["file,label,ids"]}
    for part, numbers in (("", rows), ("test", test or [])):
        for place, row in enumerate(numbers):
            below = "train" if test and not part else part
            file = root / below / "abc"[Y[row]] / f"{place:03d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(X[row]).save(file)
            lines[part].append(f"{file.relative_to(root).as_posix()},{Y[row]},{IDS[row]}")
    if kind == "csv":
        for part, written in lines.items():
            (root / f"mine{part}.csv").write_text("\n".join(written))
        return root / "mine.csv"
    return root


@pytest.mark.parametrize("how", ["row", "mask", "name"])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("kind", ["npz", "npy", "folder", "csv"])
def test_requests_reach_the_same_pictures_in_every_kind_of_data(
    tmp_path: Path, kind: str, held: bool, how: str
) -> None:
    ids = None if kind == "folder" else "ids"
    test = list(range(24, 30)) if held else None

    def load(folder: Path, rows: list[int]) -> Table:
        path = stored(folder, kind, rows, test)
        return load_table(None, path, ids=ids, test=path.parent / "minetest.csv" if held and kind == "csv" else None)

    whole = load(tmp_path / "first", list(range(24)))
    assert whole.name == kind
    assert (len(whole), whole.train) == (30 if held else 24, 24)

    def pictures(table: Table, rows: np.ndarray) -> list[bytes]:
        return sorted(row.tobytes() for row in table.x[rows])

    def ask(table: Table, wanted: list[int]) -> np.ndarray:
        content = {X[row].tobytes() for row in wanted}
        rows = np.array([i for i in range(table.train) if table.x[np.array([i])].tobytes() in content])
        assert table.names is not None
        asked = {"row": rows, "mask": np.isin(np.arange(table.train), rows), "name": table.names[rows]}[how]
        return find(asked, table)

    parts = Parts.start(whole).request(whole, ask(whole, [4, 5]))
    assert pictures(whole, parts.rows(FORGET)) == sorted(X[k].tobytes() for k in (4, 5))
    # Since then the file was shuffled, and has lost one of them.
    rows = np.random.default_rng(1).permutation([k for k in range(24) if k != 5]).tolist()
    test = test and test[::-1]
    today = load(tmp_path / "second", rows)
    second = parts.align(today).request(today, ask(today, [8, 9]))
    assert pictures(today, second.rows(FORGET)) == sorted(X[k].tobytes() for k in (8, 9))
    assert pictures(today, second.rows(FORGOTTEN)) == [X[4].tobytes()]
    assert pictures(today, second.rows(TEST)) == (sorted(X[k].tobytes() for k in test) if test else [])
    assert len(second.rows(RETAIN)) == 20
