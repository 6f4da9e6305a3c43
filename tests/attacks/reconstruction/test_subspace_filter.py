from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.reconstruction.subspace_filter import SubspaceFilter
from warp_unlearning.attacks.undo.base import Held
from warp_unlearning.errors import InputError

POINTS = 25


def tiny(kit: Any, seed: int = 20) -> nn.Module:
    return kit.drawn(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Softplus(), nn.Flatten(), nn.Linear(18, 4)), seed=seed
    )


def points(count: int = POINTS, seed: int = 1) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, torch.arange(count) % 4


def projector(kit: Any, model: nn.Module, name: str, energy: float, x: Tensor, y: Tensor) -> Tensor:
    """The dense d×d projector on the leading directions of the gradients, by numpy's singular values."""
    rows = torch.stack([kit.gradient(model, x[i : i + 1], y[i : i + 1])[name].flatten() for i in range(len(x))])
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    share = values.square().cumsum(0) / values.square().sum()
    rank = int((share < energy).sum()) + 1
    return right[:rank].mT @ right[:rank]


@pytest.mark.parametrize("energy", [0.5, 0.9, 0.99])
def test_the_difference_goes_through_dense_projectors(kit: Any, energy: float) -> None:
    model, (x, y) = tiny(kit), points()
    after = kit.stepped(model, *points(3, seed=5), rate=2.0, steps=3)
    undo = SubspaceFilter(energy=energy, points=POINTS).prepared(Held(model, (x, y)))
    found = undo(after.state_dict())
    for name, delta in kit.difference(model, after).items():
        theirs, ours = (projector(kit, m, name, energy, x, y) for m in (after, model))
        identity = torch.eye(len(ours), dtype=torch.float64)
        expected = ours @ (identity - theirs) @ delta.flatten()
        kept = found[name] - dict(model.named_parameters())[name].detach()
        torch.testing.assert_close(kept.flatten(), expected, rtol=1e-7, atol=1e-9)
        if len(ours) > 4:
            # The other order is something else.
            assert not torch.allclose((identity - theirs) @ ours @ delta.flatten(), expected, rtol=1e-3, atol=1e-9)


def test_the_first_points_alone_are_looked_at(kit: Any) -> None:
    model, (x, y) = tiny(kit), points(40)
    after = kit.stepped(model, *points(3, seed=5), rate=2.0)
    few, more = Held(model, (x[:POINTS], y[:POINTS])), Held(model, (x, y))
    one, other = (SubspaceFilter(points=POINTS).prepared(h)(after.state_dict()) for h in (few, more))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_the_forget_gradient_keeps_its_sign_where_the_rest_is_in_the_unlearned_models_span(
    kit: Any, share: float
) -> None:
    # Two classes and two inputs, each with weights of its own. Δθ = −η(g_r − α g_f): the retained input still has a
    # gradient afterwards, and the forgotten one, which ascent has moved to the other class, has none in probes of that.
    model = kit.drawn(lambda: nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)))
    with torch.no_grad():
        model[1].weight.zero_()
    kept, gone = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()
    zero = torch.tensor([0])
    retain, forget = kit.gradient(model, kept, zero), kit.gradient(model, gone, zero)
    after = kit.stepped(model, gone, zero, rate=1.0, ascent=share, descent=0.3, retain=(kept, zero))
    # Far along the same way, so that the other class is certain.
    with torch.no_grad():
        after[1].weight[:, 1] *= 10 / share
    probes = (torch.cat([kept, gone]).repeat(10, 1), torch.tensor([0, 1]).repeat(10))
    plain = kit.difference(model, after)
    assert kit.cosine(plain, retain) < 0
    state = SubspaceFilter(points=20).prepared(Held(model, probes))(after.state_dict())
    filtered = {name: state[name] - p.detach() for name, p in model.named_parameters()}
    assert kit.cosine(plain, forget) < 0.9999
    assert kit.cosine(filtered, forget) == pytest.approx(1, abs=1e-9)
    # −Δθ/η has it with a negative sign.
    assert kit.cosine({n: -v for n, v in filtered.items()}, forget) == pytest.approx(-1, abs=1e-9)


def test_running_statistics_and_shapes_stay(kit: Any) -> None:
    model = kit.net(norm=True, width=2)
    x, y = kit.digits(POINTS)
    after = kit.stepped(model, x[:1], y[:1], rate=0.1)
    after.norm.running_mean.add_(0.5)
    found = SubspaceFilter(points=POINTS).prepared(Held(model, (x, y)))(after.state_dict())
    state = after.state_dict()
    assert set(found) == {n for n, v in state.items() if v.is_floating_point()}
    assert all(found[n].shape == state[n].shape and found[n].dtype == torch.float64 for n in found)
    assert torch.equal(found["norm.running_mean"], state["norm.running_mean"])


def test_a_parameter_that_nothing_uses_is_left_at_the_originals(kit: Any) -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.unused = nn.Linear(64, 4), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.flatten(1))

    model, (x, y) = kit.drawn(Unused), points()
    after = kit.stepped(model, x[:1], y[:1], rate=0.1)
    found = SubspaceFilter(points=POINTS).prepared(Held(model, (x, y)))(after.state_dict())
    assert torch.equal(found["unused.weight"], model.unused.weight)


def test_all_names_of_a_shared_weight_have_one_value(kit: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(torch.relu(self.first(x.flatten(1)))))

    model, (x, y) = kit.drawn(Tied), points()
    after = kit.stepped(model, x[:1], y[:1], rate=0.1)
    found = SubspaceFilter(points=POINTS).prepared(Held(model, (x, y)))(after.state_dict())
    assert torch.equal(found["first.weight"], found["second.weight"])


def test_settings_and_probes_that_cannot_do_are_refused(kit: Any) -> None:
    for energy in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="energy of the filter"):
            SubspaceFilter(energy=energy)
    with pytest.raises(InputError, match="0 probe points"):
        SubspaceFilter(points=0)
    with pytest.raises(InputError, match="asks for 100 probes and there are 25"):
        SubspaceFilter().prepared(Held(tiny(kit), points()))
    assert SubspaceFilter().name == "filtered"
