"""How far a run is, from its events."""

from __future__ import annotations

from warp_unlearning.runs.events import Event
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.tally import Tally

TRAIN = [Key("train", 1, {"n": n}) for n in range(4)]
SCORE = Key("score", 1, {})
JOBS = [*(Job(key) for key in TRAIN), Job(SCORE, (TRAIN[0],))]


def test_counts_seconds_and_the_time_left() -> None:
    tally = Tally(JOBS, workers=2, known={TRAIN[0].digest: 3.0})
    train = tally.stages["train"]
    assert tally.seconds_left(train) is None
    tally.note(Event("found", TRAIN[0]))
    tally.note(Event("started", TRAIN[1]))
    assert tally.note(Event("finished", TRAIN[1], seconds=5.0)) is train
    assert (train.done, train.left, train.seconds) == (2, 2, 8.0)
    # Two jobs left of four seconds each, two at once.
    assert tally.seconds_left(train) == 4.0
    tally.note(Event("failed", TRAIN[2], reason="x"))
    tally.note(Event("finished", TRAIN[3], seconds=1.0))
    assert train.as_json() == {"name": "train", "jobs": 4, "done": 3, "failed": 1, "seconds": 9.0}
    assert tally.seconds_left(train) == 0.0


def test_a_job_that_is_done_again_counts_once() -> None:
    tally = Tally(JOBS)
    for what in ("finished", "redone", "finished", "finished"):
        tally.note(Event(what, TRAIN[0], seconds=2.0))
    assert tally.stages["train"].done == 1
    tally.note(Event("blocked", SCORE))
    assert (tally.stages["score"].failed, tally.stages["score"].left) == (1, 0)
