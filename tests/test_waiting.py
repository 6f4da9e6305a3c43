from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Thread
from typing import Any

import pytest
import torch

from warp_unlearning.cuda_sleep import sleep_while_waiting
from warp_unlearning.gradients.tracing import math_attention
from warp_unlearning.models.modes import full_precision
from warp_unlearning.randomness import LayerDraws
from warp_unlearning.waiting import (
    await_device,
    idly,
    keeping_turn,
    may_leave,
    take_turns,
    takes_turns,
    with_work,
    work_meanwhile,
)


def test_a_thread_that_takes_no_turns_just_waits() -> None:
    with idly():
        waited = not takes_turns()
    await_device(torch.device("cpu"))
    assert waited
    assert not may_leave()


def test_a_thread_that_takes_turns_leaves_its_own_while_it_waits() -> None:
    seen: list[str] = []

    @contextmanager
    def leave() -> Iterator[None]:
        seen.append("left")
        yield
        seen.append("back")

    def work() -> None:
        take_turns(leave)
        with idly():
            seen.append("waits")
        # There is nothing to wait for on a processor.
        await_device(torch.device("cpu"))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["left", "waits", "back"]
    with idly():
        seen.append("elsewhere")
    assert seen[-1] == "elsewhere"
    assert len(seen) == 4


def in_turns(work: Callable[[], object]) -> list[object]:
    """What `work` gives in a thread that takes turns."""
    found: list[object] = []

    def run() -> None:
        take_turns(nullcontext)
        found.append(work())

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return found


def test_a_turn_that_is_kept_is_not_left() -> None:
    left = []

    @contextmanager
    def leave() -> Iterator[None]:
        left.append(True)
        yield

    def work() -> None:
        take_turns(leave)
        with keeping_turn():
            with keeping_turn(), idly():
                pass
            with idly():
                pass
        assert left == []
        with idly():
            pass

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert left == [True]


@pytest.mark.parametrize(
    "shared",
    [full_precision, math_attention, lambda: LayerDraws(0, device=torch.device("cpu"))],
    ids=["precision", "attention", "draws"],
)
def test_what_the_process_shares_is_not_left_changed_to_others(shared: Callable[[], Any]) -> None:
    def work() -> tuple[bool, bool, bool]:
        with shared():
            inside = may_leave()
        return takes_turns(), inside, may_leave()

    assert in_turns(work) == [(True, False, True)]


def test_layers_that_draw_nothing_may_be_left() -> None:
    def work() -> bool:
        with LayerDraws(0, device=torch.device("cpu"), none=True):
            return may_leave()

    assert in_turns(work) == [True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_waiting_for_a_gpu_leaves_the_turn() -> None:
    left = []

    @contextmanager
    def leave() -> Iterator[None]:
        left.append(None)
        yield

    def work() -> None:
        take_turns(leave)
        await_device(torch.device("cuda"))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert len(left) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nobody_is_told_to_sleep() -> None:
    assert not sleep_while_waiting(0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_driver_lets_threads_sleep() -> None:
    assert sleep_while_waiting(0)


def test_work_is_done_once_at_the_first_long_wait_or_at_the_end() -> None:
    done: list[str] = []
    with with_work(lambda: done.append("at a wait")):
        assert not done
        work_meanwhile()
        assert done == ["at a wait"]
        work_meanwhile()
    with with_work(lambda: done.append("at the end")):
        pass
    work_meanwhile()
    assert done == ["at a wait", "at the end"]


def test_work_of_an_outer_block_waits_for_a_wait_of_its_own() -> None:
    done: list[str] = []
    with with_work(lambda: done.append("outer")):
        with with_work(lambda: done.append("inner")):
            work_meanwhile()
            work_meanwhile()
        assert done == ["inner"]
        work_meanwhile()
    assert done == ["inner", "outer"]


def test_an_error_leaves_work_undone() -> None:
    done: list[int] = []
    with pytest.raises(KeyError), with_work(lambda: done.append(1)):
        raise KeyError
    work_meanwhile()
    assert not done


def test_work_of_one_thread_is_not_done_by_another() -> None:
    done: list[int] = []
    with with_work(lambda: done.append(1)):
        thread = Thread(target=work_meanwhile)
        thread.start()
        thread.join()
        assert not done
    assert done == [1]
