from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.symmetry.forget_energy import EagerEnergy
from warp_unlearning.symmetry.null_move import NullMove
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.null_walk import within_radius

Named = dict[str, Tensor]
Y = torch.tensor([0, 1, 2, 1])


def smooth() -> nn.Sequential:
    return nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 11, bias=False), nn.Tanh(), nn.Linear(11, 3))


SHAPES: dict[str, tuple[int, ...]] = {"smooth": (9,), "convolutional": (4, 5, 5)}


def problem(kit: Any, network: str) -> tuple[nn.Module, Tensor, tuple[Tensor, Tensor]]:
    make: Callable[[], nn.Module] = smooth if network == "smooth" else kit.convolutional
    shape = SHAPES[network]
    return kit.built(make), kit.normal(5, *shape), (kit.normal(4, *shape, seed=1), Y)


def displaced(kit: Any, model: nn.Module, size: float) -> nn.Module:
    """The same network elsewhere."""
    copy = deepcopy(model)
    with torch.no_grad():
        for i, p in enumerate(copy.parameters()):
            p.add_(size * kit.normal(*p.shape, seed=40 + i))
    return copy


def between(kit: Any, model: nn.Module, reference: nn.Module, batches: list[Tensor]) -> Named:
    """θ − θ_org where inputs reach."""
    there = reference.state_dict()
    return kit.reached(model, {n: p.detach() - there[n] for n, p in model.named_parameters()}, batches)


def unit_of(kit: Any, model: nn.Module, reference: nn.Module, move: NullMove, batches: list[Tensor]) -> float:
    there = reference.state_dict()
    return kit.norm(kit.reached(model, {n: there[n] for n in move.shifts}, batches))


def sum_of(*terms: tuple[float, Named]) -> Named:
    return {n: sum(w * values[n] for w, values in terms) for n in terms[0][1]}  # type: ignore[misc]


def dot(a: Named, b: Named) -> float:
    return float(sum((a[n] * b[n]).sum() for n in b))


def assert_same(found: Named, expected: Named, tolerance: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    size = max(float(v.abs().max()) for v in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance * size, msg=name)


@pytest.mark.parametrize("energy", [1.0, 0.9])
@pytest.mark.parametrize("protect", ["retain", "both"])
@pytest.mark.parametrize("network", list(SHAPES))
def test_the_step_follows_the_projected_gradient_of_the_energy(
    kit: Any, network: str, protect: Any, energy: float
) -> None:
    """Against double backwards over single examples and d×d projectors from the singular vectors of the inputs."""
    model, x, forget = problem(kit, network)
    batches = [x] if protect == "retain" else [x, forget[0]]
    move = NullSpace(energy=energy, protect=protect, dispersion=0, step_size=1e-3).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
    )
    slope = kit.beside(model, kit.energy_slope(model, *forget), batches, energy=energy)
    if protect == "both":
        loss = F.cross_entropy(model(forget[0]), forget[1])
        gradient = dict(
            zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
        )
        axis = kit.beside(model, gradient, batches, energy=energy)
        if energy < 1:
            slope = sum_of((1.0, slope), (-dot(slope, axis) / dot(axis, axis), axis))
        assert abs(dot(dict(move.shifts), {n: axis[n] for n in move.shifts})) < 1e-9 * kit.norm(move.shifts)
    slope = {n: slope[n] for n in slope if n not in move.left}
    length = 1e-3 * unit_of(kit, model, model, move, batches)
    assert_same(dict(move.shifts), sum_of((-length / kit.norm(slope), slope)), 1e-6)
    assert move.energies is not None
    assert move.energies[0] == pytest.approx(kit.energy(model, *forget), rel=1e-9)
    assert move.energies[1] == pytest.approx(kit.energy(kit.moved(model, move), *forget), rel=1e-9)
    assert move.energies[1] < move.energies[0]


