from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.defense import teleporter as module
from warp_unlearning.defense.judging import Judging
from warp_unlearning.defense.probing import View
from warp_unlearning.defense.teleporter import Teleporter
from warp_unlearning.symmetry.change_of_basis import ChangeOfBasis
from warp_unlearning.symmetry.compose import Compose
from warp_unlearning.symmetry.move import AxisMap, ChannelMove, Move, Translation
from warp_unlearning.symmetry.null_move import NullMove
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.permutation import Permutation

Named = dict[str, Tensor]


def teleporter(kit: Any, model: nn.Module, symmetry: Any, **bounds: Any) -> Teleporter:
    return Teleporter(model, symmetry, kit.state(model), **bounds)


def counted(function: Any, calls: list[int]) -> Any:
    def calling(*args: Any, **named: Any) -> Any:
        calls.append(1)
        return function(*args, **named)

    return calling


def forced(kit: Any, model: nn.Module, move: Move, view: View, **bounds: Any) -> tuple[Move | None, Any]:
    return teleporter(kit, model, kit.Given(lambda model, probe: move), **bounds).teleport(
        view, generator=kit.generator()
    )


@pytest.mark.parametrize("halvings", [0, 1, 4, 12])
@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.03, 0.1, 10.0])
def test_a_harmful_shift_is_halved_until_the_judges_are_content(kit: Any, tolerance: float, halvings: int) -> None:
    """The judges' mean loss, against its value just before; the examples looked at do not count."""
    model, view = kit.network(), kit.view()
    shift, before = kit.climb(model, view.judges, 2.0), kit.state(model)
    rises = {
        s: kit.loss(kit.at(model, shift.shifts, s), view.judges) - kit.loss(model, view.judges)
        for s in (0.5**k for k in range(halvings + 1))
    }
    expected = next((s for s, rise in rises.items() if rise <= tolerance), None)
    move, certificate = forced(kit, model, shift, view, tolerance=tolerance, halvings=halvings)
    if expected is None:
        assert move is None
        assert certificate.scale == 0.0
        assert kit.same(kit.state(model), before)
        assert certificate.moved == certificate.retain.largest_logit_change == 0.0
    else:
        assert certificate.scale == expected
        there = kit.state(kit.at(kit.network(), shift.shifts, expected))
        for name, value in kit.state(model).items():
            torch.testing.assert_close(value, there[name])
        assert move is not None
        for name, value in shift.shifts.items():
            torch.testing.assert_close(move.point(name, before[name]), before[name] + expected * value)
        assert certificate.held_out.loss_change <= tolerance


def test_the_cases_above_have_every_outcome(kit: Any) -> None:
    model, view = kit.network(), kit.view()
    shift = kit.climb(model, view.judges, 2.0).shifts
    rises = [kit.loss(kit.at(model, shift, 0.5**k), view.judges) - kit.loss(model, view.judges) for k in range(13)]
    assert 0.1 < rises[0] < 10
    assert 0 < rises[12] < 1e-3 < rises[4] < 0.1 < rises[0]


