"""A run that is killed again and again ends with the same bits, and does nothing twice that had finished."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from trial_work import Trial, expected, layered, results, sound

from warp_unlearning.runs.store import Store

KILLS = int(os.environ.get("KILLS", "36"))
WIDTH = 6
SLEEP = 0.06

PARENT = f"""
import sys
from pathlib import Path
from trial_work import Trial, layered
from warp_unlearning.runs.local import Lanes, run_local
from warp_unlearning.runs.store import Store

if __name__ == "__main__":
    store, marks, lanes = sys.argv[1:]
    jobs = layered({WIDTH}, sleep={SLEEP})
    outcome = run_local(jobs, Trial(Path(marks)), Store(Path(store)), workers=2, lanes=Lanes(int(lanes)))
    sys.exit(0 if outcome.complete else 3)
"""


def start(folder: Path, lanes: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PARENT, str(folder / "store"), str(folder / "marks"), str(lanes)]
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen(command, env=os.environ | path, start_new_session=True)


def members(group: int) -> list[int]:
    """Processes of a group, its leader and those that have ended aside; the tracker that Python starts is one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == group and int(stat.parent.name) != group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def kill_one(process: subprocess.Popen[bytes], victim: str, draw: random.Random) -> None:
    if victim == "all":
        os.killpg(process.pid, signal.SIGKILL)
    elif victim == "worker" and (workers := members(process.pid)):
        # It may have ended by itself since.
        try:
            os.kill(draw.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return
        return
    process.kill()
    process.wait()
    end = time.monotonic() + 10
    while members(process.pid):
        assert time.monotonic() < end, "workers outlive their parent"
        time.sleep(0.01)


def batter(folder: Path, draw: random.Random, *, kills: int, lanes: int) -> tuple[int, int]:
    """Run to the end, killing at random moments; the kills made, and how often a finished job was begun again."""
    (folder / "marks").mkdir(parents=True)
    trial, store = Trial(folder / "marks"), Store(folder / "store")
    made, again = 0, 0
    begun_when_finished: dict[str, int] = {}
    while True:
        process = start(folder, lanes)
        while made < kills and process.poll() is None:
            try:
                process.wait(draw.uniform(0.0, 0.5))
            except subprocess.TimeoutExpired:
                kill_one(process, draw.choice(["parent", "all", "worker"]), draw)
                made += 1
        code = process.wait()
        begun = Counter(mark.name.split(".")[0] for mark in trial.marks.iterdir())
        again += sum(begun[digest] > count for digest, count in begun_when_finished.items())
        begun_when_finished = {digest: begun[digest] for digest in store.digests()}
        assert not sound(store)
        if code == 0:
            return made, again
        # A job that was killed twice within one start has failed; the next start does it.
        assert code in (-signal.SIGKILL, 3), code


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 3])
def test_kills_at_random_moments_change_nothing(tmp_path: Path, lanes: int) -> None:
    draw = random.Random(20 + lanes)
    jobs = layered(WIDTH, sleep=SLEEP)
    kills, rounds = 0, 0
    while kills < KILLS:
        folder = tmp_path / f"round{rounds}"
        made, again = batter(folder, draw, kills=KILLS - kills, lanes=lanes)
        kills, rounds = kills + made, rounds + 1
        battered = Store(folder / "store")
        assert results(battered, jobs) == expected(jobs)
        assert len(battered.digests()) == len(jobs)
        assert again == 0
        battered.gc()
        assert not list((battered.root / "claims").iterdir())
    print(f"{kills} kills over {rounds} runs")  # noqa: T201


FULL = """
import random, resource, sys
from pathlib import Path
from trial_work import Trial, expected, layered, results, sound
from warp_unlearning.runs.local import run_local
from warp_unlearning.runs.store import Store, StoreError

if __name__ == "__main__":
    draw, jobs, refused = random.Random(7), layered(2, sleep=0.0), 0
    for i in range(int(sys.argv[2])):
        folder = Path(sys.argv[1]) / str(i)
        (folder / "marks").mkdir(parents=True)
        store, trial = Store(folder / "store"), Trial(folder / "marks")
        # Every result has 3.3 kB and more, every file of a claim a few bytes.
        resource.setrlimit(resource.RLIMIT_FSIZE, (draw.choice([0, 20, 1000, 3300, 3550, 3600]), -1))
        try:
            run_local(jobs, trial, store, workers=2)
        except StoreError as error:
            assert "no file may be so large" in str(error), error
            refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        assert not sound(store)
        assert run_local(jobs, trial, store, workers=2).complete
        assert results(store, jobs) == expected(jobs)
        assert not list((store.root / "claims").iterdir())
    print(refused)
"""


@pytest.mark.slow
def test_full_disks_are_one_refusal_and_leave_nothing_half(tmp_path: Path) -> None:
    program = tmp_path / "full.py"
    program.write_text(FULL)
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, str(program), str(tmp_path / "runs"), os.environ.get("FULL_DISKS", "12")]
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 0
    print(done.stdout.strip(), "full disks")  # noqa: T201
