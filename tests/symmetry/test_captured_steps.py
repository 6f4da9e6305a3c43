"""Walks by graphs lead where walks without do. On a CPU a stand-in does the work again and writes over what it gave."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.gradients import captured_energy
from warp_unlearning.models.small_resnet import SmallResNet
from warp_unlearning.symmetry import captured_steps
from warp_unlearning.symmetry.move import apply_move
from warp_unlearning.symmetry.null_move import NullMove
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.symmetry import Probe
from warp_unlearning.symmetry.tracked_null_space import TrackedNullSpace

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def walked(
    kit: Any,
    symmetry: NullSpace,
    *,
    moves: int = 4,
    between: Callable[[int, NullSpace], None] = lambda number, symmetry: None,
    reference: bool = True,
    referred: Callable[[int, dict[str, Tensor]], dict[str, Tensor]] = lambda number, start: start,
) -> tuple[list[NullMove], nn.Module]:
    """Moves of one network, each made before the next; its weights change between."""
    model = kit.built(kit.convolutional).eval()
    start = {name: value.detach().clone() for name, value in model.state_dict().items()}
    generator, found = torch.Generator().manual_seed(3), []
    for number in range(moves):
        between(number, symmetry)
        forget = (kit.normal(4, 4, 5, 5, seed=number), torch.tensor([0, 1, 2, 1]))
        probe = Probe(
            (kit.normal(12, 4, 5, 5, seed=9 + number),), forget, referred(number, start) if reference else None
        )
        before = deepcopy(model.state_dict())
        found.append(symmetry.move(model, generator=generator, probe=probe))
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), "a walk leaves the weights as they were"
        apply_move(model, found[-1])
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.add_(0.01 * kit.normal(*p.shape, seed=50 + i))
    return found, model


def assert_same_moves(found: list[NullMove], expected: list[NullMove]) -> None:
    assert any(bool(shift.any()) for move in expected[1:] for shift in move.shifts.values())
    for one, two in zip(found, expected, strict=True):
        assert one.shifts.keys() == two.shifts.keys()
        assert one.energies == pytest.approx(two.energies, rel=1e-8)
        for name, shift in two.shifts.items():
            torch.testing.assert_close(one.shifts[name], shift, rtol=1e-7, atol=1e-11)


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
    assert_same_moves(found, expected)
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
        _, projection, _ = symmetry._remembered.walks._captured
        projection._blocks = [
            tuple(type(c)(c.columns[:, :0], spanned=c.spanned) for c in blocks) for blocks in projection._blocks
        ]


def other(name: str, value: object) -> Callable[[int, Any], None]:
    def change(number: int, symmetry: Any) -> None:
        if number == 2:
            setattr(symmetry, name, value)

    return change


CHANGES = {
    "no room": no_room,
    "radius": other("radius", 0.4),
    "step": other("step_size", 0.04),
    "dispersion": other("dispersion", 0.0),
    "protect": other("protect", "retain"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_what_graphs_do_not_fit_is_walked_without_once_and_then_has_others(
    kit: Any, monkeypatch: pytest.MonkeyPatch, stepped: list[Any], change: Callable[[int, NullSpace], None]
) -> None:
    replays = []

    def between(number: int, symmetry: NullSpace) -> None:
        change(number, symmetry)
        replays.append(sum(graph.replays for graph in stepped))

    found, _ = walked(kit, TrackedNullSpace(energy=0.9), moves=6, between=between)
    replays.append(sum(graph.replays for graph in stepped))
    assert replays[1] < replays[2] == replays[3] == replays[4] < replays[5] < replays[6]
    assert len(stepped) == 6
    monkeypatch.setattr(captured_steps, "graphs_are_there", lambda device: False)
    expected, _ = walked(
        kit,
        TrackedNullSpace(energy=0.9),
        moves=6,
        between=change if change is not no_room else lambda number, symmetry: None,
    )
    assert_same_moves(found, expected)


def test_weights_that_distances_are_taken_from_may_change(
    kit: Any, monkeypatch: pytest.MonkeyPatch, stepped: list[Any]
) -> None:
    """In place, and as others."""

    def changed(number: int, start: dict[str, Tensor]) -> dict[str, Tensor]:
        if number == 2:
            for value in start.values():
                value.mul_(2)
        return {name: 3 * value for name, value in start.items()} if number == 4 else start

    found = []
    for captured in (True, False):
        monkeypatch.setattr(captured_steps, "graphs_are_there", lambda device, captured=captured: captured)
        found.append(walked(kit, TrackedNullSpace(energy=0.9), moves=6, referred=changed)[0])
    assert stepped
    assert_same_moves(*found)


def test_a_term_without_a_share_may_hold_anything(
    kit: Any, monkeypatch: pytest.MonkeyPatch, stepped: list[Any]
) -> None:
    """A slope that is not finite is left out, with graphs as without."""
    slopes, found = captured_energy.CapturedEnergy._slopes_once, []

    def spoiled(self: Any, *, checked: bool) -> Any:
        given = slopes(self, checked=checked)
        for gradient in given.gradients.values():
            gradient.fill_(torch.inf)
        return given

    monkeypatch.setattr(captured_energy.CapturedEnergy, "_slopes_once", spoiled)
    for captured in (True, False):
        monkeypatch.setattr(captured_steps, "graphs_are_there", lambda device, captured=captured: captured)
        found.append(walked(kit, TrackedNullSpace(energy=0.9, protect="retain"), moves=3)[0])
    assert stepped
    assert_same_moves(*found)


def test_the_last_walk_leaves_nothing_behind(kit: Any, stepped: list[Any]) -> None:
    """Bases of one move need not lie beside those of the next."""
    for symmetry in (NullSpace(energy=0.9), TrackedNullSpace(energy=0.9)):
        walked(kit, symmetry, moves=3)
        assert symmetry._remembered.walks._wanted is None


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
    """All of a session, with memory asked for and let go of in between."""
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

    symmetry, generator, found = TrackedNullSpace(energy=0.9, steps=2), torch.Generator().manual_seed(3), []
    for _ in range(4):
        forget = (normal(8), torch.arange(8).cuda())
        found.append(symmetry.move(model, generator=generator, probe=Probe((normal(64),), forget, start)))
        torch.cuda.empty_cache()
        for size in (1 << 12, 1 << 16, 1 << 20):
            torch.full((16, size), torch.nan, device="cuda")
    return found, symmetry._remembered.walks