@pytest.mark.parametrize("network", list(SHAPES))
def test_the_displacement_pulls_by_its_share(kit: Any, network: str) -> None:
    """−∇̂ + dispersion · d̂, both of them projected, without a kick."""
    model, x, forget = problem(kit, network)
    reference = displaced(kit, model, 0.02)
    found = {}
    for dispersion in (0.0, 0.3, 2.0):
        move = NullSpace(energy=0.9, protect="retain", dispersion=dispersion, kick=0, step_size=1e-3, radius=10).move(
            model, generator=kit.generator(), probe=kit.probe(x, forget=forget, reference=reference)
        )
        slope = kit.beside(model, kit.energy_slope(model, *forget), [x], energy=0.9)
        away = kit.beside(model, between(kit, model, reference, [x]), [x], energy=0.9)
        direction = sum_of((-1 / kit.norm(slope), slope), (dispersion / kit.norm(away), away))
        length = 1e-3 * unit_of(kit, model, reference, move, [x])
        assert_same(dict(move.shifts), sum_of((length / kit.norm(direction), direction)), 1e-6)
        found[dispersion] = dot(dict(move.shifts), away) / kit.norm(away) / length
    assert found[0.0] < found[0.3] < found[2.0]


def oracle_of_halving(
    kit: Any, model: nn.Module, reference: nn.Module, direction: Named, options: dict[str, Any], forget: Any, x: Tensor
) -> tuple[float, int]:
    """The accepted length and how often it was halved, with the loss written out; 0 where none is accepted."""
    slope = kit.beside(model, kit.energy_slope(model, *forget), [x])
    away = kit.beside(model, between(kit, model, reference, [x]), [x])
    pull = options["dispersion"] * kit.norm(slope) / kit.norm(away)
    length = options["step_size"] * kit.norm(reference.state_dict())

    def height(at: nn.Module) -> tuple[float, float]:
        energy = kit.energy(at, *forget)
        return 0.5 * energy - 0.5 * pull * kit.norm(between(kit, at, reference, [x])) ** 2, energy

    start = height(model)
    for number in range(options["halvings"] + 1):
        there = height(kit.shifted(model, sum_of((length, direction))))
        if there[0] < start[0] and there[1] <= start[1]:
            return length, number
        length /= 2
    return 0.0, options["halvings"] + 1


# A reference nearby, or one that the descent leads back to, so that what the energy gains the distance loses.
HALVING = [
    ("near", 0.05, 0.5, 0),
    ("near", 0.8, 0.5, None),
    ("near", 3.0, 0.5, None),
    ("near", 6.0, 0.1, 4),
    ("near", 1.0, 3.0, None),
    ("downhill", 0.05, 0.5, 0),
    ("downhill", 0.2, 0.8, 1),
    ("downhill", 0.4, 0.8, 2),
    ("downhill", 0.4, 0.9, 3),
    ("downhill", 0.8, 0.9, 4),
]


@pytest.mark.parametrize(("where", "step_size", "dispersion", "known"), HALVING)
def test_a_step_is_halved_until_it_lowers_the_loss_and_the_energy(
    kit: Any, where: str, step_size: float, dispersion: float, known: int | None
) -> None:
    model, x, forget = problem(kit, "smooth")
    slope = kit.beside(model, kit.energy_slope(model, *forget), [x])
    downhill = kit.shifted(model, sum_of((-1 / kit.norm(slope), slope)))
    reference = displaced(kit, model, 0.02) if where == "near" else downhill
    away = kit.beside(model, between(kit, model, reference, [x]), [x])
    direction = sum_of((-1 / kit.norm(slope), slope), (dispersion / kit.norm(away), away))
    direction = sum_of((1 / kit.norm(direction), direction))
    options = {"step_size": step_size, "dispersion": dispersion, "halvings": 3}
    length, times = oracle_of_halving(kit, model, reference, direction, options, forget, x)
    assert known in (None, times)
    move = NullSpace(energy=1.0, protect="retain", kick=0, radius=1e6, **options).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget, reference=reference)
    )
    if times > 3:
        assert all(bool((s == 0).all()) for s in move.shifts.values())
        assert move.energies is not None
        assert move.energies[0] == move.energies[1]
    else:
        assert_same(dict(move.shifts), sum_of((length, direction)), 1e-7)


