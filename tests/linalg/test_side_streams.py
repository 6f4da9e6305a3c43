"""Pieces of work on streams of their own come after what was before and before what follows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from warp_unlearning.linalg import side_streams
from warp_unlearning.linalg.side_streams import SideStreams

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are a GPU's, and there is none")


def matrices() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(60 + i, 60 + i, generator=generator, dtype=torch.float64) / 9 for i in range(7)]


def fifth_powers(device: torch.device) -> list[Tensor]:
    given = [matrix.to(device) for matrix in matrices()]
    made = [matrix @ matrix for matrix in given]
    found: list[Tensor] = []
    with SideStreams(device) as sides:
        for i, matrix in enumerate(made):
            with sides.piece(i):
                found.append(matrix @ matrix)
    return [matrix @ given[i] for i, matrix in enumerate(found)]


def test_elsewhere_pieces_are_done_one_after_another() -> None:
    for found, matrix in zip(fifth_powers(torch.device("cpu")), matrices(), strict=True):
        torch.testing.assert_close(found, torch.linalg.matrix_power(matrix, 5))


@pytest.mark.gpu
@CUDA
def test_on_a_gpu_results_are_those_of_one_stream() -> None:
    expected = [torch.linalg.matrix_power(matrix, 5) for matrix in matrices()]
    for _ in range(20):
        for found, one in zip(fifth_powers(torch.device("cuda")), expected, strict=True):
            torch.testing.assert_close(found.cpu(), one, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@CUDA
def test_every_stream_has_streams_of_its_own() -> None:
    device = torch.device("cuda")
    own = []
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream), SideStreams(device) as sides, sides.piece(0):
            own.append(torch.cuda.current_stream().cuda_stream)
        with torch.cuda.stream(stream), SideStreams(device) as sides, sides.piece(0):
            assert torch.cuda.current_stream().cuda_stream == own[-1]
    assert own[0] != own[1]


@pytest.mark.gpu
@CUDA
def test_a_ninth_stream_has_none_beside_it_and_works_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_streams, "_OF", {})
    device = torch.device("cuda")
    owners = [torch.cuda.Stream() for _ in range(9)]  # type: ignore[no-untyped-call]
    found = []
    for owner in owners:
        with torch.cuda.stream(owner), SideStreams(device) as sides, sides.piece(1):
            found.append(torch.cuda.current_stream().cuda_stream != owner.cuda_stream)
    assert found == [True] * 8 + [False]
