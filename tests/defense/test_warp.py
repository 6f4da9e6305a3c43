from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from warp_unlearning import ChangeOfBasis, NullSpace, Permutation, TrackedNullSpace, Warp, unlearn
from warp_unlearning.conformance.problem import Problem
from warp_unlearning.defense.judging import Judging
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.errors import InputError
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.randomness import Streams
from warp_unlearning.symmetry.move import MomentumReset, Translation
from warp_unlearning.symmetry.symmetry import Sizes
from warp_unlearning.training.update import Update


def still(kit: Any, sizes: Sizes | None = None) -> Any:
    return kit.Given(lambda model, probe: Translation({}), sizes or Sizes())


def run(kit: Any, defense: Any, method: Any, *, defense_seed: int | None = 0, **more: Any) -> Any:
    return unlearn(
        more.pop("model", None) or kit.network(),
        method=method,
        defense=defense,
        defense_seed=defense_seed,
        **{**kit.sets(), **more},
    )


@pytest.mark.parametrize(
    ("every", "expected"),
    [("epoch", [2, 4, 6]), ("end", [6]), (1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4]), (7, [])],
)
def test_when_it_teleports(kit: Any, every: Any, expected: list[int]) -> None:
    """By the updates that the method had taken when the symmetry was asked."""
    symmetry, steps = still(kit), []
    seen: list[int] = []

    def asked(model: Any, probe: Any) -> Translation:
        steps.append(seen[-1])
        return Translation({})

    symmetry.make = asked
    method = kit.Watching()
    result = run(kit, Warp(symmetry, every=every), method, on_update=lambda update: seen.append(update.step))
    assert steps == expected
    assert len(result.teleports) == len(expected)
    assert [moved is not None for moved, _, _ in method.log] == [
        every != "end" and step in expected for step in range(1, 7)
    ]


def forget_gradient(kit: Any, model: Any, pair: Any) -> float:
    copy = deepcopy(model).eval()
    found = torch.autograd.grad(F.cross_entropy(copy(pair[0]), pair[1]), list(copy.parameters()))
    return float(torch.cat([g.flatten() for g in found]).norm())


def test_it_teleports_where_the_forget_gradient_is_large(kit: Any) -> None:
    """The norm of the mean gradient over the forget set, with batch norm and dropout in eval mode, and no other."""
    norms: list[float] = []
    forget = kit.sets()["forget"]
    models: list[Any] = []

    class Peek(kit.Watching):  # type: ignore[name-defined,misc]
        def updates(self, model: Any, task: Any) -> Any:
            models.append(model)
            return super().updates(model, task)

    def note(update: Update) -> None:
        norms.append(forget_gradient(kit, models[0], forget))

    run(kit, Warp(still(kit), every="end"), Peek(lr=0.3, norm_mode="train"), on_update=note)
    ordered = sorted(norms)
    threshold = 0.5 * (ordered[2] + ordered[3])
    expected = [norm > threshold for norm in norms]
    method = kit.Watching(lr=0.3, norm_mode="train")
    result = run(kit, Warp(still(kit), every=None, gradient_threshold=threshold), method)
    assert [moved is not None for moved, _, _ in method.log] == expected
    assert len(result.teleports) == 3
    both = kit.Watching(lr=0.3, norm_mode="train")
    run(kit, Warp(still(kit), every="epoch", gradient_threshold=threshold), both)
    assert [moved is not None for moved, _, _ in both.log] == [
        due or step % 2 == 0 for step, due in enumerate(expected, 1)
    ]
    never = run(kit, Warp(still(kit), every=None, gradient_threshold=1e9), kit.Watching())
    assert never.teleports == []


@pytest.mark.parametrize("momentum", ["carry", "reset"])
def test_momentum_is_carried_or_forgotten(kit: Any, momentum: Any) -> None:
    method = kit.Watching()
    run(kit, Warp(ChangeOfBasis(), every=2, momentum=momentum, tolerance=1.0), method)
    for step, (moved, before, after) in enumerate(method.log, 1):
        assert before
        if step % 2:
            assert moved is None
            assert kit.same(before, after)
        elif momentum == "reset":
            assert isinstance(moved, MomentumReset)
            assert all(not buffer.any() for buffer in after.values())
        else:
            assert not isinstance(moved, MomentumReset)
            for name, buffer in before.items():
                torch.testing.assert_close(after[name], moved.covector(name.removeprefix("momentum_buffer."), buffer))
            assert not kit.same(before, after)


def test_a_null_space_move_leaves_carried_momentum_as_it_is(kit: Any) -> None:
    method = kit.Watching()
    run(kit, Warp(NullSpace(energy=0.9), every=1), method)
    assert any(moved is not None for moved, _, _ in method.log)
    assert all(kit.same(before, after) for _, before, after in method.log)


