from __future__ import annotations

from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import pytest
import torch
from tests.oracles.symmetry import normal
from torch import Tensor, nn

from warp_unlearning.defense.conjugate import FixedMove
from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import MLP
from warp_unlearning.symmetry.attention import AttentionBasis
from warp_unlearning.symmetry.base import (
    Compose,
    Option,
    Probe,
    Sizes,
    check_options,
    make_symmetry,
    option,
    options_of,
    require_symmetry,
    settings_of,
    symmetry_names,
    symmetry_options,
)
from warp_unlearning.symmetry.moves import AxisMap, ChannelMove, ComposedMove, Move, Translation, apply_move
from warp_unlearning.symmetry.null_space import NullMove, NullSpace, TrackedNullSpace
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis

# ------------------------------------------------------------------------------------------------ by name

CLASSES = {
    "null_space": NullSpace,
    "tracked_null_space": TrackedNullSpace,
    "change_of_basis": ChangeOfBasis,
    "permutation": Permutation,
    "attention_basis": AttentionBasis,
}


@pytest.mark.parametrize("name", CLASSES)
def test_each_name_makes_its_class_and_every_option_is_explained_and_reaches_it(name: str) -> None:
    assert symmetry_names() == tuple(CLASSES)
    made: Any = make_symmetry(name, **{option.name: option.default for option in symmetry_options(name)})
    assert type(made) is CLASSES[name]
    require_symmetry(made)
    for each in symmetry_options(name):
        assert each.help, each.name
        value = getattr(made, each.name)
        assert value == each.default or f"{value} unless" in each.help


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nul_space", {}, "unknown symmetry 'nul_space'; did you mean 'null_space'"),
        ("", {}, "unknown symmetry ''; Known: attention_basis, change_of_basis, "),
        ("null_space", {"enrgy": 0.9}, "null_space has no option 'enrgy'; did you mean 'energy'"),
        ("null_space", {"rounds": 2}, "null_space has no option 'rounds'"),
        ("permutation", {"spread": 0.5}, "permutation has no option 'spread'"),
        ("null_space", {"_memory": 1}, "null_space has no option '_memory'"),
        ("null_space", {"energy": "most"}, "null_space: energy is 'most'; it must be a number"),
        ("null_space", {"energy": 1.01}, "energy to protect is 1.01; it must be above 0 and at most 1"),
        ("null_space", {"steps": 1.5}, "null_space: steps is 1.5; it must be a whole number"),
        ("null_space", {"aim": "up"}, "null_space: aim is 'up'; it must be 'descent' or 'random'"),
        ("change_of_basis", {"spread": 1.0}, "spread is 1.0: uniform factors .* zero or negative; give .* below 1"),
        ("change_of_basis", {"through_norm": 1}, "through_norm is 1; it must be true or false"),
        ("attention_basis", {"heads": "all"}, "attention_basis: heads is 'all'; it must be true or false"),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_exists(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_symmetry(name, **options)
    if "unknown" in message:
        with pytest.raises(InputError, match=message):
            symmetry_options(name)


def test_what_is_no_symmetry_is_refused() -> None:
    for symmetry in (Permutation(), Compose(Permutation()), FixedMove(Permutation(), Translation({}))):
        require_symmetry(symmetry)
    for wrong, message in ((None, "a NoneType"), (Permutation, "Permutation, a class"), (nn.Linear(1, 1), "a Linear")):
        with pytest.raises(InputError, match=f"the symmetry is {message}"):
            require_symmetry(wrong)


# ------------------------------------------------------------------------------------------------ options of a class

Colour = Literal["red", "green"]


@dataclass
class Plain:
    first: int = 1
    _: KW_ONLY
    width: float = option(0.5, "how wide")
    colour: Colour = "red"
    often: bool = True


@dataclass(kw_only=True)
class Fields:
    width: float = 2.0
    count: int = 3
    when: Colour | int | None = "red"
    _kept: list[int] = field(init=False, default_factory=list)


def test_options_are_the_keyword_only_ones_in_their_order() -> None:
    assert options_of(Plain) == (
        Option("width", "a number", 0.5, "how wide"),
        Option("colour", "'red' or 'green'", "red", ""),
        Option("often", "true or false", True, ""),
    )
    assert [(o.name, o.type, o.default) for o in options_of(Fields, defaults={"count": 7, "when": None})] == [
        ("width", "a number", 2.0),
        ("count", "a whole number", 7),
        ("when", "'red', 'green', a whole number or null", None),
    ]
    # `Rule` is a name that the module of the subclass does not know.
    types = {o.name: o.type for o in options_of(TrackedNullSpace)}
    assert (types["rule"], types["rounds"]) == ("'energy' or 'singular_values'", "a whole number")


@pytest.mark.parametrize(
    ("cls", "name", "right", "wrong", "message"),
    [
        (Plain, "width", [1, 1.5], ["wide", True, None, [1]], "a number"),
        (Plain, "colour", ["green"], ["blue", ["red"]], "'red' or 'green'"),
        (Plain, "often", [False], [1, "yes"], "true or false"),
        (Fields, "count", [4], [1.0, True], "a whole number"),
        (Fields, "when", ["red", 4, None], [False, 0.5], "'red', 'green', a whole number or null"),
    ],
)
def test_values_of_other_types_are_named(cls: type, name: str, right: Any, wrong: Any, message: str) -> None:
    for value in right:
        check_options("it", cls, {name: value})
    for value in wrong:
        with pytest.raises(InputError) as error:
            check_options("it", cls, {name: value})
        assert str(error.value) == f"it: {name} is {value!r}; it must be {message}"


# ------------------------------------------------------------------------------------------------ compositions


class Doubling:
    """Keeps the weights it was drawn for and the probes, and doubles the weights."""

    looks_at = Sizes()

    def __init__(self) -> None:
        self.seen: list[Tensor] = []
        self.shown: list[Probe | None] = []

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> Move:
        self.seen.append(model.state_dict()["weight"].clone())
        self.shown.append(probe)
        return ChannelMove({"weight": (AxisMap(0, None, torch.full((2,), 2.0)),)})


def test_each_symmetry_sees_the_probe_and_the_model_as_the_ones_before_left_it() -> None:
    model, doubling, probe = nn.Linear(3, 2), Doubling(), Probe((normal(2, 3),))
    weight = model.weight.detach().clone()
    Compose(doubling, Compose(doubling), doubling).move(model, generator=torch.Generator(), probe=probe)
    for seen, factor in zip(doubling.seen, (1, 2, 4), strict=True):
        assert torch.equal(seen, factor * weight)
    assert doubling.shown == [probe] * 3
    assert torch.equal(model.weight, weight)


def test_what_a_composition_looks_at_and_refuses() -> None:
    parts = NullSpace(batch_size=30, forget_size=2), NullSpace(batch_size=4, forget_size=9), Permutation()
    assert Compose(*parts).looks_at == (30, 9)
    assert Compose(Permutation(), ChangeOfBasis()).looks_at == (0, 0)
    with pytest.raises(InputError, match="at least one"):
        Compose()
    with pytest.raises(InputError, match="TrackedNullSpace, whose bases cannot follow"):
        Compose(Permutation(), TrackedNullSpace())
    assert len(Compose(TrackedNullSpace()).symmetries) == 1


def test_null_space_and_change_of_basis_in_either_order_keep_the_batch() -> None:
    """A null-space move of the rescaled network is orthogonal to the rescaled inputs."""
    model, x = MLP(inputs=9, classes=3, hidden=(12, 8)).double().eval(), normal(3, 9)
    null, basis = NullSpace(energy=1.0, aim="random", step_size=0.5), ChangeOfBasis()
    for parts in ((null, basis), (basis, null), (null, Permutation(), basis, null)):
        move = Compose(*parts).move(model, generator=torch.Generator().manual_seed(1), probe=Probe((x,)))
        assert isinstance(move, ComposedMove)
        moved = deepcopy(model)
        apply_move(moved, move)
        with torch.no_grad():
            torch.testing.assert_close(moved(x), model(x), rtol=1e-12, atol=1e-12)
            assert float((moved(2 * x) - model(2 * x)).abs().max()) > 1e-3
        apply_move(moved, move.inverse())
        for name, value in model.state_dict().items():
            torch.testing.assert_close(moved.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def test_a_null_space_move_after_a_change_of_basis_is_as_long_as_alone() -> None:
    model, x = nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(), nn.Linear(12, 3)).double(), normal(4, 6)
    reference = {name: value.clone() for name, value in model.state_dict().items()}
    symmetry = Compose(ChangeOfBasis(), NullSpace(energy=1.0, aim="random", step_size=0.1))
    generator = torch.Generator().manual_seed(0)
    basis, shift = symmetry.move(model, generator=generator, probe=Probe([x], reference=reference)).moves
    assert isinstance(shift, NullMove)
    length = torch.cat([value.flatten() for value in shift.shifts.values()]).norm()
    unit = torch.cat([basis.point(name, reference[name]).flatten() for name in shift.shifts]).norm()
    torch.testing.assert_close(length, 0.1 * unit)


def test_settings_are_plain_data_of_every_part_and_hold_nothing_drawn() -> None:
    first, second = settings_of(Compose(Permutation(), Compose(ChangeOfBasis(spread=0.2))))["symmetries"]
    assert first == {"name": "Permutation", "options": {}}
    assert second["options"]["symmetries"][0]["options"]["spread"] == 0.2
    given = Translation({"weight": normal(2, 3)})
    fixed = FixedMove(ChangeOfBasis(spread=0.3), given)
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    assert fixed.move(nn.Linear(3, 2), generator=generator) is given
    assert fixed.looks_at == (0, 0)
    assert torch.equal(generator.get_state(), state)
    options = {"spread": 0.3, "law": "uniform", "through_norm": True}
    assert settings_of(fixed) == {"of": {"name": "ChangeOfBasis", "options": options}}
    assert "Translation" not in repr(fixed)
