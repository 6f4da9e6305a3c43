from __future__ import annotations

import pytest

from warp_unlearning.attacks.reconstruction.attacks import attacks, find_attack
from warp_unlearning.attacks.reconstruction.reading import readings
from warp_unlearning.errors import InputError


def test_every_attack_has_its_name_a_line_and_a_way_to_read_that_exists() -> None:
    assert len(attacks()) == len(set(attacks().values()))
    for name, about in attacks().items():
        found = find_attack(name)
        assert (found.name, found.about) == (name, about)
        assert about
        assert "\n" not in about
        assert found.after in readings()


def test_which_attacks_there_are_and_what_they_search_over() -> None:
    asked = {"differencing", "inversion", "filtered", "generative", "adaptive", "canonical", "span", "scale-free"}
    assert asked | {"input-layer", "joint", "unrolled"} <= set(attacks())
    spaces = {name: find_attack(name).space for name in attacks()}
    assert {name for name, space in spaces.items() if space != "pixels"} == {"generative", "adaptive", "joint"}
    assert [name for name in attacks() if find_attack(name).unrolled] == ["unrolled"]
    assert find_attack("differencing").distance == "euclidean"


@pytest.mark.parametrize(("wrong", "meant"), [("invertion", "inversion"), ("cannonical", "canonical")])
def test_an_unknown_name_is_told_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"no attack '{wrong}'; did you mean '{meant}'"):
        find_attack(wrong)