@pytest.mark.parametrize(
    ("dispersion", "step_size", "halved"), [(0.5, 0.05, 0), (0.8, 0.2, 1), (0.8, 0.4, 2), (0.9, 0.4, 3)]
)
def test_a_search_begins_where_the_last_one_ended(
    kit: Any, monkeypatch: pytest.MonkeyPatch, dispersion: float, step_size: float, halved: int
) -> None:
    """The same move of the same network is found by two tries; of another network from the start again."""
    model, x, forget = problem(kit, "smooth")
    slope = kit.beside(model, kit.energy_slope(model, *forget), [x])
    probe = kit.probe(x, forget=forget, reference=kit.shifted(model, sum_of((-1 / kit.norm(slope), slope))))
    tries = []
    value = EagerEnergy.value

    def counted(self: EagerEnergy) -> Tensor:
        tries.append(1)
        return value(self)

    monkeypatch.setattr(EagerEnergy, "value", counted)
    symmetry = NullSpace(
        energy=1.0, protect="retain", kick=0, radius=1e6, halvings=3, dispersion=dispersion, step_size=step_size
    )
    counts, moves = [], []
    for network in (model, model, deepcopy(model)):
        tries.clear()
        moves.append(symmetry.move(network, generator=kit.generator(), probe=probe))
        counts.append(len(tries))
    assert counts == [halved + 1, min(halved, 1) + 1, halved + 1]
    for name, shift in moves[0].shifts.items():
        assert bool((shift != 0).any())
        assert all(torch.equal(shift, move.shifts[name]) for move in moves)
    assert moves[0].energies == moves[1].energies


def test_a_step_that_is_refused_leaves_no_trace(kit: Any) -> None:
    """Every length of it raises the energy: the shifts are zeros, not what adding and subtracting leaves."""
    model, x, forget = problem(kit, "smooth")
    move = NullSpace(energy=1.0, protect="retain", dispersion=0, step_size=1e4, radius=1e9, halvings=1).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
    )
    assert move.shifts
    assert all(bool((s == 0).all()) for s in move.shifts.values())
    after = kit.moved(model, move).state_dict()
    assert all(torch.equal(v, after[n]) for n, v in model.state_dict().items())


@pytest.mark.parametrize("network", list(SHAPES))
def test_what_is_to_be_forgotten_is_not_learned_again(kit: Any, network: str) -> None:
    """The forget loss changes to second order alone: half the step, a quarter of the change."""
    model, x, forget = problem(kit, network)
    losses = {}
    for protect in ("both", "retain"):
        move = NullSpace(energy=0.8, protect=protect, dispersion=0.5, step_size=2e-3).move(  # type: ignore[arg-type]
            model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
        )
        with torch.no_grad():
            start = F.cross_entropy(model(forget[0]), forget[1])
            losses[protect] = [
                float(F.cross_entropy(kit.moved(model, move.scaled(factor))(forget[0]), forget[1]) - start)
                for factor in (1.0, 0.5)
            ]
    assert losses["both"][0] / losses["both"][1] == pytest.approx(4, rel=0.05)
    assert losses["retain"][0] / losses["retain"][1] == pytest.approx(2, rel=0.05)
    assert losses["retain"][0] < 0
    assert abs(losses["both"][0]) < 0.2 * abs(losses["retain"][0])


def test_protecting_both_puts_the_forget_inputs_into_the_bases(kit: Any) -> None:
    model, x, forget = problem(kit, "smooth")
    both, alone = (
        NullSpace(energy=1.0, protect=p, aim="random").move(  # type: ignore[arg-type]
            model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
        )
        for p in ("both", "retain")
    )
    assert both.bases["2.weight"].rank == 9
    assert alone.bases["2.weight"].rank == 5
    rows = kit.inputs(model, "2", [forget[0]])[0]
    assert float((both.shifts["2.weight"] @ rows.T).abs().max()) < 1e-13
    assert float((alone.shifts["2.weight"] @ rows.T).abs().max()) > 1e-3


def test_the_kick_starts_what_the_dispersion_cannot(kit: Any) -> None:
    """At θ_org itself there is no displacement to follow: the direction is random, and the generator's."""
    model, x, _ = problem(kit, "smooth")
    options: dict[str, Any] = {"energy": 1.0, "step_size": 0.1}
    moves = [
        NullSpace(**options).move(model, generator=kit.generator(seed), probe=kit.probe(x)).shifts for seed in (0, 0, 1)
    ]
    assert all(torch.equal(moves[0][n], moves[1][n]) for n in moves[0])
    cosine = dot(moves[0], moves[2]) / kit.norm(moves[0]) / kit.norm(moves[2])
    assert abs(cosine) < 0.5
    assert kit.norm(moves[0]) == pytest.approx(0.1 * kit.norm(model.state_dict()))
    still = NullSpace(kick=0, **options).move(model, generator=kit.generator(), probe=kit.probe(x))
    assert all(bool((s == 0).all()) for s in still.shifts.values())


