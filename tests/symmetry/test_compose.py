from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.defense.conjugate import FixedMove
from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import MLP
from warp_unlearning.symmetry.base import Compose, Probe, Sizes, require_symmetry, settings_of
from warp_unlearning.symmetry.moves import AxisMap, ChannelMove, ComposedMove, Move, Translation, apply_move
from warp_unlearning.symmetry.null_space import NullMove, NullSpace, TrackedNullSpace
from warp_unlearning.symmetry.rescaling import ChangeOfBasis, Permutation


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw(model: nn.Module, seed: int = 5) -> Move:
    return Compose(ChangeOfBasis(), Permutation(), ChangeOfBasis(law="lognormal", spread=0.5)).move(
        model, generator=torch.Generator().manual_seed(seed)
    )


def test_a_composition_is_its_parts_in_turn() -> None:
    model = MLP(inputs=6, classes=3, hidden=(5, 4)).double()
    move = draw(model)
    parts = move.moves  # type: ignore[attr-defined]
    assert len(parts) == 3
    value, labels, columns = normal(4, 5), normal(4, 5) > 0, normal(5, 2, seed=1)
    name = "layers.2.weight"
    first, second, third = parts
    assert torch.equal(move.point(name, value), third.point(name, second.point(name, first.point(name, value))))
    assert torch.equal(move.selection(name, labels), second.selection(name, labels))
    assert not torch.equal(move.selection(name, labels), labels)
    back = move.inverse()
    torch.testing.assert_close(back.point(name, move.point(name, value)), value)
    torch.testing.assert_close(back.covector(name, move.covector(name, value)), value)
    torch.testing.assert_close(back.inputs(name, move.inputs(name, columns)), columns)
    assert torch.equal(back.selection(name, move.selection(name, labels)), labels)
    pairing = (move.covector(name, value) * move.point(name, normal(4, 5, seed=2))).sum()
    torch.testing.assert_close(pairing, (value * normal(4, 5, seed=2)).sum())


def test_inputs_follow_the_layer_that_reads_them() -> None:
    model = MLP(inputs=6, classes=3, hidden=(5, 4)).double()
    move, x = draw(model), normal(7, 6)
    moved = deepcopy(model)
    apply_move(moved, move)
    hidden, moved_hidden = model.layers[:2](x), moved.layers[:2](x)
    torch.testing.assert_close(move.inputs("layers.2.weight", hidden.mT), moved_hidden.mT)


class Doubling:
    """Remembers the weights it was drawn for and what it was shown, and doubles them."""

    looks_at = Sizes()

    def __init__(self) -> None:
        self.seen: list[Tensor] = []
        self.shown: list[Probe | None] = []

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> Move:
        self.seen.append(model.state_dict()["weight"].clone())
        self.shown.append(probe)
        return ChannelMove({"weight": (AxisMap(0, None, torch.full((2,), 2.0)),)})


def test_each_symmetry_sees_the_model_as_the_ones_before_left_it() -> None:
    model, doubling = nn.Linear(3, 2), Doubling()
    weight = model.weight.detach().clone()
    Compose(doubling, doubling, doubling).move(model, generator=torch.Generator())
    for seen, factor in zip(doubling.seen, (1, 2, 4), strict=True):
        assert torch.equal(seen, factor * weight)
    assert torch.equal(model.weight, weight)


def test_no_symmetry_is_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        Compose()


def test_bases_that_follow_a_network_are_refused_beside_others() -> None:
    with pytest.raises(InputError, match="TrackedNullSpace, whose bases cannot follow"):
        Compose(Permutation(), TrackedNullSpace())
    assert len(Compose(TrackedNullSpace()).symmetries) == 1


def test_every_part_is_shown_the_probe() -> None:
    doubling, probe = Doubling(), Probe((normal(2, 3),))
    Compose(doubling, Compose(doubling)).move(nn.Linear(3, 2), generator=torch.Generator(), probe=probe)
    assert doubling.shown == [probe, probe]


def test_it_wants_to_see_what_the_most_curious_part_wants() -> None:
    parts = NullSpace(batch_size=30, forget_size=2), NullSpace(batch_size=4, forget_size=9), Permutation()
    assert Compose(*parts).looks_at == (30, 9)
    assert Compose(Permutation(), ChangeOfBasis()).looks_at == (0, 0)


