"""Every rule beside autograd's gradients of single examples, and a convolution's second derivative beside torch's."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.gradients import rules, tracing  # noqa: F401  (tracing registers all rules)
from warp_unlearning.gradients.rules import GhostRule, LinearRule, Phase, register, rule_of, squared_outer_norm

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def drawn(*shape: int, seed: int, last: bool = False) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.contiguous(memory_format=torch.channels_last) if last and len(shape) == 4 else values


def by_autograd(layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
    """∂ℓᵢ/∂θ of each example by a pass of its own, with a graph to a and g."""
    parameter = cast(Tensor, getattr(layer, name))
    rows = [
        torch.autograd.grad(layer(a[i : i + 1]), parameter, g[i : i + 1], create_graph=True)[0] for i in range(len(a))
    ]
    return torch.stack(rows)


def assert_alike(found: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    """Values and derivatives with respect to the inputs, by a weight of its own for every number."""
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    weights = torch.linspace(0.5, 1.5, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    slopes = (
        torch.autograd.grad(each, inputs, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        for each in (found, expected)
    )
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-9)


def assert_rule(layer: nn.Module, a: Tensor, *, seed: int = 0, last: bool = False) -> None:
    """Gradients, norms and alignments of all the layer's parameters."""
    layer = layer.double().eval()
    g = drawn(*layer(a).shape, seed=seed, last=last).requires_grad_()
    inputs = [g, a.requires_grad_()] if a.is_floating_point() else [g]
    rule, names = cast(GhostRule, rule_of(layer)), [name for name, _ in layer.named_parameters()]
    truths = {name: by_autograd(layer, name, a, g) for name in names}
    squares = {name: truth.flatten(1).square().sum(1) for name, truth in truths.items()}
    for name, truth in truths.items():
        assert_alike(rule.gradient(layer, name, a, g), truth, inputs)
        assert_alike(rule.squared_norm(layer, [name], a, g), squares[name], inputs)
        direction = drawn(*truth.shape, seed=seed + 1)
        product = (truth * direction).flatten(1).sum(1)
        assert_alike(rule.alignment(layer, name, a, g, direction), product, inputs)
    assert_alike(rule.squared_norm(layer, names, a, g), torch.stack(list(squares.values())).sum(0), inputs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("axes", [(), (1,), (2,), (9,), (3, 2)])
def test_linear(axes: tuple[int, ...], bias: bool) -> None:
    assert_rule(nn.Linear(5, 4, bias=bias), drawn(3, *axes, 5, seed=1))


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("axes", [(), (6,), (3, 2)])
def test_embedding(axes: tuple[int, ...], padding: int | None) -> None:
    tokens = torch.randint(0, 4, (5, *axes), generator=torch.Generator().manual_seed(0))
    assert_rule(nn.Embedding(7, 3, padding_idx=padding), tokens)


def test_tokens_beyond_the_table_of_an_embedding_cost_no_memory() -> None:
    table = nn.Embedding(10**6, 1)
    g = torch.ones(2, 3, 1)
    tokens = torch.tensor([[0, 999_999, 0], [5, 6, 7]])
    rule = cast(GhostRule, rule_of(table))
    assert rule.squared_norm(table, ["weight"], tokens, g).tolist() == [5.0, 3.0]


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(4, eps=0.1), (3, 4)),
        (nn.BatchNorm1d(4, eps=0.1), (3, 4, 5)),
        (nn.BatchNorm2d(4, eps=0.1), (3, 4, 5, 2)),
        (nn.BatchNorm3d(4), (3, 4, 2, 2, 2)),
        (nn.GroupNorm(2, 4), (3, 4, 5, 2)),
        (nn.GroupNorm(2, 4), (3, 4)),
        (nn.LayerNorm(4), (3, 4)),
        (nn.LayerNorm((5, 4)), (3, 2, 5, 4)),
        (nn.LayerNorm(4, bias=False), (3, 5, 4)),
    ],
)
def test_norms(layer: nn.Module, shape: tuple[int, ...], last: bool) -> None:
    for buffer in layer.buffers():
        buffer.copy_(torch.linspace(0.3, 1.2, buffer.numel()).reshape(buffer.shape))
    assert_rule(layer, drawn(*shape, seed=1, last=last), last=last)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("tracking", [True, False])
def test_batch_norms_compute_as_they_do(affine: bool, training: bool, tracking: bool) -> None:
    layer = nn.BatchNorm2d(3, affine=affine, track_running_stats=tracking).train(training)
    rule, a = cast(GhostRule, rule_of(layer)), drawn(2, 3, 4, 4, seed=0).float()
    torch.testing.assert_close(rule.output(layer, layer, a, Phase()), layer(a))
    with pytest.raises(ValueError, match="expected 4D input"):
        rule.output(layer, layer, a[0, 0], Phase())


