from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from warp_unlearning.runs.store_temp import sweep, temporary_folder

HOLD = (
    "import sys, time; from pathlib import Path; from warp_unlearning.runs.store_temp import temporary_folder\n"
    "with temporary_folder(Path(sys.argv[1])) as folder:\n"
    "    (folder / 'half').write_bytes(b'x'); print(folder, flush=True); time.sleep(60)"
)


def test_the_folder_goes_with_its_block_whatever_is_in_it(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as folder:
        (folder / "half").write_bytes(b"x")
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not any(tmp_path.iterdir())


def test_what_a_live_process_writes_is_left_and_what_a_dead_one_wrote_is_swept(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        with temporary_folder(tmp_path) as mine:
            assert sweep(tmp_path) == 0
            assert mine.is_dir()
        assert (folder / "half").is_file()
    finally:
        other.kill()
        other.communicate()
    assert (folder / "half").is_file()
    assert sweep(tmp_path) == 1
    assert not any(tmp_path.iterdir())


def test_leftovers_without_a_lock_and_locks_without_a_folder_are_swept(tmp_path: Path) -> None:
    (tmp_path / "abc").mkdir()
    (tmp_path / "abc" / "file").touch()
    (tmp_path / "def.lock").touch()
    assert sweep(tmp_path) == 1
    assert not any(tmp_path.iterdir())
