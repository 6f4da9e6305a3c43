from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gradients.single import ODD, drawn, examples, image_networks, looped
from tests.networks import Calls
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.gradients.energy import alignment, can_align
from warp_unlearning.gradients.per_sample import example_gradients
from warp_unlearning.models.networks import SmallResNet


def assert_as_looped(model: nn.Module, x: Tensor, y: Tensor) -> None:
    x = x.clone().requires_grad_()
    names = [name for name, _ in model.named_parameters()]
    found, expected = example_gradients(model, x, y, names=names), looped(model, x, y)
    assert list(found) == names
    generator = torch.Generator().manual_seed(5)
    weights = {n: torch.randn(g.shape, generator=generator, dtype=torch.float64) for n, g in found.items()}
    total = x.new_zeros(())
    for name, g in found.items():
        torch.testing.assert_close(g, expected[name], rtol=1e-9, atol=1e-11)
        total = total + (weights[name] * expected[name]).sum()
    # In all parameters at once, by other weights for every number of every example.
    mine = torch.stack([(weights[n] * g).sum() for n, g in found.items()]).sum()
    (slope,), (truth,) = torch.autograd.grad(mine, x), torch.autograd.grad(total, x)
    torch.testing.assert_close(slope, truth, rtol=1e-9, atol=1e-9 * float(truth.abs().max()) + 1e-14)


def attending(m: Any, x: Tensor) -> Tensor:
    """Fused attention, which has no second derivative of its own, and a layer norm."""
    q, k, v = m.into(m.norm(x.reshape(len(x), 2, 3))).chunk(3, -1)
    return m.head(F.scaled_dot_product_attention(q, k, v).flatten(1))