def test_null_space_and_change_of_basis_in_either_order_keep_the_batch() -> None:
    """A null-space move of the rescaled network is orthogonal to the rescaled inputs."""
    model, x = MLP(inputs=9, classes=3, hidden=(12, 8)).double().eval(), normal(3, 9)
    null, basis = NullSpace(energy=1.0, aim="random", step_size=0.5), ChangeOfBasis()
    for parts in ((null, basis), (basis, null), (null, Permutation(), basis, null)):
        move = Compose(*parts).move(model, generator=torch.Generator().manual_seed(1), probe=Probe((x,)))
        assert isinstance(move, ComposedMove)
        assert any(isinstance(part, NullMove) for part in move.moves)
        moved = deepcopy(model)
        apply_move(moved, move)
        with torch.no_grad():
            torch.testing.assert_close(moved(x), model(x), rtol=1e-12, atol=1e-12)
            assert float((moved(2 * x) - model(2 * x)).abs().max()) > 1e-3
        apply_move(moved, move.inverse())
        for name, value in model.state_dict().items():
            torch.testing.assert_close(moved.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def test_a_composition_with_shifts_maps_points_and_gradients_apart() -> None:
    """T(θ) = S(θ) + δ moves points by both, gradients by S alone, and back in reverse."""
    scale, shift = torch.tensor([2.0, 0.5], dtype=torch.float64), normal(2, 3, seed=3)
    move = ComposedMove((ChannelMove({"w": (AxisMap(0, None, scale),)}), Translation({"w": shift})))
    value = normal(2, 3)
    torch.testing.assert_close(move.point("w", value), scale[:, None] * value + shift)
    torch.testing.assert_close(move.covector("w", value), value / scale[:, None])
    torch.testing.assert_close(move.inverse().point("w", value), (value - shift) / scale[:, None])


def test_a_fixed_move_is_the_move_it_was_given() -> None:
    given = Translation({"weight": normal(2, 3)})
    fixed = FixedMove(ChangeOfBasis(spread=0.3), given)
    assert fixed.looks_at == (0, 0)
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    assert fixed.move(nn.Linear(3, 2), generator=generator) is given
    assert torch.equal(generator.get_state(), state)
    told = settings_of(fixed)
    assert told["of"] == {
        "name": "ChangeOfBasis",
        "options": {"spread": 0.3, "law": "uniform", "through_norm": True},
    }
    assert set(told) == {"of"}
    assert "Translation" not in repr(fixed)


def test_settings_of_a_composition_are_those_of_its_parts() -> None:
    told = settings_of(Compose(Permutation(), Compose(ChangeOfBasis(spread=0.2))))
    first, second = told["symmetries"]
    assert first == {"name": "Permutation", "options": {}}
    assert second["options"]["symmetries"][0]["options"]["spread"] == 0.2


def test_what_is_no_symmetry_is_refused() -> None:
    for symmetry in (Permutation(), NullSpace(), Compose(Permutation()), FixedMove(Permutation(), Translation({}))):
        require_symmetry(symmetry)
    for wrong, message in ((None, "a NoneType"), (Permutation, "Permutation, a class"), (nn.Linear(1, 1), "a Linear")):
        with pytest.raises(InputError, match=f"the symmetry is {message}"):
            require_symmetry(wrong)


def test_a_null_space_move_after_a_change_of_basis_is_as_long_as_alone() -> None:
    model = _wide()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    reference = {name: value.clone() for name, value in model.state_dict().items()}
    probe = Probe([x], reference=reference)
    null = NullSpace(energy=1.0, aim="random", step_size=0.1)
    basis = ChangeOfBasis(spread=0.8)
    moves = Compose(basis, null).move(model, generator=torch.Generator().manual_seed(0), probe=probe).moves
    shift = moves[1]
    assert isinstance(shift, NullMove)
    where = {name: moves[0].point(name, value) for name, value in reference.items()}
    names = list(shift.shifts)
    length = torch.cat([shift.shifts[name].flatten() for name in names]).norm()
    unit = torch.cat([where[name].flatten() for name in names]).norm()
    torch.testing.assert_close(length, 0.1 * unit)


def _wide() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).double()
