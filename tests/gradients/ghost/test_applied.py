"""Called in C or by torch's own way, a function gives the same numbers, graph and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import grad, vmap

from warp_unlearning.gradients.ghost import applied as module
from warp_unlearning.gradients.ghost.applied import applied, living


class Product(Function):
    """ab, and how often it was differentiated."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, seen: list[str]) -> Tensor:
        seen.append("forward")
        ctx.save_for_backward(a, b)
        ctx.seen = seen
        return a * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        ctx.seen.append("backward")
        return g * b, g * a, None


class Separate(Function):
    """A square by the form that transforms know."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        return a**2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return 2 * g * a


def test_numbers_and_both_derivatives_are_those_of_apply() -> None:
    a, b = (torch.tensor([2.0, 3.0], dtype=torch.float64).mul(k).requires_grad_() for k in (1, 5))
    seen: list[str] = []
    found = applied(Product, a, b, seen)
    assert type(found.grad_fn).__name__ == "ProductBackward"
    assert found.grad_fn.next_functions[0][0].variable is a
    (slope,) = torch.autograd.grad(found.square().sum(), a, create_graph=True)
    torch.testing.assert_close(slope, 2 * a * b**2)
    (second,) = torch.autograd.grad(slope.sum(), a)
    torch.testing.assert_close(second, 2 * b**2)
    assert seen[:2] == ["forward", "backward"]
    assert torch.autograd.gradcheck(lambda *both: applied(Product, *both, []), (a, b))
    assert applied(Product, a.detach(), b.detach(), []).grad_fn is None


def test_where_a_transform_is_active_torch_has_its_way() -> None:
    a = torch.tensor([2.0, 3.0])
    torch.testing.assert_close(vmap(grad(lambda one: applied(Separate, one)))(a), 2 * a)
    with pytest.raises(RuntimeError, match="setup_context"):
        grad(lambda one: applied(Product, one, one, []))(a[0])


def test_where_transforms_cannot_be_seen_torch_has_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Told(Product):
        @classmethod
        def apply(cls, *args: Any) -> Any:
            calls.append("apply")
            return super().apply(*args)  # type: ignore[no-untyped-call]

    a = torch.ones(2, requires_grad=True)
    torch.testing.assert_close(applied(Told, a, a, []), a)
    assert calls == []
    monkeypatch.setattr(module, "_transforms_are_active", lambda: True)
    torch.testing.assert_close(applied(Told, a, a, []), a)
    assert calls == ["apply"]


def test_what_a_transform_has_left_behind_is_found_again() -> None:
    left: list[Tensor] = []
    weight = torch.ones(2, requires_grad=True)

    def leaving(one: Tensor) -> Tensor:
        left.append(weight * one)
        return left[0].sum()

    grad(leaving)(torch.tensor(3.0))
    assert living(weight) is weight
    found = applied(Product, living(left[0]), weight, [])
    torch.testing.assert_close(torch.autograd.grad(found.sum(), weight)[0], 6 * torch.ones(2))
