from __future__ import annotations

from typing import Any

import pytest

from warp_unlearning import AttentionBasis, ChangeOfBasis, Conjugate, NullSpace, Permutation, TrackedNullSpace, Warp
from warp_unlearning.defense.registry import as_defense, defense_names, defense_options, make_defense
from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.base import settings_of

DOCUMENTED = {
    "warp": Warp(NullSpace()),
    "fastwarp": Warp(TrackedNullSpace()),
    "warp_guarded": Warp(NullSpace(protect="both", energy=0.9998, step_size=0.01), relearning=0.02),
    "cob": Warp(ChangeOfBasis(), every="end"),
    "conjugate": Conjugate(),
}


def described(defense: Any) -> tuple[type, type, dict[str, Any]]:
    return type(defense), type(defense.symmetry), settings_of(defense)


@pytest.mark.parametrize("name", defense_names())
def test_each_name_makes_the_documented_defence_of_the_listed_defaults(name: str) -> None:
    about, made = defense_options(name), make_defense(name)
    assert described(made) == described(as_defense(name)) == described(DOCUMENTED[name])
    assert about.about.endswith(".")
    for options, owner in ((about.options, made), (about.symmetry_options, made.symmetry)):
        for option in options:
            value = getattr(owner, option.name)
            assert option.help
            assert value == option.default or f"{value} unless" in option.help


def test_a_length_that_is_given_takes_the_place_of_the_recipe_s() -> None:
    made: Any = make_defense("warp_guarded", eta=0.1)
    assert (made.symmetry.eta, made.symmetry.step_size, made.symmetry.energy) == (0.1, None, 0.9998)
    assert [each.name for each in (made, Warp(), Conjugate())] == ["warp_guarded", "warp", "conjugate"]


def test_options_go_to_the_defence_or_to_its_symmetry() -> None:
    made: Any = make_defense("fastwarp", every=7, relearning=0.1, energy=0.9, rounds=4)
    assert (made.every, made.relearning, made.symmetry.energy, made.symmetry.rounds) == (7, 0.1, 0.9, 4)
    made = make_defense("conjugate", match="length", spread=0.25)
    assert (made.match, made.symmetry.spread, made.symmetry.law) == ("length", 0.25, "lognormal")
    made = make_defense("warp", symmetry={"energy": 0.9}, steps=3)
    assert (made.symmetry.energy, made.symmetry.steps) == (0.9, 3)


def test_another_symmetry_brings_its_own_defaults() -> None:
    """A permutation has neither the spread nor the law that `conjugate` starts a change of basis from."""
    assert described(make_defense("conjugate", symmetry="permutation")) == described(Conjugate(Permutation()))
    assert described(make_defense("conjugate", symmetry="attention_basis")) == described(Conjugate(AttentionBasis()))
    made = make_defense("warp", symmetry={"name": "change_of_basis", "spread": 0.3}, law="lognormal")
    assert described(made) == described(Warp(ChangeOfBasis(spread=0.3, law="lognormal")))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wrap", {}, "unknown defence 'wrap'; did you mean 'warp'. Known: cob, conjugate, fastwarp, warp"),
        ("warp", {"enrgy": 1}, "warp has no option 'enrgy'; did you mean 'energy'.*every.*symmetry"),
        ("conjugate", {"every": 2}, "conjugate has no option 'every'; .*match"),
        ("warp", {"energy": "x"}, "null_space: energy is 'x'; it must be a number"),
        ("warp", {"eta": 0.1, "step_size": 0.1}, "eta is 0.1 and step_size is 0.1; give one of them"),
        ("cob", {"spread": 1.2}, "spread is 1.2: .* zero or negative"),
        ("warp", {"every": "epohc"}, "warp: every is 'epohc'; it must be 'epoch', 'end', a whole number or null"),
        ("conjugate", {"match": "size"}, "conjugate: match is 'size'; it must be 'length' or 'effect'"),
        ("warp", {"symmetry": "nul_space"}, "unknown symmetry 'nul_space'; did you mean 'null_space'"),
        ("warp", {"symmetry": 3}, "warp: symmetry is 3; give the name of one, or its options"),
        ("warp", {"symmetry": {"enrgy": 1}}, "null_space has no option 'enrgy'; did you mean 'energy'"),
        ("warp", {"energy": 0.9, "symmetry": {"energy": 0.8}}, "energy is given twice, as 0.9 and as symmetry.energy"),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_exists(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_defense(name, **options)


def test_objects_and_none_are_taken_as_they_are_and_nothing_else() -> None:
    own = Warp(NullSpace(energy=0.9))
    assert as_defense(own) is own
    assert as_defense(None) is None
    for given in (3, Warp, NullSpace(), ["warp"]):
        with pytest.raises(InputError, match=r"the defence is a .*; give a name \(warp, fastwarp, warp_guarded, cob"):
            as_defense(given)
    for ask in (as_defense, defense_options):
        with pytest.raises(InputError, match="unknown defence 'fastwrap'; did you mean 'fastwarp'"):
            ask("fastwrap")
