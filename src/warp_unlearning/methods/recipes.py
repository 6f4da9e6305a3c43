"""Settings of the methods for small data: a thousand examples, batches of 64, seconds on one core.

The defaults of the methods are the published ones or near them, made for tens of thousands of images, and do too little
in the few steps that an epoch of small data has. These were chosen by hand on digits: all on another split with the
classes 0 and 1 forgotten, then ngp and pgu again on the conformance kit's `digits_problem` with seeds 100 to 114, after
pgu had lost too much at seed 4. Reported numbers use seeds from 20 on, which nobody had looked at; the images are the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .protocol import Method
from .registry import make_method

SMALL_DATA: Mapping[str, Mapping[str, Any]] = {
    "ngp": {"batch_size": 64},
    "scrub": {"lr": 0.003, "retain_batch_size": 64, "forget_batch_size": 32},
    "salun": {"lr": 0.05, "batch_size": 64},
    "pgu": {"energy": 0.9, "lr": 0.5, "last_lr": 0.1, "epochs": 30, "stop": False},
    "bad_teacher": {"lr": 1e-3, "batch_size": 64},
    "srf_on": {"iterations": 100, "strength": 5.0, "batch_size": 64},
}


def small_data_method(name: str, /, **settings: Any) -> Method:
    """The method `name` with its settings for small data, then `settings` over them."""
    return make_method(name, **{**SMALL_DATA.get(name, {}), **settings})
