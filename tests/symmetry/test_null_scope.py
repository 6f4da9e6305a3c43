from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.symmetry.input_bases import exact_bases
from warp_unlearning.symmetry.null_scope import Scope, scope_of


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1, groups=2),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.Conv2d(6, 4, 1, bias=False),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def scope(kit: Any, model: nn.Module, x: Tensor, energy: float = 1.0) -> Scope:
    return scope_of(model, exact_bases(model, [x], energy=energy), x, {})


def noise(kit: Any, model: nn.Module, names: list[str]) -> dict[str, Tensor]:
    shapes = {n: p.shape for n, p in model.named_parameters()}
    return {n: kit.normal(*shapes[n], seed=i) for i, n in enumerate(names)}


@pytest.mark.parametrize("energy", [1.0, 0.6])
def test_a_projection_is_that_of_the_explicit_matrix(kit: Any, energy: float) -> None:
    model, x = kit.built(network), kit.normal(1, 4, 2, 2)
    found = scope(kit, model, x, energy)
    assert found.names == ["0.weight", "0.bias", "3.weight", "5.weight", "5.bias"]
    given_ = noise(kit, model, found.names)
    expected = kit.beside(model, given_, [x], energy=energy)
    projected = found.project(given_)
    for name, value in expected.items():
        torch.testing.assert_close(projected[name], value, rtol=1e-9, atol=1e-12)
    again = found.project(projected)
    for name, value in projected.items():
        torch.testing.assert_close(again[name], value, rtol=0, atol=1e-13)


def test_what_lies_in_the_span_has_no_direction_left(kit: Any) -> None:
    """Rounding errors of a projection would point anywhere; in float32 they are larger."""
    for kind in (torch.float64, torch.float32):
        model, x = kit.built(lambda: nn.Linear(30, 4)).to(kind), kit.normal(6, 30).to(kind)
        found = scope(kit, model, x)
        rows = torch.cat([x, torch.ones(6, 1, dtype=kind)], dim=1)
        inside = kit.normal(4, 6, seed=2).to(kind) @ rows
        left = found.project({"weight": inside[:, :-1], "bias": inside[:, -1]})
        assert all(bool((v == 0).all()) for v in left.values())
        tilted = inside + 1e-3 * kit.normal(4, 31, seed=3).to(kind)
        left = found.project({"weight": tilted[:, :-1], "bias": tilted[:, -1]})
        assert all(float(v.norm()) > 1e-4 for v in left.values())


def test_reached_leaves_out_what_no_input_touches(kit: Any) -> None:
    model, x = kit.built(network), kit.normal(1, 4, 1, 1)
    x[:, 2] = 0
    model[5] = nn.Linear(4, 3).double()
    found = scope(kit, model, x)
    ones = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    reached = found.reached(ones)
    assert set(reached) == set(found.names)
    expected = torch.zeros(6, 2, 3, 3, dtype=torch.float64)
    expected[:, :, 1, 1] = 1
    expected[3:, 0] = 0
    assert torch.equal(reached["0.weight"], expected)
    assert all(torch.equal(reached[n], ones[n]) for n in found.names if n != "0.weight")
    projected = found.project(noise(kit, model, found.names))
    assert bool((projected["0.weight"][expected == 0] == 0).all())
    assert float(projected["0.weight"].norm()) > 0


def test_every_parameter_either_moves_or_says_why_not(kit: Any) -> None:
    model, x = kit.built(network), kit.normal(1, 4, 2, 2)
    model[3].weight.requires_grad_(False)
    found = scope(kit, model, x)
    assert set(found.names) | set(found.left) == set(dict(model.named_parameters()))
    assert not set(found.names) & set(found.left)
    assert found.left == {
        "1.weight": "one-dimensional",
        "1.bias": "one-dimensional",
        "3.weight": "frozen: requires_grad is False",
    }


class SharedBias(nn.Module):
    """One bias in two layers of different weights, and one that the network itself reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(9, 9), nn.Linear(9, 9)
        self.second.bias = self.first.bias
        self.last = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x))))) * self.last.bias


def test_a_bias_moves_only_with_a_weight_that_owns_it(kit: Any) -> None:
    model, x = kit.built(SharedBias), kit.normal(3, 9)
    found = scope(kit, model, x)
    assert found.names == ["first.weight", "second.weight", "last.weight"]
    assert found.left == {"first.bias": "one-dimensional", "last.bias": "one-dimensional"}
    shifts = found.project(noise(kit, model, found.names))
    with torch.no_grad():
        assert float((kit.shifted(model, shifts)(x) - model(x)).abs().max()) < 1e-12
