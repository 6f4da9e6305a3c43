"""A thread that works only in its turn, so that several can share what only one may use at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import Generic, TypeVar

from ..waiting import take_turns

Result = TypeVar("Result")


class TurnThread(Generic[Result]):
    """Does one call after another, each in turns that its owner gives.

    A turn ends when the call has ended, or when it does nothing but wait (`waiting.idly`); `rouse` is called when it
    has waited enough and needs another turn.
    """

    def __init__(self, rouse: Callable[[], None]) -> None:
        self._rouse = rouse
        self._call: Callable[[], Result] | None = None
        self._ended: tuple[Result | None, BaseException | None] | None = None
        self._out = self._waits = False
        # Both are held: to take one is to wait until the other side lets go of it.
        self._begin, self._end = Lock(), Lock()
        self._begin.acquire()
        self._end.acquire()
        self._thread = Thread(target=self._work, name="turns", daemon=True)
        self._thread.start()

    @property
    def free(self) -> bool:
        """Whether it has no call to do."""
        return self._call is None

    @property
    def out(self) -> bool:
        """Whether it works: after an interrupt of its owner the turn that was given may still last."""
        return self._out

    @property
    def waits(self) -> bool:
        """Whether a turn would be for nothing as yet."""
        return self._waits

    def start(self, call: Callable[[], Result]) -> None:
        """Give it a call, to be begun in its next turn; it must be free."""
        assert self.free
        self._call = call

    def turn(self) -> bool:
        """Give it a turn; whether the call has ended, in which case `result` is to be asked for."""
        if not self._out:
            self._out = True
            self._begin.release()
        # The thread says when its turn is over, since an interrupt may fall between any two things done here. One that
        # came after a wait had ended leaves a lock that can be taken once more.
        while self._out:
            self._end.acquire()
        return self._ended is not None

    def result(self) -> Result:
        """What the call that ended gave, or raises what it raised; the thread is free again."""
        assert self._ended is not None
        (found, error), self._ended, self._call = self._ended, None, None
        if error is not None:
            raise error
        return found  # type: ignore[return-value]

    def close(self) -> None:
        """Let the call, if there is one, come to its end, and then the thread."""
        while not self.free:
            if self._ended is not None or self.turn():
                self._ended = self._call = None
        self._begin.release()
        self._thread.join()

    def _work(self) -> None:
        take_turns(self._leave)
        while True:
            self._begin.acquire()
            if self._call is None:
                return
            try:
                self._ended = self._call(), None
            except BaseException as error:
                self._ended = None, error
            self._over()

    def _over(self) -> None:
        self._out = False
        with suppress(RuntimeError):
            self._end.release()

    @contextmanager
    def _leave(self) -> Iterator[None]:
        self._waits = True
        self._over()
        try:
            yield
        finally:
            self._waits = False
            self._rouse()
            self._begin.acquire()
