from __future__ import annotations

import gc
from threading import Event, Thread

import pytest

from warp_unlearning.collection import no_collection


def test_garbage_is_collected_after_the_block_alone() -> None:
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.isenabled()


def test_whoever_collects_none_goes_on_so() -> None:
    gc.disable()
    try:
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_lets_garbage_be_collected_again() -> None:
    inside, leave = Event(), Event()

    def other() -> None:
        with no_collection():
            inside.set()
            leave.wait()

    thread = Thread(target=other)
    with no_collection():
        thread.start()
        inside.wait()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
