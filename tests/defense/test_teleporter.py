"""What a teleport looks at, when it is taken back, and what it leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning import NullSpace
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.defense.certificate import Certificate
from warp_unlearning.defense.teleporter import BATCH, EXAMPLES, JUDGES, VALIDATION, Teleporter, View, draw_view
from warp_unlearning.symmetry.base import Sizes
from warp_unlearning.symmetry.moves import Move, Translation

pytestmark = pytest.mark.filterwarnings("ignore:Given does little")


def numbered(count: int, start: int = 0) -> TensorExamples:
    """Examples that say which they are, by input and by label."""
    rows = torch.arange(start, start + count)
    return TensorExamples(rows.double().unsqueeze(1), rows)


def rows(pair: tuple[Tensor, Tensor] | None) -> list[int]:
    assert pair is not None
    assert torch.equal(pair[0].squeeze(1).long(), pair[1])
    return pair[1].tolist()


def view(count: int, sizes: Sizes | None = None, seed: int = 0, **sets: Any) -> View:
    generator = torch.Generator().manual_seed(seed)
    return draw_view(numbered(count), sets.get("forget"), sets.get("validation"), sizes or Sizes(), generator=generator)


@pytest.mark.parametrize(
    ("count", "judging", "looked_at"),
    [(5, 1, 4), (60, 12, 48), (400, 80, EXAMPLES), (2000, 400, EXAMPLES), (5000, JUDGES, EXAMPLES)],
)
def test_a_fifth_at_most_judges_and_is_not_looked_at(count: int, judging: int, looked_at: int) -> None:
    found = view(count)
    judges, seen = rows(found.judges), rows(found.retain)
    assert (len(set(judges)), len(set(seen)), len(judges), len(seen)) == (judging, looked_at) * 2
    assert not set(judges) & set(seen)
    assert sorted(seen) != seen or looked_at < 5
    assert torch.equal(torch.cat(found.batches), found.retain[0])
    assert max(map(len, found.batches)) <= BATCH
    for few in (1, 2, 4):  # Too few: the same ones judge.
        assert sorted(rows(view(few).judges)) == sorted(rows(view(few).retain)) == list(range(few))


def test_the_symmetry_is_shown_as_many_as_it_asks_for() -> None:
    for asked, shown in ((1, 1), (5, 5), (1000, 1000), (9999, 3000 - JUDGES), (0, EXAMPLES)):
        assert len(rows(view(3000, Sizes(asked, 5)).retain)) == shown
    for asked, shown in ((5, 5), (0, EXAMPLES), (900, 600)):
        assert len(set(rows(view(3000, Sizes(3, asked), forget=numbered(600)).forget))) == shown
    found = view(100, validation=numbered(2000, start=7000))
    assert len(set(rows(found.validation))) == VALIDATION
    assert min(rows(found.validation)) >= 7000
    assert view(100).validation is view(100).forget is None


def forced(kit: Any, model: nn.Module, move: Move, seen: View, **bounds: Any) -> tuple[Move | None, Certificate]:
    moving = Teleporter(model, kit.Given(lambda model, probe: move), kit.state(model), **bounds)
    return moving.teleport(seen, generator=kit.generator())


def test_an_error_after_the_move_leaves_the_weights_as_they_were(kit: Any) -> None:
    model = kit.network()
    before = kit.state(model)

    def fail_if_moved(*_: Any) -> None:
        if not kit.same(kit.state(model), before):
            raise RuntimeError("no memory left")

    model.register_forward_pre_hook(fail_if_moved)
    with pytest.raises(RuntimeError, match="no memory left"):
        forced(kit, model, kit.shift(model, 0.1, seed=6), kit.view())
    assert kit.same(kit.state(model), before)


def outcome(kit: Any, model: nn.Module, shift: Translation, **bounds: Any) -> bool:
    """Whether the shift was made; the model stands where the certificate and the move say, to the last bit."""
    before = kit.state(model)
    move, certificate = forced(kit, model, shift, kit.view(), **bounds)
    assert certificate.scale == float(move is not None)
    assert kit.same(kit.state(model), before if move is None else kit.state(kit.at(kit.network(), shift.shifts)))
    if move is None:
        assert certificate.moved == certificate.retain.largest_logit_change == certificate.forget.loss_change == 0.0
        assert certificate.energy_before == certificate.energy_after
        assert any(note.startswith("taken back") for note in certificate.notes)
    return move is not None


@pytest.mark.parametrize(("share", "kept"), [(0.5, False), (0.99, False), (1.01, True), (100.0, True)])
def test_a_shift_that_harms_what_was_not_looked_at_is_taken_back(kit: Any, share: float, kept: bool) -> None:
    """The judges' mean loss, against its value just before; the reference and the examples looked at do not count."""
    model, judges = kit.network(), kit.view().judges
    shift = kit.climb(model, judges, 2.0)
    rise = kit.loss(kit.at(model, shift.shifts), judges) - kit.loss(model, judges)
    assert rise > 0.1
    assert outcome(kit, model, shift, tolerance=share * rise) == kept
    assert outcome(kit, kit.network(), kit.climb(model, judges, -0.01), tolerance=0.0)
    assert outcome(kit, kit.network(), kit.shift(model, 50.0))
    for spoil in (0.0, 3.0):
        model = kit.network()
        reference = kit.state(kit.at(model, kit.shift(model, spoil, seed=1).shifts))
        moving = Teleporter(model, kit.Given(lambda model, probe: shift), reference, tolerance=share * rise)
        assert (moving.teleport(kit.view(), generator=kit.generator())[0] is not None) == kept


