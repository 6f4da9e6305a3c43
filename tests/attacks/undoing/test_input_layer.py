from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.attacks.undoing import Held, NotApplicable, difference
from warp_unlearning.attacks.undoing.input_layer import InputLayer, first_layers, implied_inputs


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
    with pytest.raises(NotApplicable, match="reads its input"):
        InputLayer().prepared(Held(model, (torch.ones(2, 2, dtype=torch.long), torch.zeros(2, dtype=torch.long))))


def test_a_convolution_implies_no_input(kit) -> None:
    model = kit.residual()
    with pytest.raises(NotApplicable, match="fully connected"):
        implied_inputs(kit.held(model), model.state_dict())
