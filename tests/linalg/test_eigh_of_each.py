"""Decompositions side by side are those made one after another."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor

from warp_unlearning.cuda_graphs import CudaGraph, capturable_stream
from warp_unlearning.linalg import eigh_of_each as eigh_module
from warp_unlearning.linalg.eigh_of_each import eigh, eigh_of_each

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are a GPU's, and there is none")
SIZES = ((1, 5), (3, 40), (2, 200), (1, 1), (1, 64), (2, 17), (1, 37))


def stacks(*, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for count, size in SIZES:
        rows = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
        found.append((rows @ rows.mT).to(DEVICE, dtype))
    return found


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


def test_nothing_to_decompose_while_lanes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigh_module, "takes_turns", lambda: True)
    assert eigh_of_each([]) == []


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_in_the_type_given(dtype: torch.dtype, tolerance: float) -> None:
    for stack in stacks(dtype=dtype):
        values, vectors = eigh(stack)
        assert values.dtype == vectors.dtype == dtype
        check(stack, values, vectors, tolerance)


def test_what_does_not_converge_in_single_precision_is_tried_in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    given, solve = stacks(dtype=torch.float32)[1], torch.linalg.eigh

    def fails_in_float32(matrices: Tensor) -> tuple[Tensor, Tensor]:
        if matrices.dtype == torch.float32:
            raise RuntimeError("failed to converge")
        values, vectors = solve(matrices)
        return values, vectors

    monkeypatch.setattr(torch.linalg, "eigh", fails_in_float32)
    check(given, *eigh(given), 1e-5)


@pytest.mark.gpu
@CUDA
def test_what_was_launched_before_is_waited_for() -> None:
    for _ in range(5):
        given = [stack @ stack for stack in stacks()]
        for stack, (values, vectors) in zip(given, eigh_of_each(given), strict=True):
            check(stack, values, vectors, 1e-9)


def test_an_error_is_told() -> None:
    bad = torch.full((1, 3, 3), torch.nan, device=DEVICE, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        eigh_of_each([bad, *stacks()])


@pytest.mark.gpu
@CUDA
def test_meanwhile_is_called_once_and_may_capture_a_graph() -> None:
    found: list[CudaGraph[Tensor]] = []
    x = torch.ones(1 << 16, device=DEVICE)

    def capture() -> None:
        with capturable_stream(DEVICE):
            found.append(CudaGraph(lambda: x * 2))

    given = stacks()
    for stack, (values, vectors) in zip(given, eigh_of_each(given, meanwhile=capture), strict=True):
        check(stack, values, vectors, 1e-9)
    assert len(found) == 1
    x.fill_(3)
    assert bool((found[0].replay() == 6).all())


@pytest.mark.gpu
@CUDA
def test_an_error_meanwhile_is_told_once_all_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    one = eigh_module._beside

    def slowly(*given: Any) -> Any:
        sleep(0.05)
        result = one(*given)
        ended.append(1)
        return result

    def fails() -> None:
        raise KeyError

    monkeypatch.setattr(eigh_module, "_beside", slowly)
    with pytest.raises(KeyError):
        eigh_of_each(stacks(), meanwhile=fails)
    assert len(ended) == sum(1 if size <= 32 else count for count, size in SIZES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="threads of their own decompose on a GPU")
def test_on_a_cpu_nobody_waits() -> None:
    """What there is to do is left to the end of its block."""
    called: list[int] = []
    eigh_of_each(stacks(), meanwhile=lambda: called.append(1))
    assert not called
