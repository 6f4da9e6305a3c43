from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.undoing import Held, NotApplicable, probe_gradients
from warp_unlearning.attacks.undoing.kernels import kernels
from warp_unlearning.attacks.undoing.probe_gradients import ProbeGradients


def slow(kit, held: Held, i: int) -> dict[str, Tensor]:
    found = kit.gradient(held.model, held.x[i : i + 1], held.y[i : i + 1])
    return {name: g / kit.norm(found) for name, g in found.items()}


@pytest.mark.parametrize("kept", [0, 2**28])
def test_gradients_and_lengths_near_a_difference_are_those_of_a_loop(kit, monkeypatch, kept) -> None:
    monkeypatch.setattr(probe_gradients, "_KEPT", kept)
    monkeypatch.setattr(probe_gradients, "_CHUNK", 7 * 2500)
    held = kit.held(kit.residual(), 20)
    probes = ProbeGradients(held)
    sizes = [len(chunk["head.bias"]) for chunk in probes]
    assert sum(sizes) == 20
    assert len(sizes) > 1
    expected = [slow(kit, held, i) for i in range(20)]
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
    nearest = sorted(range(20), key=lambda i: -alike[i])[:8]
    lengths = probes.lengths_near(delta)
    for name, value in delta.items():
        near = torch.stack([kernels(expected[i][name], value.dim()).norm(dim=-1) for i in nearest])
        torch.testing.assert_close(lengths[name], near.square().mean(0).sqrt())


def test_a_gradient_of_length_zero_stays_zero(kit) -> None:
    held = Held(nn.Sequential(nn.Linear(3, 1)), (kit.normal(4, 3).float(), torch.zeros(4, dtype=torch.long)))
    assert all(bool((g == 0).all()) for chunk in ProbeGradients(held) for g in chunk.values())


def test_a_network_without_single_gradients_is_not_applicable(kit) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if bool(x.sum() > 0) else -self.layer(x)

    with pytest.raises(NotApplicable, match="gradients of single examples"):
        ProbeGradients(Held(Branching(), (torch.ones(2, 2), torch.zeros(2, dtype=torch.long))))
