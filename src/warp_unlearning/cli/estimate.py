"""An estimate with its interval, as tables show it."""

from __future__ import annotations

from collections.abc import Mapping


def estimate(found: Mapping[str, float] | None) -> str:
    """The value and its interval; empty where there is none.

    >>> estimate({"value": 0.5, "low": 0.46, "high": 0.54}), estimate(None)
    ('0.500 [0.460, 0.540]', '')
    """
    return "" if found is None else f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
