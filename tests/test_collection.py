from __future__ import annotations

import gc
from threading import Event, Thread
from typing import Any

import pytest

from warp_unlearning.collection import collection_put_off, no_collection


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


@pytest.mark.parametrize("block", [no_collection, collection_put_off])
def test_whoever_collects_none_goes_on_so(block: Any) -> None:
    gc.disable()
    try:
        with block():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_is_put_off_until_the_first_who_did_so_has_ended() -> None:
    first, second = collection_put_off(), collection_put_off()
    first.__enter__()
    assert not gc.isenabled()
    second.__enter__()
    with no_collection():
        first.__exit__(None, None, None)
        assert not gc.isenabled()
    assert gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
    with pytest.raises(KeyError), collection_put_off():
        raise KeyError
    with collection_put_off():
        assert not gc.isenabled()
        with no_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


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