@pytest.mark.parametrize("kick", [0.0, 0.01, 0.1])
def test_away_from_the_start_the_kick_only_bends_the_way(kit: Any, kick: float) -> None:
    """Beside a displacement of length D it turns the direction by at most arcsin(kick · ‖θ_org‖ / D)."""
    reference, x, _ = problem(kit, "smooth")
    first = NullSpace(energy=1.0, step_size=0.3, aim="random").move(
        reference, generator=kit.generator(), probe=kit.probe(x)
    )
    model = kit.moved(reference, first)
    move = NullSpace(energy=1.0, step_size=0.05, radius=10, kick=kick).move(
        model, generator=kit.generator(3), probe=kit.probe(x, reference=reference)
    )
    cosine = dot(dict(move.shifts), dict(first.shifts)) / kit.norm(move.shifts) / kit.norm(first.shifts)
    sine = max(0.0, 1 - cosine**2) ** 0.5
    assert sine <= kick / 0.3 + 1e-7
    assert (sine > 0.5 * kick / 0.3 + 1e-7) == (kick > 0)


def test_many_steps_are_as_many_moves(kit: Any) -> None:
    """Inputs do not change, so that bases found anew at each step are the same."""
    model, x, forget = problem(kit, "smooth")
    options: dict[str, Any] = {"energy": 1.0, "protect": "retain", "dispersion": 0, "step_size": 0.03}
    together = NullSpace(steps=3, **options).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget, reference=model)
    )
    apart = deepcopy(model)
    energies = []
    for _ in range(3):
        move = NullSpace(**options).move(
            apart, generator=kit.generator(), probe=kit.probe(x, forget=forget, reference=model)
        )
        energies += list(move.energies)
        apart = kit.moved(apart, move)
    there = apart.state_dict()
    assert_same(dict(together.shifts), {n: there[n] - p.detach() for n, p in model.named_parameters()}, 1e-7)
    assert together.energies == pytest.approx((energies[0], energies[-1]), rel=1e-9)
    assert energies == sorted(energies, reverse=True)


@pytest.mark.parametrize("margin", [60.0, 80.0, 91.0, 100.0])
@pytest.mark.parametrize("dispersion", [0.5, 30.0])
def test_examples_that_are_certain_have_no_slope_to_stay_away_from(kit: Any, margin: float, dispersion: float) -> None:
    """Probabilities of e^-margin have slopes near the smallest numbers of float32, or below, and one over these is
    none.
    """
    model, x = kit.built(smooth).float(), kit.normal(5, 9).float()
    with torch.no_grad():
        model[4].weight.zero_()
        model[4].bias.copy_(torch.tensor([margin, 0.0, 0.0]))
    probe = kit.probe(x, forget=(kit.normal(4, 9, seed=1).float(), torch.zeros(4, dtype=torch.int64)))
    move = NullSpace(energy=0.9, dispersion=dispersion).move(model, generator=kit.generator(), probe=probe)
    assert all(bool(shift.isfinite().all()) for shift in move.shifts.values())
    assert kit.norm(move.shifts) > 0


@pytest.mark.parametrize("aim", ["descent", "random"])
def test_the_radius_is_never_exceeded(kit: Any, aim: Any) -> None:
    model, x, forget = problem(kit, "smooth")
    unit = kit.norm(model.state_dict())
    distances = []
    for steps in (1, 2, 4, 12):
        move = NullSpace(energy=1.0, aim=aim, step_size=0.04, radius=0.1, steps=steps).move(
            model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
        )
        distances.append(kit.norm(move.shifts) / unit)
    assert all(d <= 0.1 * (1 + 1e-12) for d in distances)
    assert distances[0] == pytest.approx(0.04)
    assert distances[-1] > 0.05
    move = NullSpace(energy=1.0, aim=aim, step_size=0.5, radius=0.1, protect="retain").move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
    )
    assert kit.norm(move.shifts) == pytest.approx(0.1 * unit)


@pytest.mark.parametrize("aim", ["descent", "random"])
def test_who_starts_outside_is_not_pushed_further(kit: Any, aim: Any) -> None:
    model, x, forget = problem(kit, "smooth")
    reference = displaced(kit, model, 0.3)
    before = kit.norm(between(kit, model, reference, [x]))
    moved = 0
    for seed in range(6):
        move = NullSpace(energy=1.0, aim=aim, radius=0.01, dispersion=1.0 if seed % 2 else 0.0, step_size=0.02).move(
            model, generator=kit.generator(seed), probe=kit.probe(x, forget=forget, reference=reference)
        )
        after = kit.norm(between(kit, kit.moved(model, move), reference, [x]))
        assert after <= before * (1 + 1e-12)
        moved += kit.norm(move.shifts) > 0
    assert moved > 0 or aim == "descent"


