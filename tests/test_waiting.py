from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import torch

from warp_unlearning.cuda_sleep import sleep_while_waiting
from warp_unlearning.waiting import await_device, idly, take_turns


def test_a_thread_that_takes_no_turns_just_waits() -> None:
    with idly():
        pass
    await_device(torch.device("cpu"))


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
