from __future__ import annotations

import json
from collections.abc import Generator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning import ChangeOfBasis, Compose, Conjugate, NullSpace, Permutation, TrackedNullSpace, unlearn
from warp_unlearning.conformance.problem import Problem, noise_problem
from warp_unlearning.errors import DivergedError, InputError
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.methods.protocol import Task
from warp_unlearning.methods.retrain import Retrain
from warp_unlearning.methods.salun import SalUn
from warp_unlearning.symmetry.move import Move
from warp_unlearning.symmetry.symmetry import Probe, Sizes
from warp_unlearning.training.update import Update

Named = dict[str, Tensor]


class Remembered:
    """A symmetry, and the moves it drew."""

    def __init__(self, of: Any) -> None:
        self.of, self.moves = of, []

    def __deepcopy__(self, memo: dict[int, Any]) -> Remembered:
        return self

    @property
    def looks_at(self) -> Sizes:
        return self.of.looks_at

    def move(self, model: nn.Module, *, generator: torch.Generator, probe: Probe | None = None) -> Move:
        self.moves.append(self.of.move(model, generator=generator, probe=probe))
        return self.moves[-1]


@dataclass
class Nothing:
    """Passes over the data, in train mode if asked, and changes no weight."""

    name: ClassVar[str] = "nothing"
    norm_mode: str = "eval"
    passes: int = 3

    def updates(self, model: nn.Module, task: Task) -> Generator[Update, Move | None, None]:
        x, _ = task.retain.take(torch.arange(len(task.retain)))
        for step in range(1, self.passes + 1):
            with torch.no_grad():
                model(x)
            yield Update(step, self.passes, step, True, {})


def run(kit: Any, defense: Any, method: Any, *, model: nn.Module | None = None, seed: int = 0, **sets: Any) -> Any:
    model = kit.network() if model is None else model
    return unlearn(model, method=method, defense=defense, defense_seed=seed, **{**kit.sets(), **sets})


SYMMETRIES = {
    "basis": lambda: ChangeOfBasis(law="lognormal", spread=0.7),
    "permutation": Permutation,
    "null space": lambda: NullSpace(energy=0.9),
    "all": lambda: Compose(Permutation(), ChangeOfBasis(), NullSpace(energy=0.9)),
}


@pytest.mark.filterwarnings("ignore:nothing left the model bit-identical")
@pytest.mark.parametrize("symmetry", list(SYMMETRIES))
def test_the_teleports_alone_change_nothing(kit: Any, symmetry: str) -> None:
    model, remembered = kit.network(), Remembered(SYMMETRIES[symmetry]())
    result = run(kit, Conjugate(remembered), Nothing(), model=model)
    assert len(remembered.moves) == 1
    after, before = kit.state(result.model), kit.state(model)
    assert after.keys() == before.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-12, atol=1e-12)
    x = kit.points(50, 9)[0]
    torch.testing.assert_close(kit.logits(result.model, x), kit.logits(model, x), rtol=1e-10, atol=1e-11)
    first, last = result.teleports
    assert first.moved > 0.1
    assert last.moved == pytest.approx(first.moved)
    assert last.distance_after < 1e-12
    assert first.distance_before == 0.0
    assert first.distance_after == pytest.approx(last.distance_before)
    assert (first.scale, last.scale) == (1.0, 1.0)
    assert (first.symmetry, last.symmetry) == ("Remembered", "FixedMove")


def factors(model: nn.Module, move: Move) -> Named:
    """T as it multiplies each entry, which is all that a change of basis does."""
    return {n: move.point(n, torch.ones_like(p)).detach() for n, p in model.named_parameters()}


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Named:
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


def dot(a: Named, b: Named) -> float:
    return float(sum((a[n] * b[n]).sum() for n in a))


