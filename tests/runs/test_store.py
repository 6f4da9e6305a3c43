from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from warp_unlearning.errors import InputError, WarpError
from warp_unlearning.runs import store as store_module
from warp_unlearning.runs.key import Key
from warp_unlearning.runs.store import Store
from warp_unlearning.runs.store_errors import CorruptEntry, MissingEntry, StoreError

KEY = Key("train", 1, {"seed": 1, "recipe": {"lr": 0.1}})
OTHER = Key("score", 2, {"seed": 1})
FILES = {"weights.bin": b"w" * 1000, "scores.npz": b"\x00\x01", "empty": b""}

CRASHES = """
import os, sys
from pathlib import Path
from warp_unlearning.runs.key import Key
from warp_unlearning.runs.store import Store

root = Path(sys.argv[1])
files = {"weights.bin": b"w" * 1000, "scores.npz": bytes(2), "empty": b""}
store = Store(root)
store.write(Key("k", 1, {"warm": "up"}), files)
counts = {"absent": 0, "there": 0}
for moment in range(1000):
    key = Key("k", 1, {"moment": moment})
    child = os.fork()
    if child == 0:
        seen = 0
        def crash(event, args):
            global seen
            if event == "open" or event.startswith(("os.", "shutil.", "fcntl.")):
                seen += 1
                if seen > moment:
                    os._exit(9)
        sys.addaudithook(crash)
        store.write(key, files)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if store.has(key):
        counts["there"] += code == 9
        assert store.read(key).read_all() == files, moment
    else:
        assert code == 9, (moment, code)
        counts["absent"] += 1
    store.sweep()
    assert not list((root / "temp").iterdir()), moment
    store.write(key, files)
    assert store.read(key).read_all() == files, moment
    if code == 0:
        break
assert not store.verify().corrupt
print(moment, counts["absent"], counts["there"])
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def modes(folder: Path) -> set[tuple[bool, int]]:
    return {(path.is_dir(), path.stat().st_mode & 0o777) for path in folder.rglob("*")}


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_what_is_written_is_read_back(store: Store) -> None:
    assert not store.has(KEY)
    assert store.write(KEY, FILES, seconds=1.5)
    assert store.has(KEY)
    assert not store.has(OTHER)
    entry = store.read(KEY)
    assert entry.read_all() == FILES
    assert entry.read("weights.bin") == FILES["weights.bin"]
    assert entry.names == ("empty", "scores.npz", "weights.bin")
    assert entry.manifest.key == KEY
    assert entry.manifest.seconds == 1.5
    assert entry.manifest.size == 1002
    assert store.size() == 1002 + len((store.folder(KEY.digest) / "manifest.json").read_bytes())
    assert Store(store.root).read(KEY).read_all() == FILES


def test_only_the_owner_may_read_and_nothing_else_is_left(store: Store) -> None:
    before = os.umask(0)
    try:
        store.write(KEY, FILES)
    finally:
        os.umask(before)
    assert modes(store.root) == {(True, 0o700), (False, 0o600)}
    assert not any((store.root / "temp").iterdir())


def test_a_second_write_leaves_the_first(store: Store) -> None:
    store.write(KEY, FILES)
    assert not store.write(KEY, {"another": b""})
    assert store.read(KEY).read_all() == FILES


def test_of_writers_at_once_one_wins_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Past the first look, so that all of them come to the rename.
    barrier = Barrier(6)
    monkeypatch.setattr(store_module, "describe", _after(barrier.wait, store_module.describe))
    won: list[int] = []
    errors: list[BaseException] = []

    def write(i: int) -> None:
        try:
            if store.write(KEY, {"a": bytes([i]) * 5000, "b": bytes([i]) * 10}):
                won.append(i)
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=write, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    (winner,) = won
    assert store.read(KEY).read_all() == {"a": bytes([winner]) * 5000, "b": bytes([winner]) * 10}
    assert not any((store.root / "temp").iterdir())


def _after(first: Callable[[], Any], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        first()
        return then(*args, **kwargs)

    return both


def test_a_crash_at_any_moment_leaves_nothing_or_a_complete_entry(tmp_path: Path) -> None:
    program = [sys.executable, "-c", CRASHES, str(tmp_path / "store")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    moments, absent, there = map(int, done.stdout.split())
    # Before the rename, and after it.
    assert absent >= 10
    assert there >= 2
    assert moments == absent + there


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_flipped_bit_is_told_and_the_entry_set_aside(store: Store, name: str) -> None:
    store.write(KEY, {**FILES, "empty": b"not quite"})
    spoil(store.folder(KEY.digest) / name)
    with pytest.raises(CorruptEntry, match=name) as told:
        store.read(KEY).read_all()
    assert told.value.digest == KEY.digest
    assert not store.has(KEY)
    with pytest.raises(MissingEntry, match="run its job"):
        store.read(KEY)
    assert store.write(KEY, FILES)
    assert store.read(KEY).read_all() == FILES


def test_every_byte_of_a_manifest_counts(store: Store) -> None:
    store.write(KEY, FILES)
    path = store.folder(KEY.digest) / "manifest.json"
    whole = path.read_bytes()
    text = json.dumps(json.loads(whole))
    for i in range(0, len(whole), 7):
        data = bytearray(whole)
        data[i] ^= 1
        path.write_bytes(bytes(data))
        try:
            same = json.dumps(json.loads(bytes(data))) == text
        except ValueError:
            same = False
        assert bool(store.fault(KEY.digest)) != same, i


@pytest.mark.parametrize("how", ["missing", "short", "long", "folder"])
def test_a_damaged_file_is_told(store: Store, how: str) -> None:
    store.write(KEY, FILES)
    path = store.folder(KEY.digest) / "weights.bin"
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "missing":
        path.write_bytes(b"w" * {"short": 999, "long": 1001}[how])
    entry = store.read(KEY)
    assert entry.read("scores.npz") == FILES["scores.npz"]
    with pytest.raises(CorruptEntry, match=r"weights\.bin"):
        entry.read("weights.bin")


def test_an_entry_under_the_name_of_another_key_is_corrupt(store: Store) -> None:
    store.write(OTHER, FILES)
    store.folder(KEY.digest).parent.mkdir(exist_ok=True)
    shutil.copytree(store.folder(OTHER.digest), store.folder(KEY.digest))
    with pytest.raises(CorruptEntry, match="another key"):
        store.read(KEY)
    assert store.read(OTHER).read_all() == FILES


def test_an_entry_that_was_redone_while_it_was_read_stays(store: Store) -> None:
    store.write(KEY, FILES)
    entry = store.read(KEY)
    store.remove(KEY.digest)
    store.write(KEY, {"weights.bin": b"made again"})
    with pytest.raises(CorruptEntry):
        entry.read("weights.bin")
    assert store.read(KEY).read_all() == {"weights.bin": b"made again"}


def test_an_entry_that_is_removed_while_it_is_read_is_missing_and_not_corrupt(store: Store) -> None:
    store.write(KEY, FILES)
    entry = store.read(KEY)
    store.remove(KEY.digest)
    with pytest.raises(MissingEntry) as told:
        entry.read("weights.bin")
    assert not isinstance(told.value, CorruptEntry)


def test_a_folder_without_a_manifest_is_no_entry_and_is_replaced(store: Store) -> None:
    store.write(KEY, FILES)
    (store.folder(KEY.digest) / "manifest.json").unlink()
    assert not store.has(KEY)
    assert store.write(KEY, FILES)
    assert store.read(KEY).read_all() == FILES


def test_verify_reads_everything_and_changes_nothing(store: Store) -> None:
    for key in (KEY, OTHER):
        store.write(key, FILES)
    assert store.verify() == store_module.Faults(2, {})
    spoil(store.folder(OTHER.digest) / "scores.npz")
    found = store.verify()
    assert found.intact == 1
    assert found.corrupt == {OTHER.digest: "scores.npz is not what its checksum says"}
    assert store.has(OTHER)


def test_entries_are_listed_but_for_those_that_cannot_be_read(store: Store) -> None:
    for key in (KEY, OTHER):
        store.write(key, FILES)
    assert {entry.manifest.key for entry in store.entries()} == {KEY, OTHER}
    spoil(store.folder(OTHER.digest) / "manifest.json")
    assert [entry.manifest.key for entry in store.entries()] == [KEY]
    assert store.digests() == tuple(sorted([KEY.digest, OTHER.digest]))


def test_gc_keeps_what_it_is_told_to(store: Store) -> None:
    for key in (KEY, OTHER):
        store.write(key, FILES)
    size = store.size()
    cleared = store.gc(keep=[KEY])
    assert cleared.entries == (OTHER.digest,)
    assert cleared.size == size - store.size() > 1002
    assert store.has(KEY)
    assert not store.has(OTHER)
    assert store.gc(keep=[KEY]).entries == ()
    assert store.remove(OTHER.digest) == 0


def test_gc_clears_what_was_set_aside(store: Store) -> None:
    store.write(KEY, FILES)
    spoil(store.folder(KEY.digest) / "weights.bin")
    with pytest.raises(CorruptEntry):
        store.read(KEY).read_all()
    cleared = store.gc(keep=[])
    assert cleared.leftovers == 1
    assert cleared.size > 1002
    assert not any((store.root / "aside").iterdir())


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/b",
        "/etc/x",
        "",
        ".",
        "..",
        ".hidden",
        "manifest.json",
        "Manifest.JSON",
        "a\x00",
        "a\n",
        "x" * 101,
        "é",
        "-rf",
    ],
)
def test_names_stay_inside(store: Store, name: str) -> None:
    with pytest.raises(InputError, match="a file of an entry is called"):
        store.write(KEY, {name: b""})
    assert not store.has(KEY)


def test_names_that_some_disks_take_for_one_are_refused(store: Store) -> None:
    with pytest.raises(InputError, match="only in capitals"):
        store.write(KEY, {"a": b"", "A": b""})


@pytest.mark.parametrize(("files", "message"), [({"a": "text"}, "is a str"), (None, "are a NoneType")])
def test_what_is_no_bytes_is_refused(store: Store, files: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        store.write(KEY, files)


def test_a_manifest_that_names_a_file_outside_is_not_followed(store: Store) -> None:
    from warp_unlearning.runs.store_entry import _checksum

    store.write(KEY, FILES)
    path = store.folder(KEY.digest) / "manifest.json"
    body = json.loads(path.read_bytes())
    del body["checksum"]
    body["files"]["../../../store.json"] = {"bytes": 1, "sha256": "0" * 64}
    path.write_text(json.dumps(body | {"checksum": _checksum(body)}))
    with pytest.raises(CorruptEntry, match="outside"):
        store.read(KEY)


def test_a_file_that_the_entry_lacks_is_no_corruption(store: Store) -> None:
    store.write(KEY, FILES)
    with pytest.raises(InputError, match=r"has no file 'x'; it has empty, scores\.npz, weights\.bin"):
        store.read(KEY).read("x")
    assert store.has(KEY)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full: free some"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the disk is read-only: give a store on another"),
        (errno.EACCES, "this account may not write there"),
        (errno.EIO, "check the disk"),
    ],
)
def test_a_disk_that_takes_no_more_is_one_clear_error(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def full(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=words) as told:
            store.write(KEY, FILES)
    assert isinstance(told.value, WarpError)
    assert str(store.root) in str(told.value)
    assert not store.has(KEY)
    assert not any((store.root / "temp").iterdir())
    assert store.write(KEY, FILES)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 kB, where this account may make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_real_disk_that_is_full_or_read_only(small_disk: Path) -> None:
    store = Store(small_disk / "store")
    store.write(OTHER, FILES)
    with pytest.raises(StoreError, match=f"to {store.root}: No space left on device; the disk is full"):
        store.write(KEY, {"big": b"x" * 300_000})
    assert store.write(KEY, FILES)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreError, match="Read-only file system; the disk is read-only"):
        store.write(Key("k", 1, {}), FILES)
    with pytest.raises(StoreError, match="read-only"), store.claim(Key("k", 1, {})):
        pass
    with pytest.raises(StoreError, match="read-only"):
        Store(small_disk / "another")
    assert Store(store.root).read(KEY).read_all() == FILES
    assert store.sweep() == 0


def test_a_corrupt_entry_that_cannot_be_set_aside_is_an_error_of_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(KEY, FILES)
    spoil(store.folder(KEY.digest) / "weights.bin")

    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StoreError, match="aside") as told:
        store.read(KEY).read_all()
    assert not isinstance(told.value, MissingEntry)


def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="is no store of results; give an empty or a new folder"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(StoreError, match="is a file"):
        Store(tmp_path / "notes.txt")
    with pytest.raises(StoreError, match="is no store of results: it has no"):
        Store(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"what": "warp-unlearning store of results", "schema_version": 2}, "has schema version 2 and 1 is read here"),
        ({"what": "another store", "schema_version": 1}, "not that of a store of results"),
        ([], "not that of a store of results"),
        (None, "is no JSON"),
    ],
)
def test_a_store_of_another_version_or_program_is_refused(tmp_path: Path, about: Any, message: str) -> None:
    (tmp_path / "store.json").write_text("{" if about is None else json.dumps(about))
    with pytest.raises(StoreError, match=message):
        Store(tmp_path)


def test_a_copy_without_empty_folders_is_a_store(store: Store, tmp_path: Path) -> None:
    store.write(KEY, FILES)
    copy = tmp_path / "copy"
    for path in store.root.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(store.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    assert sorted(path.name for path in copy.iterdir()) == ["entries", "store.json"]
    moved = Store(copy)
    assert moved.sweep() == 0
    assert moved.read(KEY).read_all() == FILES
    assert moved.write(OTHER, FILES)


def test_a_store_without_its_empty_folders_is_read_where_none_can_be_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(KEY, FILES)
    (store.root / "temp").rmdir()

    def refuse(self: Path, **_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert Store(store.root).read(KEY).read_all() == FILES


def test_a_store_half_made_is_made(tmp_path: Path) -> None:
    (tmp_path / "entries").mkdir()
    (tmp_path / ".store.json-abc").write_text("{")
    store = Store(tmp_path)
    store.write(KEY, FILES)
    assert store.read(KEY).read_all() == FILES


def test_stores_made_at_once_are_one(tmp_path: Path) -> None:
    seen: list[str] = []
    barrier = Barrier(8)

    def make() -> None:
        barrier.wait()
        seen.append(Store(tmp_path / "store").identity)

    threads = [Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_a_claim_is_held_by_one_and_ends_with_its_process(store: Store) -> None:
    program = (
        "import sys, time; from warp_unlearning.runs.key import Key; from warp_unlearning.runs.store import Store\n"
        "with Store(sys.argv[1]).claim(Key('k', 1, {})) as mine:\n    print(mine, flush=True); time.sleep(60)"
    )
    key = Key("k", 1, {})
    other = subprocess.Popen([sys.executable, "-c", program, str(store.root)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with store.claim(key) as mine:
            assert not mine
        with store.claim(KEY) as mine:
            assert mine
    finally:
        other.kill()
        other.communicate()
    with store.claim(key) as mine:
        assert mine
        with store.claim(key) as again:
            assert not again
    assert not any((store.root / "claims").iterdir())
