"""Results as plain data."""

from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
from warp_unlearning.data.plain import plain


def test_what_json_has_no_form_for_becomes_what_it_has() -> None:
    data = {
        "a": float("nan"),
        "b": (1.5, float("inf"), {"c": -float("inf")}),
        "d": ["x", True, 3, None],
        4: MappingProxyType({"e": np.float32(0.5), "f": np.int64(7), "g": np.float64("nan")}),
    }
    found = plain(data)
    expected = {"a": None, "b": [1.5, None, {"c": None}], "d": ["x", True, 3, None], "4": {"e": 0.5, "f": 7, "g": None}}
    assert found == expected
    assert json.loads(json.dumps(found, allow_nan=False)) == expected
