from __future__ import annotations

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import require_positive


@pytest.mark.parametrize("value", [0, -3, 1.0, "1", None, True])
def test_anything_but_a_positive_integer_is_refused_by_name(value: object) -> None:
    with pytest.raises(InputError, match=r"size is .*at least 1"):
        require_positive({"fine": 1, "size": value})


def test_positive_integers_pass() -> None:
    require_positive({"a": 1, "b": 10**9})