def test_who_starts_outside_and_would_go_further_stays(kit: Any) -> None:
    """Bit-identical: the length that is left is 0, not a rounding error."""
    reference, x, _ = problem(kit, "smooth")
    first = NullSpace(energy=1.0, step_size=0.3, aim="random").move(
        reference, generator=kit.generator(), probe=kit.probe(x)
    )
    model = kit.moved(reference, first)
    move = NullSpace(energy=1.0, radius=0.1).move(
        model, generator=kit.generator(1), probe=kit.probe(x, reference=reference)
    )
    assert all(bool((s == 0).all()) for s in move.shifts.values())
    assert "nothing moved: no step was found that stays within the radius and lowers the loss" in move.notes
    assert not any("nothing moved" in note for note in first.notes)


@given(
    st.integers(1, 6),
    st.floats(0, 3),
    st.floats(1e-3, 5),
    st.floats(1e-3, 3),
    st.integers(0, 1000),
)
def test_the_length_within_a_radius_is_the_largest_there_is(
    size: int, distance: float, length: float, radius: float, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    displacement = torch.randn(size, generator=draw, dtype=torch.float64)
    displacement *= distance / displacement.norm()
    direction = torch.randn(size, generator=draw, dtype=torch.float64)
    direction /= direction.norm()
    found = within_radius({"w": displacement}, {"w": direction}, length, radius)
    bound = max(radius, distance)
    assert 0 <= found <= length
    if distance > 1.001 * radius and float(displacement @ direction) >= 0:
        assert found == 0
    assert float((displacement + found * direction).norm()) <= bound + 1e-7
    if found < length:
        further = float((displacement + (found + 1e-3) * direction).norm())
        assert further > bound


def test_no_direction_has_no_length() -> None:
    assert within_radius({}, {}, 1.0, 1.0) == 0.0
    assert within_radius({"w": torch.ones(2)}, {}, inf, 1.0) == 0.0


def test_the_steepest_way_is_not_taken_where_its_gradient_is_rounding_error(kit: Any) -> None:
    """The energy of a single layer's examples depends on the layer by their own inputs alone: with those in the basis
    there is no slope, and the dispersion alone decides.
    """
    model, x = kit.built(lambda: nn.Linear(12, 3)), kit.normal(3, 12)
    forget = kit.normal(3, 12, seed=1), torch.arange(3)
    full = NullSpace(energy=1.0, step_size=0.2).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
    )
    assert kit.norm(full.shifts) == pytest.approx(0.2 * kit.norm(model.state_dict()))
    assert full.energies[0] == pytest.approx(full.energies[1], rel=1e-12)
    still = NullSpace(energy=1.0, step_size=0.2, dispersion=0).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
    )
    assert all(bool((s == 0).all()) for s in still.shifts.values())


def test_a_small_rest_of_a_large_gradient_is_still_orthogonal(kit: Any) -> None:
    """The forget inputs lie in the span of the retained ones but for a hundred-millionth."""
    model, x = kit.built(lambda: nn.Linear(12, 3)), kit.normal(4, 12)
    near = kit.normal(3, 4, seed=5) @ x + 1e-8 * kit.normal(3, 12, seed=6)
    model.bias.requires_grad_(False)
    move = NullSpace(energy=1.0, protect="retain", dispersion=0, step_size=0.3).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=(near, torch.arange(3)))
    )
    shift = move.shifts["weight"]
    assert float(shift.norm()) > 0.01
    assert float((shift @ x.T).abs().max()) < 1e-13


def test_distances_do_not_count_what_no_input_reaches(kit: Any) -> None:
    """A reference that differs in dead taps alone is, for the radius and the pull, the place itself."""
    make = lambda: nn.Sequential(nn.Conv2d(12, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3))  # noqa: E731
    model, x = kit.built(make), kit.normal(4, 12, 1, 1)
    reference = deepcopy(model)
    with torch.no_grad():
        reference[0].weight.add_(5.0)
        reference[0].weight[:, :, 1, 1].sub_(5.0)
    found = [
        NullSpace(energy=1.0, step_size=0.2, radius=0.3).move(
            model, generator=kit.generator(), probe=kit.probe(x, reference=place)
        )
        for place in (model, reference)
    ]
    for name, shift in found[0].shifts.items():
        torch.testing.assert_close(found[1].shifts[name], shift)
    assert kit.norm(found[1].shifts) > 0.1


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))


