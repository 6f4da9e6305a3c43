"""When `Warp` teleports, from what, with which bounds and draws, and what is told of it."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning import ChangeOfBasis, Compose, Conjugate, NullSpace, Permutation, TrackedNullSpace, Warp, unlearn
from warp_unlearning.errors import InputError, WarpWarning
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.symmetry.base import Sizes, settings_of
from warp_unlearning.symmetry.moves import MomentumReset, Translation

pytestmark = pytest.mark.filterwarnings("ignore:Given does little")
NULL = NullSpace(energy=0.8)


def still(kit: Any, sizes: Sizes | None = None) -> Any:
    return kit.Given(lambda model, probe: Translation({}), sizes or Sizes())


def run(kit: Any, defense: Any, method: Any, *, defense_seed: int | None = 0, **more: Any) -> Any:
    given = {"model": kit.network(), "method": method, "defense": defense, "defense_seed": defense_seed}
    return unlearn(**{**given, **kit.sets(), **more})


@pytest.mark.parametrize(
    ("every", "expected"),
    [("epoch", [2, 4, 6]), ("end", [6]), (1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4])],
)
def test_when_it_teleports(kit: Any, every: Any, expected: list[int]) -> None:
    """By the updates that the method had taken when the symmetry was asked."""
    symmetry, method, seen = still(kit), kit.Watching(), [0]
    steps: list[int] = []
    symmetry.make = lambda model, probe: (steps.append(seen[-1]), Translation({}))[1]
    result = run(kit, Warp(symmetry, every=every), method, on_update=lambda update: seen.append(update.step))
    assert steps == expected
    assert len(result.teleports) == len(expected)
    moved = [step for step, (move, _, _) in enumerate(method.log, 1) if move is not None]
    assert moved == ([] if every == "end" else expected)


@pytest.mark.parametrize("momentum", ["carry", "reset"])
def test_momentum_is_carried_or_forgotten(kit: Any, momentum: Any) -> None:
    method = kit.Watching()
    run(kit, Warp(ChangeOfBasis(), every=2, momentum=momentum, tolerance=1.0), method)
    for step, (moved, before, after) in enumerate(method.log, 1):
        assert (moved is None) == bool(step % 2)
        assert isinstance(moved, MomentumReset) == (moved is not None and momentum == "reset")
        for name, buffer in before.items():
            if moved is None:
                assert torch.equal(after[name], buffer)
            elif momentum == "reset":
                assert not after[name].any()
            else:
                torch.testing.assert_close(after[name], moved.covector(name.removeprefix("momentum_buffer."), buffer))
        assert kit.same(before, after) == (moved is None)
    method = kit.Watching()
    run(kit, Warp(NULL, every=1, tolerance=1e6), method)
    assert all(moved is not None and kit.same(before, after) for moved, before, after in method.log)


def test_the_reference_is_the_original(kit: Any) -> None:
    """Moves lead away from the weights that the attacker holds, not from those of the last update."""
    model, symmetry = kit.network(), still(kit)
    original = kit.state(model)
    result = run(kit, Warp(symmetry), kit.Watching(lr=0.2), model=model)
    everything = {n: torch.ones_like(p, dtype=torch.bool) for n, p in model.named_parameters()}
    for number, (state, probe) in enumerate(symmetry.seen):
        assert kit.same(dict(probe.reference), original)
        whole = kit.length(state, original, everything)
        assert 0.5 * whole < result.teleports[number].distance_before <= whole * (1 + 1e-9)
    assert kit.same(kit.state(model), original)


def test_the_symmetry_looks_at_as_many_examples_as_it_wants_of_the_right_sets(kit: Any) -> None:
    sets = {"forget": kit.points(9, 1), "retain": kit.points(500, 2), "validation": kit.points(11, 3)}
    symmetry = still(kit, Sizes(300, 4))
    (certificate,) = run(kit, Warp(symmetry, every="end"), kit.Watching(), **sets).teleports
    ((_, probe),) = symmetry.seen
    for shown, name in ((torch.cat(list(probe.retain)), "retain"), (probe.forget[0], "forget")):
        assert {tuple(row.tolist()) for row in shown} <= {tuple(row.tolist()) for row in sets[name][0]}
    assert (certificate.retain.examples, certificate.forget.examples, certificate.held_out.examples) == (300, 4, 11)
    few = run(kit, Warp(NullSpace(batch_size=5, energy=0.5), every="end", tolerance=1e6), kit.Watching(), **sets)
    assert {row.positions for row in few.teleports[0].layers} == {5}


def test_a_teleport_that_is_taken_back_is_as_none_for_the_method(kit: Any) -> None:
    harm = kit.Given(lambda model, probe: kit.climb(model, kit.sets()["retain"], 10.0))
    plain = unlearn(kit.network(), method=kit.Watching(norm_mode="train"), **kit.sets())
    method = kit.Watching(norm_mode="train")
    with pytest.warns(
        WarpWarning, match="all 6 teleports were taken back, .* rose by .*, and tolerance is 0.0. Shorten"
    ):
        result = run(kit, Warp(harm, every=1, tolerance=0.0, momentum="reset"), method)
    assert all(moved is None for moved, _, _ in method.log)
    assert kit.same(kit.state(result.model), kit.state(plain.model))
    assert result.history == plain.history
    assert result.record.deletions[0].verdicts == {"defense": ["6 of 6 teleports were taken back"]}
    assert not kit.same(kit.state(run(kit, Warp(harm, tolerance=1e6), kit.Watching()).model), kit.state(plain.model))


def test_a_defence_that_does_little_says_so_in_the_record_and_in_one_warning(kit: Any) -> None:
    gelu = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3)).double()
    with pytest.warns(
        WarpWarning, match=r"ChangeOfBasis does little .*0\.weight.*a null space at a lower energy"
    ) as caught:
        result = run(kit, Warp(ChangeOfBasis(), every=1), kit.Watching(), model=gelu)
    (note,) = result.record.deletions[0].verdicts["defense"]
    assert note.startswith("100 % of the trainable parameters stayed where they were: 0.weight, 2.weight, 0.bias")
    assert all(note in certificate.notes for certificate in result.teleports)
    assert len(result.teleports) == 6
    assert len(caught) == 1
    with pytest.warns(WarpWarning, match="moved nothing: it was never time for a teleport.*`every`"):
        never = run(kit, Warp(ChangeOfBasis(), every=7), kit.Watching())
    assert never.record.deletions[0].verdicts == {"defense": ["no teleport was made"]}
    assert run(kit, Warp(ChangeOfBasis()), kit.Watching()).record.deletions[0].verdicts == {}


@pytest.mark.parametrize("symmetry", [NullSpace(energy=0.5, batch_size=8), ChangeOfBasis()], ids=type)
@pytest.mark.parametrize("make", [Warp, Conjugate])
def test_the_defence_seed_alone_decides(kit: Any, make: Any, symmetry: Any) -> None:
    method, states = NegGradPlus(epochs=2, batch_size=8), []
    for seed, noise in ((1, 0), (1, 5), (2, 0), (1 + 2**32, 0), (1 + 2**64, 0), (None, 0), (None, 0)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(noise)
            rng = torch.get_rng_state()
            states.append(kit.state(run(kit, make(symmetry), method, defense_seed=seed).model))
            assert torch.equal(rng, torch.get_rng_state())
    assert kit.same(states[0], states[1])
    assert not any(kit.same(states[i], states[j]) for i in range(2, 7) for j in range(i))


@pytest.mark.parametrize("make", [Warp, Conjugate])
def test_one_object_serves_many_unlearnings(kit: Any, make: Any) -> None:
    """What a tracked symmetry learns of one network does not reach the next, nor anything drawn the settings."""
    shared = make(TrackedNullSpace(energy=0.8))
    told, states = pickle.dumps(shared), []
    for defense, seed in ((shared, 0), (shared, 3), (shared, 0), (make(TrackedNullSpace(energy=0.8)), 0)):
        states.append(kit.state(run(kit, defense, kit.Watching(), model=kit.network(seed)).model))
    assert kit.same(states[0], states[2])
    assert kit.same(states[0], states[3])
    assert pickle.dumps(shared) == told


def test_the_record_holds_settings_and_nothing_that_was_drawn(kit: Any) -> None:
    for seed in (None, 918_273_645):
        defense = Warp(NULL, every=2, momentum="reset")
        result = run(kit, defense, kit.Watching(), defense_seed=seed)
        told = json.loads(json.dumps(result.record.as_json()))["deletions"][0]
        assert told["experiment_only"] == (seed is not None)
        assert told["defense"] == {"name": "warp", "options": settings_of(defense)}
        kept = [certificate.as_json() for certificate in result.teleports]
        assert "918273645" not in json.dumps([told, kept])
        assert pickle.loads(pickle.dumps([result.record, result.teleports])) == [result.record, result.teleports]
        assert b"torch" not in pickle.dumps(result.teleports)
    plain = unlearn(kit.network(), method=kit.Watching(), defense_seed=4, **kit.sets())
    assert (plain.record.deletions[0].experiment_only, plain.record.deletions[0].defense) == (False, None)
    assert (plain.teleports, plain.record.deletions[0].verdicts) == ([], {})


class Branching(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


@pytest.mark.parametrize("symmetry", [ChangeOfBasis(), Compose(NULL, Permutation())], ids=type)
def test_a_network_that_cannot_be_moved_is_refused_before_the_first_update(kit: Any, symmetry: Any) -> None:
    method = kit.Watching()
    with pytest.raises(InputError, match="Branching cannot be traced"):
        run(kit, Warp(symmetry, every="end"), method, model=Branching(*kit.network()))
    assert method.log == []


def test_unusable_options_are_refused() -> None:
    bad: dict[str, dict[str, Any]] = {
        "every is 1.5": {"every": 1.5},
        "every is True": {"every": True},
        "did you mean 'epoch'": {"every": "epohc"},
        "would never act": {"every": None},
        "gradient_threshold is 0.0; it must be above 0": {"gradient_threshold": 0.0},
        "must be finite": {"tolerance": float("nan")},
        "relearning is -1": {"relearning": -1},
        "momentum is 'keep'": {"momentum": "keep"},
        "the symmetry is a str": {"symmetry": "nullspace"},
        "the symmetry is NullSpace, a class": {"symmetry": NullSpace},
    }
    for message, options in bad.items():
        with pytest.raises(InputError, match=message):
            Warp(**options)
