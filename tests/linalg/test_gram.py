from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_unlearning.linalg.gram import add_gram, gram, mirrored


@settings(max_examples=40)
@given(
    groups=st.lists(st.integers(1, 3), max_size=1),
    rows=st.integers(0, 6),
    d=st.one_of(st.integers(0, 30), st.sampled_from([191, 192, 384, 385, 577, 1300])),
)
def test_it_is_the_product_of_the_rows_with_themselves(groups: list[int], rows: int, d: int) -> None:
    x = np.random.default_rng(rows * d).normal(size=(*groups, rows, d))
    found = gram(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, np.swapaxes(x, -1, -2) @ x, atol=1e-12)


@pytest.mark.parametrize("d", [5, 700])
def test_sums_over_pieces_are_the_sum_over_all(d: int) -> None:
    x = torch.randn(20, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = torch.zeros(d, d, dtype=torch.float64)
    for part in x.split(7):
        add_gram(total, part)
    torch.testing.assert_close(mirrored(total), x.mT @ x)


def test_rows_laid_out_by_columns_give_the_same() -> None:
    x = torch.randn(400, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(gram(x.mT), x @ x.mT)