@pytest.mark.parametrize("halvings", [0, 1, 2, 3])
def test_it_is_halved_as_often_as_it_says(kit: Any, halvings: int) -> None:
    view = kit.view()
    shift = kit.climb(kit.network(), view.judges, 2.0)
    losses = [kit.loss(kit.at(kit.network(), shift.shifts, 0.5**k), view.judges) for k in (halvings, halvings + 1)]
    assert losses[0] > losses[1]
    tolerance = 0.5 * sum(losses) - kit.loss(kit.network(), view.judges)
    for allowed, scale in ((halvings, 0.0), (halvings + 1, 0.5 ** (halvings + 1))):
        _, certificate = forced(kit, kit.network(), shift, view, tolerance=tolerance, halvings=allowed)
        assert certificate.scale == scale


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("halvings", [0, 1, 2, 5])
def test_trials_begin_near_where_they_ended_the_last_time(
    kit: Any, halvings: int, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    """Two of them find the same part again, and the model stands where that leads, whichever was tried last; where
    judges are asked at once, both are read together.
    """
    view, asked, read = kit.view(), [], []
    given: dict[str, Move] = {}
    monkeypatch.setattr(Teleporter, "_look", counted(Teleporter._look, asked))
    monkeypatch.setattr(module, "_read_all", counted(module._read_all, read))
    monkeypatch.setattr(Judging, "at_once", at_once)
    model = kit.network()
    start = kit.state(model)
    given["move"] = kit.climb(model, view.judges, 2.0)
    losses = [kit.loss(kit.at(model, given["move"].shifts, 0.5**k), view.judges) for k in (halvings, halvings + 1)]
    first = kit.loss(model, view.judges)
    tolerance = losses[0] - first if halvings == 0 else losses[0] - first + 0.1 * (losses[0] - losses[1])
    moving = teleporter(kit, model, kit.Given(lambda model, probe: given["move"]), tolerance=tolerance, halvings=5)
    counts, states = [], []
    for _ in range(2):
        model.load_state_dict(start)
        asked.clear()
        read.clear()
        assert moving.teleport(view, generator=kit.generator())[1].scale == 0.5**halvings
        counts.append((len(asked), len(read)))
        states.append(kit.state(model))
    looks = min(halvings, 1) + 1
    assert counts == [(halvings + 1, halvings + 1), (looks, 1 if at_once else looks)]
    assert kit.same(*states)
    # Shorter moves that need fewer halvings, or none, lead to the same place.
    for fewer in range(halvings - 1, -1, -2):
        model.load_state_dict(start)
        whole, given["move"] = given["move"], given["move"].scaled(0.5 ** (halvings - fewer))
        assert moving.teleport(view, generator=kit.generator())[1].scale == 0.5**fewer
        for name, value in kit.state(model).items():
            torch.testing.assert_close(value, states[0][name])
        given["move"] = whole


def test_the_bound_is_on_the_value_just_before_and_not_on_that_of_the_reference(kit: Any) -> None:
    """A reference that is much better, or much worse, changes nothing."""
    view = kit.view()
    scales = []
    for spoil in (0.0, 3.0):
        model = kit.network()
        shift = kit.climb(model, view.judges, 2.0)
        reference = kit.state(kit.at(model, kit.shift(model, spoil, seed=1).shifts))
        symmetry = kit.Given(lambda model, probe, shift=shift: shift)
        scales.append(
            Teleporter(model, symmetry, reference, tolerance=0.03).teleport(view, generator=kit.generator())[1].scale
        )
    assert scales[0] == scales[1] != 1.0


@pytest.mark.parametrize("relearning", [0.0, 0.1, 0.3, 2.0])
def test_a_shift_that_learns_the_forgotten_again_is_halved(kit: Any, relearning: float) -> None:
    model, view = kit.network(), kit.view()
    shifts = kit.climb(model, view.forget, -1.0).shifts
    known = kit.loss(model, view.forget)
    expected = next(
        (
            s
            for s in (0.5**k for k in range(5))
            if kit.loss(kit.at(model, shifts, s), view.forget) >= (1 - relearning) * known
        ),
        0.0,
    )
    before = kit.state(model)
    move, certificate = forced(kit, model, Translation(shifts), view, relearning=relearning)
    assert certificate.scale == expected
    assert (move is None) == (expected == 0.0)
    assert kit.same(kit.state(model), before) == (expected == 0.0)
    assert {0.0: 0.0, 2.0: 1.0}.get(relearning, expected) == expected
    assert 0 < expected < 1 or relearning in (0.0, 2.0)


def test_without_bounds_everything_is_allowed(kit: Any) -> None:
    model, view = kit.network(), kit.view()
    move, certificate = forced(kit, model, kit.shift(model, 50.0), view)
    assert move is not None
    assert certificate.scale == 1.0
    assert certificate.retain.loss_change > 1


@pytest.mark.parametrize("bound", [{"tolerance": 1e6}, {"relearning": 1.0}])
def test_a_move_to_nowhere_is_taken_back(kit: Any, bound: dict[str, float]) -> None:
    """A loss that is not a number is no bound kept."""
    model, view = kit.network(), kit.view()
    before = kit.state(model)
    shift = Translation({"4.bias": torch.full((3,), float("nan"), dtype=torch.float64)})
    move, certificate = forced(kit, model, shift, view, **bound)
    assert move is None
    assert certificate.scale == 0.0
    assert kit.same(kit.state(model), before)


class Counted(ChannelMove):
    """A move that cannot be scaled, and which counts how often it is made."""

    made: list[str] = []  # noqa: RUF012

    def point(self, name: str, value: Tensor) -> Tensor:
        if name == "4.bias":
            self.made.append(name)
        return super().point(name, value)


def test_what_cannot_be_scaled_is_tried_once(kit: Any) -> None:
    model, view = kit.network(), kit.view()
    before = kit.state(model)
    tripled = Counted({"4.weight": (AxisMap(0, None, torch.tensor([-9.0, 5.0, 3.0])),)})
    for tolerance, kept in ((0.01, False), (1e6, True)):
        Counted.made.clear()
        move, certificate = forced(kit, model, tripled, view, tolerance=tolerance, halvings=4)
        assert len(Counted.made) == 1
        assert (move is tripled, certificate.scale) == ((True, 1.0) if kept else (False, 0.0))
        assert kit.same(kit.state(model), before) != kept
        assert (move is None) != kept


@pytest.mark.parametrize("taken_back", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_nothing_but_the_weights_changes(kit: Any, taken_back: bool, grad: bool) -> None:
    """Training flags, running statistics, gradients, grad mode and torch's generator stay; the logits are of eval
    mode, so that dropout and batch statistics play no part.
    """
    model, view = kit.network(), kit.view()
    model.train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model[4].weight.grad = torch.ones_like(model[4].weight)
    before = kit.state(model)
    symmetry = NullSpace(energy=1.0, aim="random", step_size=0.4)
    rng = torch.get_rng_state()
    bounds = {"tolerance": -1e9, "halvings": 1} if taken_back else {}
    with torch.set_grad_enabled(grad):
        move, certificate = teleporter(kit, model, symmetry, **bounds).teleport(view, generator=kit.generator())
        assert torch.is_grad_enabled() == grad
    assert torch.equal(rng, torch.get_rng_state())
    assert (move is None) == taken_back
    assert [m.training for m in model] == [True, False, True, True, True]
    assert model.training
    after = kit.state(model)
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == (set() if taken_back else {"0.bias", "4.weight", "4.bias"} & set(dict(move.shifts)))
    assert [p.requires_grad for p in model.parameters()] == [False, *[True] * 5]
    assert bool((model[4].weight.grad == 1).all())
    assert model[0].bias.grad is None
    was = kit.network().train()
    with torch.no_grad():
        was[0].weight.copy_(before["0.weight"])
    assert certificate.retain.loss_before == pytest.approx(kit.loss(was, view.retain))


def test_the_energy_of_half_a_null_space_move_is_measured_there(kit: Any) -> None:
    model, view = kit.network(norm=False), kit.view()
    was = deepcopy(model)
    shift = NullMove(kit.climb(model, view.judges, 1.0).shifts, energies=(7.0 * 6, 3.0 * 6))
    losses = [kit.loss(kit.at(model, shift.shifts, s), view.judges) for s in (1.0, 0.5)]
    start = kit.loss(model, view.judges)
    assert losses[0] > losses[1] > start
    _, found = forced(kit, model, shift, view, tolerance=0.5 * sum(losses) - start)
    assert found.scale == 0.5
    assert found.energy_before == pytest.approx(7.0)
    assert found.energy_after == pytest.approx(kit.energy(model, view.forget), rel=1e-9)
    _, whole = forced(kit, deepcopy(was), shift, view)
    assert (whole.energy_before, whole.energy_after) == pytest.approx((7.0, 3.0))
    _, none = forced(kit, deepcopy(was), shift, view, tolerance=-1.0)
    assert (none.energy_before, none.energy_after) == pytest.approx((7.0, 7.0))


def test_a_graph_of_the_energies_measures_half_a_move_where_there_is_one(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it gives no finite number the energy is measured without it."""
    asked: list[Any] = []
    for given, expected in ((12.0, 2.0), (float("inf"), None), (None, None)):
        model, view = kit.network(norm=False), kit.view()
        shift = NullMove(kit.climb(model, view.judges, 1.0).shifts, energies=(42.0, 18.0))
        losses = [kit.loss(kit.at(model, shift.shifts, s), view.judges) for s in (1.0, 0.5)]
        bound = 0.5 * sum(losses) - kit.loss(model, view.judges)
        symmetry = NullSpace()
        monkeypatch.setattr(symmetry, "move", lambda model, *, generator, probe, shift=shift: shift)
        answer = None if given is None else torch.tensor(given, dtype=torch.float64)
        monkeypatch.setattr(symmetry, "energy_now", lambda m, forget, a=answer: (asked.append((m, forget)), a)[1])
        _, found = teleporter(kit, model, symmetry, tolerance=bound).teleport(view, generator=kit.generator())
        assert found.scale == 0.5
        assert asked[-1][0] is model
        assert asked[-1][1] is view.forget
        assert found.energy_after == pytest.approx(expected or kit.energy(model, view.forget), rel=1e-9)
    assert NullSpace().energy_now(model, view.forget) is None


def test_where_nothing_could_move_the_energies_are_measured_all_the_same(kit: Any) -> None:
    model, view = kit.network(norm=False), kit.view()
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    move, found = teleporter(kit, model, NullSpace(energy=1.0)).teleport(view, generator=kit.generator())
    assert move is not None
    assert found.moved == 0.0
    assert found.energy_before == pytest.approx(kit.energy(model, view.forget), rel=1e-9)
    assert found.energy_after == found.energy_before
    assert found.notes == ("no layer could move",)


def test_the_symmetry_is_shown_the_view_and_the_reference(kit: Any) -> None:
    model, view = kit.network(), kit.view()
    symmetry = kit.Given(lambda model, probe: Translation({}))
    reference = kit.state(kit.at(model, kit.shift(model, 1.0).shifts))
    Teleporter(model, symmetry, reference).teleport(view, generator=kit.generator())
    ((seen, probe),) = symmetry.seen
    assert kit.same(seen, kit.state(model))
    assert torch.equal(torch.cat(list(probe.retain)), view.retain[0])
    assert probe.forget is view.forget
    assert kit.same(dict(probe.reference), reference)


def test_a_composition_with_a_null_space_is_taken_back_as_a_whole(kit: Any) -> None:
    model = kit.network()
    before = kit.state(model)
    symmetry = Compose(ChangeOfBasis(), NullSpace(energy=0.2, aim="random", step_size=3.0, radius=10))
    move, certificate = teleporter(kit, model, symmetry, tolerance=-10.0).teleport(
        kit.view(), generator=kit.generator()
    )
    assert move is None
    assert certificate.scale == 0.0
    assert kit.same(kit.state(model), before)


def test_draws_come_from_the_generator_given(kit: Any) -> None:
    view = kit.view()
    for symmetry in (NullSpace(), ChangeOfBasis(), Compose(Permutation(), NullSpace())):
        states = []
        for seed in (1, 1, 2):
            model = kit.network()
            teleporter(kit, model, deepcopy(symmetry)).teleport(view, generator=kit.generator(seed))
            states.append(kit.state(model))
        assert kit.same(states[0], states[1])
        assert not kit.same(states[0], states[2])


def test_a_shift_taken_back_leaves_every_bit_and_tied_weights_move_once(kit: Any) -> None:
    model, view = kit.network(norm=False), kit.view()
    model.append(nn.Identity())
    model[3].register_parameter("again", model[0].weight)
    before = kit.state(model)
    shift = Translation({"0.weight": torch.full_like(before["0.weight"], 0.25)})
    for certify in ("full", "brief"):
        move, _ = forced(kit, model, shift, view, tolerance=-1.0, halvings=1, certify=certify)
        assert move is None
        assert kit.same(kit.state(model), before)
    move, certificate = forced(kit, model, shift, view, certify="brief")
    assert torch.equal(model[0].weight, before["0.weight"] + 0.25)
    assert certificate.moved == pytest.approx(0.25 * before["0.weight"].numel() ** 0.5)
