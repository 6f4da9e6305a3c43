from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.symmetry.input_bases import InputBasis, exact_bases
from warp_unlearning.symmetry.move import apply_move
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.symmetry import settings_of
from warp_unlearning.symmetry.tracked_null_space import TrackedNullSpace


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def problem(kit: Any) -> tuple[nn.Module, Tensor, tuple[Tensor, Tensor]]:
    return kit.built(network), kit.normal(12, 2, 5, 5), (kit.normal(4, 2, 5, 5, seed=1), torch.arange(4) % 3)


def trained(kit: Any, model: nn.Module, x: Tensor) -> None:
    """A few weights changed, as by an update."""
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.add_(0.02 * kit.normal(*p.shape, seed=50 + i))


def test_it_takes_the_options_of_the_exact_one_and_its_own(kit: Any) -> None:
    symmetry = TrackedNullSpace(energy=0.8, step_size=0.1, rounds=3, batch_size=5, forget_size=4)
    assert isinstance(symmetry, NullSpace)
    assert symmetry.looks_at == (5, 4)
    told = settings_of(symmetry)
    assert told == settings_of(NullSpace(energy=0.8, step_size=0.1, batch_size=5, forget_size=4)) | {"rounds": 3}
    assert json.loads(json.dumps(told)) == told
    assert "_tracked" not in repr(symmetry)
    tracked = TrackedNullSpace(energy=0.8, rule="singular_values", rounds=3)._tracked
    assert (tracked.energy, tracked.rule, tracked.rounds) == (0.8, "singular_values", 3)
    for bad in ({"energy": 0}, {"energy": 1.5}, {"steps": 0}, {"aim": "up"}):
        with pytest.raises(InputError):
            TrackedNullSpace(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("energy", [0.7, 0.95])
def test_its_bases_keep_nearly_what_exact_ones_of_the_same_rank_do(kit: Any, energy: float) -> None:
    """Captured energy on the batch, against the exact basis: all of it at first, nearly all after updates."""
    model, x, forget = problem(kit)
    symmetry = TrackedNullSpace(energy=energy, aim="random", step_size=0.02)
    generator = kit.generator()
    for call in range(3):
        move = symmetry.move(model, generator=generator, probe=kit.probe(x, forget=forget))
        exact = exact_bases(model, [x, forget[0]], energy=energy)
        assert set(move.bases) == set(exact)
        for name, basis in move.bases.items():
            path = name.rpartition(".")[0]
            rows = kit.inputs(model, path, [x, forget[0]])[0]
            rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], dim=1)
            (block,) = basis.blocks
            gram = block.basis.T @ block.basis
            assert float((gram - torch.eye(len(gram), dtype=gram.dtype)).abs().max()) < 1e-3
            values = torch.linalg.svdvals(rows).square()
            best = float(values[: block.rank].sum() / values.sum())
            captured = float((rows @ block.basis).square().sum() / rows.square().sum())
            assert captured >= (0.9 if call else 1 - 1e-9) * best
            assert call or block.rank == exact[name].rank
            assert torch.equal(basis.reached, exact[name].reached)
        apply_move(model, move)
        trained(kit, model, x)


def test_its_moves_are_orthogonal_to_its_bases(kit: Any) -> None:
    model, x, forget = problem(kit)
    symmetry, generator = TrackedNullSpace(energy=0.9), kit.generator()
    for _ in range(3):
        move = symmetry.move(model, generator=generator, probe=kit.probe(x, forget=forget))
        moved = 0
        for name, basis in move.bases.items():
            if name in move.shifts:
                bias = move.shifts[basis.bias].unsqueeze(1)
                rows = torch.cat([move.shifts[name].flatten(1), bias], dim=1)
                assert float((rows @ basis.blocks[0].basis).abs().max()) < 1e-12
                moved += float(rows.norm()) > 0
        assert moved
        apply_move(model, move)
        trained(kit, model, x)


def test_the_generator_alone_decides(kit: Any) -> None:
    found = []
    for seed, noise in ((1, 0), (1, 1), (2, 0)):
        model, x, forget = problem(kit)
        symmetry, generator = TrackedNullSpace(energy=0.9), kit.generator(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(noise)
            rng = torch.get_rng_state()
            for _ in range(2):
                move = symmetry.move(model, generator=generator, probe=kit.probe(x, forget=forget))
                apply_move(model, move)
            assert torch.equal(rng, torch.get_rng_state())
        found.append({n: t.clone() for n, t in model.state_dict().items()})
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])
    assert not all(torch.equal(found[0][n], found[2][n]) for n in found[0])


def test_a_copy_remembers_for_itself(kit: Any) -> None:
    """What a copy sees of another network does not reach the one it was copied from."""
    model, x, forget = problem(kit)
    symmetry = TrackedNullSpace(energy=0.9)
    symmetry.move(model, generator=kit.generator(), probe=kit.probe(x, forget=forget))
    copies = [deepcopy(symmetry) for _ in range(2)]
    other = kit.built(network, 9)
    copies[0].move(other, generator=kit.generator(), probe=kit.probe(3 * x, forget=forget))
    trained(kit, model, x)
    first, second = (
        each.move(model, generator=kit.generator(4), probe=kit.probe(x, forget=forget))
        for each in (symmetry, copies[1])
    )
    assert all(torch.equal(s, second.shifts[n]) for n, s in first.shifts.items())


def test_the_model_and_its_modes_stay(kit: Any) -> None:
    model, x, forget = problem(kit)
    model.train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    symmetry = TrackedNullSpace(energy=0.9)
    for _ in range(2):
        symmetry.move(model, generator=kit.generator(), probe=kit.probe(x, forget=forget))
    assert model.training
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(len(m._forward_pre_hooks) == 0 for m in model.modules())


def test_the_bases_it_moves_by_are_those_it_tracks(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One refresh a move, given the working copy in eval mode, all batches, and the generator of the move."""
    model, x, forget = problem(kit)
    symmetry, generator = TrackedNullSpace(energy=0.9, protect="both"), kit.generator()
    calls: list[tuple[Any, ...]] = []
    refresh = symmetry._tracked.refresh

    def spied(model: nn.Module, batches: Any, *, generator: torch.Generator, **others: Any) -> dict[str, InputBasis]:
        batches = list(batches)
        found = refresh(model, batches, generator=generator, **others)
        calls.append((model.training, len(batches), generator, found))
        return found

    monkeypatch.setattr(symmetry._tracked, "refresh", spied)
    for _ in range(2):
        move = symmetry.move(model.train(), generator=generator, probe=kit.probe(x[:6], x[6:], forget=forget))
        training, count, given, found = calls[-1]
        assert (training, count) == (False, 3)
        assert given is generator
        assert move.bases == found
    assert len(calls) == 2


def test_an_example_that_is_not_finite_is_refused_where_no_sample_holds_it(kit: Any) -> None:
    model, symmetry = kit.built(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))), TrackedNullSpace()
    symmetry._tracked.examples = 2
    x = kit.normal(60, 6)
    symmetry.move(model, generator=kit.generator(), probe=kit.probe(x))
    broken = x.clone()
    broken[7, 2] = float("nan")
    for seed in range(6):
        with pytest.raises(DataError, match="an example of the probe holds a NaN"):
            symmetry.move(model, generator=kit.generator(seed), probe=kit.probe(broken))
    symmetry.move(model, generator=kit.generator(), probe=kit.probe(x))
