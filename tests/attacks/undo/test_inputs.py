from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.attacks.undo import inputs
from warp_unlearning.attacks.undo.base import Held, NotApplicable, difference
from warp_unlearning.attacks.undo.inputs import (
    InputLayer,
    Span,
    WienerFilter,
    first_layers,
    implied_inputs,
    input_spectra,
)
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.symmetry.base import Probe
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.null_space import NullSpace

LAYERS = ("stem", "first", "inner", "last", "head")


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


def joined(model: nn.Module, values: Mapping[str, Tensor], path: str) -> Tensor:
    """[W b] as rows (groups, rows, d)."""
    layer = model.get_submodule(path)
    groups = getattr(layer, "groups", 1)
    weight = values[f"{path}.weight"].flatten(1).reshape(groups, len(layer.weight) // groups, -1)
    if layer.bias is None:
        return weight
    return torch.cat([weight, values[f"{path}.bias"].reshape(*weight.shape[:2], 1)], dim=2)


def leading(values: Tensor, energy: float) -> int:
    return int((values.square().cumsum(0) / values.square().sum() < energy).sum()) + 1


def test_no_linear_layer_is_not_applicable(kit) -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(NotApplicable, match="Linear"):
        input_spectra(Held(model, kit.points(3)))


def test_inputs_that_are_not_finite_are_refused(kit) -> None:
    model = kit.residual(norm="none")
    with torch.no_grad():
        model.stem.weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(DataError, match="NaN"):
        input_spectra(kit.held(model))


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


@pytest.mark.parametrize("inner", ["plain", "grouped"])
@pytest.mark.parametrize("count", [2, 80])
def test_span_projects_on_the_leading_singular_vectors_of_all_patches(kit, inner, count) -> None:
    model = kit.residual(inner=inner)
    held = kit.held(model, count)
    stepped = kit.stepped(model, {n: kit.normal(*p.shape) for n, p in model.named_parameters()}, 1.0)
    after = difference(model, Span().prepared(held)(stepped.state_dict()))
    before = difference(model, stepped.state_dict())
    for path in LAYERS:
        found, given = (joined(model, values, path) for values in (after, before))
        for rows, one, other in zip(patches(model, path, held.x), found, given, strict=True):
            _, values, right = torch.linalg.svd(rows, full_matrices=False)
            basis = right[: leading(values, 0.9)]
            torch.testing.assert_close(one, other @ basis.mT @ basis, rtol=1e-8, atol=1e-8)
    # Batch norms are no linear layers.
    torch.testing.assert_close(after["norms.0.weight"], before["norms.0.weight"])


@pytest.mark.parametrize("energy", [0.0, 1.5])
def test_the_energy_is_a_share(energy) -> None:
    with pytest.raises(InputError, match="above 0 and at most 1"):
        Span(energy=energy)


@pytest.mark.parametrize("inner", ["plain", "grouped"])
@pytest.mark.parametrize("count", [2, 40])
def test_filter_has_wieners_coefficient_in_every_direction(kit, inner, count) -> None:
    model = kit.residual(inner=inner, width=2)
    held = kit.held(model, count)
    stepped = kit.stepped(model, {n: kit.normal(*p.shape) for n, p in model.named_parameters()}, 1.0)
    before = difference(model, stepped.state_dict())
    after = difference(model, WienerFilter().prepared(held)(stepped.state_dict()))
    gradients = [kit.gradient(model, held.x[i : i + 1], held.y[i : i + 1]) for i in range(count)]

    found, size, reference = [], 0.0, 0.0
    for path in LAYERS:
        given, result = joined(model, before, path), joined(model, after, path)
        units = [joined(model, g, path) / kit.norm(g) for g in gradients]
        for group, rows in enumerate(patches(model, path, held.x)):
            _, values, right = torch.linalg.svd(rows)
            kept = int((values > 1e-7 * values[0]).sum())
            seen = (given[group] @ right.mT).square().sum(0)
            expected = torch.stack([(unit[group] @ right.mT).square().sum(0) for unit in units]).mean(0)
            expected[kept:] = 0  # gradients of the probes do not reach beside their inputs
            size += seen[: leading(values, 0.9)].sum()
            reference += expected[: leading(values, 0.9)].sum()
            found.append((right, seen, expected, given[group], result[group]))
    for right, seen, expected, given, result in found:
        share = (size / reference * expected / seen).clamp(max=1)
        torch.testing.assert_close(result, given @ right.mT * share @ right, rtol=1e-6, atol=1e-8)


def test_a_layer_too_large_is_known_by_a_sample_and_filtered_as_one_beside_it(kit, monkeypatch) -> None:
    model = kit.residual(width=8)
    held, sampled = kit.held(model, 40), kit.held(model, 40)
    whole = next(s for s in held.once(input_spectra) if s.weight == "inner.weight")
    monkeypatch.setattr(inputs, "MOST_PRODUCTS", 1)
    part = next(s for s in sampled.once(input_spectra) if s.weight == "inner.weight")
    basis = part.vectors[0]
    assert 40 <= basis.shape[1] < whole.vectors[0].shape[1]
    assert float((basis.mT @ whole.vectors[0][:, :3]).square().sum()) > 2.7
    stepped = kit.stepped(model, {n: kit.normal(*p.shape) for n, p in model.named_parameters()}, 1.0)
    before = joined(model, difference(model, stepped.state_dict()), "inner")[0]
    undone = WienerFilter().prepared(sampled)(stepped.state_dict())
    after = joined(model, difference(model, undone), "inner")[0]
    beside, left = (rows - rows @ basis @ basis.mT for rows in (before, after))
    share = float((left * beside).sum() / beside.square().sum())
    assert 0 < share < 1
    torch.testing.assert_close(left, share * beside, rtol=1e-5, atol=1e-7)


def test_it_finds_a_gradient_under_a_long_move_in_the_null_space(kit) -> None:
    model = kit.residual(width=6)
    held = kit.held(model, 60)
    gradient = kit.gradient(model, *kit.points(1, seed=50))
    noise = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for spectrum in held.once(input_spectra):
        drawn = {name: kit.normal(*value.shape) for name, value in noise.items()}
        k = spectrum.ranks(0.99)[0]
        rows = spectrum.rows(drawn)[0]
        lead = spectrum.vectors[0][:, :k]
        noise |= spectrum.parameters((rows - rows @ lead @ lead.mT)[None], drawn)
    moved = kit.stepped(kit.stepped(model, gradient, 0.01), noise, 0.1)
    undone = WienerFilter().prepared(held)(moved.state_dict())
    assert kit.cosine(difference(model, moved.state_dict()), gradient) < 0.2
    assert kit.cosine(difference(model, undone), gradient) > 0.7


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 1.5))
def test_the_input_of_a_fully_connected_first_layer_whatever_the_scales(kit, seed, spread) -> None:
    model = kit.settled(nn.Sequential(nn.Flatten(), nn.Linear(32, 10), nn.ReLU(), nn.Linear(10, 4)), seed)
    x, y = kit.points(1, seed=seed + 1)
    step = kit.conjugated(model, kit.gradient(model, x, y), spread=spread, seed=seed)
    held = kit.held(model, 2)
    unlearned = kit.stepped(model, step, 1.0).state_dict()
    for state in (unlearned, InputLayer().prepared(held)(unlearned)):
        rows = implied_inputs(held, state)["1.weight"]
        alive = ~rows.isnan().any(1)
        assert torch.equal(alive, step["1.bias"] != 0)
        torch.testing.assert_close(rows[alive], x.flatten(1).expand(int(alive.sum()), -1), rtol=1e-6, atol=1e-6)