@pytest.mark.parametrize("match", ["length", "effect"])
@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 1), (0.0, 3), (0.9, 4)])
def test_steps_are_those_of_the_formula_in_the_original_coordinates(
    kit: Any, match: Any, momentum: float, steps: int
) -> None:
    """θ ← θ − η c T⁻¹T⁻ᵀ m with m the momentum of plain gradients and c as the match says."""
    model, remembered = kit.network(norm=False), Remembered(ChangeOfBasis(law="lognormal", spread=0.7))
    method = kit.Watching(steps=steps, lr=0.05, momentum=momentum)
    result = run(kit, Conjugate(remembered, match=match), method, model=model)
    t = factors(model, remembered.moves[0])
    assert any(bool((v != 1).any()) for v in t.values())
    expected, x, y = deepcopy(model), *kit.sets()["retain"]
    m = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for _ in range(steps):
        g = gradient(expected, x, y)
        m = {n: momentum * m[n] + g[n] for n in m}
        p = {n: -0.05 * v for n, v in m.items()}
        q = {n: v / t[n] ** 2 for n, v in p.items()}
        c = dot(p, p) / dot(q, p) if match == "effect" else (dot(p, p) / dot(q, q)) ** 0.5
        assert abs(c - 1) > 1e-3
        with torch.no_grad():
            for n, w in expected.named_parameters():
                w.add_(c * q[n])
    for name, value in expected.named_parameters():
        torch.testing.assert_close(result.model.get_parameter(name), value, rtol=1e-9, atol=1e-11)
    plain = unlearn(kit.network(norm=False), method=kit.Watching(steps=steps, momentum=momentum), **kit.sets())
    assert not torch.allclose(result.model[0].weight, plain.model[0].weight, rtol=1e-3)


def test_an_update_of_the_same_effect_is_the_longer(kit: Any) -> None:
    model = kit.network(norm=False)
    plain = unlearn(model, method=kit.Watching(steps=1, momentum=0.0), **kit.sets())

    def step(result: Any) -> Named:
        return {n: (result.model.get_parameter(n) - p).detach() for n, p in model.named_parameters()}

    p = step(plain)
    q = {
        match: step(run(kit, Conjugate(match=match), kit.Watching(steps=1, momentum=0.0), model=model))  # type: ignore[arg-type]
        for match in ("length", "effect")
    }
    assert dot(q["length"], q["length"]) == pytest.approx(dot(p, p))
    assert dot(q["effect"], p) == pytest.approx(dot(p, p))
    assert dot(q["effect"], q["effect"]) > 1.01 * dot(p, p)


@pytest.mark.parametrize("match", ["length", "effect"])
def test_a_permutation_does_nothing(kit: Any, match: Any) -> None:
    for momentum in (0.0, 0.9):
        plain = unlearn(kit.network(), method=kit.Watching(momentum=momentum), **kit.sets())
        result = run(kit, Conjugate(Permutation(), match=match), kit.Watching(momentum=momentum))
        for name, value in kit.state(plain.model).items():
            torch.testing.assert_close(kit.state(result.model)[name], value, rtol=1e-9, atol=1e-10)


def test_a_null_space_move_does_nothing_but_take_the_gradients_elsewhere(kit: Any) -> None:
    """Translations leave directions as they are: the step is the plain one at the moved weights."""
    model, remembered = kit.network(norm=False), Remembered(NullSpace(energy=0.9, step_size=0.3))
    result = run(kit, Conjugate(remembered), kit.Watching(steps=1, momentum=0.0, lr=0.05), model=model)
    there = kit.at(model, remembered.moves[0].shifts)
    g = gradient(there, *kit.sets()["retain"])
    for name, p in model.named_parameters():
        torch.testing.assert_close(result.model.get_parameter(name), p - 0.05 * g[name], rtol=1e-9, atol=1e-11)