@st.composite
def convolutions(draw: st.DrawFn) -> nn.Conv2d:
    groups, width = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4, 5]))
    pads = st.tuples(st.integers(0, 3), st.integers(0, 3))
    return nn.Conv2d(
        width * groups,
        3 * groups,
        draw(PAIRS),
        stride=draw(st.tuples(st.integers(1, 3), st.integers(1, 2))),
        padding=draw(st.one_of(pads, st.sampled_from([(0, 0), "valid"]))),
        dilation=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "zeros", "reflect", "circular"])),
    )


# Large images have fewer products in a kernel gradient than between positions, and small ones more.
@settings(max_examples=150)
# On the smallest some taps see padding alone.
@given(
    layer=convolutions(),
    size=st.one_of(PAIRS, st.sampled_from([(4, 5), (7, 9), (12, 11)])),
    seed=st.integers(0, 99),
    last=st.booleans(),
)
@example(layer=nn.Conv2d(2, 3, 3, padding=1, bias=False), size=(1, 1), seed=0, last=False)
def test_convolutions(layer: nn.Conv2d, size: tuple[int, int], seed: int, last: bool) -> None:
    try:
        layer(torch.zeros(1, layer.in_channels, *size))
    except RuntimeError:
        assume(False)
    assert_rule(layer, drawn(3, layer.in_channels, *size, seed=seed, last=last), seed=seed, last=last)


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(3, 4, 3, stride=2, padding=1),
        nn.Conv1d(4, 4, 2, padding="same", groups=4),
        nn.Conv2d(3, 4, 4, padding="same"),
        nn.Conv2d(4, 6, 1, stride=2, groups=2),
        nn.Conv2d(3, 6, 1, stride=3, padding=2),
        nn.Conv2d(4, 3, 1),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_one_dimension_even_kernels_and_single_taps(layer: Any, last: bool) -> None:
    assert_rule(layer, drawn(3, layer.in_channels, *(6, 5)[: layer.weight.dim() - 2], seed=2, last=last), last=last)


def test_more_images_than_are_taken_at_once() -> None:
    layer = nn.Conv2d(24, 40, 3, bias=False).double()
    a, g = drawn(150, 24, 12, 12, seed=0).requires_grad_(), drawn(150, 40, 10, 10, seed=1).requires_grad_()
    truth = torch.func.vmap(
        lambda x, u: torch.func.vjp(lambda w: torch.conv2d(x[None], w), layer.weight)[1](u[None])[0]
    )(a, g)
    rule = cast(GhostRule, rule_of(layer))
    found, expected = rule.squared_norm(layer, ["weight"], a, g), truth.flatten(1).square().sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    slopes = (torch.autograd.grad(each @ torch.linspace(0.5, 1.5, 150).double(), (a, g)) for each in (found, expected))
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.BatchNorm2d(4),
    ],
)
def test_first_and_second_derivatives_of_outputs(layer: Any, last: bool) -> None:
    layer, phase = layer.double().eval(), Phase()
    a = drawn(3, 4, 6, 5, seed=0, last=last).requires_grad_()
    parameters = list(layer.parameters())

    def derivatives(output: Tensor) -> tuple[Tensor, ...]:
        phase.outputs_only = True
        (b,) = torch.autograd.grad(output.sin().sum(), a, create_graph=True)
        phase.outputs_only = False
        return (
            output.detach(),
            b.detach(),
            *torch.autograd.grad(b.square().sum() + output.cos().sum(), (a, *parameters)),
        )

    found = derivatives(cast(GhostRule, rule_of(layer)).output(layer, layer, a, phase))
    for one, other in zip(found, derivatives(layer(a)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("positions", [1, 2, 9])
def test_an_outer_norm_by_either_contraction(positions: int) -> None:
    p, g = (drawn(3, positions, width, seed=width).requires_grad_() for width in (5, 4))
    expected = torch.einsum("nto,ntd->nod", g, p).square().sum((1, 2))
    torch.testing.assert_close(squared_outer_norm(p, g), expected, rtol=1e-12, atol=0)
    assert torch.autograd.gradcheck(squared_outer_norm, (p, g))


class Scale(nn.Module):
    """Every feature times a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class ScaleRule(GhostRule):
    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        return a * g


def test_a_rule_of_ones_own_needs_a_gradient_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))
    register(Scale)(ScaleRule)
    assert_rule(Scale(), drawn(4, 3, seed=0))


def test_a_second_rule_for_a_type_is_refused_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))
    with pytest.raises(InputError, match="Linear already has the rule LinearRule; register ScaleRule for a subclass"):
        register(Scale, nn.Linear)(ScaleRule)
    assert isinstance(rule_of(nn.Linear(2, 2)), LinearRule)
    assert rule_of(Scale()) is None


def test_layers_that_compute_something_of_their_own_have_no_rule() -> None:
    class Same(nn.Linear):
        pass

    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sin()

    class Kernel(nn.Conv1d):
        def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return super()._conv_forward(x, weight.sin(), bias)

    changed = nn.Linear(2, 2)
    changed.forward = torch.sin  # type: ignore[assignment]
    assert isinstance(rule_of(Same(2, 2)), LinearRule)
    assert all(rule_of(layer) is None for layer in (Other(2, 2), Kernel(2, 2, 1), changed))
