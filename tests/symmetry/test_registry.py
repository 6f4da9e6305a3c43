from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.attention import AttentionBasis
from warp_unlearning.symmetry.base import make_symmetry, symmetry_names, symmetry_options
from warp_unlearning.symmetry.null_space import NullSpace, TrackedNullSpace
from warp_unlearning.symmetry.rescaling import ChangeOfBasis, Permutation

CLASSES = {
    "null_space": NullSpace,
    "tracked_null_space": TrackedNullSpace,
    "change_of_basis": ChangeOfBasis,
    "permutation": Permutation,
    "attention_basis": AttentionBasis,
}


def test_each_name_makes_its_class() -> None:
    assert symmetry_names() == tuple(CLASSES)
    for name, cls in CLASSES.items():
        assert type(make_symmetry(name)) is cls


@pytest.mark.parametrize("name", CLASSES)
def test_every_option_is_explained_and_reaches_the_symmetry(name: str) -> None:
    made: Any = make_symmetry(name, **{option.name: option.default for option in symmetry_options(name)})
    for option in symmetry_options(name):
        assert option.help, option.name
        value = getattr(made, option.name, option.default)
        assert value == option.default or f"{value} unless" in option.help


def test_options_reach_the_symmetry() -> None:
    made: Any = make_symmetry("tracked_null_space", energy=0.9, rounds=3)
    assert (made.energy, made.rounds) == (0.9, 3)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    move: Any = make_symmetry("change_of_basis", spread=0.01).move(model, generator=torch.Generator().manual_seed(0))
    scales = move.point("0.weight", model[0].weight).detach() / model[0].weight.detach()
    assert 0 < float((scales - 1).abs().max()) < 0.011


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nul_space", {}, "unknown symmetry 'nul_space'; did you mean 'null_space'"),
        ("", {}, "unknown symmetry ''; Known: attention_basis, change_of_basis, "),
        ("null_space", {"enrgy": 0.9}, "null_space has no option 'enrgy'; did you mean 'energy'"),
        ("null_space", {"rounds": 2}, "null_space has no option 'rounds'"),
        ("permutation", {"spread": 0.5}, "permutation has no option 'spread'"),
        ("null_space", {"_tracked": 1}, "null_space has no option '_tracked'"),
        ("tracked_null_space", {"_tracked": 1}, "tracked_null_space has no option '_tracked'"),
        ("null_space", {"energy": "most"}, "null_space: energy is 'most'; it must be a number"),
        ("null_space", {"energy": 0}, "energy to protect is 0; it must be above 0 and at most 1"),
        ("null_space", {"energy": 1.01}, "energy to protect is 1.01; it must be above 0 and at most 1"),
        ("null_space", {"energy": float("nan")}, "energy.* is nan; it must be"),
        ("null_space", {"steps": 1.5}, "null_space: steps is 1.5; it must be a whole number"),
        ("null_space", {"aim": "up"}, "null_space: aim is 'up'; it must be 'descent' or 'random'"),
        ("change_of_basis", {"spread": 1.0}, "spread is 1.0: uniform factors .* zero or negative; give .* below 1"),
        ("change_of_basis", {"spread": -0.1}, "spread is -0.1; give a number above 0"),
        ("change_of_basis", {"through_norm": 1}, "through_norm is 1; it must be true or false"),
        ("attention_basis", {"heads": "all"}, "attention_basis: heads is 'all'; it must be true or false"),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_exists(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_symmetry(name, **options)


def test_the_options_of_an_unknown_symmetry_are_refused() -> None:
    with pytest.raises(InputError, match="unknown symmetry 'permutations'; did you mean 'permutation'"):
        symmetry_options("permutations")
