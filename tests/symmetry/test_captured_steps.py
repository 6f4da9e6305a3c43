"""Walks by graphs lead where walks without do. On a CPU a stand-in does the work again and writes over what it gave."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.models.small_resnet import SmallResNet
from warp_unlearning.symmetry import captured_steps
from warp_unlearning.symmetry.move import apply_move
from warp_unlearning.symmetry.null_move import NullMove
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.symmetry import Probe
from warp_unlearning.symmetry.tracked_null_space import TrackedNullSpace

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def network() -> nn.Module:
    """Groups, a bias, batch norm, and coordinates that no input reaches."""
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 2, dilation=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(45, 3),
    )


def walked(
    kit: Any,
    symmetry: NullSpace,
    *,
    moves: int = 4,
    between: Callable[[int, NullSpace], None] = lambda number, symmetry: None,
    reference: bool = True,
) -> tuple[list[NullMove], nn.Module]:
    """Moves of one network, each made before the next; its weights change between."""
    model = kit.built(network).eval()
    start = {name: value.detach().clone() for name, value in model.state_dict().items()}
    generator, found = torch.Generator().manual_seed(3), []
    for number in range(moves):
        between(number, symmetry)
        forget = (kit.normal(4, 4, 5, 5, seed=number), torch.tensor([0, 1, 2, 1]))
        probe = Probe((kit.normal(12, 4, 5, 5, seed=9 + number),), forget, start if reference else None)
        before = deepcopy(model.state_dict())
        found.append(symmetry.move(model, generator=generator, probe=probe))
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), "a walk leaves the weights as they were"
        apply_move(model, found[-1])
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.add_(0.01 * kit.normal(*p.shape, seed=50 + i))
    return found, model


SETTINGS: list[dict[str, Any]] = [{}, {"dispersion": 0}, {"protect": "retain"}, {"steps": 3}, {"step_size": 2.0}]


@pytest.mark.parametrize("settings", SETTINGS, ids=["usual", "no dispersion", "retain", "three steps", "too long"])
def test_walks_by_graphs_lead_where_walks_without_do(
    kit: Any, monkeypatch: pytest.MonkeyPatch, stepped: list[Any], settings: dict[str, Any]
) -> None:
    found, model = walked(kit, TrackedNullSpace(energy=0.9, **settings))
    assert len(stepped) == 3
    assert all(graph.replays >= 3 for graph in stepped)
    # What replays leave is the graphs'; the moves are not.
    monkeypatch.setattr(captured_steps, "graphs_are_there", lambda device: False)
    expected, other = walked(kit, TrackedNullSpace(energy=0.9, **settings))
    for one, two in zip(found, expected, strict=True):
        assert one.shifts.keys() == two.shifts.keys()
        assert one.energies == pytest.approx(two.energies, rel=1e-9)
        for name, shift in two.shifts.items():
            torch.testing.assert_close(one.shifts[name], shift, rtol=1e-8, atol=1e-12)
    for one_p, two_p in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one_p, two_p, rtol=1e-8, atol=1e-12)


def test_steps_are_captured_with_the_first_tracked_move_and_none_of_exact_bases(kit: Any, stepped: list[Any]) -> None:
    walked(kit, TrackedNullSpace(energy=0.9), moves=1)
    assert [graph.replays for graph in stepped] == [0, 0, 0]
    stepped.clear()
    walked(kit, NullSpace(energy=0.9))
    assert not stepped


def no_room(number: int, symmetry: Any) -> None:
    """As if the subspaces had outgrown the room they had been given."""
    if number == 2:
        _, projection, _ = symmetry._remembered.steps._captured
        projection._blocks = [
            tuple(type(c)(c.columns[:, :0], spanned=c.spanned) for c in blocks) for blocks in projection._blocks
        ]


def other_radius(number: int, symmetry: Any) -> None:
    if number == 2:
        symmetry.radius = 0.4


@pytest.mark.parametrize("change", [no_room, other_radius])
def test_what_graphs_do_not_fit_is_walked_without(
    kit: Any, stepped: list[Any], change: Callable[[int, NullSpace], None]
) -> None:
    replays = []

    def between(number: int, symmetry: NullSpace) -> None:
        change(number, symmetry)
        replays.append(sum(graph.replays for graph in stepped))

    walked(kit, TrackedNullSpace(energy=0.9), between=between)
    replays.append(sum(graph.replays for graph in stepped))
    assert replays[1] < replays[2] == replays[3] == replays[4]
    assert len(stepped) == 3


def test_bases_that_were_decomposed_anew_have_new_graphs(kit: Any, stepped: list[Any]) -> None:
    def lost(number: int, symmetry: Any) -> None:
        no_room(number, symmetry)
        if number == 2:
            symmetry._tracked._layers.clear()

    walked(kit, TrackedNullSpace(energy=0.9), between=lost)
    assert len(stepped) == 6
    assert all(graph.replays for graph in stepped)


def test_without_a_reference_steps_are_not_captured(kit: Any, stepped: list[Any]) -> None:
    """Distances are taken from where each walk starts."""
    walked(kit, TrackedNullSpace(energy=0.9), reference=False)
    assert not stepped


def test_a_capture_that_fails_is_not_tried_again(kit: Any, monkeypatch: pytest.MonkeyPatch, stepped: list[Any]) -> None:
    tries: list[int] = []

    def refused(make: Callable[[], Any], *, pool: object = None) -> Any:
        tries.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured_steps, "CudaGraph", refused)
    found, _ = walked(kit, TrackedNullSpace(energy=0.9))
    assert len(tries) == 1
    assert all(float(sum(s.norm() for s in move.shifts.values())) > 0 for move in found)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("lane", [False, True], ids=["default stream", "own stream"])
def test_walks_of_a_gpu_lead_where_walks_without_graphs_do(monkeypatch: pytest.MonkeyPatch, *, lane: bool) -> None:
    """The first two of a session, which start from the same bases and weights."""
    stream = torch.cuda.Stream() if lane else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        found = _on_gpu()
        assert found[1].captured
        monkeypatch.setattr(captured_steps, "graphs_are_there", lambda device: False)
        expected = _on_gpu()
        assert not expected[1].captured
    for one, two in zip(found[0], expected[0], strict=True):
        for name, shift in two.shifts.items():
            size = float(shift.abs().max())
            torch.testing.assert_close(one.shifts[name], shift, rtol=1e-3, atol=1e-3 * size)


def _on_gpu() -> tuple[list[NullMove], Any]:
    torch.manual_seed(0)
    model = SmallResNet(in_channels=1).cuda().eval()
    start = {name: value.detach().clone() for name, value in model.state_dict().items()}
    draw = torch.Generator().manual_seed(1)

    def normal(count: int) -> Tensor:
        return torch.randn(count, 1, 8, 8, generator=draw).cuda()

    symmetry, generator, found = TrackedNullSpace(energy=0.9), torch.Generator().manual_seed(3), []
    for _ in range(2):
        forget = (normal(8), torch.arange(8).cuda())
        found.append(symmetry.move(model, generator=generator, probe=Probe((normal(64),), forget, start)))
    return found, symmetry._remembered.steps
