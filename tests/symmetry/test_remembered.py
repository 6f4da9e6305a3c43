from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy, deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning import streams_beside
from warp_unlearning.errors import InputError
from warp_unlearning.gradients import captured_energy
from warp_unlearning.linalg.side_streams import SideStreams
from warp_unlearning.models.small_resnet import SmallResNet
from warp_unlearning.symmetry import remembered as module
from warp_unlearning.symmetry.forget_energy import EagerEnergy, ReplayedEnergy
from warp_unlearning.symmetry.move import apply_move
from warp_unlearning.symmetry.null_scope import read_by_others
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.remembered import Remembered
from warp_unlearning.symmetry.tracked_null_space import TrackedNullSpace
from warp_unlearning.waiting import work_meanwhile


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("offset", torch.zeros(8))
        self.scaled = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(x))) + self.offset
        return self.second(hidden) * (self.first.weight.norm() if self.scaled else 1.0)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the graph of a network was looked at."""
    calls: list[int] = []
    monkeypatch.setattr(module, "read_by_others", lambda model, x: (calls.append(1), read_by_others(model, x))[1])
    return calls


def meet(memory: Remembered, model: nn.Module, x: Tensor) -> set[int]:
    memory.meet(model, x)
    return memory.misread(model, x)


def test_a_network_is_looked_at_once_whatever_its_weights(kit: Any, looked: list[int]) -> None:
    model, x, memory = kit.built(Net).eval(), kit.normal(4, 6), Remembered()
    first = meet(memory, model, x)
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            each.add_(1)
    assert meet(memory, model, kit.normal(9, 6, seed=1)) == first
    assert len(looked) == 1


def freeze(model: Net) -> None:
    model.first.bias.requires_grad_(False)


def replace(model: Net) -> None:
    model.second = nn.Linear(8, 3).double()


def move_memory(model: Net) -> None:
    model.first.weight.data = model.first.weight.data.clone()


def other_buffer(model: Net) -> None:
    model.offset = torch.ones(8, dtype=torch.float64)


def switch(model: Net) -> None:
    model.scaled = True


def hook(model: Net) -> None:
    model.second.register_forward_hook(lambda *given: None)


def one_in_train_mode(model: Net) -> None:
    model.norm.train()


def other_type(model: Net) -> None:
    model.offset = model.offset.float()


def other_shape(model: Net) -> None:
    model.offset.data = model.offset.data.reshape(1, 8)


def other_strides(model: Net) -> None:
    model.first.weight.data = model.first.weight.data.reshape(6, 8).mT


def drop(model: Net) -> None:
    model.norm = nn.Identity()


def rename(model: Net) -> None:
    model.other = model.norm
    del model.norm


def other_class(model: Net) -> None:
    class Same(Net):
        pass

    model.__class__ = Same


def other_setting(model: Net) -> None:
    model.norm.eps = 1e-3


SEEN: list[Callable[[Any], object]] = [freeze, replace, move_memory, other_buffer, switch, hook]
MORE = [one_in_train_mode, other_type, other_shape, other_strides, drop, rename, other_class, other_setting]


@pytest.mark.parametrize("change", SEEN)
def test_a_network_that_is_built_otherwise_is_looked_at_again(
    kit: Any, looked: list[int], change: Callable[[Any], object]
) -> None:
    model, x, memory = kit.built(Net).eval(), kit.normal(4, 6), Remembered()
    meet(memory, model, x)
    change(model)
    assert meet(memory, model, x) == read_by_others(model, x[:1])
    assert len(looked) == 2
    meet(memory, model, x)
    assert len(looked) == 2


@pytest.mark.parametrize("change", [*SEEN, *MORE])
def test_what_is_known_of_its_weights_is_forgotten_with_it(kit: Any, change: Callable[[Any], object]) -> None:
    model, x, memory = kit.built(Net).eval(), kit.normal(4, 6), Remembered()
    memory.meet(model, x)
    memory.real = True
    memory.meet(model, x)
    assert memory.real
    change(model)
    memory.meet(model, x)
    assert not memory.real


def test_a_weight_that_became_one_of_whole_numbers_is_refused_after_a_move(kit: Any) -> None:
    model, x = kit.built(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))), kit.normal(5, 6)
    used = NullSpace(energy=0.9)
    used.move(model, generator=kit.generator(), probe=kit.probe(x))
    kept = model[2].weight.detach().to(torch.int64)
    del model[2].weight
    model[2].register_buffer("weight", kept)
    for _ in range(2):
        with pytest.raises(InputError, match=r"2\.weight is torch\.int64"):
            used.move(model, generator=kit.generator(), probe=kit.probe(x))


def test_another_network_of_the_same_layers_is_another(kit: Any, looked: list[int]) -> None:
    model, x, memory = kit.built(Net).eval(), kit.normal(4, 6), Remembered()
    meet(memory, model, x)
    meet(memory, copy(model), x)
    assert len(looked) == 2


def test_what_reads_a_weight_elsewhere_is_seen_after_a_switch(kit: Any) -> None:
    """The move of a symmetry that has moved the network before is that of one that has not."""
    model, x = kit.built(Net), kit.normal(5, 6)
    used = NullSpace(energy=0.9)
    used.move(model, generator=kit.generator(), probe=kit.probe(x))
    model.scaled = True
    found, fresh = (
        symmetry.move(model, generator=kit.generator(), probe=kit.probe(x))
        for symmetry in (used, NullSpace(energy=0.9))
    )
    assert "first.weight" in found.left
    assert found.left == fresh.left
    assert all(torch.equal(found.shifts[name], shift) for name, shift in fresh.shifts.items())


def test_other_shapes_are_other_networks(kit: Any, looked: list[int]) -> None:
    model, memory = kit.built(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.LazyLinear(3))), Remembered()
    model(kit.normal(1, 2, 4, 4))
    meet(memory, model, kit.normal(2, 2, 4, 4))
    memory.meet(model, kit.normal(2, 2, 4, 4).float())
    assert memory._misread is None


def test_a_copy_remembers_nothing_and_equals_it(kit: Any) -> None:
    model, x, memory = kit.built(Net).eval(), kit.normal(4, 6), Remembered()
    meet(memory, model, x)
    for empty in (deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        assert empty._misread is None
        assert empty._moves == 0
        assert empty == memory
    assert memory != 3
    assert deepcopy(NullSpace(energy=0.9)) == NullSpace(energy=0.9)


def test_a_network_that_is_gone_is_not_kept(kit: Any) -> None:
    model, x, memory = kit.built(Net).eval(), kit.normal(4, 6), Remembered()
    meet(memory, model, x)
    del model
    assert memory._objects[0]() is None


def test_on_a_cpu_energies_are_computed_one_by_one(kit: Any) -> None:
    model, x, memory = kit.built(Net).eval(), kit.normal(4, 6), Remembered()
    eager = EagerEnergy(model, model, (x, torch.arange(4) % 3))
    for _ in range(3):
        memory.meet(model, x)
        assert memory.energy(eager) is eager


def on_a_small_network(kit: Any) -> tuple[nn.Module, Tensor, tuple[Tensor, Tensor]]:
    model = kit.built(lambda: SmallResNet(classes=3, width=4)).eval()
    return model, kit.normal(40, 1, 8, 8), (kit.normal(6, 1, 8, 8, seed=1), torch.arange(6) % 3)


def moves(kit: Any, symmetry: NullSpace, count: int) -> list[dict[str, Tensor]]:
    model, x, forget = on_a_small_network(kit)
    found = []
    for seed in range(count):
        move = symmetry.move(model, generator=kit.generator(seed), probe=kit.probe(x, forget=forget))
        apply_move(model, move)
        found.append({name: shift.clone() for name, shift in move.shifts.items()})
    return found


@pytest.mark.parametrize(("make", "captured_at"), [(NullSpace, 1), (TrackedNullSpace, 0)])
def test_graphs_are_captured_by_the_second_move_or_ahead_of_it(
    kit: Any, redone: list[Any], make: type[NullSpace], captured_at: int
) -> None:
    """Of an exact symmetry the first move may be the only one; whoever tracks has more to come."""
    symmetry = make(energy=0.9)
    model, x, forget = on_a_small_network(kit)
    for turn in range(3):
        symmetry.move(model, generator=kit.generator(turn), probe=kit.probe(x, forget=forget))
        assert symmetry._remembered.captured == (turn >= captured_at)
    assert len(redone) == 2
    assert [graph.replays > 0 for graph in redone] == [True, True]


@pytest.mark.parametrize("make", [NullSpace, TrackedNullSpace])
def test_moves_by_graphs_of_energies_are_moves_without(
    kit: Any, monkeypatch: pytest.MonkeyPatch, redone: list[Any], make: type[NullSpace]
) -> None:
    found = moves(kit, make(energy=0.9), 4)
    assert sum(graph.replays for graph in redone) > 4
    monkeypatch.setattr(module, "graphs_are_there", lambda device: False)
    for one, other in zip(found, moves(kit, make(energy=0.9), 4), strict=True):
        for name, shift in other.items():
            torch.testing.assert_close(one[name], shift, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), torch.OutOfMemoryError("out of memory")])
@pytest.mark.parametrize("make", [NullSpace, TrackedNullSpace])
def test_what_cannot_be_captured_is_computed_one_by_one(
    kit: Any, monkeypatch: pytest.MonkeyPatch, redone: list[Any], make: type[NullSpace], error: Exception
) -> None:
    tries = []

    def fails(make: Any, *, pool: Any = None) -> None:
        tries.append(make)
        raise error

    monkeypatch.setattr(captured_energy, "CudaGraph", fails)
    found = moves(kit, make(energy=0.9), 3)
    assert len(tries) == 1
    monkeypatch.setattr(module, "graphs_are_there", lambda device: False)
    for one, other in zip(found, moves(kit, make(energy=0.9), 3), strict=True):
        for name, shift in other.items():
            torch.testing.assert_close(one[name], shift, rtol=1e-6, atol=1e-10)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
def test_from_the_second_move_on_energies_are_a_graph(kit: Any) -> None:
    model = kit.built(lambda: SmallResNet(classes=3, width=4)).eval().cuda()
    x, y, memory = kit.normal(6, 1, 8, 8).cuda(), (torch.arange(6) % 3).cuda(), Remembered()
    eager = EagerEnergy(model, model, (x, y))
    memory.meet(model, x)
    assert isinstance(memory.energy(eager), ReplayedEnergy)
    assert not memory.captured
    memory.meet(model, x)
    replayed = memory.energy(eager)
    assert isinstance(replayed, ReplayedEnergy)
    assert memory.captured
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.05)
    parameters = dict(model.named_parameters())
    found, expected = (energy.slopes(parameters, loss=True) for energy in (replayed, eager))
    torch.testing.assert_close(found.energy, expected.energy, rtol=1e-9, atol=0)
    assert found.of_loss is not None
    assert expected.of_loss is not None
    for name in parameters:
        torch.testing.assert_close(found.of_energy[name], expected.of_energy[name], rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(found.of_loss[name], expected.of_loss[name], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(replayed.value(), eager.value(), rtol=1e-9, atol=0)
    other = EagerEnergy(model, model, (x[:3], y[:3]))
    assert memory.energy(other) is other


@pytest.mark.gpu
@needs_gpu
def test_moves_by_graphs_are_moves_without(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for captured_from in (2, 10**9):
        monkeypatch.setattr(module, "_CAPTURED_FROM", captured_from)
        monkeypatch.setattr(module, "graphs_are_there", lambda device, there=captured_from == 2: there)
        model = kit.built(lambda: SmallResNet(classes=3, width=4)).eval().cuda()
        x, forget = (
            kit.normal(40, 1, 8, 8).cuda(),
            (kit.normal(6, 1, 8, 8, seed=1).cuda(), (torch.arange(6) % 3).cuda()),
        )
        symmetry = NullSpace(energy=0.9)
        for seed in range(3):
            move = symmetry.move(model, generator=kit.generator(seed), probe=kit.probe(x, forget=forget))
            with torch.no_grad():
                for name, shift in move.shifts.items():
                    model.get_parameter(name).add_(shift)
        assert (symmetry._remembered._graph is not None) == (captured_from == 2)
        found.append((move, {n: p.detach().clone() for n, p in model.named_parameters()}))
    assert found[0][0].energies == pytest.approx(found[1][0].energies, rel=1e-6)
    for name, value in found[0][1].items():
        torch.testing.assert_close(value, found[1][1][name], rtol=1e-6, atol=1e-9)


def test_slopes_are_found_once_a_move(kit: Any, redone: list[Any]) -> None:
    model, x = kit.built(lambda: SmallResNet(classes=3, width=4)).eval(), kit.normal(40, 1, 8, 8)
    forget = (kit.normal(6, 1, 8, 8, seed=1), torch.arange(6) % 3)
    symmetry, ahead = TrackedNullSpace(energy=0.9), []
    for seed in range(4):
        move = symmetry.move(model, generator=kit.generator(seed), probe=kit.probe(x, forget=forget))
        apply_move(model, move)
        ahead.append(redone[0].replays if redone else 0)
        assert move.energies is not None
    assert ahead == [1, 2, 3, 4]


def test_refreshes_are_made_ready_once_bases_were_decomposed(kit: Any, proposed_again: Any) -> None:
    model, x = kit.built(lambda: SmallResNet(classes=3, width=4)).eval(), kit.normal(40, 1, 8, 8)
    forget = (kit.normal(6, 1, 8, 8, seed=1), torch.arange(6) % 3)
    symmetry = TrackedNullSpace(energy=0.9)
    symmetry.move(model, generator=kit.generator(), probe=kit.probe(x, forget=forget))
    made = len(proposed_again.graphs)
    assert made > 0
    symmetry.move(model, generator=kit.generator(1), probe=kit.probe(x, forget=forget))
    assert len(proposed_again.graphs) == made
    assert sum(graph.replays for graph in proposed_again.graphs) > 0


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("lane", [False, True])
def test_slopes_found_meanwhile_are_the_slopes(kit: Any, monkeypatch: pytest.MonkeyPatch, lane: bool) -> None:
    # Other tests may have taken all that there are.
    monkeypatch.setattr(streams_beside, "_OF", {})
    with torch.cuda.stream(torch.cuda.Stream()) if lane else nullcontext():
        check_slopes_found_meanwhile(kit)


def check_slopes_found_meanwhile(kit: Any) -> None:
    model = kit.built(lambda: SmallResNet(classes=3, width=4)).eval().cuda()
    x, y, memory = kit.normal(6, 1, 8, 8).cuda(), (torch.arange(6) % 3).cuda(), Remembered()
    eager = EagerEnergy(model, model, (x, y))
    for _ in range(2):
        memory.meet(model, x)
        energy = memory.energy(eager)
    assert isinstance(energy, ReplayedEnergy)
    assert memory.captured
    parameters = dict(model.named_parameters())

    def busy() -> Tensor:
        found = torch.randn(512, 512, device="cuda")
        for _ in range(50):
            found = found @ found / 512
        return found

    for factor in (1.05, 0.9, 1.1):
        with torch.no_grad():
            for p in parameters.values():
                p.mul_(factor)
        with energy.slopes_meanwhile(), SideStreams(x.device) as sides:
            assert energy._ahead is None
            work_meanwhile()
            assert energy._ahead is not None
            sides.each([busy] * 4, apart=False)
        found, expected = (each.slopes(parameters, loss=True) for each in (energy, eager))
        torch.testing.assert_close(found.energy, expected.energy, rtol=1e-9, atol=0)
        for name in parameters:
            torch.testing.assert_close(found.of_energy[name], expected.of_energy[name], rtol=1e-8, atol=1e-12)
        now = memory.energy_now(model, x, y)
        assert now is not None
        torch.testing.assert_close(now, eager.value(), rtol=1e-9, atol=0)
        assert memory.energy_now(model, x[:3], y[:3]) is None
        assert memory.energy_now(kit.built(Net), x, y) is None


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("make", [NullSpace, TrackedNullSpace])
def test_moves_on_a_gpu_are_those_on_a_cpu(kit: Any, make: type[NullSpace]) -> None:
    found = []
    for device in ("cpu", "cuda"):
        model = kit.built(lambda: SmallResNet(classes=3, width=4)).eval().to(device)
        x = kit.normal(40, 1, 8, 8).to(device)
        forget = (kit.normal(6, 1, 8, 8, seed=1).to(device), (torch.arange(6) % 3).to(device))
        symmetry = make(energy=0.9, dispersion=0.0)
        for seed in range(2 if make is TrackedNullSpace else 1):
            move = symmetry.move(model, generator=kit.generator(seed), probe=kit.probe(x, forget=forget))
        found.append(move)
    ranks = [{name: basis.rank for name, basis in move.bases.items()} for move in found]
    assert ranks[0] == ranks[1]
    if make is NullSpace:
        for name, shift in found[0].shifts.items():
            torch.testing.assert_close(found[1].shifts[name].cpu(), shift, rtol=1e-5, atol=1e-8)