def test_the_reference_is_the_original(kit: Any) -> None:
    """Moves lead away from the weights that the attacker holds, not from those of the last update."""
    model, symmetry = kit.network(), still(kit)
    original = kit.state(model)
    result = run(kit, Warp(symmetry), kit.Watching(lr=0.2), model=model)
    for number, (state, probe) in enumerate(symmetry.seen):
        assert kit.same(dict(probe.reference), original)
        assert not kit.same(state, original)
        everywhere = torch.cat([(state[n] - original[n]).flatten() for n, _ in model.named_parameters()]).norm()
        assert 0.5 * float(everywhere) < result.teleports[number].distance_before <= float(everywhere) * (1 + 1e-9)
    assert kit.same(kit.state(model), original)


def test_the_symmetry_is_shown_as_much_as_it_wants_of_the_right_sets(kit: Any) -> None:
    symmetry = still(kit, Sizes(300, 4))
    sets = {"forget": kit.points(9, 1), "retain": kit.points(500, 2), "validation": kit.points(11, 3)}
    result = run(kit, Warp(symmetry, every="end"), kit.Watching(), **sets)
    ((_, probe),) = symmetry.seen
    rows = {tuple(row.tolist()) for row in torch.cat(list(probe.retain))}
    assert len(rows) == 300
    assert rows <= {tuple(row.tolist()) for row in sets["retain"][0]}
    assert {tuple(row.tolist()) for row in probe.forget[0]} <= {tuple(row.tolist()) for row in sets["forget"][0]}
    assert len(probe.forget[1]) == 4
    (certificate,) = result.teleports
    assert (certificate.retain.examples, certificate.forget.examples, certificate.held_out.examples) == (300, 4, 11)


def test_bounds_reach_the_teleport(kit: Any) -> None:
    """A shift that harms is halved as the settings say, taken back where they say so, and then nobody hears of it."""
    make = lambda model, probe: kit.climb(model, kit.sets()["retain"], 10.0)  # noqa: E731
    strict = kit.Watching()
    results = {
        name: run(kit, Warp(kit.Given(make), every="end", relearning=None, **options), strict)
        for name, options in {
            "loose": {"tolerance": 1e6},
            "halved": {"tolerance": 0.05, "halvings": 20},
            "none": {"tolerance": 0.0, "halvings": 2},
        }.items()
    }
    assert results["loose"].teleports[0].scale == 1.0
    assert 0 < results["halved"].teleports[0].scale < 1
    assert results["none"].teleports[0].scale == 0.0
    plain = unlearn(kit.network(), method=kit.Watching(), **kit.sets())
    assert kit.same(kit.state(results["none"].model), kit.state(plain.model))
    method = kit.Watching()
    run(kit, Warp(kit.Given(make), every=1, tolerance=0.0, halvings=0, momentum="reset"), method)
    assert all(moved is None for moved, _, _ in method.log)
    learn = lambda model, probe: kit.climb(model, kit.sets()["forget"], -2.0)  # noqa: E731
    for relearning, scale in ((0.0, 0.0), (None, 1.0)):
        found = run(kit, Warp(kit.Given(learn), every="end", tolerance=1e6, relearning=relearning), kit.Watching())
        assert found.teleports[0].scale == scale


@pytest.mark.parametrize("symmetry", [NullSpace(energy=0.9), TrackedNullSpace(energy=0.9)], ids=["exact", "tracked"])
def test_the_defence_seed_alone_decides(kit: Any, symmetry: Any) -> None:
    method = NegGradPlus(epochs=3, batch_size=8)
    states = []
    for seed, noise in ((1, 0), (1, 5), (2, 0), (None, 0), (None, 0)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(noise)
            rng = torch.get_rng_state()
            states.append(kit.state(run(kit, Warp(symmetry), method, defense_seed=seed).model))
            assert torch.equal(rng, torch.get_rng_state())
    assert kit.same(states[0], states[1])
    assert not any(kit.same(states[i], states[j]) for i, j in ((0, 2), (0, 3), (3, 4)))


def test_one_object_serves_many_unlearnings(kit: Any, noise: Problem) -> None:
    """What a tracked symmetry learns of one network does not reach the next."""
    sets: dict[str, Any] = {"forget": noise.forget, "retain": noise.retain}
    method = NegGradPlus(epochs=3, batch_size=16)
    shared = Warp(TrackedNullSpace(energy=0.9))
    told = deepcopy(vars(shared.symmetry))
    other = deepcopy(noise.original)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.1)

    def done(defense: Warp, model: Any) -> Any:
        return kit.state(unlearn(model, method=method, defense=defense, defense_seed=3, **sets).model)

    first = done(shared, noise.original)
    done(shared, other)
    again = done(shared, noise.original)
    apart = done(Warp(TrackedNullSpace(energy=0.9)), noise.original)
    assert kit.same(first, again)
    assert kit.same(first, apart)
    assert {k: v for k, v in vars(shared.symmetry).items() if not k.startswith("_")} == {
        k: v for k, v in told.items() if not k.startswith("_")
    }


