from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.runs.key import Key
from warp_unlearning.runs.store import Store
from warp_unlearning.runs.store_pack import pack, require_packed, take_in

KEYS = [Key("cell", 1, {"i": i}) for i in range(3)] + [Key("original", 1, {"i": 9})]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "from")
    for i, key in enumerate(KEYS):
        found.write(key, {"a.bin": bytes([i]) * 1000, "b.txt": str(key).encode()}, seconds=float(i))
    return found


def test_results_travel_with_their_keys_and_seconds(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "to")
    other.write(KEYS[0], {"mine.txt": b"kept"})
    assert pack(store, tmp_path / "p.tar", without=["original"]).results == 3
    found = take_in(other, tmp_path / "p.tar")
    assert (found.results, found.known) == (2, 1)
    assert not other.has(KEYS[3])
    assert other.read(KEYS[0]).read("mine.txt") == b"kept"
    assert other.read(KEYS[2]).read_all() == store.read(KEYS[2]).read_all()
    assert other.read(KEYS[2]).manifest.seconds == 2.0
    assert not other.verify().corrupt


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


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_what_is_no_file_of_packed_results_is_told_before_a_store_is_made(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "p.tar"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises((DataError, InputError), match=r"is no file of packed results|cannot be read"):
        require_packed(file)


def test_an_archive_of_something_else_is_told(store: Store, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("notes.txt"))
    with pytest.raises(DataError, match=r"begins with 'notes\.txt'"):
        require_packed(tmp_path / "other.tar")
    pack(store, tmp_path / "p.tar")
    require_packed(tmp_path / "p.tar")