def test_rows_of_the_first_layer_have_one_length_and_all_else_is_the_originals(kit) -> None:
    model = kit.residual()
    gradient = kit.gradient(model, *kit.points(1, seed=3))
    gradient["stem.weight"][1], gradient["stem.bias"][1] = 0, 0
    step = kit.conjugated(model, gradient, spread=1.0)
    stepped = kit.stepped(model, step, 0.5)
    naive = difference(model, stepped.state_dict())
    undone = InputLayer().prepared(kit.held(model, 2))(stepped.state_dict())
    found = difference(model, undone)
    assert all(bool((value == 0).all()) for name, value in found.items() if not name.startswith("stem."))
    joined, truth = (torch.cat([d["stem.weight"].flatten(1), d["stem.bias"][:, None]], 1) for d in (found, gradient))
    rows = [0, 2, 3]
    expected = torch.nn.functional.normalize(truth[rows], dim=1)
    torch.testing.assert_close(torch.nn.functional.normalize(joined[rows], dim=1), expected)
    torch.testing.assert_close(joined[rows].norm(dim=1), joined[0].norm().expand(3))
    assert bool((joined[1] == 0).all())
    first = {name: naive[name] for name in ("stem.weight", "stem.bias")}
    assert abs(float(joined.norm()) - kit.norm(first)) < 1e-12


class TwoReaders(nn.Module):
    """Two layers read the input, one of them after a fixed normalisation; a frozen layer lies before a third."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 4, bias=False)
        self.frozen, self.behind, self.unused = nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(3, 4)
        self.register_buffer("mean", torch.ones(3))
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x - self.mean) + self.two(input=x.abs()) + self.behind(self.frozen(x))


def test_first_layers_are_those_that_no_weights_lie_before(kit) -> None:
    model = TwoReaders()
    held = Held(model, (torch.ones(2, 3), torch.zeros(2, dtype=torch.long)))
    assert [weight.name for weight in first_layers(held)] == ["one.weight", "two.weight", "frozen.weight"]
    assert not model.frozen.weight.requires_grad
    assert not any(m._forward_pre_hooks for m in held.model.modules())
    assert set(implied_inputs(held, model.state_dict())) == {"one.weight", "frozen.weight"}


def test_no_layer_at_the_input_is_not_applicable(kit) -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(NotApplicable, match="fully connected"):
        implied_inputs(kit.held(kit.residual()), kit.residual().state_dict())
    with pytest.raises(NotApplicable, match="reads its input"):
        InputLayer().prepared(Held(model, (torch.ones(2, 2, dtype=torch.long), torch.zeros(2, dtype=torch.long))))
