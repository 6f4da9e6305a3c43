from __future__ import annotations

import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.runs.key import Key
from warp_unlearning.runs.store import Store
from warp_unlearning.runs.store_errors import CorruptEntry
from warp_unlearning.runs.store_pack import pack, require_packed, take_in

SUFFIXES = ["tar", "tar.xz", "tar.gz"]
UNPACK = {"tar.xz": lzma.decompress, "tar.gz": gzip.decompress}
KEYS = [Key("cell", 1, {"i": i}) for i in range(3)] + [Key("original", 1, {"i": 9})]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "from")
    for i, key in enumerate(KEYS):
        found.write(key, {"a.bin": bytes([i]) * 1000, "b.txt": str(key).encode()}, seconds=float(i))
    return found


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_results_travel_with_their_keys_and_seconds(store: Store, tmp_path: Path, suffix: str) -> None:
    other, file = Store(tmp_path / "to"), tmp_path / f"p.{suffix}"
    other.write(KEYS[0], {"mine.txt": b"kept"})
    assert pack(store, file, without=["original"]).results == 3
    require_packed(file)
    found = take_in(other, file)
    assert (found.results, found.known) == (2, 1)
    assert not other.has(KEYS[3])
    assert other.read(KEYS[0]).read("mine.txt") == b"kept"
    assert other.read(KEYS[2]).read_all() == store.read(KEYS[2]).read_all()
    assert other.read(KEYS[2]).manifest.seconds == 2.0
    assert not other.verify().corrupt


@pytest.mark.parametrize("suffix", UNPACK)
def test_the_name_says_whether_a_file_is_compressed(store: Store, tmp_path: Path, suffix: str) -> None:
    pack(store, tmp_path / "p.tar")
    pack(store, tmp_path / f"p.{suffix}")
    assert UNPACK[suffix]((tmp_path / f"p.{suffix}").read_bytes()) == (tmp_path / "p.tar").read_bytes()
    with tarfile.open(tmp_path / f"p.{suffix}") as archive:
        names = archive.getnames()
    digests = sorted(key.digest for key in KEYS)
    assert names == [f"{digest}/{name}" for digest in digests for name in (".key.json", "a.bin", "b.txt")]


@pytest.mark.skipif(shutil.which("xz") is None, reason="needs the command xz")
def test_the_command_xz_finds_a_packed_file_sound(store: Store, tmp_path: Path) -> None:
    pack(store, tmp_path / "p.tar.xz")
    subprocess.run(["xz", "--test", str(tmp_path / "p.tar.xz")], check=True)


def test_what_compresses_a_file_is_told_by_its_content(store: Store, tmp_path: Path) -> None:
    pack(store, tmp_path / "p.tar.xz")
    (tmp_path / "p.tar.xz").rename(tmp_path / "renamed.tar")
    assert take_in(Store(tmp_path / "to"), tmp_path / "renamed.tar").results == 4


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_results_give_the_same_bytes(
    store: Store, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(store, tmp_path / f"p.{suffix}")
    other = Store(tmp_path / "to")
    for i, key in reversed(list(enumerate(KEYS))):
        other.write(key, store.read(key).read_all(), seconds=float(i))
    monkeypatch.setattr("time.time", lambda: 2e9)
    pack(other, tmp_path / f"q.{suffix}")
    assert (tmp_path / f"p.{suffix}").read_bytes() == (tmp_path / f"q.{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", UNPACK)
def test_damage_anywhere_in_a_compressed_file_is_found_before_anything_is_taken(tmp_path: Path, suffix: str) -> None:
    store, other, file = Store(tmp_path / "from"), Store(tmp_path / "to"), tmp_path / f"p.{suffix}"
    noise = np.random.default_rng(0)
    for key in KEYS:
        store.write(key, {"scores.bin": noise.bytes(5000)})
    pack(store, file)
    whole = file.read_bytes()
    short = [whole[: len(whole) * part // 8] for part in range(1, 8)] + [whole[:-1]]
    places = range(10, len(whole), len(whole) // 40)
    changed = [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in places]
    for content in short + changed:
        file.write_bytes(content)
        with pytest.raises(DataError, match="is no file of packed results, or is damaged or cut short"):
            take_in(other, file)
    assert not other.digests()


def test_a_result_that_is_corrupt_leaves_no_packed_file(store: Store, tmp_path: Path) -> None:
    (store.folder(KEYS[1].digest) / "a.bin").write_bytes(b"damaged")
    with pytest.raises(CorruptEntry):
        pack(store, tmp_path / "p.tar.xz")
    assert not (tmp_path / "p.tar.xz").exists()


def test_a_packed_file_that_is_cut_short_or_changed_is_refused(store: Store, tmp_path: Path) -> None:
    file, other = tmp_path / "p.tar", Store(tmp_path / "to")
    pack(store, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2 + 100])
    with pytest.raises(DataError):
        take_in(other, file)
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive, tarfile.open(tmp_path / "q.tar", "w") as changed:
        for member in archive:
            data = archive.extractfile(member)
            member.name = member.name.replace(KEYS[1].digest, "0" * 64)
            changed.addfile(member, data)
    with pytest.raises(DataError, match="the file was changed"):
        take_in(Store(tmp_path / "third"), tmp_path / "q.tar")


def test_nothing_is_written_outside_the_store(tmp_path: Path) -> None:
    file = tmp_path / "p.tar"
    with tarfile.open(file, "w") as archive:
        info = tarfile.TarInfo("../../outside.txt")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(DataError, match="which no file of packed results does"):
        take_in(Store(tmp_path / "to"), file)


def test_bad_input(store: Store, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(InputError, match="already"):
        pack(store, tmp_path / "there")
    with pytest.raises(InputError, match="cannot be read"):
        take_in(store, tmp_path / "missing.tar")
    with pytest.raises(DataError):
        take_in(store, tmp_path / "there")


def test_a_kind_that_no_result_has_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no result of the kind 'orignal'; did you mean 'original'\?"):
        pack(store, tmp_path / "p.tar", without=["orignal"])
    assert not (tmp_path / "p.tar").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        lzma.compress(b"no archive"),
        gzip.compress(b"no archive"),
        lzma.compress(b"no archive")[:20],
        gzip.compress(b"no archive")[:12],
        gzip.compress(b"no archive")[:3] + b"\xff" * 40,
        b"\x1f\x8b\x07" + b"\xff" * 40,
        b"\xfd7zXZ\x00" + b"\xff" * 40,
        None,
    ],
    ids=["empty", "text", "xz", "gzip", "cut xz", "cut gzip", "bad gzip", "bad gzip header", "bad xz", "nothing"],
)
def test_what_is_no_file_of_packed_results_is_told_before_a_store_is_made(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "p.tar"
    if content is not None:
        file.write_bytes(content)
    error, message = (InputError, "cannot be read") if content is None else (DataError, "is no file of packed results")
    for read in (require_packed, partial(take_in, Store(tmp_path / "to"))):
        with pytest.raises(error, match=message):
            read(file)


def test_an_archive_of_something_else_is_told(store: Store, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("notes.txt"))
    with pytest.raises(DataError, match=r"begins with 'notes\.txt'"):
        require_packed(tmp_path / "other.tar")
    pack(store, tmp_path / "p.tar")
    require_packed(tmp_path / "p.tar")