MORE: dict[str, Callable[[], nn.Module]] = {
    "Attending": lambda: Calls(attending, norm=nn.LayerNorm(3), into=nn.Linear(3, 9), head=nn.Linear(6, 3)),
    "Scaled": lambda: Calls(
        lambda m, x: m.layer(x * m.scale), scale=nn.Parameter(torch.linspace(0.5, 1.5, 6)), layer=nn.Linear(6, 3)
    ),
    "Unused": lambda: Calls(lambda m, x: m.layer(x), layer=nn.Linear(6, 3), unused=nn.Linear(6, 3)),
    "TwiceAndHead": lambda: Calls(
        lambda m, x: m.head(m.layer(torch.tanh(m.layer(x)))), layer=nn.Linear(6, 6), head=nn.Linear(6, 3)
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@settings(max_examples=25)
@given(built=image_networks(known=True), seed=st.integers(0, 2**16))
def test_any_network_of_layers_with_rules(built: Any, seed: int) -> None:
    assert_as_looped(drawn(lambda: built[0], seed=seed), *examples(3, *built[1], seed=seed))


@pytest.mark.parametrize("name", ["Tied", "Twice", "WithoutRules", "Folded", "Attending"])
def test_what_rules_do_not_know_in_full(name: str) -> None:
    assert_as_looped(drawn((ODD | MORE)[name]), *examples(4, 6))


def test_images_whose_channels_run_fastest() -> None:
    x, y = examples(3, 4, 8, 8, last=True)
    assert_as_looped(drawn(lambda: nn.Sequential(nn.Conv2d(4, 1, 1), SmallResNet(width=4, classes=3))), x, y)


def test_some_names_alone_in_their_order() -> None:
    model, (x, y) = drawn(ODD["WithoutRules"]), examples(3, 6)
    names = ["other.bias", "scale", "other.weight"]
    some, every = example_gradients(model, x, y, names=names), looped(model, x, y)
    assert list(some) == names
    for name in names:
        torch.testing.assert_close(some[name], every[name], rtol=1e-9, atol=1e-12)


def test_an_input_that_is_written_over_is_refused() -> None:
    model, (x, y) = drawn(ODD["Overwriting"]), examples(2, 6)
    with pytest.raises(InputError, match="written over"):
        example_gradients(model, x, y, names=["layer.weight"])
    with pytest.raises(InputError, match="written over"):
        alignment(model, x, y, directions=directions_for(model, 2))


def test_the_model_is_left_as_it_was_and_no_grad_mode_is_needed() -> None:
    for model, shape in (
        (drawn(ODD["WithoutRules"]), (6,)),
        (drawn(lambda: SmallResNet(width=2, classes=3)), (1, 8, 8)),
    ):
        x, y = examples(3, *shape)
        before, places = deepcopy(model.state_dict()), dict(model.named_parameters())
        with torch.no_grad():
            found = example_gradients(model, x.requires_grad_(), y, names=list(places))
            if isinstance(model, SmallResNet):
                assert alignment(model, x, y, directions=directions_for(model, 3))[0].requires_grad
        assert all(g.requires_grad for name, g in found.items() if not name.startswith("unused"))
        assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
        assert all(p is places[n] and p.grad is None for n, p in model.named_parameters())
        assert all("forward" not in vars(m) for m in model.modules())


def directions_for(model: nn.Module, count: int, *, seed: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(count, *p.shape, generator=generator, dtype=torch.float64)
        for name, p in model.named_parameters()
    }


def assert_aligned(model: nn.Module, x: Tensor, y: Tensor, directions: dict[str, Tensor]) -> None:
    x = x.clone().requires_grad_()
    each = looped(model, x, y)
    rows = torch.stack([(each[n] * t).flatten(1).sum(1) for n, t in directions.items()]).sum(0)
    squares = torch.stack([each[n].square().flatten(1).sum(1) for n in directions]).sum(0)
    weights = torch.linspace(0.5, 1.5, len(x)).double()
    pairs = zip(alignment(model, x, y, directions=directions), (rows, squares), strict=True)
    for found, truth in pairs:
        assert found.shape == (len(x),)
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9 * float(truth.detach().abs().max()))
        (slope,), (expected,) = (torch.autograd.grad(v @ weights, x, retain_graph=True) for v in (found, truth))
        torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()) + 1e-14)


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@settings(max_examples=25)
@given(built=image_networks(known=True), seed=st.integers(0, 2**16))
def test_products_and_energies_are_those_of_a_loop(built: Any, seed: int) -> None:
    model = drawn(lambda: built[0], seed=seed)
    x, y = examples(3, *built[1], seed=seed)
    assert can_align(model, x, y, names=[name for name, _ in model.named_parameters()])
    assert_aligned(model, x, y, directions_for(model, 3, seed=seed))


def test_a_residual_network_and_one_dimension() -> None:
    small = drawn(lambda: SmallResNet(width=2, classes=3))
    assert_aligned(small, *examples(3, 1, 8, 8), directions_for(small, 3))
    line = drawn(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)
        )
    )
    assert_as_looped(line, *examples(3, 2, 9))
    assert_aligned(line, *examples(3, 2, 9), directions_for(line, 3))


@pytest.mark.parametrize("name", ["Tied", "Twice", "Folded", "Scaled", "Unused"])
def test_what_rules_do_not_know_in_full_cannot_be_aligned(name: str) -> None:
    model, (x, y) = drawn((ODD | MORE)[name]), examples(3, 6)
    before = deepcopy(model.state_dict())
    assert not can_align(model, x, y, names=[name for name, _ in model.named_parameters()])
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert all("forward" not in vars(m) for m in model.modules())


def test_the_names_asked_for_alone_must_be_known() -> None:
    x, y = examples(3, 6)
    scaled, twice = drawn(MORE["Scaled"]), drawn(MORE["TwiceAndHead"])
    assert can_align(scaled, x, y, names=["layer.weight", "layer.bias"])
    assert can_align(twice, x, y, names=["head.weight"])
    assert not can_align(twice, x, y, names=["head.weight", "layer.bias"])
    every = directions_for(scaled, 3)
    assert_aligned(scaled, x, y, {name: every[name] for name in ("layer.weight", "layer.bias")})