def test_batch_norm_moves_by_the_projection_of_its_channels(kit: Any) -> None:
    """γ − ηP∇γ and β − ηP∇β with P the complement of the leading eigenvectors of Σ x xᵀ over examples and positions."""
    model, x = kit.built(normed), kit.normal(5, 3, 4, 4)
    forget = kit.normal(4, 3, 4, 4, seed=1), Y
    for layer in (model[0], model[4]):
        layer.requires_grad_(False)
    move = NullSpace(energy=0.7, batch_norm="project", protect="retain", dispersion=0, step_size=1e-3).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
    )
    with torch.no_grad():
        features = model[0](x).movedim(1, -1).reshape(-1, 6)
    values, vectors = torch.linalg.eigh(features.T @ features)
    values, vectors = values.flip(0), vectors.flip(1)
    rank = int(((values / values.sum()).cumsum(0) < 0.7).sum()) + 1
    assert 0 < rank < 6
    projector = torch.eye(6, dtype=torch.float64) - vectors[:, :rank] @ vectors[:, :rank].T
    slope = {n: projector @ g for n, g in kit.energy_slope(model, *forget).items()}
    length = 1e-3 * kit.norm({n: p.detach() for n, p in model.named_parameters() if p.requires_grad})
    assert_same(dict(move.shifts), sum_of((-length / kit.norm(slope), slope)), 1e-7)
    assert set(move.left) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    assert move.notes == ("batch-norm parameters were projected by channel features, which does not keep the function",)


def test_batch_norm_stays_by_default_and_otherwise_is_noted_and_felt(kit: Any) -> None:
    model, x = kit.built(normed), kit.normal(2, 3, 4, 4)
    frozen = NullSpace(energy=1.0, aim="random").move(model, generator=kit.generator(), probe=kit.probe(x))
    assert {"1.weight", "1.bias"} <= set(frozen.left)
    assert not any("does not keep the function" in note for note in frozen.notes)
    few = kit.built(lambda: nn.Sequential(nn.Linear(9, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 3)))
    rows = kit.normal(4, 9)
    move = NullSpace(energy=1.0, aim="random", batch_norm="project", step_size=0.3).move(
        few, generator=kit.generator(), probe=kit.probe(rows)
    )
    assert {"1.weight", "1.bias"} <= set(move.shifts)
    assert not {"1.weight", "1.bias"} & set(move.left)
    inputs = few[0](rows).detach()
    assert float((inputs @ move.shifts["1.weight"]).abs().max()) < 1e-12
    assert any("does not keep the function" in note for note in move.notes)
    with torch.no_grad():
        assert float((kit.moved(few, move)(rows) - few(rows)).abs().max()) > 1e-3


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_an_error_on_the_way_leaves_every_bit_of_the_model(
    kit: Any, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Steps are taken in the model's own memory."""
    model, x, forget = problem(kit, "smooth")
    before = {n: t.clone() for n, t in model.state_dict().items()}
    seen: list[bool] = []
    value = EagerEnergy.value

    def failing(self: EagerEnergy) -> torch.Tensor:
        seen.append(all(torch.equal(t, before[n]) for n, t in model.state_dict().items()))
        if len(seen) == fails_at:
            raise RuntimeError("on the way")
        return value(self)

    monkeypatch.setattr(EagerEnergy, "value", failing)
    with pytest.raises(RuntimeError, match="on the way"):
        NullSpace(energy=1.0, steps=5).move(model, generator=kit.generator(), probe=kit.probe(x, forget=forget))
    assert seen == [False] * fails_at
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_a_move_leaves_every_bit_and_mode_of_the_model(kit: Any) -> None:
    model, x = kit.built(normed), kit.normal(5, 3, 4, 4)
    model.train()
    model[1].eval()
    before, places = {n: t.clone() for n, t in model.state_dict().items()}, [p.data_ptr() for p in model.parameters()]
    move = NullSpace(energy=0.9).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=(kit.normal(4, 3, 4, 4, seed=1), Y))
    )
    assert kit.norm(move.shifts) > 0
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert [p.data_ptr() for p in model.parameters()] == places
    assert [m.training for m in model] == [True, False, True, True, True]
    assert all(p.grad is None for p in model.parameters())