def test_a_shift_that_learns_the_forgotten_again_is_taken_back_where_a_bound_says_so(kit: Any) -> None:
    model, forget = kit.network(), kit.view().forget
    shift = kit.climb(model, forget, -0.5)
    fall = 1 - kit.loss(kit.at(model, shift.shifts), forget) / kit.loss(model, forget)
    assert 0.1 < fall < 0.9
    for relearning, kept in ((0.0, False), (0.99 * fall, False), (1.01 * fall, True), (2.0, True), (None, True)):
        assert outcome(kit, kit.network(), shift, relearning=relearning) == kept
    assert not outcome(kit, kit.network(), shift, relearning=0.0, tolerance=1e6)
    (note,) = forced(kit, kit.network(), shift, kit.view(), relearning=0.05)[1].notes
    assert note == f"taken back: the loss of examples to forget fell by {fall:.1%}, and relearning is 0.05"


def test_notes_say_where_examples_are_too_few(kit: Any) -> None:
    model = kit.network()
    built_from = "fewer than five retained examples: the move is judged by those that it was built from"
    for retain, wanted, tolerance, note in (
        (25, 20, 1.0, None),
        (25, 21, 1.0, "looked at 20 retained examples of the 21 asked for: there are no more"),
        (4, 4, 1.0, built_from),
        (4, 4, None, built_from),
    ):
        symmetry = kit.Given(lambda model, probe: kit.shift(model, 1e-9), Sizes(wanted, 5))
        sets = [TensorExamples(*kit.points(count, 2)) for count in (retain, 9)]
        seen = draw_view(*sets, None, symmetry.looks_at, generator=kit.generator())
        moving = Teleporter(model, symmetry, kit.state(model), tolerance=tolerance)
        assert moving.teleport(seen, generator=kit.generator())[1].notes == (() if note is None else (note,))


@pytest.mark.parametrize("bound", [{"tolerance": 1e6}, {"relearning": 1.0}])
def test_a_move_to_nowhere_is_taken_back(kit: Any, bound: dict[str, float]) -> None:
    """A loss that is not a number is no bound kept."""
    shift = Translation({"4.bias": torch.full((3,), float("nan"), dtype=torch.float64)})
    assert not outcome(kit, kit.network(), shift, **bound)


@pytest.mark.parametrize("taken_back", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_nothing_but_the_weights_changes(kit: Any, taken_back: bool, grad: bool) -> None:
    """Not training flags, running statistics, gradients, grad mode or torch's generator; logits are of eval mode."""
    model, seen = kit.network(), kit.view()
    model.train()
    model[1].eval()
    model[0].bias.requires_grad_(False)
    model[4].weight.grad = torch.ones_like(model[4].weight)
    before, rng, flags = kit.state(model), torch.get_rng_state(), [m.training for m in model.modules()]
    moving = Teleporter(model, NullSpace(energy=0.8, aim="random", step_size=0.4), before)
    moving.tolerance = -1e9 if taken_back else None
    with torch.set_grad_enabled(grad):
        move, certificate = moving.teleport(seen, generator=kit.generator())
        assert torch.is_grad_enabled() == grad
    assert torch.equal(rng, torch.get_rng_state())
    assert (move is None) == taken_back
    assert [m.training for m in model.modules()] == flags
    after = kit.state(model)
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == (set() if taken_back else {"0.weight", "4.weight", "4.bias"})
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["0.bias"]
    assert bool((model[4].weight.grad == 1).all())
    assert model[0].weight.grad is None
    assert certificate.retain.loss_before == pytest.approx(kit.loss(kit.network(), seen.retain))


def test_where_nothing_can_move_the_energies_are_measured(kit: Any) -> None:
    model, seen = kit.network(norm=False), kit.view()
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    moving = Teleporter(model, NullSpace(energy=1.0), kit.state(model))
    with pytest.warns(match=r"NullSpace does little .* 2\.bias"):
        move, found = moving.teleport(seen, generator=kit.generator())
    assert (move is not None, found.moved, found.notes[0]) == (True, 0.0, "no layer could move")
    assert found.energy_before == found.energy_after == pytest.approx(kit.energy(model, seen.forget), rel=1e-9)


def test_tied_weights_move_once_and_come_back_once(kit: Any) -> None:
    model = kit.network(norm=False)
    model.append(nn.Identity())
    model[3].register_parameter("again", model[0].weight)
    before = kit.state(model)
    shift = Translation({"0.weight": torch.full_like(before["0.weight"], 0.25)})
    assert forced(kit, model, shift, kit.view(), tolerance=-1.0)[0] is None
    assert kit.same(kit.state(model), before)
    _, certificate = forced(kit, model, shift, kit.view())
    assert torch.equal(model[0].weight, before["0.weight"] + 0.25)
    assert certificate.moved == pytest.approx(0.25 * before["0.weight"].numel() ** 0.5)
