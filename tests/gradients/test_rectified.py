"""relu that is cheaper to differentiate twice, beside torch's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from warp_unlearning.gradients import energy, traced_pass
from warp_unlearning.kernels import norm_relu
from warp_unlearning.kernels.rectified import differentiated_twice, rectified
from warp_unlearning.models.networks import SmallResNet

SPECIAL = [-2.0, -0.0, 0.0, 1e-30, 3.0, float("inf"), -float("inf"), float("nan")]


def derivatives(x: Tensor, output: Tensor) -> list[Tensor]:
    """The output, a first derivative with unequal weights, and the derivative of what it is squared."""
    weights = torch.linspace(0.5, 1.5, len(x), dtype=x.dtype)
    (first,) = torch.autograd.grad((output.sin() * weights).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return [output.detach(), first.detach(), second]


@pytest.mark.parametrize("twice", [True, False])
def test_value_and_both_derivatives_are_those_of_relu(twice: bool) -> None:
    x = torch.tensor([*SPECIAL, *torch.randn(20, generator=torch.Generator().manual_seed(0)).tolist()])
    x = x.double().requires_grad_()
    before = differentiated_twice.set(twice)
    try:
        found = derivatives(x, rectified(x))
    finally:
        differentiated_twice.reset(before)
    for one, other in zip(found, derivatives(x, F.relu(x)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


class Count(TorchDispatchMode):
    """How often each operation is begun."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.of[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def test_the_energies_of_a_network_have_no_zeros_to_add(
    drawn: Any, examples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (x, y) = drawn(lambda: SmallResNet(classes=3, width=4)), examples(3, 1, 8, 8)
    monkeypatch.setattr(traced_pass, "counts_launches", lambda x: True)

    def counted() -> Counter[str]:
        with Count() as count:
            torch.autograd.grad(energy.gradient_energy(model, x, y).sum(), list(model.parameters()))
        return count.of

    # The first call looks which axis is the batch as well.
    _, found = counted(), counted()
    monkeypatch.setattr(norm_relu, "rectified", F.relu)
    expected = counted()
    relus = expected["aten::relu"]
    assert relus > 3
    assert found["aten::relu"] == 0
    assert found["aten::zeros_like"] == expected["aten::zeros_like"] - relus


def test_on_a_cpu_relu_is_torchs(drawn: Any, examples: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps cost little, nothing is kept for fewer of them."""
    seen = []
    monkeypatch.setattr(norm_relu, "rectified", lambda x: (seen.append(differentiated_twice.get()), rectified(x))[1])
    model, (x, y) = drawn(lambda: SmallResNet(classes=3, width=4)), examples(3, 1, 8, 8)
    energy.gradient_energy(model, x, y)
    assert seen
    assert not any(seen)


def test_a_written_over_input_is_noticed() -> None:
    x = torch.ones(3, requires_grad=True)
    before = differentiated_twice.set(True)
    try:
        entering = x * 2
        output = rectified(entering)
    finally:
        differentiated_twice.reset(before)
    entering.mul_(-1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
