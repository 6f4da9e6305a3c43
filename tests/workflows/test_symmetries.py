from __future__ import annotations

from typing import Any

import pytest
from warp_unlearning.workflows.symmetries import choose_symmetry, split_settings

from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.change_of_basis import ChangeOfBasis
from warp_unlearning.symmetry.compose import Compose
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.permutation import Permutation


def test_settings_are_sorted_by_whom_they_are_for() -> None:
    given = ["spread=0.5", "model.name=mlp", "device=cpu", "null_space.energy=0.9", "null_space.steps=2", "law=uniform"]
    overrides, options = split_settings(given)
    assert overrides == ["model.name=mlp", "device=cpu"]
    assert options == {"spread": 0.5, "null_space": {"energy": 0.9, "steps": 2}, "law": "uniform"}
    assert split_settings(["spread=0.5", "spread=0.1"])[1] == {"spread": 0.1}
    with pytest.raises(InputError, match=r"'spread' is not of the form key\.sub=value"):
        split_settings(["spread"])


def test_one_name_is_that_symmetry_and_several_are_composed_in_order() -> None:
    one: Any = choose_symmetry(["change_of_basis"], {"spread": 0.3})
    assert isinstance(one, ChangeOfBasis)
    assert one.spread == 0.3
    several: Any = choose_symmetry(["permutation", "null_space", "change_of_basis"], {})
    assert isinstance(several, Compose)
    assert [type(part) for part in several.symmetries] == [Permutation, NullSpace, ChangeOfBasis]


def test_an_option_goes_to_each_that_has_it_and_a_longer_name_to_one() -> None:
    names = ["change_of_basis", "attention_basis", "permutation"]
    options = {"attention_basis": {"spread": 0.2}, "spread": 0.4, "law": "lognormal"}
    # The order in which they are given does not matter.
    for given in (options, dict(reversed(options.items()))):
        several: Any = choose_symmetry(names, given)
        assert [getattr(part, "spread", None) for part in several.symmetries] == [0.4, 0.2, None]
        assert [getattr(part, "law", None) for part in several.symmetries] == ["lognormal", "lognormal", None]


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["change_of_bases"], {}, "unknown symmetry 'change_of_bases'; did you mean 'change_of_basis'"),
        (["change_of_basis"], {"spraed": 1}, "change_of_basis: there is no option 'spraed'; did you mean 'spread'"),
        (["permutation"], {"spread": 0.5}, "permutation: there is no option 'spread'"),
        (["permutation", "null_space"], {"spread": 0.5}, "permutation and null_space: there is no option 'spread'"),
        (["permutation"], {"null_space": {"energy": 1}}, "permutation: there is no option 'null_space'"),
        (["null_space"], {"null_space": 3}, "null_space: there is no option 'null_space'"),
        (["null_space"], {"null_space": {"enrgy": 1}}, "null_space has no option 'enrgy'; did you mean 'energy'"),
        (["null_space"], {"energy": 1.5}, "energy to protect is 1.5"),
        (["change_of_basis"], {"spread": 1.5}, "zero or negative"),
        (["change_of_basis"], {"spread": "wide"}, "spread is 'wide'; it must be a number"),
    ],
)
def test_what_nobody_takes_is_refused(names: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_symmetry(names, options)
