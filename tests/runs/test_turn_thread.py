from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from threading import Event, get_ident

import pytest

from warp_unlearning.runs.turn_thread import TurnThread
from warp_unlearning.waiting import idly


@pytest.fixture
def roused() -> Event:
    return Event()


@pytest.fixture
def thread(roused: Event) -> Iterator[TurnThread[int]]:
    made: TurnThread[int] = TurnThread(roused.set)
    yield made
    made.close()


def test_calls_are_done_one_after_another_in_one_other_thread(thread: TurnThread[int]) -> None:
    found = []
    for _ in range(2):
        thread.start(get_ident)
        assert not thread.free
        assert thread.turn()
        found.append(thread.result())
        assert thread.free
    assert found[0] == found[1] != get_ident()


def test_a_call_is_begun_in_its_turn_only(thread: TurnThread[int]) -> None:
    begun: list[int] = []
    thread.start(lambda: begun.append(1) or 7)
    assert begun == []
    assert thread.turn()
    assert (begun, thread.result()) == ([1], 7)


def test_what_a_call_raises_is_raised_to_the_owner(thread: TurnThread[int]) -> None:
    def fail() -> int:
        raise KeyboardInterrupt("enough")

    thread.start(fail)
    assert thread.turn()
    with pytest.raises(KeyboardInterrupt, match="enough"):
        thread.result()
    assert thread.free


def test_a_turn_ends_when_the_call_waits_and_another_is_asked_for(thread: TurnThread[int], roused: Event) -> None:
    gate, trail = Event(), []

    def call() -> int:
        trail.append("before")
        with idly():
            assert gate.wait(10)
        trail.append("after")
        return 3

    thread.start(call)
    assert not thread.turn()
    assert thread.waits
    assert not roused.is_set()
    gate.set()
    assert roused.wait(10)
    assert not thread.waits
    # It has waited, but it is not its turn.
    assert trail == ["before"]
    assert thread.turn()
    assert (trail, thread.result()) == (["before", "after"], 3)


def test_what_fails_while_it_waits_fails_in_its_next_turn(thread: TurnThread[int], roused: Event) -> None:
    def call() -> int:
        with idly():
            raise OSError("the line is dead")

    thread.start(call)
    assert not thread.turn()
    assert roused.wait(10)
    assert thread.turn()
    with pytest.raises(OSError, match="the line is dead"):
        thread.result()


def test_closing_lets_a_call_that_waits_come_to_its_end(roused: Event) -> None:
    thread: TurnThread[int] = TurnThread(roused.set)
    gate, ended = Event(), []

    def call() -> int:
        with idly():
            gate.wait(10)
        with idly():
            pass
        ended.append(True)
        return 0

    thread.start(call)
    thread.turn()
    gate.set()
    thread.close()
    assert ended == [True]


def test_closing_takes_no_notice_of_what_a_call_raises(roused: Event) -> None:
    thread: TurnThread[int] = TurnThread(roused.set)

    def call() -> int:
        with idly():
            pass
        raise ValueError

    thread.start(call)
    thread.turn()
    thread.close()
    assert thread.free


def test_a_result_that_nobody_asked_for_is_not_computed_again(roused: Event) -> None:
    thread: TurnThread[int] = TurnThread(roused.set)
    done: list[int] = []
    thread.start(lambda: done.append(1) or 1)
    assert thread.turn()
    thread.close()
    assert done == [1]


INTERRUPTED = """
import os, signal, sys, threading, time
from warp_unlearning.runs.turn_thread import TurnThread

# Whoever started this may have had interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
thread = TurnThread(lambda: None)
threading.Timer(float(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True:
        thread.start(lambda: sum(range(200)))
        thread.turn()
        thread.result()
except KeyboardInterrupt:
    thread.close()
    print("closed")
"""


@pytest.mark.parametrize("moment", [0.05, 0.0513, 0.0537, 0.0571, 0.0593, 0.061, 0.0637, 0.0669])
def test_an_interrupt_at_any_moment_leaves_nothing_to_wait_for(moment: float) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(moment)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "closed\n", ran.stderr
