"""Sums of columns beside the same in float64, on a CPU through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from warp_unlearning.kernels import column_products as room
from warp_unlearning.kernels.column_products import column_products, suits

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAST = torch.channels_last


def images(*shape: int, seed: int = 0) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.3
    return x.to(DEVICE).contiguous(memory_format=LAST)


# One stretch of rows and several, rows that fill no block, columns that fill none and several.
@pytest.mark.parametrize("shape", [(4, 64, 3, 3), (3, 130, 14, 15), (300, 7, 1, 1), (2, 3, 40, 50), (1, 1, 1, 1)])
def test_they_are_those_of_float64(shape: tuple[int, ...]) -> None:
    u, a = images(*shape), images(*shape, seed=1)
    products, alone = column_products(u, a)
    torch.testing.assert_close(products.double(), (u.double() * a.double()).sum((0, 2, 3)), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(alone.double(), u.double().sum((0, 2, 3)), rtol=1e-5, atol=1e-4)
    assert products.shape == alone.shape == (shape[1],)
    for one, other in zip(column_products(u, a, like_images=True), (products, alone), strict=True):
        torch.testing.assert_close(one, other.view(1, -1, 1, 1), rtol=0, atol=0)


def test_stretches_that_are_left_without_rows_add_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_LEAST_ROWS", 3)
    # 10 rows in 3 stretches of 4, 4 and 2; then 5 stretches of 3 rows, of which the last has none.
    for rows, least in ((10, 3), (13, 2)):
        monkeypatch.setattr(room, "_LEAST_ROWS", least)
        u, a = images(rows, 5, 1, 1), images(rows, 5, 1, 1, seed=1)
        products, _ = column_products(u, a)
        torch.testing.assert_close(products.double(), (u.double() * a.double()).sum((0, 2, 3)), rtol=1e-5, atol=1e-5)


def test_a_number_that_is_none_stays_in_its_column() -> None:
    u, a = images(4, 6, 2, 2), images(4, 6, 2, 2, seed=1)
    a[1, 2, 0, 1] = float("nan")
    products, alone = column_products(u, a)
    assert products.isnan().tolist() == [False, False, True, False, False, False]
    assert not alone.isnan().any()


def test_what_suits() -> None:
    x = images(4, 6, 2, 2)
    assert suits(x, x)
    assert not suits(x, x.contiguous())
    assert not suits(x, x[:2])
    assert not suits(x.double(), x.double())
    assert not suits(x[:0], x[:0])
    assert not suits(x.flatten(1), x.flatten(1))