def test_masked_weights_stay(kit: Any, noise: Problem) -> None:
    """What SalUn may not move is, in the original's coordinates, where it was, whatever the update's length."""
    method = SalUn(epochs=2, batch_size=16, keep=0.3, weight_decay=0.1)
    sets: dict[str, Any] = {"forget": noise.forget, "retain": noise.retain}
    frozen: list[Named] = []
    result = unlearn(
        noise.original,
        method=method,
        defense=Conjugate(),
        defense_seed=0,
        on_update=lambda update: frozen.append({n: m.clone() for n, m in update.frozen.items()}),
        **sets,
    )
    assert len(frozen) > 2
    for name, mask in frozen[0].items():
        before, after = noise.original.get_parameter(name).detach(), result.model.get_parameter(name).detach()
        torch.testing.assert_close(after[mask], before[mask], rtol=1e-13, atol=1e-15)
        assert mask.all() or not torch.allclose(after[~mask], before[~mask], rtol=1e-9, atol=0)
    assert 0.5 < sum(float(m.sum()) for m in frozen[0].values()) / sum(m.numel() for m in frozen[0].values()) < 0.9


@pytest.mark.parametrize("symmetry", ["basis", "permutation"])
def test_running_statistics_come_back_in_the_original_basis(kit: Any, symmetry: str) -> None:
    """Gathered in the moved basis; exact but for ε beside the variances, which batch statistics do not know."""
    model = kit.network()
    plain = unlearn(model, method=Nothing("train", 40), **kit.sets())
    moved = run(kit, Conjugate(SYMMETRIES[symmetry]()), Nothing("train", 40), model=model)
    for name, value in kit.state(plain.model).items():
        tolerance = 3e-3 if name.endswith("running_var") else 1e-10
        torch.testing.assert_close(kit.state(moved.model)[name], value, rtol=tolerance, atol=1e-11)
    assert not torch.allclose(plain.model[1].running_var, model[1].running_var, rtol=0.05)
    assert not torch.allclose(plain.model[1].running_mean, model[1].running_mean, rtol=0.05)


@dataclass
class Restarting:
    """Puts other weights in place, says so, and takes one plain step from there."""

    name: ClassVar[str] = "restarting"
    norm_mode: ClassVar[str] = "eval"
    says_so: bool = True

    def updates(self, model: nn.Module, task: Task) -> Generator[Update, Move | None, None]:
        draw = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=draw, dtype=p.dtype))
        yield Update(1, 2, 0, False, {}, restarts=self.says_so)
        g = gradient(model, *task.retain.take(torch.arange(len(task.retain))))
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.sub_(0.05 * g[n])
        yield Update(2, 2, 0, True, {})


def test_fresh_weights_are_no_step_to_be_brought_to_length(kit: Any) -> None:
    model = kit.network(norm=False)
    fresh = deepcopy(model)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in fresh.parameters():
            p.copy_(torch.randn(p.shape, generator=draw, dtype=p.dtype))
    remembered = Remembered(ChangeOfBasis(law="lognormal", spread=0.7))
    result = run(kit, Conjugate(remembered), Restarting(), model=model)
    t = factors(model, remembered.moves[0])
    g = gradient(fresh, *kit.sets()["retain"])
    p = {n: -0.05 * t[n] * v for n, v in g.items()}
    q = {n: -0.05 * v / t[n] for n, v in g.items()}
    c = dot(p, p) / dot(q, p)
    for name, w in fresh.named_parameters():
        torch.testing.assert_close(result.model.get_parameter(name), w / t[name] + c * q[name], rtol=1e-9, atol=1e-10)
    again = run(kit, Conjugate(Remembered(ChangeOfBasis(law="lognormal", spread=0.7))), Restarting(False), model=model)
    assert not torch.allclose(again.model[0].weight, result.model[0].weight, rtol=1e-2)


def test_retraining_says_that_its_first_step_starts_anew(kit: Any) -> None:
    restarts: list[bool] = []
    run(
        kit,
        Conjugate(),
        Retrain(epochs=2, batch_size=8),
        on_update=lambda update: restarts.append(update.restarts),
    )
    assert restarts == [True, *[False] * (len(restarts) - 1)]
    assert len(restarts) > 4


