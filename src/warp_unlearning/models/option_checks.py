"""Checks of the options a model is built from."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError


def require_positive(options: Mapping[str, object]) -> None:
    """Refuse any option that is not an integer of at least 1; a bool is no count of anything.

    >>> require_positive({"classes": 10, "width": 16})
    """
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}; give a whole number of at least 1")
