"""Max-pooling by hand beside torch's, on a CPU through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton")

from warp_unlearning.gpu.max_pool import max_pool, suits

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def images(*shape: int) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(DEVICE).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2), (3, 3, 0)])
@pytest.mark.parametrize("shape", [(3, 5, 16, 16), (2, 70, 7, 9)])
def test_it_is_torchs_max_pool(shape: tuple[int, ...], size: int, stride: int, padding: int) -> None:
    given = [images(*shape).requires_grad_() for _ in range(2)]
    expected = F.max_pool2d(given[0], size, stride, padding)
    found = max_pool(given[1], size=size, stride=stride, padding=padding)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for dy in (images(*expected.shape), images(*expected.shape).contiguous()):
        a, b = (
            torch.autograd.grad(y, x, dy, retain_graph=True)[0] for y, x in zip((expected, found), given, strict=True)
        )
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_of_equal_entries_the_first_has_the_gradient() -> None:
    given = [torch.zeros_like(images(2, 3, 6, 6)).requires_grad_() for _ in range(2)]
    a = F.max_pool2d(given[0], 3, 2, 1)
    b = max_pool(given[1], size=3, stride=2, padding=1)
    dy = images(*a.shape)
    torch.testing.assert_close(torch.autograd.grad(a, given[0], dy), torch.autograd.grad(b, given[1], dy))


def test_what_is_not_a_number_stays_visible() -> None:
    x = images(1, 2, 6, 6)
    x[0, 0, 2, 2] = float("nan")
    assert torch.equal(max_pool(x, size=3, stride=2, padding=1).isnan(), F.max_pool2d(x, 3, 2, 1).isnan())


def test_it_says_what_it_suits() -> None:
    x = images(2, 3, 4, 4)
    assert suits(x)
    assert not suits(x.contiguous())
    assert not suits(x.long())
    assert not suits(x.double())
    assert not suits(x[0])
