from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F

from warp_unlearning.attacks.undoing import difference
from warp_unlearning.attacks.undoing.input_spectra import input_spectra
from warp_unlearning.attacks.undoing.span import Span
from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.base import Probe
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.null_space import NullSpace


@pytest.mark.parametrize("inner", ["plain", "grouped"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_null_space_move_has_no_component_at_full_energy(kit, inner, count) -> None:
    model = kit.residual(inner=inner, flat=True)
    held = kit.held(model, count)
    symmetry = NullSpace(energy=1.0, step_size=0.3)
    probe = Probe([held.x], (held.x[:1], held.y[:1]), model.state_dict())
    moved = deepcopy(model)
    apply_move(moved, symmetry.move(moved, generator=torch.Generator().manual_seed(0), probe=probe))
    undone = Span(energy=1.0).prepared(held)(moved.state_dict())
    before, after = difference(model, moved.state_dict()), difference(model, undone)
    assert kit.norm(before) > 0.1
    assert float(before["head.bias"].norm()) > 1e-6
    assert kit.norm(after) < 1e-8 * kit.norm(before)


def test_gradients_of_probe_points_pass(kit) -> None:
    model = kit.residual(inner="grouped")
    held = kit.held(model, 30)
    gradient = kit.gradient(model, held.x[:3], held.y[:3])
    undone = Span(energy=1.0).prepared(held)(kit.stepped(model, gradient, 1.0).state_dict())
    after = difference(model, undone)
    for name, value in gradient.items():
        torch.testing.assert_close(after[name], value / kit.norm(gradient), rtol=1e-6, atol=1e-9)


def test_the_default_keeps_leading_directions_alone(kit) -> None:
    model = kit.residual()
    held = kit.held(model)
    step = {n: kit.normal(*p.shape) for n, p in model.named_parameters()}
    stepped = kit.stepped(model, step, 1.0)
    after = difference(model, Span().prepared(held)(stepped.state_dict()))
    before = difference(model, stepped.state_dict())
    spectrum = next(s for s in input_spectra(held) if s.weight == "first.weight")
    rows = F.unfold(F.relu(model.norms[0](model.stem(held.x))), 3, padding=1).mT.flatten(0, 1).detach()
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    share = values.square().cumsum(0) / values.square().sum()
    k = int((share < 0.9).sum()) + 1
    assert spectrum.ranks(0.9) == (k,)
    expected = before["first.weight"].flatten(1) @ right[:k].mT @ right[:k]
    torch.testing.assert_close(after["first.weight"].flatten(1), expected, rtol=1e-8, atol=1e-8)
    # Batch norms are no linear layers.
    torch.testing.assert_close(after["norms.0.weight"], before["norms.0.weight"])


@pytest.mark.parametrize("energy", [0.0, 1.5])
def test_the_energy_is_a_share(energy) -> None:
    with pytest.raises(InputError, match="above 0 and at most 1"):
        Span(energy=energy)
