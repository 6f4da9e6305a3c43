"""Batch norm by hand beside torch's, on a CPU through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton")

from warp_unlearning.gpu.batch_norm import batch_norm, suits

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAST = torch.channels_last


def images(*shape: int, mean: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 2 + mean
    return x.to(DEVICE, dtype).contiguous(memory_format=LAST)


def both(
    x: Tensor, dy: Tensor, *, residual: Tensor | None = None, relu: bool = False, momentum: float = 0.1
) -> list[list[Tensor]]:
    """Output, running statistics and gradients, by torch in float64 and by hand."""
    eps = 1e-5
    channels = x.shape[1]
    generator = torch.Generator().manual_seed(1)
    start = [torch.rand(channels, generator=generator).to(DEVICE) + 0.5 for _ in range(4)]
    found = []
    for double in (True, False):
        mean, variance, weight, bias = (t.double() if double else t.clone() for t in start)
        given = [t.detach().clone().requires_grad_() for t in (x.double() if double else x, weight, bias)]
        if residual is not None:
            given.append(residual.to(given[0].dtype).detach().clone().requires_grad_())
        if double:
            y = F.batch_norm(given[0], mean, variance, given[1], given[2], True, momentum, eps)
            y = y if residual is None else y + given[3]
            y = F.relu(y) if relu else y
        else:
            added = given[3] if residual is not None else None
            y = batch_norm(*given[:3], mean, variance, momentum=momentum, eps=eps, residual=added, relu=relu)
        found.append([y, mean, variance, *torch.autograd.grad(y, given, dy.to(y.dtype))])
    return found


# One stretch of rows and several, rows and columns that fill no block, one row more than a block.
@pytest.mark.parametrize("shape", [(4, 64, 3, 3), (6, 130, 2, 2), (300, 7, 1, 1), (129, 16, 2, 1), (2, 3, 40, 50)])
def test_it_is_torchs_batch_norm(shape: tuple[int, ...]) -> None:
    x = images(*shape)
    for a, b in zip(*both(x, images(*shape, mean=0.3)), strict=True):
        torch.testing.assert_close(b.double(), a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("adds", "relu"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", [(6, 70, 3, 3), (300, 7, 1, 1)])
def test_a_sum_and_a_relu_may_follow(shape: tuple[int, ...], adds: bool, relu: bool) -> None:
    residual = images(*shape, mean=-0.5) if adds else None
    expected, found = both(images(*shape, mean=0.2), images(*shape, mean=0.3), residual=residual, relu=relu)
    assert len(found) == 6 + adds
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b.double(), a, rtol=1e-4, atol=1e-4)


def test_a_large_mean_does_not_cancel() -> None:
    x = images(8, 4, 6, 6, mean=1e4)
    y, expected = both(x, images(8, 4, 6, 6))[1][0], both(x, images(8, 4, 6, 6))[0][0]
    torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=1e-2)


def test_half_precision_is_rounded_at_the_end_alone() -> None:
    x = images(32, 8, 3, 3, dtype=torch.bfloat16)
    expected, found = both(x, images(32, 8, 3, 3, dtype=torch.bfloat16))
    assert found[0].dtype == torch.bfloat16
    for a, b in zip(expected, found, strict=True):
        # The interpreter cuts off where a GPU rounds.
        torch.testing.assert_close(b.double(), a, rtol=2**-7, atol=1e-3)


def test_a_gradient_may_come_in_another_layout() -> None:
    x = images(5, 6, 4, 4)
    dy = images(5, 6, 4, 4, mean=1.0)
    for a, b in zip(both(x, dy)[1], both(x, dy.contiguous())[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_what_is_not_a_number_stays_visible() -> None:
    x = images(4, 3, 2, 2)
    x[1, 1, 0, 0] = float("nan")
    ones = torch.ones(3, device=DEVICE)
    y = batch_norm(x, ones, ones, ones.clone(), ones.clone(), momentum=0.1, eps=1e-5)
    assert y[:, 1].isnan().all()
    assert not y[:, [0, 2]].isnan().any()


def test_it_says_what_it_suits() -> None:
    x, one = images(4, 3, 2, 2, dtype=torch.bfloat16), torch.ones(3, device=DEVICE)
    assert suits(x, one, one)
    assert not suits(x, one, None)
    assert not suits(x, one.bfloat16())
    assert not suits(x.float(), one)
    assert not suits(x.contiguous(), one)
    assert not suits(x[:1, :, :1, :1].contiguous(memory_format=LAST), one)
    assert not suits(x[:, :, 0, 0], one)
