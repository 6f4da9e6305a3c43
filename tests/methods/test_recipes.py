from __future__ import annotations

import pytest

from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.methods.recipes import SMALL_DATA, small_data_method
from warp_unlearning.methods.registry import BUILT_IN


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_every_setting_is_an_option_and_arrives(name: str) -> None:
    method = small_data_method(name)
    assert type(method) is BUILT_IN[name]
    for key, value in SMALL_DATA.get(name, {}).items():
        assert getattr(method, key) == value
        assert getattr(BUILT_IN[name](), key) != value


def test_all_recipes_are_of_methods() -> None:
    assert set(SMALL_DATA) <= set(BUILT_IN)


def test_own_settings_win() -> None:
    assert small_data_method("ngp", alpha=0.3, lr=0.5) == NegGradPlus(alpha=0.3, lr=0.5, batch_size=64)
