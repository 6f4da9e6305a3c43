from typing import Any

import pytest
from pydantic import ValidationError

from warp_unlearning.config import RangeConfig, TuneConfig, resolve_as
from warp_unlearning.errors import InputError


@pytest.mark.parametrize("given", [{}, {"low": 1}, {"high": 1}, {"log": True}, {"choices": []}])
def test_a_range_without_ends_or_choices_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RangeConfig(**given)


@pytest.mark.parametrize("more", [{"low": 1}, {"low": 1, "high": 2}, {"log": True}])
def test_a_range_is_one_of_the_two(more: dict[str, Any]) -> None:
    RangeConfig(choices=[1, 2])
    with pytest.raises(ValidationError):
        RangeConfig(choices=[1, 2], **more)


def test_whole_ends_stay_whole() -> None:
    found = RangeConfig(low=1, high=2)
    assert (type(found.low), type(found.high)) == (int, int)
    assert type(RangeConfig(low=1.0, high=2).low) is float


@pytest.mark.parametrize("given", ["trials=0", "population=1", "shadows=0", "fraction=1", "methods=[]", "sampler=cma"])
def test_settings_out_of_bounds_are_named(given: str) -> None:
    with pytest.raises(InputError, match=given.partition("=")[0]):
        resolve_as(TuneConfig, overrides=[given])
