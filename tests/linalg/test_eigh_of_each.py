"""Decompositions side by side are those made one after another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from warp_unlearning.linalg.eigh_of_each import eigh_of_each

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def stacks() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for count, size in ((1, 5), (3, 40), (2, 200), (1, 1), (1, 64), (2, 17)):
        rows = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
        found.append((rows @ rows.mT).to(DEVICE))
    return found


@pytest.mark.parametrize("count", [0, 1, 6])
def test_values_and_vectors_decompose_each_matrix(count: int) -> None:
    given = stacks()[:count]
    found = eigh_of_each(given)
    assert len(found) == count
    for stack, (values, vectors) in zip(given, found, strict=True):
        torch.testing.assert_close(values, torch.linalg.eigvalsh(stack))
        torch.testing.assert_close(vectors @ (values.unsqueeze(1) * vectors).mT, stack)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are a GPU's, and there is none")
def test_what_was_launched_before_is_waited_for() -> None:
    for _ in range(5):
        given = [stack @ stack for stack in stacks()]
        for stack, (values, vectors) in zip(given, eigh_of_each(given), strict=True):
            torch.testing.assert_close(vectors @ (values.unsqueeze(1) * vectors).mT, stack, rtol=1e-6, atol=1e-4)


def test_an_error_is_told() -> None:
    bad = torch.full((1, 3, 3), torch.nan, device=DEVICE, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        eigh_of_each([bad, *stacks()])
