from __future__ import annotations

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

from warp_unlearning.errors import InputError
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.store import Damaged, Missing, Store, StoreError

KEY = Key("train", 1, {"seed": 1, "recipe": {"lr": 0.1}})
OTHER = Key("score", 2, {"seed": 1})
FILES = {"weights.bin": b"w" * 1000, "scores.npz": b"\x00\x01", "empty": b""}

CRASHES = """
import os, sys
from pathlib import Path
from warp_unlearning.runs.keys import Key
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
            if event == "open" or event.startswith(("os.", "fcntl.")):
                seen += 1
                if seen > moment:
                    os._exit(9)
        sys.addaudithook(crash)
        with store.claim(key, "run") as claim:
            claim.begin()
            claim.write(files)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if store.has(key):
        counts["there"] += code == 9
        assert store.read(key).read_all() == files, moment
    else:
        assert code == 9, (moment, code)
        counts["absent"] += 1
    store.write(key, files)
    assert store.read(key).read_all() == files, moment
    store.gc()
    assert not list((root / "claims").iterdir()), moment
    if code == 0:
        break
assert not any(map(store.fault, store.digests()))
print(moment, counts["absent"], counts["there"])
"""
FULL = """
import resource, sys
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.store import Store, StoreError

store = Store(sys.argv[1])
for limit in range(0, 3000, 30):
    key = Key("k", 1, {"limit": limit})
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        store.write(key, {"weights.bin": b"w" * 1000, "more": b"m" * 500})
    except StoreError as error:
        assert "no file may be so large" in str(error), error
        assert not store.has(key)
    else:
        assert store.read(key).read("more") == b"m" * 500
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert not list((store.root / "claims").iterdir())
    store.write(key, {"weights.bin": b"w" * 1000, "more": b"m" * 500})
assert not any(map(store.fault, store.digests()))
print(len(store.digests()))
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def cut(data: bytes) -> bytes:
    return data[:-1]


def longer(data: bytes) -> bytes:
    return data + b"x"


def emptied(data: bytes) -> bytes:
    return b""


def in_the_header(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def in_a_file(data: bytes) -> bytes:
    return data[:-500] + bytes([data[-500] ^ 1]) + data[-499:]


def spoil(store: Store, key: Key, how: Callable[[bytes], bytes] = in_a_file) -> None:
    path = store.path(key.digest)
    path.write_bytes(how(path.read_bytes()))


def test_what_is_written_is_read_back(store: Store) -> None:
    assert not store.has(KEY)
    assert store.write(KEY, FILES, seconds=1.5)
    assert store.has(KEY)
    assert not store.has(OTHER)
    entry = store.read(KEY)
    assert entry.read_all() == FILES
    assert entry.read("weights.bin") == FILES["weights.bin"]
    assert (entry.key, entry.seconds, entry.size) == (KEY, 1.5, 1002)
    assert Store(store.root).read(KEY.digest).read_all() == FILES
    assert not store.write(KEY, {"another": b""})
    assert store.read(KEY).read_all() == FILES


def test_only_the_owner_may_read_and_nothing_else_is_left(store: Store) -> None:
    before = os.umask(0)
    try:
        with store.claim(KEY, "run") as claim:
            assert claim is not None
            claim.begin()
            modes = {path.stat().st_mode & 0o777 for path in (store.root / "claims").iterdir()}
            claim.write(FILES)
    finally:
        os.umask(before)
    modes |= {p.stat().st_mode & 0o777 for p in store.root.rglob("*") if p.is_file()}
    assert modes == {0o600}
    assert {p.stat().st_mode & 0o777 for p in store.root.rglob("*") if p.is_dir()} == {0o700}
    assert not any((store.root / "claims").iterdir())


def test_of_writers_at_once_one_wins_whole(store: Store) -> None:
    barrier, won = Barrier(6), []

    def write(i: int) -> None:
        barrier.wait()
        if store.write(KEY, {"a": bytes([i]) * 5000, "b": bytes([i]) * 10}):
            won.append(i)

    run_together(write, 6)
    (winner,) = won
    assert store.read(KEY).read_all() == {"a": bytes([winner]) * 5000, "b": bytes([winner]) * 10}
    assert not any((store.root / "claims").iterdir())


def run_together(what: Callable[[int], None], count: int) -> None:
    threads = [Thread(target=what, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_crash_at_any_moment_leaves_nothing_or_a_whole_result(tmp_path: Path) -> None:
    program = [sys.executable, "-c", CRASHES, str(tmp_path / "store")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    moments, absent, there = map(int, done.stdout.split())
    assert absent >= 10
    assert there >= 2
    assert moments == absent + there


def test_a_disk_that_takes_no_more_is_one_clear_error_and_leaves_nothing_half(tmp_path: Path) -> None:
    program = [sys.executable, "-c", FULL, str(tmp_path / "store")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "100\n"


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
    spoil(store, OTHER)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreError, match="read-only"), store.claim(Key("k", 1, {})):
        pass
    with pytest.raises(StoreError, match="read-only"):
        Store(small_disk / "another").write(KEY, FILES)
    assert Store(store.root).read(KEY).read_all() == FILES
    with pytest.raises(StoreError, match=r"weights\.bin is not what .* cannot be set aside") as told:
        store.read(OTHER).read_all()
    assert not isinstance(told.value, Missing)


@pytest.mark.parametrize("how", [cut, longer, emptied, in_the_header, in_a_file])
def test_damage_is_told_and_the_entry_set_aside(store: Store, how: Callable[[bytes], bytes]) -> None:
    store.write(KEY, FILES)
    spoil(store, KEY, how)
    assert store.fault(KEY.digest)
    with pytest.raises(Damaged, match="is damaged") as told:
        store.read(KEY).read_all()
    assert told.value.digest == KEY.digest
    assert not store.has(KEY)
    with pytest.raises(Missing, match="run its job"):
        store.read(KEY)
    assert store.write(KEY, FILES)
    assert store.read(KEY).read_all() == FILES
    assert store.gc()[0] == 1
    assert store.gc() == (0, 0)


def test_every_bit_and_every_cut_counts(store: Store) -> None:
    store.write(KEY, {"a": bytes(range(40)), "b": b"b" * 20})
    path = store.path(KEY.digest)
    whole = path.read_bytes()
    changed = [whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :] for at in range(len(whole))]
    for content in changed + [whole[:end] for end in range(len(whole))]:
        path.write_bytes(content)
        assert store.fault(KEY.digest)
    path.write_bytes(whole)
    assert not store.fault(KEY.digest)


def test_a_link_is_not_followed_and_a_folder_is_no_entry(store: Store, tmp_path: Path) -> None:
    for key in (KEY, OTHER):
        store.write(key, FILES)
    shutil.copy(store.path(KEY.digest), tmp_path / "copy")
    store.path(KEY.digest).unlink()
    store.path(KEY.digest).symlink_to(tmp_path / "copy")
    assert not store.has(KEY)
    with pytest.raises(Damaged, match="cannot be read"):
        store.read(KEY)
    assert store.write(KEY, FILES)
    store.remove(OTHER.digest)
    store.path(OTHER.digest).mkdir()
    with pytest.raises(StoreError, match="in the way"):
        store.write(OTHER, FILES)


def test_an_entry_under_the_name_of_another_key_is_damaged(store: Store) -> None:
    store.write(OTHER, FILES)
    store.path(KEY.digest).parent.mkdir(exist_ok=True)
    shutil.copy(store.path(OTHER.digest), store.path(KEY.digest))
    with pytest.raises(Damaged, match="another key"):
        store.read(KEY)
    assert store.read(OTHER).read_all() == FILES


def test_an_entry_that_was_redone_while_it_was_read_stays(store: Store) -> None:
    store.write(KEY, FILES)
    entry = store.read(KEY)
    assert store.remove(KEY.digest) > 1002
    assert store.remove(KEY.digest) == 0
    with pytest.raises(Missing) as told:
        entry.read("weights.bin")
    assert not isinstance(told.value, Damaged)
    store.write(KEY, {"weights.bin": b"made again"})
    with pytest.raises(Damaged):
        entry.read("weights.bin")
    assert store.read(KEY).read_all() == {"weights.bin": b"made again"}


def test_entries_are_listed_but_for_those_that_cannot_be_read(store: Store) -> None:
    for key in (KEY, OTHER):
        store.write(key, FILES)
    assert {entry.key for entry in store.entries()} == {KEY, OTHER}
    spoil(store, OTHER, in_the_header)
    assert [entry.key for entry in store.entries()] == [KEY]
    assert store.digests() == tuple(sorted([KEY.digest, OTHER.digest]))
    assert not store.set_aside(KEY.digest)
    assert store.set_aside(OTHER.digest)
    assert store.digests() == (KEY.digest,)


def test_gc_removes_leftovers_and_nothing_else(store: Store, tmp_path: Path) -> None:
    store.write(KEY, FILES)
    for name in (OTHER.digest, f"{OTHER.digest}.part", f"{OTHER.digest}.starts", "notes.txt"):
        (store.root / "claims" / name).write_bytes(b"123")
    (tmp_path / "mine").write_text("mine")
    (store.root / "failed" / KEY.digest).symlink_to(tmp_path / "mine")
    with store.claim(KEY, "run") as claim:
        assert claim is not None
        claim.begin()
        assert store.gc()[0] == 3
        assert claim.deaths == 0
        assert (store.root / "claims" / f"{KEY.digest}.starts").is_file()
    assert (tmp_path / "mine").read_text() == "mine"
    assert [path.name for path in (store.root / "claims").iterdir()] == ["notes.txt"]
    assert store.read(KEY).read_all() == FILES


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", ".hidden", "a\0", "a\n", "x" * 101, "é", "-r"])
def test_names_stay_inside(store: Store, name: str) -> None:
    with pytest.raises(InputError, match="a file of an entry is called"):
        store.write(KEY, {name: b""})
    assert not store.has(KEY)


@pytest.mark.parametrize(
    ("files", "message"),
    [({"a": "text"}, "is a str"), (None, "are a NoneType"), ({"a": b"", "A": b""}, "only in capitals")],
)
def test_what_no_store_can_hold_is_refused(store: Store, files: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        store.write(KEY, files)


def test_a_file_that_the_entry_lacks_is_no_damage(store: Store) -> None:
    store.write(KEY, FILES)
    with pytest.raises(InputError, match=r"has no file 'x'; it has empty, scores\.npz, weights\.bin"):
        store.read(KEY).read("x")
    assert store.has(KEY)


def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="is no store of results; give an empty or a new folder"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(StoreError, match="is a file"):
        Store(tmp_path / "notes.txt")
    with pytest.raises(StoreError, match="is no store of results: it has no"):
        Store(tmp_path / "none", create=False)
    empty = Store(tmp_path / "none")
    assert not empty.has(KEY)
    assert not empty.digests()
    assert not empty.failures("run")
    assert empty.gc() == (0, 0)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"what": "warp-unlearning store of results", "schema_version": 3}, "has schema version 3 and 2 is read here"),
        ({"what": "warp-unlearning store of results", "schema_version": 1}, "take it into a new one with `warp runs"),
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
    for path in (store.path(KEY.digest), store.root / "store.json"):
        target = copy / path.relative_to(store.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    moved = Store(copy)
    assert moved.identity == store.identity
    assert moved.read(KEY).read_all() == FILES
    assert moved.write(OTHER, FILES)


def test_a_store_half_made_is_made(tmp_path: Path) -> None:
    (tmp_path / "entries").mkdir()
    (tmp_path / ".store.json-abc").write_text("{")
    store = Store(tmp_path)
    store.write(KEY, FILES)
    assert store.read(KEY).read_all() == FILES


def test_stores_made_at_once_are_one(tmp_path: Path) -> None:
    barrier, seen = Barrier(8), []

    def make(_: int) -> None:
        barrier.wait()
        seen.append(Store(tmp_path / "store").identity)

    run_together(make, 8)
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_a_claim_is_held_by_one_and_counts_the_deaths_of_its_own_run(store: Store) -> None:
    program = (
        "import sys, time; from warp_unlearning.runs.keys import Key; from warp_unlearning.runs.store import Store\n"
        "with Store(sys.argv[1]).claim(Key('k', 1, {}), 'run') as claim:\n"
        "    claim.begin(); print(claim.deaths, flush=True); time.sleep(60)"
    )
    key = Key("k", 1, {})
    for deaths in range(2):
        other = subprocess.Popen([sys.executable, "-c", program, str(store.root)], stdout=subprocess.PIPE, text=True)
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == f"{deaths}\n"
            with store.claim(key, "run") as claim:
                assert claim is None
            with store.claim(KEY, "run") as claim:
                assert claim is not None
        finally:
            other.kill()
            other.communicate()
    with store.claim(key, "another run") as claim:
        assert claim is not None
        assert claim.deaths == 0
    for deaths in (2, 0):
        with store.claim(key, "run") as claim:
            assert claim is not None
            assert claim.deaths == deaths
            with store.claim(key, "run") as again:
                assert again is None
            claim.begin()
    assert not any((store.root / "claims").iterdir())


def test_a_failure_counts_for_its_run_until_the_job_is_done(store: Store) -> None:
    with store.claim(KEY, "run") as claim:
        assert claim is not None
        claim.fail("the lamp is out", "Traceback")
    assert {digest: (f.reason, f.traceback) for digest, f in store.failures("run").items()} == {
        KEY.digest: ("the lamp is out", "Traceback")
    }
    assert not store.failures("another run")
    store.write(KEY, FILES)
    assert not store.failures("run")
