"""Work for the tests of engines: what a job does stands in its ingredients, and each attempt leaves marks."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from warp_unlearning.errors import InputError
from warp_unlearning.runs.drain import PlainLane
from warp_unlearning.runs.jobs import Job, NoRoom, Steps, Unfit
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.store import Store

_MET: set[str] = set()


@dataclass(frozen=True)
class Trial:
    """Result: digests of the ingredients and of what the job needs. Marks: one file for each beginning of a job."""

    marks: Path

    def __call__(self, job: Job, store: Store) -> Steps:
        asked = job.key.ingredients
        (self.marks / f"{job.key.digest}.{os.getpid()}.{uuid4().hex}").touch()
        yield
        needed = [store.read(key).read("result.bin") for key in job.needs]
        until = time.monotonic() + asked.get("sleep", 0.0)
        while time.monotonic() < until:
            time.sleep(min(0.01, max(0.0, until - time.monotonic())))
            yield
        yield from self._misbehave(asked.get("does"), job, store)
        return {"result.bin": trial_result(job.key, needed), "text.txt": str(job.key).encode()}

    def begun(self, key: Key) -> int:
        return sum(1 for _ in self.marks.glob(f"{key.digest}.*"))

    def processes(self) -> set[int]:
        return {int(mark.name.split(".")[1]) for mark in self.marks.iterdir()}

    def in_order(self) -> list[str]:
        """Digests of the jobs in the order in which they were first begun."""
        marks = sorted(self.marks.iterdir(), key=lambda mark: mark.stat().st_mtime_ns)
        return list(dict.fromkeys(mark.name.split(".")[0] for mark in marks))

    def _misbehave(self, what: str | None, job: Job, store: Store) -> Iterator[None]:
        first = self.begun(job.key) == 1
        if what == "raise":
            raise InputError("the lamp is out")
        if what == "defect":
            raise ZeroDivisionError("by nought")
        if what == "exit":
            sys.exit("enough")
        if what == "die" or (what == "die once" and first):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "leave":
            os._exit(7)
        if what == "no room" or (what == "no room once" and first):
            raise NoRoom("full")
        if what == "unfit" or (what == "unfit once" and first):
            raise Unfit("the device broke")
        if what == "fill the disk":
            (store.root / "entries").rename(store.root / "gone")
            (store.root / "entries").touch()
        if what == "meet":
            _MET.add(job.key.digest)
            until = time.monotonic() + 20
            while len(_MET) < 2:
                assert time.monotonic() < until
                yield
        if what == "spoil what it needs":
            path = store.path(job.needs[0].digest)
            path.write_bytes(path.read_bytes()[:-1])
            store.read(job.needs[0])


class FailingLane(PlainLane):
    """A lane whose device fails at the sixth turn."""

    turns = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        yield
        type(self).turns += 1
        if self.turns == 6:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")


def no_lane() -> PlainLane:
    raise OSError("no driver")


def environment(job: Job, store: Store) -> Steps:
    yield
    return {"result.bin": os.environ.get("TRIAL", "").encode()}


def trial_result(key: Key, needed: list[bytes]) -> bytes:
    block = sha256(key.text.encode() + b"".join(needed)).digest()
    return block * 100


def no_mapping(job: Job, store: Store) -> Steps:
    yield
    return None  # type: ignore[return-value]


def bad_name(job: Job, store: Store) -> Steps:
    yield
    return {"../outside": b"x"}


def threads(job: Job, store: Store) -> Steps:
    import torch

    yield
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return {"threads.txt": f"{torch.get_num_threads()} {os.environ['OMP_NUM_THREADS']} {ignored}".encode()}


class Unloadable:
    """Pickled here, but no other process can make sense of it."""

    def __reduce__(self) -> tuple[object, ...]:
        return _only_in, (os.getpid(),)

    def __call__(self, job: Job, store: Store) -> Steps:
        yield
        return {}


def _only_in(pid: int) -> Unloadable:
    if os.getpid() != pid:
        raise LookupError("made in another process")
    return Unloadable()


def layered(width: int, *, sleep: float) -> list[Job]:
    """Three layers, as in a shadow audit: each of the second needs one of the first, and the last needs all."""
    trained = [Key("train", 1, {"seed": i, "sleep": sleep}) for i in range(width)]
    forgot = [
        (Key("unlearn", 1, {"seed": i, "variant": v, "sleep": sleep}), trained[i]) for i in range(width) for v in (0, 1)
    ]
    scored = Key("score", 1, {"all": width, "sleep": sleep})
    return [
        Job(scored, tuple(key for key, _ in forgot)),
        *(Job(key, (need,), cost=2.0) for key, need in forgot),
        *(Job(key, cost=5.0) for key in trained),
    ]


def expected(jobs: list[Job]) -> dict[Key, bytes]:
    """The results of `jobs`, in plain recursion."""
    by_key = {job.key: job for job in jobs}

    def of(key: Key) -> bytes:
        return trial_result(key, [of(need) for need in by_key[key].needs])

    return {key: of(key) for key in by_key}


def results(store: Store, jobs: list[Job]) -> dict[Key, bytes]:
    return {job.key: store.read(job.key).read("result.bin") for job in jobs if store.has(job.key)}


def sound(store: Store) -> Mapping[str, str]:
    """Faults of a store, by digest; empty where there are none."""
    return {digest: fault for digest in store.digests() if (fault := store.fault(digest))}
