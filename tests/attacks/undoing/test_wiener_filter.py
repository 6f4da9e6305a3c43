from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.attacks.undoing import Held, difference, input_spectra
from warp_unlearning.attacks.undoing.wiener_filter import WienerFilter


@pytest.mark.parametrize("count", [5, 40])
def test_it_is_wieners_coefficient_in_every_direction(kit, count) -> None:
    model = kit.settled(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)))
    held = Held(model, kit.points(count, shape=(8,)))
    stepped = kit.stepped(model, {n: kit.normal(*p.shape) for n, p in model.named_parameters()}, 1.0)
    before = difference(model, stepped.state_dict())
    after = difference(model, WienerFilter().prepared(held)(stepped.state_dict()))

    directions, seen, expected = {}, {}, {}
    for layer in ("0", "2"):
        inputs = held.x if layer == "0" else torch.relu(model[0](held.x))
        rows = torch.cat([inputs, torch.ones(count, 1, dtype=torch.float64)], dim=1).detach()
        _, values, right = torch.linalg.svd(rows)
        kept = int((values > 1e-7 * values[0]).sum())
        lead = int((values.square().cumsum(0) / values.square().sum() < 0.9).sum()) + 1
        delta = torch.cat([before[f"{layer}.weight"], before[f"{layer}.bias"][:, None]], dim=1)
        seen[layer] = (delta @ right.mT).square().sum(0)
        expected[layer] = torch.zeros_like(seen[layer])
        for i in range(count):
            g = kit.gradient(model, held.x[i : i + 1], held.y[i : i + 1])
            joined = torch.cat([g[f"{layer}.weight"], g[f"{layer}.bias"][:, None]], dim=1) / kit.norm(g)
            expected[layer] += (joined @ right.mT).square().sum(0) / count
        directions[layer] = (right, kept, lead, delta)
    size = sum(seen[n][:k].sum() for n, (_, _, k, _) in directions.items())
    size = size / sum(expected[n][:k].sum() for n, (_, _, k, _) in directions.items())
    for layer, (right, kept, _, delta) in directions.items():
        share = (size * expected[layer] / seen[layer]).clamp(max=1)
        share[kept:] = 0  # the gradients of probe points do not reach beside their inputs
        result = delta @ right.mT * share @ right
        torch.testing.assert_close(after[f"{layer}.weight"], result[:, :-1], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(after[f"{layer}.bias"], result[:, -1], rtol=1e-6, atol=1e-8)


def test_what_lies_beside_a_sample_of_inputs_is_one_direction(kit, monkeypatch) -> None:
    monkeypatch.setattr(input_spectra, "_PRODUCTS", 1)
    model = kit.residual(width=8)
    held = kit.held(model, 30)
    spectrum = next(s for s in held.once(input_spectra.input_spectra) if s.weight == "inner.weight")
    basis = spectrum.vectors[0]
    stepped = kit.stepped(model, {n: kit.normal(*p.shape) for n, p in model.named_parameters()}, 1.0)
    before = spectrum.rows(difference(model, stepped.state_dict()))[0]
    after = spectrum.rows(difference(model, WienerFilter().prepared(held)(stepped.state_dict())))[0]
    beside = before - before @ basis @ basis.mT
    left = after - after @ basis @ basis.mT
    share = float((left * beside).sum() / beside.square().sum())
    assert 0 < share < 1
    torch.testing.assert_close(left, share * beside, rtol=1e-5, atol=1e-7)


def test_it_finds_a_gradient_under_a_long_move_in_the_null_space(kit) -> None:
    model = kit.residual(width=6)
    held = kit.held(model, 60)
    gradient = kit.gradient(model, *kit.points(1, seed=50))
    noise = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for spectrum in held.once(input_spectra.input_spectra):
        drawn = {name: kit.normal(*noise[name].shape) for name in spectrum.names}
        k = spectrum.ranks(0.99)[0]
        rows = spectrum.rows(drawn)[0]
        lead = spectrum.vectors[0][:, :k]
        noise |= spectrum.parameters((rows - rows @ lead @ lead.mT)[None], drawn)
    moved = kit.stepped(kit.stepped(model, gradient, 0.01), noise, 0.1)
    undone = WienerFilter().prepared(held)(moved.state_dict())
    assert kit.cosine(difference(model, moved.state_dict()), gradient) < 0.2
    assert kit.cosine(difference(model, undone), gradient) > 0.7
