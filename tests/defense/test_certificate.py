"""What certificates say of teleports, against what is found out by hand."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning import ChangeOfBasis, Compose, NullSpace, Permutation
from warp_unlearning.defense.certificate import Certificate, drift, reached_weights, shortfalls
from warp_unlearning.defense.teleporter import Teleporter, View
from warp_unlearning.errors import WarpWarning
from warp_unlearning.symmetry.base import settings_of
from warp_unlearning.symmetry.layer_inputs import InputBasis
from warp_unlearning.symmetry.moves import Translation
from warp_unlearning.symmetry.null_space import NullMove

DISTANCES = ("moved", "moved_unreached", "norm", "distance_before", "distance_after")


def certified(kit: Any, model: nn.Module, symmetry: Any, view: View | None = None, **bounds: Any) -> Certificate:
    moving = Teleporter(model, symmetry, kit.state(model), **bounds)
    return moving.teleport(view or kit.view(), generator=kit.generator())[1]


def test_a_drift_is_relative_to_the_largest_logit_and_in_double_precision() -> None:
    zero, half, y = torch.zeros(2, 2), torch.full((2, 2), 0.5), torch.tensor([0, 1])
    assert (drift(zero, half, y).relative, drift(4 * half, 3 * half, y).relative) == (0.5, 0.25)
    sure = torch.tensor([[40.0, 0.0], [0.0, 17.0]])
    found = drift(sure, sure.flip(0), y)
    assert found.loss_before == pytest.approx((torch.e**-40 + torch.e**-17) / 2)
    assert (found.changed_predictions, found.loss_change) == (1.0, pytest.approx(28.5))


def test_what_is_reached_follows_the_groups_of_a_basis() -> None:
    model = nn.Conv2d(2, 4, 3, groups=2)
    reached = torch.ones(2, 10, dtype=torch.bool)
    reached[1, 8] = False
    basis = InputBasis("weight", "bias", torch.zeros(2, 10, 1), (1, 1), reached, 0.9, 17)
    expected = torch.ones(4, 1, 3, 3, dtype=torch.bool)
    expected[2:, 0, 2, 2] = False
    assert torch.equal(reached_weights(model, NullMove({}, bases={"weight": basis}), [])["weight"], expected)


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_a_certificate_says_what_happened(kit: Any, validation: bool, kept: bool) -> None:
    model, view = kit.network(), kit.view(validation=validation)
    view.retain[0][:, 2] = 0
    model[1].weight.requires_grad_(False)
    was, reference = deepcopy(model), kit.state(kit.at(model, kit.shift(model, 0.3, seed=5).shifts))
    shift = kit.climb(model, view.judges, 1.5)
    symmetry = kit.Given(lambda model, probe: shift)
    moving = Teleporter(model, symmetry, reference, tolerance=1e6 if kept else 0.0)
    move, found = moving.teleport(view, generator=kit.generator())
    assert (move is None, found.scale, found.symmetry) == (not kept, float(kept), "Given")
    for part, pair in (
        (found.retain, view.retain),
        (found.held_out, view.validation or view.judges),
        (found.forget, view.forget),
    ):
        a, b = kit.logits(was, pair[0]), kit.logits(model, pair[0])
        by_hand = {
            "examples": len(pair[1]),
            "largest_logit_change": float((b - a).abs().max()),
            "largest_logit": float(a.abs().max()),
            "changed_predictions": sum(int(u.argmax() != v.argmax()) for u, v in zip(a, b, strict=True)) / len(a),
            "loss_before": kit.loss(was, pair),
            "loss_after": kit.loss(model, pair),
        }
        assert vars(part) == pytest.approx(by_hand, rel=1e-9)
    assert found.energy_before == pytest.approx(kit.energy(was, view.forget), rel=1e-9)
    assert found.energy_after == pytest.approx(kit.energy(model, view.forget), rel=1e-9)

    before, after = kit.state(was), kit.state(model)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    masks = {n: mask for n, mask in kit.reached(model, view.batches[0]).items() if n in trained}
    dead = {n: ~mask for n, mask in masks.items()}
    assert any(bool(mask.any()) for mask in dead.values())
    nowhere = {n: torch.zeros_like(v) for n, v in before.items()}
    by_hand = [(before, after, masks), (before, after, dead), (before, nowhere, masks), (before, reference, masks)]
    by_hand.append((after, reference, masks))
    assert [getattr(found, name) for name in DISTANCES] == pytest.approx([kit.length(*each) for each in by_hand])
    assert found.relative_move == pytest.approx(found.moved / found.norm)
    assert [row.name for row in found.layers] == ([n for n, _ in model.named_parameters()] if kept else [])
    for row in found.layers:
        assert row.moved**2 + row.moved_unreached**2 == pytest.approx(float(shift.shifts[row.name].square().sum()))
        assert (row.d, row.rank, row.captured, row.positions) == (None,) * 4
    assert found.seconds > 0
    (note,) = found.notes
    assert note.startswith("frozen parameters moved with the others: 1.weight" if kept else "taken back")


def test_a_null_space_certificate_knows_its_bases_and_the_batch_that_was_asked_for(kit: Any) -> None:
    model, view = kit.network(norm=False), kit.view()
    was = deepcopy(model)
    few = replace(view, retain=(view.retain[0][:3], view.retain[1][:3]))
    found = certified(kit, model, NullSpace(energy=1.0, step_size=0.3), few)
    rows = {row.name: row for row in found.layers}
    assert set(rows) == {"0.weight", "2.weight"}
    assert (rows["0.weight"].d, rows["0.weight"].rank, rows["0.weight"].positions) == (6, 3, 3)
    assert (rows["2.weight"].d, rows["0.weight"].captured) == (9, pytest.approx(1.0))
    before, after, nowhere = kit.state(was), kit.state(model), dict.fromkeys(kit.state(was), torch.zeros(()))
    first = {n: torch.ones_like(before[n], dtype=torch.bool) for n in ("0.weight", "0.bias")}
    assert rows["0.weight"].moved == pytest.approx(kit.length(after, before, first))
    assert rows["0.weight"].norm == pytest.approx(kit.length(before, nowhere, first))
    assert found.moved_unreached == 0.0
    assert found.retain.relative < 1e-13
    assert found.energy_before == pytest.approx(kit.energy(was, view.forget), rel=1e-9)
    assert found.energy_after == pytest.approx(kit.energy(model, view.forget), rel=1e-9)
    assert found.energy_after < found.energy_before
    assert found.settings["protect"] == "retain"
    assert any("saw fewer inputs" in note for note in found.notes)


class WritesOver(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        h = self[0](x)
        k = self[1](h)
        return self[2](F.relu_(h) + k)


def test_energies_that_cannot_be_measured_are_none_and_noted(kit: Any) -> None:
    model = WritesOver(nn.Linear(5, 20), nn.Linear(20, 20), nn.Linear(20, 3)).double()
    found = certified(kit, model, kit.Given(lambda model, probe: kit.shift(model, 0.1)))
    assert (found.energy_before, found.energy_after) == (None, None)
    assert "gradient energies could not be measured on this network" in found.notes
    json.dumps(found.as_json(), allow_nan=False)


def test_without_a_forget_batch_nothing_is_said_of_it(kit: Any) -> None:
    view = replace(kit.view(), forget=None)
    for symmetry in (NullSpace(energy=0.8, aim="random"), ChangeOfBasis()):
        found = certified(kit, kit.network(), symmetry, view, relearning=0.0)
        assert found.forget is found.energy_before is found.energy_after is None
        assert not any("energies" in note for note in found.notes)


def test_dead_taps_are_counted_apart(kit: Any) -> None:
    """A change of basis moves them with their kernels and hides nothing by it."""
    model = nn.Sequential(nn.Conv2d(5, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3)).double()
    given, moved = kit.view(), deepcopy(model)
    retain, judges, forget = ((x[:, :, None, None], y) for x, y in (given.retain, given.judges, given.forget))
    found = certified(kit, moved, ChangeOfBasis(), View(retain, judges, forget, None))
    change, centre = (moved[0].weight - model[0].weight).detach(), torch.zeros(3, 3, dtype=torch.bool)
    centre[1, 1] = True
    row = next(row for row in found.layers if row.name == "0.weight")
    assert row.moved == pytest.approx(float(change[..., centre].norm()))
    assert row.moved_unreached == pytest.approx(float(change[..., ~centre].norm()))
    assert found.moved_unreached >= row.moved_unreached > 0
    null = certified(kit, model, NullSpace(energy=0.9), View(retain, judges, forget, None))
    assert (null.moved_unreached, null.moved > 0) == (0.0, True)


@pytest.mark.parametrize("parts", [(NullSpace(), Permutation()), (Permutation(), NullSpace())])
def test_masks_follow_a_permutation(kit: Any, parts: tuple[Any, ...]) -> None:
    """The dead units of a hidden layer are others after it, and so are the weights that no input reaches."""
    model = kit.network(norm=False)
    with torch.no_grad():
        model[0].bias[:3] = -100.0
    before, view = kit.state(model), kit.view()
    found = certified(kit, model, Compose(*parts), view)
    masks = kit.reached(model, view.retain[0])
    assert (~masks["2.weight"]).any(0).tolist() != [True] * 3 + [False] * 5
    assert int((~masks["2.weight"]).sum()) == 9
    after, nowhere = kit.state(model), dict.fromkeys(before, torch.zeros(()))
    assert found.moved == pytest.approx(kit.length(after, before, masks))
    assert found.moved_unreached == pytest.approx(kit.length(after, before, {n: ~mask for n, mask in masks.items()}))
    assert found.norm == pytest.approx(kit.length(before, nowhere, masks))


def test_a_move_that_leaves_most_of_a_network_names_it_and_the_way_out_once(kit: Any) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3)).double()
    before, view = kit.state(model), kit.view()
    moving = Teleporter(model, Compose(ChangeOfBasis(), Compose(ChangeOfBasis())), before)
    with pytest.warns(WarpWarning, match=r"Compose does little .* 0\.weight, 2\.weight, 0\.bias .*Compose"):
        first = moving.teleport(view, generator=kit.generator())[1]
    (note,) = moving.teleport(view, generator=kit.generator())[1].notes
    assert (0.0, note) == (first.moved, first.notes[0])
    assert any(p.tensor == "0.weight" and p.count == 8 and "GELU" in p.reasons[0] for p in first.pinned)
    assert note == "100 % of the trainable parameters stayed where they were: 0.weight, 2.weight, 0.bias and 1 more"
    half = kit.network(norm=False)
    half[2].requires_grad_(False)
    note = "83 % of the trainable parameters stayed where they were: 0.weight"
    for name, notes in (("0.bias", (note,)), ("0.weight", ())):
        shift = Translation({name: kit.shift(half, 0.1).shifts[name]})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WarpWarning)
            assert certified(kit, half, kit.Given(lambda model, probe, shift=shift: shift)).notes == notes
    with pytest.warns(WarpWarning, match=r"0\.weight \(no null space: .*a null space at a lower energy"):
        found = certified(kit, kit.network(norm=False, hidden=2), NullSpace(energy=1.0))
    assert set(found.left) >= {"0.weight", "0.bias"}


def test_every_certificate_is_plain_data_in_the_form_of_version_1(kit: Any) -> None:
    parts = Compose(ChangeOfBasis(), NullSpace(energy=0.9), Permutation())
    of_layers = {"name", "moved", "moved_unreached", "norm", "d", "rank", "captured", "positions"}
    known = {"schema_version", "symmetry", "settings", "scale", "retain", "held_out", "forget", *DISTANCES, "layers"}
    known |= {"energy_before", "energy_after", "left", "pinned", "notes", "seconds", "relative_move"}
    for symmetry in (NullSpace(energy=0.9), Permutation(), parts, Compose(NullSpace(energy=0.8, batch_norm="project"))):
        model = kit.network()
        model.register_buffer("unsaved", torch.arange(4.0), persistent=False)
        plain = certified(kit, model, symmetry, kit.view(validation=True)).as_json()
        assert json.loads(json.dumps(plain, allow_nan=False)).keys() == known
        assert (plain["schema_version"], plain["symmetry"]) == (1, type(symmetry).__name__)
        assert all(row.keys() == of_layers for row in plain["layers"])
        assert plain["energy_after"] == pytest.approx(kit.energy(model, kit.view().forget), rel=1e-9)
    names = [part["name"] for part in settings_of(parts)["symmetries"]]
    assert names == ["ChangeOfBasis", "NullSpace", "Permutation"]


def test_a_record_is_told_each_note_once_and_how_many_teleports_were_taken_back(kit: Any) -> None:
    plain = certified(kit, kit.network(), ChangeOfBasis())
    careful, other = replace(plain, notes=("careful",)), replace(plain, notes=("again", "careful"))
    back = certified(kit, kit.network(), kit.Given(lambda model, probe: kit.shift(model, 50.0)), tolerance=0.0)
    assert shortfalls([plain, plain]) == []
    assert shortfalls([careful, other, plain, careful]) == ["careful", "again"]
    assert shortfalls([careful, back, back, plain]) == ["careful", "2 of 4 teleports were taken back"]
    assert shortfalls([]) == ["no teleport was made"]
