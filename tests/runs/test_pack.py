from __future__ import annotations

import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.pack import merge, pack
from warp_unlearning.runs.store import Damaged, Store

SUFFIXES = ["tar", "tar.xz", "tar.gz"]
UNPACK = {"tar.xz": lzma.decompress, "tar.gz": gzip.decompress}
GOLDENS = Path(__file__).parents[1] / "goldens"
KEYS = [Key("cell", 1, {"i": i}) for i in range(3)] + [Key("original", 1, {"i": 9})]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "from")
    for i, key in enumerate(KEYS):
        found.write(key, {"a.bin": bytes([i]) * 1000, "b.txt": str(key).encode()}, seconds=float(i))
    return found


@pytest.mark.parametrize("suffix", [*SUFFIXES, "folder"])
def test_results_travel_with_their_keys_and_seconds(store: Store, tmp_path: Path, suffix: str) -> None:
    other, file = Store(tmp_path / "to"), tmp_path / f"p.{suffix}"
    other.write(KEYS[0], {"mine.txt": b"kept"})
    if suffix == "folder":
        store.remove(KEYS[3].digest)
        file = store.root
    else:
        assert pack(store, file, without=["original"]).results == 3
        assert file.stat().st_mode & 0o777 == 0o600
    found = merge(other.root, file)
    assert (found.results, found.known) == (2, 1)
    assert not other.has(KEYS[3])
    assert other.read(KEYS[0]).read("mine.txt") == b"kept"
    assert other.read(KEYS[2]).read_all() == store.read(KEYS[2]).read_all()
    assert other.read(KEYS[2]).seconds == 2.0
    assert not any(map(other.fault, other.digests()))


def old_store(tmp_path: Path) -> Path:
    with tarfile.open(GOLDENS / "store_0_1.tar.gz") as archive:
        archive.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old" / "store"


def holds_what_was_packed(root: Path) -> bool:
    store = Store(root)
    found = [(e.key.ingredients, e.seconds, e.read_all()) for e in store.entries()]
    wanted = [
        ({"i": i, "lr": 0.1}, float(i) or None, {"a.bin": bytes([i]) * 100, "b.txt": b"%d" % i}) for i in range(3)
    ]
    return sorted(found, key=str) == wanted


def test_a_pack_and_a_store_of_version_0_1_are_taken(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no checksums; take a compressed pack, or give --unchecked"):
        merge(tmp_path / "to", GOLDENS / "pack_0_1.tar")
    assert not (tmp_path / "to").exists()
    assert merge(tmp_path / "to", GOLDENS / "pack_0_1.tar", unchecked=True).results == 3
    assert holds_what_was_packed(tmp_path / "to")
    (tmp_path / "p.tar.gz").write_bytes(gzip.compress((GOLDENS / "pack_0_1.tar").read_bytes()))
    assert merge(tmp_path / "to", tmp_path / "p.tar.gz").known == 3
    assert merge(tmp_path / "third", old_store(tmp_path)).results == 3
    assert holds_what_was_packed(tmp_path / "third")


@pytest.mark.parametrize("name", ["manifest.json", "a.bin", "b.txt"])
def test_a_damaged_result_of_an_old_store_is_refused(tmp_path: Path, name: str) -> None:
    old = old_store(tmp_path)
    file = sorted(old.glob(f"entries/*/*/{name}"))[1]
    whole = file.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 20)):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        file.write_bytes(changed)
        with pytest.raises(DataError, match="remove it and merge again"):
            merge(tmp_path / "to", old)
    file.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        merge(tmp_path / "to", old)


@pytest.mark.parametrize("suffix", UNPACK)
def test_the_name_says_whether_a_file_is_compressed(store: Store, tmp_path: Path, suffix: str) -> None:
    pack(store, tmp_path / "p.tar")
    pack(store, tmp_path / f"p.{suffix}")
    assert UNPACK[suffix]((tmp_path / f"p.{suffix}").read_bytes()) == (tmp_path / "p.tar").read_bytes()
    with tarfile.open(tmp_path / f"p.{suffix}") as archive:
        names = archive.getnames()
    digests = sorted(key.digest for key in KEYS)
    assert names == [f"{digest}/{name}" for digest in digests for name in (".key.json", "a.bin", "b.txt")] + [
        "pack.json"
    ]


@pytest.mark.skipif(shutil.which("xz") is None, reason="needs the command xz")
def test_the_command_xz_finds_a_packed_file_sound(store: Store, tmp_path: Path) -> None:
    pack(store, tmp_path / "p.tar.xz")
    subprocess.run(["xz", "--test", str(tmp_path / "p.tar.xz")], check=True)


def test_what_compresses_a_file_is_told_by_its_content(store: Store, tmp_path: Path) -> None:
    pack(store, tmp_path / "p.tar.xz")
    (tmp_path / "p.tar.xz").rename(tmp_path / "renamed.tar")
    assert merge(tmp_path / "to", tmp_path / "renamed.tar").results == 4


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
    store, file = Store(tmp_path / "from"), tmp_path / f"p.{suffix}"
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
            merge(tmp_path / "to", file)
    assert not (tmp_path / "to").exists()


def test_whatever_is_changed_in_an_uncompressed_pack_is_refused_and_the_rest_is_sound(tmp_path: Path) -> None:
    store, file = Store(tmp_path / "from"), tmp_path / "p.tar"
    noise = np.random.default_rng(0)
    for key in KEYS[:2]:
        store.write(key, {"scores.bin": noise.bytes(600)}, seconds=1.25)
    pack(store, file)
    whole = file.read_bytes()
    size = len(whole.rstrip(b"\0"))
    flipped = [whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :] for at in range(0, size, 5)]
    refused = 0
    for number, content in enumerate(flipped + [whole[:end] for end in range(0, size, 37)]):
        file.write_bytes(content)
        to = Store(tmp_path / "to" / str(number))
        try:
            merge(to.root, file)
            assert len(to.digests()) == 2
        except DataError:
            refused += 1
        for entry in to.entries():
            assert entry.read_all() == store.read(entry.key).read_all()
            assert entry.seconds == 1.25
    # The others lie in what no reader of a tar file looks at.
    assert refused > 0.5 * number


def test_a_result_that_is_damaged_leaves_no_packed_file(store: Store, tmp_path: Path) -> None:
    path = store.path(KEYS[1].digest)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(Damaged):
        pack(store, tmp_path / "p.tar.xz")
    assert not (tmp_path / "p.tar.xz").exists()


def test_nothing_is_written_outside_the_store(tmp_path: Path) -> None:
    file = tmp_path / "p.tar"
    with tarfile.open(file, "w") as archive:
        info = tarfile.TarInfo("../../outside.txt")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(DataError, match="which no file of packed results does"):
        merge(tmp_path / "to", file)


def test_bad_input(store: Store, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(InputError, match="already"):
        pack(store, tmp_path / "there")
    with pytest.raises(InputError, match="cannot be read"):
        merge(store.root, tmp_path / "missing.tar")
    with pytest.raises(DataError):
        merge(store.root, tmp_path / "there")
    with pytest.raises(InputError, match="is no store of results"):
        merge(store.root, tmp_path)


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
    with pytest.raises(error, match=message):
        merge(tmp_path / "to", file)
    assert not (tmp_path / "to").exists()


def test_an_archive_of_something_else_is_told(store: Store, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("notes.txt"))
    with pytest.raises(DataError, match=r"begins with 'notes\.txt'"):
        merge(store.root, tmp_path / "other.tar")
