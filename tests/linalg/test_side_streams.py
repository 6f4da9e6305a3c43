"""Pieces of work on streams of their own come after what was before and before what follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Barrier, Event, Thread, current_thread, local
from time import sleep
from types import SimpleNamespace
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
import torch
from torch import Tensor

from warp_unlearning import streams_beside
from warp_unlearning.linalg import side_streams
from warp_unlearning.linalg.gpu_library import make_context_current
from warp_unlearning.linalg.side_streams import SideStreams, launched_apart

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
    monkeypatch.setattr(streams_beside, "_OF", {})
    device = torch.device("cuda")
    owners = [torch.cuda.Stream() for _ in range(9)]  # type: ignore[no-untyped-call]
    found = []
    for owner in owners:
        with torch.cuda.stream(owner), SideStreams(device) as sides, sides.piece(1):
            found.append(torch.cuda.current_stream().cuda_stream != owner.cuda_stream)
    assert found == [True] * 8 + [False]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 11])
def test_pieces_launched_by_threads_come_in_order(count: int) -> None:
    pieces = [partial(pow, i, 2) for i in range(count)]
    assert launched_apart(pieces, 4, nullcontext) == [i**2 for i in range(count)]


def test_a_thread_enters_its_share_once_and_launches_every_so_many_of_the_pieces_within() -> None:
    entered: list[int] = []
    inside = local()

    @contextmanager
    def share(number: int) -> Iterator[None]:
        entered.append(number)
        inside.number = number
        yield
        inside.number = None

    assert launched_apart([lambda: inside.number] * 7, 3, share) == [0, 1, 2, 0, 1, 2, 0]
    assert sorted(entered) == [0, 1, 2]


def test_pieces_are_launched_by_several_threads_at_once() -> None:
    together = Barrier(4, timeout=20)
    names = launched_apart([lambda: (together.wait(), current_thread().name)[1]] * 4, 4, nullcontext)
    assert len(set(names)) == 4
    assert current_thread().name not in names


@pytest.mark.parametrize("recorded", [True, False])
def test_threads_record_gradients_where_the_caller_does(recorded: bool) -> None:
    with torch.set_grad_enabled(recorded):
        found = launched_apart([torch.is_grad_enabled] * 5, 4, nullcontext)
    assert found == [recorded] * 5


def test_an_error_is_raised_once_all_pieces_are_done() -> None:
    done: list[int] = []
    failed = Event()

    def fail() -> None:
        failed.set()
        raise ValueError("piece 0")

    def wait() -> None:
        assert failed.wait(20)
        sleep(0.2)
        done.append(1)

    with pytest.raises(ValueError, match="piece 0"):
        launched_apart([fail, wait, wait], 3, nullcontext)
    assert done == [1, 1]


@pytest.mark.parametrize("otherwise", ["", "takes turns", "autocast", "inference", "together"])
def test_threads_launch_unless_they_cannot_do_what_the_caller_would(
    otherwise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = SideStreams(torch.device("cpu"))
    streams = [SimpleNamespace(device="gpu", number=number) for number in range(2)]
    current = local()
    order: list[str] = []
    in_context: set[str] = set()

    @contextmanager
    def stream(chosen: SimpleNamespace) -> Iterator[None]:
        before = getattr(current, "stream", None)
        current.stream = chosen
        yield
        current.stream = before

    def make_current(device: str) -> None:
        assert current.stream.device == device
        in_context.add(current_thread().name)

    def apart(*given: Any) -> Any:
        order.append("threads")
        return launched_apart(*given)

    monkeypatch.setattr(sides, "_streams", streams)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda chosen: setattr(current, "stream", chosen))
    monkeypatch.setattr(side_streams, "make_context_current", make_current)
    monkeypatch.setattr(side_streams, "load_gpu_library", lambda device: order.append(f"library of the {device}"))
    monkeypatch.setattr(side_streams, "launched_apart", apart)
    monkeypatch.setattr(side_streams, "takes_turns", lambda: otherwise == "takes turns")
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: otherwise == "autocast")
    monkeypatch.setattr(torch, "is_inference_mode_enabled", lambda: otherwise == "inference")
    pieces = [partial(lambda i: (i**2, current.stream.number, current_thread().name), i) for i in range(5)]
    found = sides.each(pieces, apart=otherwise != "together")
    assert [(square, number) for square, number, _ in found] == [(0, 0), (1, 1), (4, 0), (9, 1), (16, 0)]
    assert getattr(current, "stream", None) is None
    assert order == ([] if otherwise else ["library of the gpu", "threads"])
    threads = {name for _, _, name in found}
    if otherwise:
        assert threads == {current_thread().name}
    else:
        # A product that finds no context in its thread warns.
        assert in_context == threads
        assert len(threads) == 2


def test_each_share_has_the_same_thread_every_time() -> None:
    seen: list[set[str]] = [set(), set(), set(), set()]
    for _ in range(50):
        names = [thread.name for thread in launched_apart([current_thread] * 4, 4, nullcontext)]
        for share, name in zip(seen, names, strict=True):
            share.add(name)
    assert [len(share) for share in seen] == [1] * 4


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("taking_turns", [True, False])
def test_pieces_of_threads_on_a_gpu_are_those_of_one_stream(
    taking_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_streams, "takes_turns", lambda: taking_turns)
    expected = [torch.linalg.matrix_power(matrix, 5) for matrix in matrices()]
    for _ in range(20):
        given = [matrix.cuda() for matrix in matrices()]
        made = [matrix @ matrix for matrix in given]
        with SideStreams(torch.device("cuda")) as sides:
            squares = sides.each([partial(torch.mm, matrix, matrix) for matrix in made])
        for square, matrix, one in zip(squares, given, expected, strict=True):
            torch.testing.assert_close((square @ matrix).cpu(), one, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@CUDA
def test_pieces_launched_in_turn_on_a_gpu_leave_its_stream_current() -> None:
    expected = [torch.linalg.matrix_power(matrix, 5) for matrix in matrices()]
    before = torch.cuda.current_stream()
    given = [matrix.cuda() for matrix in matrices()]
    made = [matrix @ matrix for matrix in given]
    with SideStreams(torch.device("cuda")) as sides:
        squares = sides.each([partial(torch.mm, matrix, matrix) for matrix in made], apart=False)
        assert torch.cuda.current_stream() == before
    for square, matrix, one in zip(squares, given, expected, strict=True):
        torch.testing.assert_close((square @ matrix).cpu(), one, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@CUDA
def test_a_first_product_of_a_new_thread_has_a_context() -> None:
    """Torch warns where it has none, and a warning is an error here."""
    given = torch.eye(4, device="cuda")
    found: list[Tensor] = []

    def product() -> None:
        make_context_current(given.device)
        with catch_warnings():
            simplefilter("error")
            found.append(given @ given)

    thread = Thread(target=product)
    thread.start()
    thread.join()
    assert torch.equal(found[0], given)
