"""Whether layers that follow each other may be computed as one: networks ask where they could be."""

from __future__ import annotations

from contextvars import ContextVar

fusing: ContextVar[bool] = ContextVar("fusing", default=False)
"""True within `SwiftLayers`."""
