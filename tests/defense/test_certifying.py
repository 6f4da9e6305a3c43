"""What certificates say of teleports, against what is found out by hand."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.defense.probing import View
from warp_unlearning.defense.teleporter import Teleporter
from warp_unlearning.symmetry.change_of_basis import ChangeOfBasis
from warp_unlearning.symmetry.compose import Compose
from warp_unlearning.symmetry.move import Translation
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.permutation import Permutation

Named = dict[str, Tensor]


def teleporter(kit: Any, model: nn.Module, symmetry: Any, **bounds: Any) -> Teleporter:
    return Teleporter(model, symmetry, kit.state(model), **bounds)


def hand_drift(kit: Any, before: nn.Module, after: nn.Module, pair: tuple[Tensor, Tensor]) -> dict[str, float]:
    a, b = kit.logits(before, pair[0]), kit.logits(after, pair[0])
    return {
        "examples": len(pair[1]),
        "largest_logit_change": float((b - a).abs().max()),
        "largest_logit": float(a.abs().max()),
        "changed_predictions": sum(int(u.argmax() != v.argmax()) for u, v in zip(a, b, strict=True)) / len(a),
        "loss_before": kit.loss(before, pair),
        "loss_after": kit.loss(after, pair),
    }


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_certificate_says_what_happened(kit: Any, validation: bool, scale: float) -> None:
    model, view = kit.network(), kit.view(validation=validation)
    model[1].weight.requires_grad_(False)
    was = deepcopy(model)
    reference = kit.at(model, kit.shift(model, 0.3, seed=5).shifts)
    shift = kit.climb(model, view.judges, 1.5)
    whole = {s: kit.loss(kit.at(model, shift.shifts, s), view.judges) for s in (1.0, 0.5, 0.25)}
    start = kit.loss(model, view.judges)
    assert whole[1.0] > whole[0.5] > whole[0.25]
    tolerance = 1e6 if scale == 1.0 else 0.5 * (whole[0.5] + whole[0.25]) - start
    symmetry = kit.Given(lambda model, probe: shift)
    _, found = Teleporter(model, symmetry, kit.state(reference), tolerance=tolerance).teleport(
        view, generator=kit.generator()
    )
    assert found.scale == scale
    assert found.symmetry == "Given"
    for part, pair in (
        (found.retain, view.retain),
        (found.held_out, view.validation or view.judges),
        (found.forget, view.forget),
    ):
        assert vars(part) == pytest.approx(hand_drift(kit, was, model, pair), rel=1e-9)
    assert found.energy_before == pytest.approx(kit.energy(was, view.forget), rel=1e-9)
    assert found.energy_after == pytest.approx(kit.energy(model, view.forget), rel=1e-9)

    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    states = [kit.state(m) for m in (was, model, reference)]
    with torch.no_grad():
        hidden = deepcopy(model).eval()[:4](view.batches[0])
    dead = (hidden == 0).all(0)
    assert not bool(dead.all())
    mask = {n: torch.ones_like(states[0][n], dtype=torch.bool) for n in trained}
    mask["4.weight"][:, dead] = False

    def length(a: Named, b: Named, *, reached: bool = True) -> float:
        return float(sum(((a[n] - b[n]) * (mask[n] if reached else ~mask[n])).square().sum() for n in trained) ** 0.5)

    nowhere = {n: torch.zeros_like(v) for n, v in states[0].items()}
    assert found.moved == pytest.approx(length(states[0], states[1]))
    assert found.moved_unreached == pytest.approx(length(states[0], states[1], reached=False))
    assert found.norm == pytest.approx(length(states[0], nowhere))
    assert found.distance_before == pytest.approx(length(states[0], states[2]))
    assert found.distance_after == pytest.approx(length(states[1], states[2]))
    assert found.relative_move == pytest.approx(found.moved / found.norm)
    assert [row.name for row in found.layers] == [n for n, _ in model.named_parameters()]
    for row in found.layers:
        assert row.moved**2 + row.moved_unreached**2 == pytest.approx(
            float((scale * shift.shifts[row.name]).square().sum())
        )
        assert (row.d, row.rank, row.captured, row.positions) == (None,) * 4
    assert found.seconds > 0
    assert found.notes == ("frozen parameters moved with the others: 1.weight",)
    json.dumps(found.as_json(), allow_nan=False)


def test_a_null_space_certificate_knows_its_bases(kit: Any) -> None:
    model, view = kit.network(norm=False), kit.view()
    few = replace(view, retain=(view.retain[0][:3], view.retain[1][:3]))
    was = deepcopy(model)
    _, found = teleporter(kit, model, NullSpace(energy=1.0, protect="retain", step_size=0.3)).teleport(
        few, generator=kit.generator()
    )
    rows = {row.name: row for row in found.layers}
    assert set(rows) == {"0.weight", "2.weight"}
    assert (rows["0.weight"].d, rows["0.weight"].rank, rows["0.weight"].positions) == (6, 3, 3)
    assert rows["2.weight"].d == 9
    assert rows["0.weight"].captured == pytest.approx(1.0)
    change = {n: kit.state(model)[n] - kit.state(was)[n] for n in kit.state(model)}
    both = (change["0.weight"].square().sum() + change["0.bias"].square().sum()) ** 0.5
    assert rows["0.weight"].moved == pytest.approx(float(both))
    assert rows["0.weight"].norm == pytest.approx(
        float((was[0].weight.square().sum() + was[0].bias.square().sum()).detach() ** 0.5)
    )
    assert found.moved_unreached == 0.0
    assert found.retain.relative < 1e-13
    assert found.energy_before == pytest.approx(kit.energy(was, view.forget), rel=1e-9)
    assert found.energy_after == pytest.approx(kit.energy(model, view.forget), rel=1e-9)
    assert found.energy_after < found.energy_before
    assert found.settings["protect"] == "retain"
    assert any("saw fewer inputs" in note for note in found.notes)


class WritesOver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(5, 20), nn.Linear(20, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        k = self.second(h)
        return self.out(F.relu_(h) + k)


def test_energies_that_cannot_be_measured_are_none_and_noted(kit: Any) -> None:
    for symmetry in (NullSpace(aim="random"), kit.Given(lambda model, probe: Translation({}))):
        _, found = teleporter(kit, WritesOver().double(), symmetry).teleport(kit.view(), generator=kit.generator())
        assert found.energy_before is None
        assert found.energy_after is None
        assert "gradient energies could not be measured on this network" in found.notes
        json.dumps(found.as_json(), allow_nan=False)


def test_without_a_forget_batch_nothing_is_said_of_it(kit: Any) -> None:
    view = replace(kit.view(), forget=None)
    for symmetry in (NullSpace(), ChangeOfBasis()):
        _, found = teleporter(kit, kit.network(), symmetry, relearning=0.0).teleport(view, generator=kit.generator())
        assert found.forget is found.energy_before is found.energy_after is None
        assert not any("energies" in note for note in found.notes)


def test_a_tied_weight_has_one_row(kit: Any) -> None:
    model = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 9), nn.Linear(9, 3))
    model = model.double()
    model[4].weight = model[2].weight
    view = replace(kit.view(), forget=None)
    few = replace(view, retain=(view.retain[0][:2], view.retain[1][:2]))
    _, found = teleporter(kit, model, NullSpace(energy=1.0)).teleport(few, generator=kit.generator())
    names = [row.name for row in found.layers]
    assert len(names) == len(set(names))
    assert "4.weight" not in names
    assert sum(row.moved**2 for row in found.layers) ** 0.5 == pytest.approx(found.moved)


def test_dead_taps_are_counted_apart(kit: Any) -> None:
    """A null-space move leaves them; a change of basis moves them with their kernels and hides nothing by it."""
    model = nn.Sequential(
        nn.Conv2d(5, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.Flatten(), nn.Linear(6, 3)
    ).double()
    view = kit.view()
    image = lambda pair: (pair[0][:, :, None, None], pair[1])  # noqa: E731
    view = View(image(view.retain), image(view.judges), image(view.forget), None)
    _, null = teleporter(kit, deepcopy(model), NullSpace(energy=0.9)).teleport(view, generator=kit.generator())
    assert null.moved_unreached == 0.0
    assert null.moved > 0
    moved = deepcopy(model)
    _, basis = teleporter(kit, moved, ChangeOfBasis()).teleport(view, generator=kit.generator())
    change = moved[0].weight - model[0].weight
    centre = torch.zeros(3, 3, dtype=torch.bool)
    centre[1, 1] = True
    row = next(row for row in basis.layers if row.name == "0.weight")
    assert row.moved == pytest.approx(float(change[..., centre].detach().norm()))
    assert row.moved_unreached == pytest.approx(float(change[..., ~centre].detach().norm()))
    assert row.share_unreached == pytest.approx(float((change[..., ~centre].norm() / change.norm()).detach() ** 2))
    assert basis.moved_unreached > 0


def test_what_pins_channels_is_told_also_from_inside_a_composition(kit: Any) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3)).double()
    for symmetry in (ChangeOfBasis(), Compose(NullSpace(), Compose(ChangeOfBasis(), Permutation()))):
        _, found = teleporter(kit, deepcopy(model), symmetry).teleport(kit.view(), generator=kit.generator())
        assert ("0.weight", 8) in {(p.tensor, p.count) for p in found.pinned}
        assert any("GELU" in reason for p in found.pinned for reason in p.reasons)


@pytest.mark.parametrize(
    "symmetry",
    [
        NullSpace(energy=0.9),
        ChangeOfBasis(),
        Permutation(),
        Compose(ChangeOfBasis(), NullSpace(energy=0.9), Permutation()),
        Compose(NullSpace(batch_norm="project")),
    ],
    ids=["null", "basis", "permutation", "compose", "project"],
)
def test_every_certificate_is_plain_data(kit: Any, symmetry: Any) -> None:
    model = kit.network()
    _, found = teleporter(kit, model, symmetry).teleport(kit.view(validation=True), generator=kit.generator())
    told = found.as_json()
    assert json.loads(json.dumps(told, allow_nan=False))["symmetry"] == type(symmetry).__name__

    def tensors(value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(tensors, value.values()))
        return any(map(tensors, value)) if isinstance(value, list | tuple) else isinstance(value, Tensor)

    assert not tensors(told)
    if isinstance(symmetry, Compose) and len(symmetry.symmetries) == 3:
        assert [part["name"] for part in told["settings"]["symmetries"]] == [
            "ChangeOfBasis",
            "NullSpace",
            "Permutation",
        ]
        assert told["settings"]["symmetries"][1]["options"]["energy"] == 0.9
        assert found.energy_before == pytest.approx(kit.energy(kit.network(), kit.view().forget), rel=1e-9)
        assert found.energy_after == pytest.approx(kit.energy(model, kit.view().forget), rel=1e-9)
        assert set(found.left) == {"1.weight", "1.bias"} | ({"0.weight", "0.bias"} & set(found.left))


KEPT = ("symmetry", "settings", "scale", "left", "energy_before", "energy_after")
DISTANCES = ("moved", "moved_unreached", "norm", "distance_before", "distance_after")


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("tolerance", [1e6, 1e-3, -1.0, None])
@pytest.mark.parametrize("make", [lambda: NullSpace(energy=0.6, step_size=0.6), ChangeOfBasis, Permutation])
def test_a_brief_certificate_agrees_with_the_full_one(
    kit: Any, make: Any, tolerance: float | None, validation: bool
) -> None:
    """The same move from the same generator, the same weights after it, and every number that both have."""
    found, states = {}, {}
    view = kit.view(validation=validation)
    for certify in ("full", "brief"):
        model = kit.network()
        model[1].bias.requires_grad_(False)
        reference = kit.state(kit.at(model, kit.shift(model, 0.3, seed=5).shifts))
        bounds: dict[str, Any] = {"tolerance": tolerance, "halvings": 2, "certify": certify}
        move, found[certify] = Teleporter(model, make(), reference, **bounds).teleport(view, generator=kit.generator())
        states[certify] = kit.state(model)
        assert (move is None) == (found[certify].scale == 0.0)
    full, brief = found["full"], found["brief"]
    assert kit.same(states["full"], states["brief"])
    assert all(getattr(brief, name) == getattr(full, name) for name in KEPT)
    for name in DISTANCES:
        assert getattr(brief, name) == pytest.approx(getattr(full, name), rel=1e-9, abs=1e-12), name
    assert brief.relative_move == pytest.approx(full.relative_move, rel=1e-9)
    assert brief.forget == full.forget
    judged = full.held_out if not validation else None
    assert judged is None or brief.retain == judged
    assert brief.retain.examples == len(view.judges[1])
    assert (brief.held_out, brief.layers, brief.pinned) == (None, (), ())
    assert brief.notes[:-1] == full.notes
    assert "brief certificate" in brief.notes[-1]
    assert not any("brief" in note for note in full.notes)
    json.dumps(brief.as_json())


def test_brief_distances_leave_out_what_no_input_reaches(kit: Any) -> None:
    view = kit.view()
    view.retain[0][:, 2] = 0
    view.forget[0][:, 2] = 0
    found = []
    for certify in ("full", "brief"):
        model = kit.network(norm=False)
        reference = {n: v + 1.0 for n, v in kit.state(model).items()}
        symmetry = NullSpace(energy=0.8)
        found.append(
            Teleporter(model, symmetry, reference, certify=certify).teleport(view, generator=kit.generator())[1]
        )
    assert found[0].distance_before < sum(p.numel() for p in model.parameters()) ** 0.5
    for name in DISTANCES:
        assert getattr(found[1], name) == pytest.approx(getattr(found[0], name), rel=1e-9)


@pytest.mark.parametrize("halved", [0, 1, 2])
def test_how_far_a_longer_part_went_than_the_last_time_is_told_all_the_same(kit: Any, halved: int) -> None:
    model, view = kit.network(), kit.view()
    found = teleporter(kit, model, NullSpace(energy=0.9), certify="brief", tolerance=10.0)
    found._judging.halved = halved
    before = kit.state(model)
    move, certificate = found.teleport(view, generator=kit.generator())
    assert move is not None
    assert certificate.scale == 1.0
    after = kit.state(model)
    moved = sum(float((after[name] - before[name]).square().sum()) for name in after) ** 0.5
    assert moved > 0
    whole = (certificate.moved**2 + certificate.moved_unreached**2) ** 0.5
    assert whole == pytest.approx(moved, rel=1e-6)


@pytest.mark.parametrize("certify", ["full", "brief"])
def test_the_energy_of_a_part_is_that_of_the_model_as_it_stands(kit: Any, redone: list[Any], certify: str) -> None:
    """By a graph, with the trial that is likely to be kept or after one that was not."""
    model, view, scales = kit.network(), kit.view(), []
    assert view.forget is not None
    symmetry = NullSpace(energy=0.5, step_size=0.6, halvings=0)
    found = teleporter(kit, model, symmetry, certify=certify, tolerance=0.002, halvings=8)
    for _ in range(4):
        _, certificate = found.teleport(view, generator=kit.generator())
        scales.append(certificate.scale)
        assert certificate.energy_after == pytest.approx(kit.energy(model, view.forget), rel=1e-6)
    assert any(0 < scale < 1 for scale in scales)
    assert len(redone) == 2


@pytest.mark.parametrize("certify", ["full", "brief"])
def test_frozen_parameters_that_move_are_named(kit: Any, certify: str) -> None:
    model, view = kit.network(), kit.view()
    _, before = teleporter(kit, model, ChangeOfBasis(), certify=certify).teleport(view, generator=kit.generator())
    assert not any("frozen" in note for note in before.notes)
    frozen = [name for name, p in model.named_parameters() if p.requires_grad][:2]
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    _, found = teleporter(kit, model, ChangeOfBasis(), certify=certify).teleport(view, generator=kit.generator())
    (note,) = (note for note in found.notes if "frozen" in note)
    assert note.endswith(f": {frozen[0]} and 1 more")
    _, still = teleporter(kit, model, NullSpace(), certify=certify).teleport(view, generator=kit.generator())
    assert not any("frozen parameters moved" in note for note in still.notes)
