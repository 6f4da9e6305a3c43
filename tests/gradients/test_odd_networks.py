"""`gradient_energy` of networks that do odd things, beside a loop over examples."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import cast

import pytest
import torch
from tests.gradients.single import drawn, examples
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrize

from warp_unlearning.errors import InputError
from warp_unlearning.gradients.energy import gradient_energy


class TwoNorms(nn.Module):
    """Two convolutions with batch norms, and something done between them."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.c2, self.b2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 3)

    def between(self) -> None:
        pass

    def second(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.b2(self.c2(x)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.b1(self.c1(x)).tanh()
        self.between()
        return cast(Tensor, self.last(self.second(x).sin().mean((2, 3))))


class Unchanged(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight


class ClampedKernel(TwoNorms):
    def between(self) -> None:
        with torch.no_grad():
            self.c2.weight.clamp_(-0.05, 0.05)


class Called(TwoNorms):
    """The second batch norm and its convolution are called with other parameters than their own."""

    def second(self, x: Tensor) -> Tensor:
        x = functional_call(self.c2, {"weight": 2 * self.c2.weight}, (x,))
        return cast(Tensor, functional_call(self.b2, {"weight": 2 * self.b2.weight}, (x,)))


class Tied(TwoNorms):
    """The second scale is the first's, as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        del self.b2._parameters["weight"]
        object.__setattr__(self.b2, "weight", self.b1.weight)


def _parametrised(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = TwoNorms()
        parametrize.register_parametrization(model.b2, name, Unchanged())
        return model

    return make


def _with(change: Callable[[TwoNorms], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = TwoNorms()
        change(model)
        return model

    return make


ODD = {
    "a parametrised scale": _parametrised("weight"),
    "a parametrised shift": _parametrised("bias"),
    "a kernel clamped in the forward pass": ClampedKernel,
    "layers called with other parameters": Called,
    "a parameter that nothing uses": _with(lambda m: setattr(m.c2, "extra", nn.Parameter(torch.zeros(2)))),
    "a norm of two names": _with(lambda m: setattr(m.b2, "alias", m.b2.weight)),
    "a norm without a scale": _with(lambda m: setattr(m.b2, "weight", None)),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("last", [True, False])
def test_odd_networks(name: str, last: bool) -> None:
    model = drawn(ODD[name])
    x, y = examples(3, 2, 6, 6, last=last)
    found = gradient_energy(deepcopy(model), x, y)
    # One example after another, each with a network of its own: some change in the forward pass.
    for one, energy in enumerate(found):
        alone = deepcopy(model)
        loss = F.cross_entropy(alone(x[one : one + 1]), y[one : one + 1])
        trained = list(alone.parameters())
        slopes = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        torch.testing.assert_close(energy, torch.stack([s.square().sum() for s in slopes]).sum(), rtol=1e-9, atol=0)


def test_a_plain_tensor_that_another_layer_owns_is_refused() -> None:
    x, y = examples(3, 2, 6, 6)
    with pytest.raises(InputError):
        gradient_energy(drawn(Tied), x, y)


def test_energies_have_the_precision_of_the_losses() -> None:
    model, (x, y) = drawn(TwoNorms).float(), examples(3, 2, 6, 6)
    found = gradient_energy(model, x.float(), y, loss=lambda o, t: F.cross_entropy(o.double(), t, reduction="none"))
    assert found.dtype == torch.float64
