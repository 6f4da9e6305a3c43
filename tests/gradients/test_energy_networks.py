from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.gradients.single import Pooled, assert_exact, drawn, examples, image_networks
from tests.networks import Calls
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.gradients.energy import gradient_energy
from warp_unlearning.models.networks import SmallResNet


class Tokens(nn.Module):
    """Tokens to logits: an embedding, blocks of norm and linear on (batch, T, width), and a tied or own classifier."""

    def __init__(
        self, *, tied: bool, shared: bool, padding: int | None, bias: bool, axes: int, functional: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4, padding_idx=padding)
        self.first = nn.Linear(4, 4, bias=bias)
        self.second = self.first if shared else nn.Linear(4, 4, bias=bias)
        self.norm = nn.LayerNorm((3, 4)[-axes:], bias=bias)
        self.classifier = nn.Linear(4, 7, bias=bias)
        self.functional = functional
        if tied:
            self.classifier.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.embedding(x))
        h = h + torch.tanh(self.second(torch.tanh(self.first(h))))
        # The axis of T, so that positions are mixed.
        h = h.cumsum(1).sin()
        if self.functional:
            return F.linear(h, self.classifier.weight).mean(1)
        return self.classifier(h).mean(1)


def doubts(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The losses: where one is no more than rounding, the network is certain of the label and has no slope."""
    with torch.no_grad():
        return F.cross_entropy(model(x), y, reduction="none")


# Torch warns of its own copy for "same" padding of even kernels.
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@hypothesis_settings(max_examples=150)
@given(built=image_networks(), data=st.data(), seed=st.integers(0, 2**16), last=st.booleans())
def test_networks_of_images(built: Any, data: Any, seed: int, last: bool) -> None:
    network, shape = built
    model = drawn(lambda: network, seed=seed)
    parameters = list(model.parameters())
    for index in data.draw(st.sets(st.integers(0, len(parameters) - 2), max_size=2)):
        parameters[index].requires_grad_(False)
    x, y = examples(3, *shape, seed=seed, last=last)
    assume(float(doubts(model, x, y).max()) > 1e-9)
    assert_exact(model, x, y)


@hypothesis_settings(max_examples=80)
@given(
    options=st.fixed_dictionaries(
        {
            "tied": st.booleans(),
            "shared": st.booleans(),
            "padding": st.sampled_from([None, 0, 3]),
            "bias": st.booleans(),
            "axes": st.integers(1, 2),
            "functional": st.booleans(),
        }
    ),
    seed=st.integers(0, 2**16),
)
def test_networks_of_tokens(options: dict[str, Any], seed: int) -> None:
    model = drawn(lambda: Tokens(**options), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    # Few tokens, so that some repeat within an example.
    x = torch.randint(0, 4, (5, 3), generator=generator)
    assert_exact(model, x, torch.randint(0, 7, (5,), generator=generator))


def viewed() -> nn.Module:
    """A network that asks for a view which images with channels fastest do not have."""
    first = nn.Conv2d(1, 4, 3, stride=2, padding=1)
    second = nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2, bias=False)
    last = nn.Linear(8 * 16, 3)
    way = lambda m, x: m.last(m.second(m.first(x).sin()).view(len(x), -1))  # noqa: E731
    return Calls(way, first=first, second=second, last=last)


def entering() -> nn.Module:
    """Rows times a parameter that enters the same linear layer."""
    way = lambda m, x: m.last(x) * m.last(m.prompt).sin()  # noqa: E731
    return Calls(way, prompt=nn.Parameter(torch.zeros(1, 6)), last=nn.Linear(6, 3))


BY_HAND = {
    "residual": (lambda: SmallResNet(classes=3, width=4), (1, 8, 8)),
    "viewed": (viewed, (1, 8, 8)),
    "a parameter that enters a linear layer": (entering, (6,)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("name", BY_HAND)
def test_networks_by_hand(name: str) -> None:
    build, shape = BY_HAND[name]
    assert_exact(drawn(build), *examples(3, *shape))


def test_images_whose_channels_run_fastest() -> None:
    # An image of one channel has either layout.
    model = drawn(lambda: nn.Sequential(nn.Conv2d(2, 1, 1), SmallResNet(classes=3, width=4)))
    assert_exact(model, *examples(3, 2, 8, 8, last=True))


def test_layers_that_are_replaced_between_calls() -> None:
    model, (x, y) = drawn(lambda: SmallResNet(classes=3, width=4)), examples(3, 1, 8, 8)
    gradient_energy(model, x, y)
    model.bn1 = drawn(lambda: nn.BatchNorm2d(4, eps=0.3), seed=1)
    model.conv1 = drawn(lambda: nn.Conv2d(1, 4, 1, bias=False), seed=2)
    with torch.no_grad():
        model.layer1.bn1.weight.mul_(3)
    assert_exact(model, x, y)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-9)])
def test_networks_on_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, tolerance: float) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    build, shape = BY_HAND[name]
    assert_exact(drawn(build), *examples(3, *shape), device="cuda", dtype=dtype, tolerance=tolerance)


def test_a_group_norm_behind_frozen_layers_whose_channels_run_fastest() -> None:
    model = drawn(lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.GroupNorm(1, 4), nn.ReLU(), Pooled(), nn.Linear(4, 3)))
    model[0].requires_grad_(False)
    for seed in range(10):
        assert_exact(model, *examples(3, 4, 4, 4, seed=seed, last=True))
