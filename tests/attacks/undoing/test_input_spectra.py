from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.attacks.undoing import Held, NotApplicable, input_spectra
from warp_unlearning.attacks.undoing.input_spectra import input_spectra as spectra_of
from warp_unlearning.errors import DataError


def patches(model: nn.Module, path: str, x: Tensor) -> Tensor:
    """Inputs [p; 1] of every group, (groups, n, d), by unfolding channels of one group at a time."""
    layer = model.get_submodule(path)
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        model(x)
    handle.remove()
    if isinstance(layer, nn.Linear):
        rows = [seen[0].reshape(-1, seen[0].shape[-1])]
    else:
        parts = seen[0].chunk(layer.groups, dim=1)
        rows = [F.unfold(p, layer.kernel_size, padding=layer.padding).mT.flatten(0, 1) for p in parts]
    stacked = torch.stack(rows)
    return stacked if layer.bias is None else torch.cat([stacked, torch.ones_like(stacked[..., :1])], dim=2)


@pytest.mark.parametrize("inner", ["plain", "grouped"])
@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize("batch", [1, 64])
def test_spectra_are_the_singular_values_and_vectors_of_all_patches(kit, monkeypatch, inner, count, batch) -> None:
    monkeypatch.setattr(input_spectra, "_BATCH", batch)
    held = kit.held(kit.residual(inner=inner), count)
    found = {spectrum.weight: spectrum for spectrum in spectra_of(held)}
    assert set(found) == {"stem.weight", "first.weight", "inner.weight", "last.weight", "head.weight"}
    for name, spectrum in found.items():
        rows = patches(held.model, name.removesuffix(".weight"), held.x)
        assert len(spectrum.vectors) == len(rows)
        for group, vectors, energies in zip(rows, spectrum.vectors, spectrum.energies, strict=True):
            values = torch.linalg.svdvals(group).square()
            torch.testing.assert_close(energies[: len(values)], values[: len(energies)], rtol=1e-7, atol=1e-9)
            k = int((values > 1e-9 * values[0]).sum())
            lead = vectors[:, :k]
            torch.testing.assert_close(lead.mT @ lead, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-9)
            torch.testing.assert_close(group @ lead @ lead.mT, group, rtol=1e-7, atol=1e-7)
            torch.testing.assert_close((group @ lead).square().sum(0), energies[:k], rtol=1e-6, atol=1e-9)


def test_rows_and_parameters_are_inverse(kit) -> None:
    held = kit.held(kit.residual(inner="grouped"))
    for spectrum in spectra_of(held):
        rows = spectrum.rows(held.weights)
        for name, value in spectrum.parameters(rows, held.weights).items():
            assert torch.equal(value, held.weights[name])
        stack = {name: torch.stack([held.weights[name], 2 * held.weights[name]]) for name in spectrum.names}
        both = spectrum.rows(stack, points=2)
        assert torch.equal(both, torch.cat([rows, 2 * rows], dim=1))


def test_a_layer_too_large_is_known_by_a_sample(kit, monkeypatch) -> None:
    held = kit.held(kit.residual(width=8), 40)
    whole = {s.weight: s for s in spectra_of(held)}
    monkeypatch.setattr(input_spectra, "_PRODUCTS", 1)
    part = {s.weight: s for s in spectra_of(held)}
    name = "inner.weight"
    assert 40 <= part[name].vectors[0].shape[1] < whole[name].vectors[0].shape[1]
    basis = part[name].vectors[0]
    torch.testing.assert_close(basis.mT @ basis, torch.eye(basis.shape[1], dtype=torch.float64), rtol=0, atol=1e-9)
    lead = whole[name].vectors[0][:, :3]
    assert float((basis.mT @ lead).square().sum()) > 2.7


def test_no_linear_layer_is_not_applicable(kit) -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(NotApplicable, match="Linear"):
        spectra_of(Held(model, kit.points(3)))


def test_inputs_that_are_not_finite_are_refused(kit) -> None:
    model = kit.residual(norm="none")
    with torch.no_grad():
        model.stem.weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(DataError, match="NaN"):
        spectra_of(kit.held(model))
