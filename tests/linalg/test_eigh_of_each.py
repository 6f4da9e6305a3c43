"""Decompositions side by side, and of several sizes as one, are those made one after another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.linalg import eigh_of_each as module
from warp_unlearning.linalg.cusolver import can_decompose, decompose
from warp_unlearning.linalg.eigh_of_each import alike, eigh_of_each, eigh_of_group

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are a GPU's, and there is none")
SIZES = ((1, 5), (3, 40), (2, 200), (1, 1), (1, 64), (2, 17), (1, 37))


def stacks(*, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for count, size in SIZES:
        rows = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
        found.append((scale * rows @ rows.mT).to(DEVICE, dtype))
    return found


def by_torch(stack: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(stack)
    return values, vectors, torch.zeros(len(stack), dtype=torch.int32)


def check(given: Tensor, values: Tensor, vectors: Tensor, tolerance: float) -> None:
    size, norm = given.shape[1], float(torch.linalg.matrix_norm(given).max()) or 1.0
    assert vectors.shape == given.shape
    assert bool((values.diff(dim=1) >= 0).all())
    assert float((vectors @ (values.unsqueeze(1) * vectors).mT - given).abs().max()) <= tolerance * norm
    eye = torch.eye(size, dtype=given.dtype, device=given.device)
    assert float((vectors.mT @ vectors - eye).abs().max()) <= tolerance


@pytest.mark.parametrize("count", [0, 1, 7])
def test_values_and_vectors_decompose_each_matrix(count: int) -> None:
    given = stacks()[:count]
    found = eigh_of_each(given)
    assert len(found) == count
    for stack, (values, vectors) in zip(given, found, strict=True):
        check(stack, values, vectors, 1e-12)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_groups_hold_every_stack_once_and_no_size_far_from_another(sizes: list[int]) -> None:
    kinds = (torch.float32, torch.float64)
    given = [torch.zeros(1, size, size, dtype=kinds[i % 2]) for i, size in enumerate(sizes)]
    groups = alike(given)
    assert sorted(member.number for group in groups for member in group) == list(range(len(sizes)))
    for group in groups:
        own = [member.given.shape[1] for member in group]
        assert min(own) >= 0.8 * max(own)
        assert len({member.given.dtype for member in group}) == 1
    assert [g[0].given.shape[1] for g in groups] == sorted((g[0].given.shape[1] for g in groups), reverse=True)


@pytest.mark.parametrize("scale", [1.0, 1e-20, -1.0, 0.0])
def test_a_group_of_several_sizes_is_decomposed_as_one(scale: float) -> None:
    given = stacks(scale=scale)
    (group,) = [[module.Member(i, stack) for i, stack in enumerate(given)]]
    for stack, (values, vectors) in zip(given, eigh_of_group(group, batched=by_torch), strict=True):
        check(stack, values, vectors, 1e-12)
        torch.testing.assert_close(values, torch.linalg.eigvalsh(stack), rtol=1e-9, atol=1e-12 * abs(scale) * 1e3)


def test_what_the_batch_cannot_decompose_is_left_to_torch() -> None:
    group = [module.Member(0, stacks()[1])]

    def fails(stack: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, vectors, info = by_torch(stack)
        return values + 1, vectors, info + 3

    ((values, vectors),) = eigh_of_group(group, batched=fails)
    check(group[0].given, values, vectors, 1e-12)


def test_what_the_library_refuses_is_left_to_torch_but_not_a_lack_of_memory() -> None:
    group = [module.Member(0, stacks()[1])]

    def refuses(stack: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raise RuntimeError("status 3")

    def is_full(stack: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raise torch.OutOfMemoryError("no room")

    ((values, vectors),) = eigh_of_group(group, batched=refuses)
    check(group[0].given, values, vectors, 1e-12)
    with pytest.raises(torch.OutOfMemoryError):
        eigh_of_group(group, batched=is_full)


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_the_library_decomposes(dtype: torch.dtype, tolerance: float) -> None:
    for stack in stacks(dtype=dtype):
        assert can_decompose(stack)
        values, vectors, info = decompose(stack)
        check(stack, values, vectors, tolerance)
        assert not bool(info.any())


@pytest.mark.gpu
@CUDA
def test_what_was_launched_before_is_waited_for() -> None:
    for _ in range(5):
        given = [stack @ stack for stack in stacks()]
        for stack, (values, vectors) in zip(given, eigh_of_each(given), strict=True):
            check(stack, values, vectors, 1e-9)


def test_on_a_cpu_the_library_is_not_asked() -> None:
    assert not can_decompose(torch.eye(3).unsqueeze(0))


def test_an_error_is_told() -> None:
    bad = torch.full((1, 3, 3), torch.nan, device=DEVICE, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        eigh_of_each([bad, *stacks()])
