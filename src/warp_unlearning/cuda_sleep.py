"""Threads that sleep while they wait for a GPU."""

from __future__ import annotations

import ctypes

_BLOCKING = 4
"""CU_CTX_SCHED_BLOCKING_SYNC."""


def sleep_while_waiting(device: int) -> bool:
    """Have every thread of this process that waits for the GPU of that number sleep; whether the driver agreed.

    By default it asks again and again, which is a little faster, and keeps a core busy for each thread that waits. It
    is to be said before anything else is done with the GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        handle = ctypes.c_int()
        return bool(
            driver.cuInit(0) == 0
            and driver.cuDeviceGet(ctypes.byref(handle), device) == 0
            and driver.cuDevicePrimaryCtxSetFlags_v2(handle, _BLOCKING) == 0
        )
    except (OSError, AttributeError):
        return False
