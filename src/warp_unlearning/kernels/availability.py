"""Whether kernels can be compiled here."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def triton_is_there() -> bool:
    """Whether there is Triton, which comes with torch's builds for a GPU."""
    return find_spec("triton") is not None
