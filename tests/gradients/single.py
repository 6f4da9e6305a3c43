"""The oracle of gradients of single examples, a loop with a graph, and networks and examples to try."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from hypothesis import assume, currently_in_test_context
from hypothesis import strategies as st
from tests.networks import Calls
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from warp_unlearning.gradients.energy import cross_entropy, gradient_energy


def looped(model: nn.Module, x: Tensor, y: Tensor, loss: Callable[..., Tensor] = cross_entropy) -> dict[str, Tensor]:
    """The gradient of each example by a pass of its own, with a graph, shape (batch, *parameter)."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = []
    for i in range(len(x)):
        # Fused attention has no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            one = loss(model(x[i : i + 1].clone()), y[i : i + 1]).sum()
        found.append(torch.autograd.grad(one, list(trained.values()), create_graph=True, materialize_grads=True))
    return {name: torch.stack(each) for name, each in zip(trained, zip(*found, strict=True), strict=True)}


def assert_exact(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    loss: Callable[..., Tensor] = cross_entropy,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-9,
) -> None:
    """Value and parameter gradient of `gradient_energy` agree with a loop of double backwards."""
    expected = torch.stack([g.flatten(1).square().sum(1) for g in looped(model, x, y, loss).values()]).sum(0)
    there = model if (device, dtype) == ("cpu", torch.float64) else deepcopy(model).to(device, dtype)
    found = gradient_energy(
        there, x.to(device, dtype) if x.is_floating_point() else x.to(device), y.to(device), loss=loss
    )
    assert found.dtype == dtype
    if currently_in_test_context():
        # A drawn network may be off altogether; it shows nothing.
        assume(float(expected.detach().max()) > 0)
    assert float(expected.detach().max()) > 0
    assert float((found.cpu() - expected).detach().abs().max()) <= tolerance * float(expected.detach().max())
    move, expected_move = (_weighted_gradient(e, m) for e, m in ((found, there), (expected, model)))
    scale = float(torch.stack([g.norm() for g in expected_move]).norm())
    assert scale > 0
    for one, other in zip(move, expected_move, strict=True):
        assert float((one.cpu() - other).norm()) <= tolerance * scale


def _weighted_gradient(energy: Tensor, model: nn.Module) -> tuple[Tensor, ...]:
    """Of the energies with unequal weights, so that a gradient given to the wrong example is seen."""
    trained = [p for p in model.parameters() if p.requires_grad]
    weights = torch.linspace(0.5, 1.5, len(energy)).to(energy)
    return torch.autograd.grad(energy @ weights, trained, allow_unused=True, materialize_grads=True)


def drawn(build: Callable[[], nn.Module], *, seed: int = 0) -> nn.Module:
    """A module in float64 and eval mode whose weights and running statistics are all drawn, so none is special."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = build().double().eval()
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                noise = 0.3 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.add_(noise.abs() if tensor.dim() == 1 else noise)
    return model


def examples(count: int, *shape: int, seed: int = 0, classes: int = 3, last: bool = False) -> tuple[Tensor, Tensor]:
    """Normal inputs (count, *shape), with `last` images whose channels run fastest, and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    # As images lie on a GPU.
    x = x.contiguous(memory_format=torch.channels_last) if last and x.dim() == 4 else x
    return x, torch.randint(0, classes, (count,), generator=generator)


class Residual(nn.Module):
    """x + body(x), cut or padded to the channels of x."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Pooled(nn.Module):
    """The mean over everything but the batch and the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2)


class Unknown(nn.Module):
    """A layer without a rule: an elementwise polynomial with a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.scale) + 0.1 * x


@st.composite
def convolutions(draw: st.DrawFn, rank: int, channels: int, out: int) -> nn.Module:
    kernel = draw(st.tuples(*[st.integers(1, 3)] * rank))
    dilation = draw(st.tuples(*[st.integers(1, 2)] * rank))
    groups = draw(st.sampled_from([1, 2, 4]))
    same = draw(st.booleans())
    padding: Any = draw(st.sampled_from(["same", "valid"])) if same else draw(st.tuples(*[st.integers(0, 2)] * rank))
    return (nn.Conv1d if rank == 1 else nn.Conv2d)(
        channels,
        out,
        kernel,
        stride=1 if same else draw(st.tuples(*[st.integers(1, 2)] * rank)),
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "zeros", "circular", "replicate"])),
    )


@st.composite
def norms(draw: st.DrawFn, rank: int, channels: int, known: bool) -> nn.Module:
    affine = draw(st.booleans())
    batch_norm = nn.BatchNorm1d if rank == 1 else nn.BatchNorm2d
    layers = [batch_norm(channels, affine=affine), nn.GroupNorm(2, channels, affine=affine), nn.Identity()]
    return draw(st.sampled_from(layers if known else [*layers, Unknown()]))


@st.composite
def image_networks(draw: st.DrawFn, *, known: bool = False) -> tuple[nn.Module, tuple[int, ...]]:
    """A network of convolutions, norms and residual blocks, and the shape of an example; with `known`, of layers that
    have rules and are called once.
    """
    rank = draw(st.integers(1, 2))
    activations = [nn.Tanh(), nn.ReLU(inplace=True), nn.GELU()]
    layers: list[nn.Module] = []
    channels, size = 4, (13,) * rank
    for _ in range(draw(st.integers(1, 2))):
        out = draw(st.sampled_from([4, 8]))
        layers += [
            draw(convolutions(rank, channels, out)),
            draw(norms(rank, out, known)),
            draw(st.sampled_from(activations)),
        ]
        channels = out
        if draw(st.booleans()):
            conv = (nn.Conv1d if rank == 1 else nn.Conv2d)(out, out, 3, padding=1, bias=draw(st.booleans()))
            block: nn.Module = nn.Sequential(conv, draw(norms(rank, out, known)), nn.ReLU())
            layers += [Residual(block)] * draw(st.integers(1, 1 if known else 2))
    return nn.Sequential(*layers, Pooled(), nn.Linear(channels, 3, bias=draw(st.booleans()))), (4, *size)


def tied() -> nn.Module:
    model = Calls(lambda m, x: m.second(torch.tanh(m.first(x))), first=nn.Linear(6, 6), second=nn.Linear(6, 6))
    model.second.weight = model.first.weight
    return model


def overwriting(m: Any, x: Tensor) -> Tensor:
    hidden = m.before(x)
    return m.layer(hidden) + hidden.mul_(2.0)


# Networks of six features whose parameters no rule knows in full, by name. "WithoutRules" has a scale that no layer
# owns, a scalar, a layer whose weight is also read elsewhere, and one that nothing uses.
ODD: dict[str, Callable[[], nn.Module]] = {
    "Tied": tied,
    "Twice": lambda: Calls(lambda m, x: m.layer(torch.tanh(m.layer(x))), layer=nn.Linear(6, 6)),
    "WithoutRules": lambda: Calls(
        lambda m, x: m.heat * m.other(m.layer(x * m.scale).sin()) + x @ m.layer.weight.square(),
        scale=nn.Parameter(torch.linspace(0.5, 1.5, 6)),
        heat=nn.Parameter(torch.tensor(0.7)),
        layer=nn.Linear(6, 6),
        other=nn.Linear(6, 6),
        unused=nn.Linear(6, 2),
    ),
    "Folded": lambda: Calls(lambda m, x: m.layer(x.reshape(-1, 2)).reshape(len(x), 6).sin(), layer=nn.Linear(2, 2)),
    "Overwriting": lambda: Calls(overwriting, before=nn.Linear(6, 6), layer=nn.Linear(6, 6)),
}
