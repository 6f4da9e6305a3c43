from __future__ import annotations

from typing import Any

import pytest

from warp_unlearning.defense.conjugate import Conjugate
from warp_unlearning.defense.registry import as_defense, defense_names, defense_options, make_defense
from warp_unlearning.defense.warp import Warp
from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.attention_basis import AttentionBasis
from warp_unlearning.symmetry.change_of_basis import ChangeOfBasis
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.symmetry import settings_of
from warp_unlearning.symmetry.tracked_null_space import TrackedNullSpace


def described(defense: Any) -> tuple[type, type, dict[str, Any]]:
    return type(defense), type(defense.symmetry), settings_of(defense)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("warp", Warp(NullSpace())),
        ("fastwarp", Warp(TrackedNullSpace())),
        ("cob", Warp(ChangeOfBasis(), every="end")),
        ("conjugate", Conjugate()),
    ],
)
def test_each_name_makes_the_documented_defence(name: str, expected: object) -> None:
    assert described(make_defense(name)) == described(expected)
    assert described(as_defense(name)) == described(expected)


@pytest.mark.parametrize("name", defense_names())
def test_the_listed_defaults_are_those_it_is_made_with(name: str) -> None:
    about, made = defense_options(name), make_defense(name)
    assert about.about.endswith(".")
    for options, owner in ((about.options, made), (about.symmetry_options, made.symmetry)):
        assert options
        for option in options:
            assert getattr(owner, option.name) == option.default
            assert option.help


def test_options_go_to_the_defence_or_to_its_symmetry() -> None:
    made = make_defense("fastwarp", every=7, relearning=None, energy=0.9, rounds=4)
    assert (made.every, made.relearning) == (7, None)
    assert (made.symmetry.energy, made.symmetry.rounds) == (0.9, 4)
    made = make_defense("conjugate", match="length", spread=0.25)
    assert (made.match, made.symmetry.spread, made.symmetry.law) == ("length", 0.25, "lognormal")
    made = make_defense("cob", tolerance=1, law="truncated_normal")
    assert (made.every, made.tolerance, made.symmetry.law) == ("end", 1, "truncated_normal")


def test_an_option_that_both_have_is_the_defences_and_the_symmetrys_has_a_longer_name() -> None:
    made = make_defense("warp", halvings=1)
    assert (made.halvings, made.symmetry.halvings) == (1, NullSpace().halvings)
    made = make_defense("warp", symmetry={"halvings": 2, "energy": 0.9}, steps=3)
    assert (made.halvings, made.symmetry.halvings) == (Warp().halvings, 2)
    assert (made.symmetry.energy, made.symmetry.steps) == (0.9, 3)


def test_the_defaults_for_one_symmetry_are_not_handed_to_another() -> None:
    """A permutation has neither the spread nor the law that `conjugate` starts a change of basis from."""
    assert isinstance(make_defense("conjugate", symmetry="permutation").symmetry, Permutation)


def test_another_symmetry_brings_its_own_defaults() -> None:
    made = make_defense("conjugate", symmetry="attention_basis")
    assert isinstance(made, Conjugate)
    assert isinstance(made.symmetry, AttentionBasis)
    assert made.symmetry.spread == AttentionBasis().spread
    made = make_defense("warp", symmetry={"name": "change_of_basis", "spread": 0.3}, law="lognormal")
    assert isinstance(made.symmetry, ChangeOfBasis)
    assert (made.symmetry.spread, made.symmetry.law) == (0.3, "lognormal")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wrap", {}, "unknown defence 'wrap'; did you mean 'warp'. Known: cob, conjugate, fastwarp, warp"),
        ("warp", {"enrgy": 1}, "warp has no option 'enrgy'; did you mean 'energy'.*every.*symmetry"),
        ("warp", {"rounds": 2}, "warp has no option 'rounds'"),
        ("conjugate", {"every": 2}, "conjugate has no option 'every'; .*match"),
        ("warp", {"name": "x"}, "warp has no option 'name'"),
        ("warp", {"energy": 0.0}, "energy to protect is 0.0; it must be above 0 and at most 1"),
        ("warp", {"energy": "x"}, "null_space: energy is 'x'; it must be a number"),
        ("cob", {"spread": 1.2}, "spread is 1.2: .* zero or negative"),
        ("warp", {"every": "epohc"}, "warp: every is 'epohc'; it must be 'epoch', 'end', a whole number or null"),
        ("warp", {"every": 0}, "every is 0; it must be 'epoch', 'end' or a whole number of at least 1"),
        ("warp", {"every": None}, "would never act"),
        ("warp", {"tolerance": -1}, "warp: tolerance is -1; it must be at least 0"),
        ("warp", {"tolerance": "1"}, "warp: tolerance is '1'; it must be a number"),
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


def test_objects_and_none_are_taken_as_they_are() -> None:
    own = Warp(NullSpace(energy=0.9))
    assert as_defense(own) is own
    assert as_defense(None) is None


@pytest.mark.parametrize("given", [3, Warp, NullSpace(), ["warp"]])
def test_anything_else_is_no_defence(given: object) -> None:
    with pytest.raises(InputError, match=r"the defence is a .*; give a name \(warp, fastwarp, cob, conjugate\)"):
        as_defense(given)


def test_an_unknown_name_is_answered_with_the_nearest_wherever_it_is_given() -> None:
    for ask in (as_defense, defense_options, make_defense):
        with pytest.raises(InputError, match="unknown defence 'fastwrap'; did you mean 'fastwarp'"):
            ask("fastwrap")