def test_frozen_parameters_come_back(kit: Any) -> None:
    model = kit.network()
    model[0].requires_grad_(False)
    model[4].bias.requires_grad_(False)
    result = run(kit, Conjugate(), kit.Watching(), model=model)
    for name, p in model.named_parameters():
        same = torch.allclose(result.model.get_parameter(name), p, rtol=1e-13, atol=1e-15)
        assert same == (not p.requires_grad), name


def test_the_seed_decides_and_nothing_else(kit: Any) -> None:
    states = []
    for seed, noise in ((1, 0), (1, 1), (2, 0), (None, 0), (None, 0)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(noise)
            rng = torch.get_rng_state()
            result = unlearn(
                kit.network(),
                method=NegGradPlus(epochs=2, batch_size=8),
                defense=Conjugate(),
                defense_seed=seed,
                **kit.sets(),
            )
            assert torch.equal(rng, torch.get_rng_state())
            assert result.record.deletions[0].experiment_only == (seed is not None)
            states.append(kit.state(result.model))
    assert kit.same(states[0], states[1])
    assert not any(kit.same(states[i], states[j]) for i, j in ((0, 2), (0, 3), (3, 4)))


def test_one_object_serves_many_unlearnings(kit: Any) -> None:
    shared = Conjugate(TrackedNullSpace(energy=0.9))
    other = kit.network(3)
    states = []
    for defense, model in (
        (shared, kit.network()),
        (shared, other),
        (shared, kit.network()),
        (Conjugate(TrackedNullSpace(energy=0.9)), kit.network()),
    ):
        states.append(kit.state(run(kit, defense, kit.Watching(), model=model).model))
    assert kit.same(states[0], states[2])
    assert kit.same(states[0], states[3])


def test_the_certificates_keep_the_function_and_the_record_the_settings(kit: Any) -> None:
    result = run(kit, Conjugate(match="length"), NegGradPlus(epochs=2, batch_size=8))
    first, last = result.teleports
    assert max(first.retain.relative, last.retain.relative) < 1e-12
    assert first.symmetry == "ChangeOfBasis"
    assert first.pinned
    assert first.settings["law"] == "lognormal"
    assert last.settings["of"]["name"] == "ChangeOfBasis"
    for certificate in result.teleports:
        json.dumps(certificate.as_json(), allow_nan=False)
    (deletion,) = result.record.deletions
    told = json.loads(json.dumps(deletion.defense))
    assert told["name"] == "conjugate"
    assert told["options"]["match"] == "length"
    assert told["options"]["symmetry"]["options"]["spread"] == 0.5
    assert "moves" not in json.dumps(told)


def test_unusable_options_are_refused() -> None:
    with pytest.raises(InputError, match="match is 'size'"):
        Conjugate(match="size")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the symmetry is a str"):
        Conjugate("basis")  # type: ignore[arg-type]


def test_a_run_that_diverges_keeps_its_last_finite_weights_in_the_original_s_basis() -> None:
    problem = noise_problem(0)
    method = NegGradPlus(lr=1e9, alpha=0.0, epochs=3, batch_size=4)
    data = {"forget": problem.forget, "retain": problem.retain}
    states = {}
    for name, defense in (("plain", None), ("conjugate", Conjugate())):
        with pytest.raises(DivergedError) as caught:
            unlearn(problem.original, **data, method=method, defense=defense, defense_seed=0)
        states[name] = caught.value.state
    start = problem.original.state_dict()
    moved = sum(float((states["conjugate"][n] - v).abs().max()) for n, v in start.items() if v.is_floating_point())
    plain = sum(float((states["plain"][n] - v).abs().max()) for n, v in start.items() if v.is_floating_point())
    assert plain == 0
    assert moved < 1e-10
