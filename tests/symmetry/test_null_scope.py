from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.symmetry.input_bases import exact_bases
from warp_unlearning.symmetry.null_scope import (
    Scope,
    batch_norm_features,
    combined,
    inner,
    norm_of,
    scope_of,
)


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


@given(st.integers(1, 5), st.integers(2, 6), st.floats(0.3, 0.95) | st.just(1.0), st.booleans())
def test_batch_norm_features_are_the_leading_channels(
    kit: Any, count: int, channels: int, energy: float, image: bool
) -> None:
    norm: nn.Module = nn.BatchNorm2d(channels) if image else nn.BatchNorm1d(channels)
    model = kit.built(lambda: nn.Sequential(nn.Identity(), norm))
    shape = (count, channels, 2, 3) if image else (count, channels)
    batches = [kit.normal(*shape, seed=i) for i in range(2)]
    found = batch_norm_features(model, batches, energy, "energy")
    assert set(found) == {"1.weight", "1.bias"}
    rows = torch.cat([b.movedim(1, -1).reshape(-1, channels) for b in batches])
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    share = values.square().cumsum(0) / values.square().sum()
    assume(bool(((share - energy).abs() > 1e-9).all()) or energy == 1)
    rank = int((values > 1e-7 * values[0]).sum()) if energy == 1 else int((share < energy).sum()) + 1
    basis = found["1.weight"].basis
    assert basis.shape == (channels, rank)
    torch.testing.assert_close(basis @ basis.T, right[:rank].T @ right[:rank], rtol=1e-6, atol=1e-8)
    assert all(len(m._forward_pre_hooks) == 0 for m in model.modules())


def test_a_batch_norm_without_parameters_has_no_features(kit: Any) -> None:
    model = kit.built(lambda: nn.Sequential(nn.Linear(3, 3)))
    model.append(nn.BatchNorm1d(3, affine=False).double())
    assert batch_norm_features(model.eval(), [kit.normal(4, 3)], 0.9, "energy") == {}


def test_sums_over_tensors(kit: Any) -> None:
    a = {"u": kit.normal(2, 3), "v": kit.normal(4, seed=1)}
    b = {"u": kit.normal(2, 3, seed=2), "v": kit.normal(4, seed=3)}
    flat = [torch.cat([d["u"].flatten(), d["v"]]) for d in (a, b)]
    assert inner(a, b) == pytest.approx(float(flat[0] @ flat[1]))
    assert inner(a, {"v": b["v"]}) == pytest.approx(float(a["v"] @ b["v"]))
    assert norm_of(a) == pytest.approx(float(flat[0].norm()))
    assert norm_of({}) == inner({}, {}) == 0.0
    both = combined([(2.0, a), (-0.5, b)])
    torch.testing.assert_close(both["u"], 2 * a["u"] - 0.5 * b["u"])
