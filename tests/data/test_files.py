import json
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from warp_unlearning.data.files import array_digest, safe_output, to_json, write_atomically
from warp_unlearning.errors import DataError, InputError


def test_a_file_is_replaced_whole_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in (b"first", b"second"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_write_that_fails_leaves_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", b"earlier")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "x", "no bytes")  # type: ignore[arg-type]
    assert (os.listdir(tmp_path), (tmp_path / "x").read_bytes()) == (["x"], b"earlier")


def test_only_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("the user's own")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name, kind in (("link", "a link"), ("folder", "a folder"), ("fifo", "no regular file")):
        for attempt in (
            lambda path: safe_output(path, overwrite=True),
            lambda path: write_atomically(path, b"x"),
        ):
            with pytest.raises(InputError, match=f"{name} is {kind}, which is not replaced"):
                attempt(tmp_path / name)
    with pytest.raises(InputError, match="is no regular file"):
        safe_output(Path("/dev/null"), overwrite=True)
    with pytest.raises(InputError, match=r"there is a file .* already"):
        safe_output(tmp_path / "file")
    assert safe_output(tmp_path / "file", overwrite=True).read_text() == "the user's own"


def test_folders_are_made_for_their_owner(tmp_path: Path) -> None:
    write_atomically(safe_output(tmp_path / "a" / "b" / "x"), b"x")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    with pytest.raises(InputError, match=r"folder .*x cannot be made"):
        safe_output(tmp_path / "a" / "b" / "x" / "y")


def test_digest_is_of_type_shape_and_values_in_order() -> None:
    a = np.array([[1, 2], [3, 4]], dtype=np.int32)
    by_hand = sha256(b"<i4(2, 2);" + a.astype("<i4").tobytes()).hexdigest()
    assert array_digest(a) == array_digest(a.astype(">i4")) == array_digest(np.asfortranarray(a)) == by_hand
    others = [array_digest(v) for v in (a + 1, a.astype(np.int64), a.reshape(4), a[::-1])]
    assert len({by_hand, *others, array_digest(a, a), array_digest()}) == 7
    with pytest.raises(DataError, match="type object has no digest"):
        array_digest(np.array([print]))


def test_results_become_what_json_can_hold() -> None:
    given = {1: (np.float32(0.5), [np.int64(3), None]), "x": {"y": float("nan"), "z": np.inf}, "t": True}
    expected = {"1": [0.5, [3, None]], "x": {"y": None, "z": None}, "t": True}
    assert to_json(given) == expected == json.loads(json.dumps(to_json(given)))
