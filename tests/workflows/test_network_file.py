from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from warp_unlearning.workflows.network_file import network_file_digest

from warp_unlearning.errors import InputError


def test_the_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a:b.py"
    file.write_bytes(b"def build(): ...")
    assert network_file_digest(f"{file}:build") == sha256(b"def build(): ...").hexdigest()
    assert network_file_digest(None) is None
    with pytest.raises(InputError, match=r"nowhere\.py cannot be read: No such file"):
        network_file_digest(f"{tmp_path / 'nowhere.py'}:build")
