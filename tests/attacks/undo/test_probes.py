from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from warp_unlearning.attacks.undo.base import Held, NotApplicable, difference
from warp_unlearning.attacks.undo.channels import kernels
from warp_unlearning.attacks.undo.probes import ProbeGradients, ScaleFree


def slow(kit, held: Held, i: int) -> dict[str, Tensor]:
    found = kit.gradient(held.model, held.x[i : i + 1], held.y[i : i + 1])
    return {name: g / kit.norm(found) for name, g in found.items()}


def test_gradients_and_lengths_near_a_difference_are_those_of_a_loop(kit) -> None:
    # More points than are computed at once.
    held = kit.held(kit.residual(), 40)
    probes = ProbeGradients(held)
    assert len(list(probes)) > 1
    expected = [slow(kit, held, i) for i in range(40)]
    for name in expected[0]:
        whole = torch.cat([chunk[name] for chunk in probes])
        torch.testing.assert_close(whole, torch.stack([g[name] for g in expected]))
    delta = {name: kit.normal(*p.shape, seed=8) for name, p in held.model.named_parameters()}
    alike = []
    for g in expected:
        total = 0.0
        for name, value in delta.items():
            q, d = kernels(g[name], value.dim()), kernels(value, value.dim())
            total += float((q.norm(dim=-1) * (q * d).sum(-1) / d.norm(dim=-1)).sum())
        alike.append(total)
    nearest = sorted(range(40), key=lambda i: -alike[i])[:8]
    lengths = probes.lengths_near(delta)
    for name, value in delta.items():
        near = torch.stack([kernels(expected[i][name], value.dim()).norm(dim=-1) for i in nearest])
        torch.testing.assert_close(lengths[name], near.square().mean(0).sqrt())


def test_a_gradient_of_length_zero_stays_zero(kit) -> None:
    held = Held(nn.Sequential(nn.Linear(3, 1)), (kit.normal(4, 3).float(), torch.zeros(4, dtype=torch.long)))
    assert all(bool((g == 0).all()) for chunk in ProbeGradients(held) for g in chunk.values())


def test_a_network_that_branches_on_values_is_not_applicable() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if bool(x.sum() > 0) else -self.layer(x)

    with pytest.raises(NotApplicable, match="gradients of single examples"):
        ProbeGradients(Held(Branching(), (torch.ones(2, 2), torch.zeros(2, dtype=torch.long))))


def test_scale_free_does_not_see_factors_of_channels(kit) -> None:
    model = kit.residual(inner="grouped")
    held = kit.held(model)
    gradient = kit.gradient(model, *kit.points(1, seed=5))
    undo = ScaleFree().prepared(held)
    plain = difference(model, undo(kit.stepped(model, gradient, 1.0).state_dict()))
    step = kit.conjugated(model, gradient, spread=1.0)
    assert kit.cosine(step, gradient) < 0.6
    moved = difference(model, undo(kit.stepped(model, step, 1.0).state_dict()))
    for name, value in plain.items():
        torch.testing.assert_close(moved[name], value, rtol=1e-6, atol=1e-9)


def test_scale_free_keeps_directions_and_gives_lengths_of_probe_gradients(kit) -> None:
    model = kit.residual()
    held = kit.held(model)
    step = {n: kit.normal(*p.shape) for n, p in model.named_parameters()}
    found = difference(model, ScaleFree().prepared(held)(kit.stepped(model, step, 0.3).state_dict()))
    assert abs(kit.norm(found) - 0.3) < 1e-9
    lengths = ProbeGradients(held).lengths_near(step)
    scale = 0.3 / kit.norm(lengths)
    for name, value in step.items():
        unit = normalize(kernels(value, value.dim()), dim=-1)
        expected = (unit * scale * lengths[name][..., None]).reshape(value.shape)
        torch.testing.assert_close(found[name], expected, rtol=1e-6, atol=1e-9)
