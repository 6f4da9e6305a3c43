"""`Conjugate` against plain gradient steps, mapped by hand."""

from __future__ import annotations

from collections.abc import Generator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning import ChangeOfBasis, Compose, Conjugate, NullSpace, Permutation, unlearn
from warp_unlearning.conformance.problem import Problem
from warp_unlearning.errors import DivergedError
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.methods.references import Retrain
from warp_unlearning.methods.salun import SalUn
from warp_unlearning.symmetry.moves import ChannelMove, HeadMap, Move
from warp_unlearning.training.update import Update

Named = dict[str, Tensor]


def mixing(model: nn.Module, probe: Any) -> Move:
    """Hidden units of two linear layers in a row through a dense matrix: more than a rescaling of entries."""
    mixed = torch.eye(8) + torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 4
    rows, columns = (HeadMap(0, mixed),), (HeadMap(1, torch.linalg.inv(mixed).mT),)
    return ChannelMove({"0.weight": rows, "0.bias": rows, "1.weight": columns})


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


BASIS = ChangeOfBasis(law="lognormal", spread=0.7)
SYMMETRIES = {
    "rescaled": BASIS,
    "reordered": Permutation(),
    "both": Compose(BASIS, Permutation()),
    "shifted": NullSpace(energy=0.8),
    "all": Compose(Permutation(), BASIS, NullSpace(energy=0.8)),
}


def run(kit: Any, defense: Any, method: Any, *, model: nn.Module | None = None, **more: Any) -> Any:
    model = kit.network() if model is None else model
    return unlearn(model, method=method, defense=defense, defense_seed=0, **{**kit.sets(), **more})


@pytest.mark.filterwarnings("ignore:the unlearning by nothing")
@pytest.mark.filterwarnings("ignore:nothing left the model bit-identical")
@pytest.mark.parametrize("kind", list(SYMMETRIES))
def test_the_teleports_alone_change_nothing_and_neither_do_updates_of_no_length(kit: Any, kind: str) -> None:
    model, known = kit.network(), kit.known(SYMMETRIES[kind])
    result = run(kit, Conjugate(known, match="length"), Nothing(), model=model)
    assert len(known.moves) == 1
    for name, value in kit.state(model).items():
        torch.testing.assert_close(kit.state(result.model)[name], value, rtol=1e-12, atol=1e-12)
    first, last = result.teleports
    assert (first.scale, last.scale, first.symmetry, last.symmetry) == (1.0, 1.0, "Given", "FixedMove")
    assert last.moved == pytest.approx(first.moved) != pytest.approx(0, abs=0.1)
    assert (first.distance_before, last.distance_after) == pytest.approx((0, 0), abs=1e-12)
    assert first.distance_after == pytest.approx(last.distance_before)
    assert last.settings["of"]["name"] == "Given"
    assert kind in ("shifted", "all") or max(first.retain.relative, last.retain.relative) < 1e-12


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Named:
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


def dot(a: Named, b: Named) -> float:
    return float(sum((a[n] * b[n]).sum() for n in a))


def conjugated(move: Move, p: Named, match: str) -> Named:
    """The step c T⁻¹T⁻ᵀ p that is taken where p is the plain one, of its length or of its effect."""
    back = move.inverse()
    q = {n: back.point(n, move.covector(n, v)) - back.point(n, torch.zeros_like(v)) for n, v in p.items()}
    c = dot(p, p) / dot(q, p) if match == "effect" else (dot(p, p) / dot(q, q)) ** 0.5
    return {n: c * v for n, v in q.items()}


@pytest.mark.parametrize("kind", ["rescaled", "reordered", "both", "mixed"])
@pytest.mark.parametrize("match", ["length", "effect"])
@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 1), (0.9, 4)])
def test_steps_are_those_of_the_formula_in_the_original_coordinates(
    kit: Any, kind: str, match: Any, momentum: float, steps: int
) -> None:
    """θ ← θ − η c T⁻¹T⁻ᵀ m with m the momentum of plain gradients; a permutation leaves them as they are."""
    model, x, y = kit.network(norm=False), *kit.sets()["retain"]
    if kind == "mixed":
        model = nn.Sequential(model[0], model[2])
    known = kit.Given(mixing) if kind == "mixed" else kit.known(SYMMETRIES[kind])
    method = kit.Watching(steps=steps, lr=0.05, momentum=momentum)
    result = run(kit, Conjugate(known, match=match), method, model=model)
    expected = deepcopy(model)
    m = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for _ in range(steps):
        g = gradient(expected, x, y)
        m = {n: momentum * m[n] + g[n] for n in m}
        plain = {n: -0.05 * v for n, v in m.items()}
        taken = conjugated(known.moves[0], plain, match)
        same = all(torch.allclose(taken[n], v, rtol=1e-9, atol=1e-12) for n, v in plain.items())
        assert same == (kind == "reordered")
        expected = kit.at(expected, taken)
    for name, value in expected.named_parameters():
        torch.testing.assert_close(result.model.get_parameter(name), value, rtol=1e-9, atol=1e-11)