def test_the_record_says_what_was_done_and_when_it_was_an_experiment(kit: Any) -> None:
    for seed in (None, 4):
        result = run(kit, Warp(NullSpace(energy=0.9), every=2, momentum="reset"), kit.Watching(), defense_seed=seed)
        (deletion,) = result.record.deletions
        assert deletion.experiment_only == (seed is not None)
        told = json.loads(json.dumps(result.record.as_json()))["deletions"][0]["defense"]
        assert told["name"] == "warp"
        assert told["options"]["every"] == 2
        assert told["options"]["momentum"] == "reset"
        assert told["options"]["symmetry"]["name"] == "NullSpace"
        assert told["options"]["symmetry"]["options"]["energy"] == 0.9
    plain = unlearn(kit.network(), method=kit.Watching(), defense_seed=4, **kit.sets())
    assert plain.record.deletions[0].experiment_only is False
    assert plain.record.deletions[0].defense is None
    assert plain.teleports == []


def test_the_method_updates_as_it_would_without_where_nothing_moves(kit: Any) -> None:
    """The defence draws from a generator of its own and puts modes back: the method's path is untouched."""
    for norm_mode in ("train", "eval"):
        plain = unlearn(kit.network(), method=kit.Watching(norm_mode=norm_mode), **kit.sets())
        watched = run(kit, Warp(still(kit), every=1), kit.Watching(norm_mode=norm_mode))
        assert kit.same(kit.state(plain.model), kit.state(watched.model))
        assert plain.history == watched.history


@pytest.mark.parametrize("every", [1, "epoch", "end"])
def test_symmetries_in_between_leave_the_function_that_the_method_arrives_at(kit: Any, every: Any) -> None:
    """Permutations commute with SGD: wherever they happen, the function at the end is that of the method alone."""
    x = kit.points(40, 8)[0]
    plain = unlearn(kit.network(), method=kit.Watching(), **kit.sets())
    moved = run(kit, Warp(Permutation(), every=every), kit.Watching())
    torch.testing.assert_close(kit.logits(moved.model, x), kit.logits(plain.model, x), rtol=1e-9, atol=1e-10)
    assert not torch.allclose(moved.model[0].weight, plain.model[0].weight)
    assert all(c.scale == 1.0 and c.retain.relative < 1e-12 for c in moved.teleports)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"every": 0}, "every is 0"),
    ({"every": 1.5}, "every is 1.5"),
    ({"every": True}, "every is True"),
    ({"every": "epohc"}, "did you mean 'epoch'"),
    ({"every": None}, "would never act"),
    ({"gradient_threshold": 0.0}, "gradient_threshold is 0.0; it must be above 0"),
    ({"tolerance": -0.1}, "tolerance is -0.1; it must be at least 0"),
    ({"tolerance": float("nan")}, "must be finite"),
    ({"relearning": -1}, "relearning is -1"),
    ({"halvings": -1}, "halvings is -1"),
    ({"halvings": 1.5}, "halvings is 1.5; it must be a whole number"),
    ({"momentum": "keep"}, "momentum is 'keep'"),
    ({"symmetry": "nullspace"}, "the symmetry is a str"),
    ({"symmetry": NullSpace}, "the symmetry is NullSpace, a class"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_unusable_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Warp(**options)


def test_nothing_changes_while_the_settings_are_shared(kit: Any) -> None:
    defense = Warp(NullSpace(energy=0.9))
    before = deepcopy(vars(defense.symmetry))
    run(kit, defense, kit.Watching())
    assert vars(defense.symmetry) == before


def test_how_much_is_certified_is_an_option_and_changes_no_weight(kit: Any) -> None:
    states, certificates = [], []
    for certify in ("full", "brief"):
        model = kit.network()
        session = make_defense("fastwarp", energy=0.9, certify=certify).start(
            model, kit.task(model), streams=Streams.secret(1)
        )
        for _ in range(3):
            session._teleport()
        states.append(kit.state(model))
        certificates.append(session.certificates)
    assert kit.same(*states)
    assert [c.scale for c in certificates[0]] == [c.scale for c in certificates[1]]
    assert all(c.layers for c in certificates[0])
    assert not any(c.layers for c in certificates[1])
    with pytest.raises(InputError, match="certify is 'long'"):
        Warp(certify="long")  # type: ignore[arg-type]


@pytest.mark.parametrize(("every", "ready"), [("epoch", True), (2, True), ("end", False)])
def test_what_later_teleports_repeat_is_made_ready_where_there_are_some(
    kit: Any, monkeypatch: pytest.MonkeyPatch, every: Any, ready: bool
) -> None:
    made: list[int] = []
    monkeypatch.setattr(Judging, "make_ready", lambda judging, model, inputs: made.append(len(inputs)))
    result = run(kit, Warp(still(kit), every=every), kit.Watching())
    assert made == ([2] * len(result.teleports) if ready else [])
