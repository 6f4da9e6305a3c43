"""Backward passes that can be differentiated no further."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from warp_unlearning.gradients.ghost.once import differentiable_once


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g


def test_the_first_derivative_is_the_functions() -> None:
    x = torch.tensor([1.0, -3.0], requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(Squared.apply(x).sum(), x)[0], 2 * x.detach())  # type: ignore[no-untyped-call]


def test_a_second_derivative_is_refused() -> None:
    x = torch.tensor([1.0, -3.0], requires_grad=True)
    (first,) = torch.autograd.grad(Squared.apply(x).square().sum(), x, create_graph=True)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(first.detach(), 4 * x.detach() ** 3)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