def test_masked_weights_stay(noise: Problem) -> None:
    """What SalUn may not move is, in the original's coordinates, where it was, whatever the update's length."""
    frozen: list[Named] = []
    result = unlearn(
        noise.original,
        forget=noise.forget,
        retain=noise.retain,
        method=SalUn(epochs=2, batch_size=16, keep=0.3, weight_decay=0.1),
        defense=Conjugate(),
        defense_seed=0,
        on_update=lambda update: frozen.append({n: m.clone() for n, m in update.frozen.items()}),
    )
    for name, mask in frozen[0].items():
        before, after = noise.original.get_parameter(name).detach(), result.model.get_parameter(name).detach()
        torch.testing.assert_close(after[mask], before[mask], rtol=1e-13, atol=1e-15)
        assert mask.all() or not torch.allclose(after[~mask], before[~mask], rtol=1e-9, atol=0)
    assert 0.5 < sum(float(m.sum()) for m in frozen[0].values()) / sum(m.numel() for m in frozen[0].values()) < 0.9


@pytest.mark.parametrize("kind", ["rescaled", "reordered"])
def test_running_statistics_come_back_in_the_original_basis(kit: Any, kind: str) -> None:
    """Exact but for ε beside the variances, which batch statistics do not contain."""
    model = kit.network()
    plain = unlearn(model, method=Nothing("train", 40), **kit.sets())
    moved = run(kit, Conjugate(SYMMETRIES[kind]), Nothing("train", 40), model=model)
    for name, value in kit.state(plain.model).items():
        tolerance = 3e-3 if name.endswith("running_var") else 1e-10
        torch.testing.assert_close(kit.state(moved.model)[name], value, rtol=tolerance, atol=1e-11)
    for name in ("running_var", "running_mean"):
        assert not torch.allclose(getattr(plain.model[1], name), getattr(model[1], name), rtol=0.05)


@dataclass
class Restarting:
    """Puts other weights in place, says so, and takes one plain step from there."""

    fresh: nn.Module
    name: ClassVar[str] = "restarting"
    norm_mode: ClassVar[str] = "eval"

    def updates(self, model: nn.Module, task: Task) -> Generator[Update, Move | None, None]:
        model.load_state_dict(self.fresh.state_dict())
        yield Update(1, 2, 0, False, {}, restarts=True)
        g = gradient(model, *task.retain.take(torch.arange(len(task.retain))))
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.sub_(0.05 * g[n])
        yield Update(2, 2, 0, True, {})


def test_fresh_weights_are_no_step_to_be_brought_to_length(kit: Any) -> None:
    """They are fresh in the moved basis, too."""
    fresh, known = kit.network(7, norm=False), kit.known(BASIS)
    result = run(kit, Conjugate(known), Restarting(fresh), model=kit.network(norm=False))
    move, back = known.moves[0], known.moves[0].inverse()
    g = gradient(fresh, *kit.sets()["retain"])
    plain = {n: -0.05 * back.covector(n, v) for n, v in g.items()}
    taken = conjugated(move, plain, "effect")
    for name, w in fresh.named_parameters():
        expected = back.point(name, w) + taken[name]
        torch.testing.assert_close(result.model.get_parameter(name), expected, rtol=1e-9, atol=1e-10)
    restarts: list[bool] = []
    note = lambda update: restarts.append(update.restarts)  # noqa: E731
    run(kit, Conjugate(), Retrain(epochs=2, batch_size=8), on_update=note)
    assert restarts == [True, *[False] * 7]


def test_frozen_parameters_come_back(kit: Any) -> None:
    model = kit.network()
    model[0].requires_grad_(False)
    model[4].bias.requires_grad_(False)
    result = run(kit, Conjugate(), kit.Watching(), model=model)
    for name, p in model.named_parameters():
        same = torch.allclose(result.model.get_parameter(name), p, rtol=1e-13, atol=1e-15)
        assert same == (not p.requires_grad), name


def test_a_run_that_diverges_keeps_its_last_finite_weights_in_the_original_s_basis(noise: Problem) -> None:
    """Nobody may learn the basis from them."""
    method, start = NegGradPlus(lr=1e9, alpha=0.0, epochs=3, batch_size=4), noise.original.state_dict()
    for defense, bound in ((None, 0.0), (Conjugate(), 1e-10)):
        with pytest.raises(DivergedError) as caught:
            unlearn(noise.original, forget=noise.forget, retain=noise.retain, method=method, defense=defense)
        found = [float((caught.value.state[n] - v).abs().max()) for n, v in start.items() if v.is_floating_point()]
        assert sum(found) <= bound
