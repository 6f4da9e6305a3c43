"""Work on its way to another process."""

from __future__ import annotations

import pickle
import sys

from ..errors import InputError
from .cores import use_threads
from .jobs import Work

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What libraries read when they are loaded; to be set before `unpack`."""


def pack(work: Work) -> bytes:
    """Bytes that our own processes unpack."""
    try:
        return pickle.dumps(work)
    except Exception as error:
        raise InputError(
            f"the work cannot be sent to another process ({error}); use a function or a class of a module"
        ) from error


def unpack(packed: bytes, *, threads: int) -> Work:
    """The work, and so many threads for torch, where the work loads it."""
    work: Work = pickle.loads(packed)
    if "torch" in sys.modules:
        use_threads(threads)
    return work
