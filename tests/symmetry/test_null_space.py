from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.networks import ARCHITECTURES, GEOMETRIES, VisionTransformer
from tests.oracles import warp_loop
from tests.oracles.symmetry import built, normal
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.symmetry.base import Probe
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.null_space import NullMove, NullSpace, TrackedNullSpace

NETWORKS = GEOMETRIES | {name: network for name, network in ARCHITECTURES.items() if name != "vision transformer"}


def start(name: str, retain: int = 14) -> tuple[nn.Module, Probe, dict[str, Tensor]]:
    """A network, what a move may look at, and the weights it came from, a little away."""
    make, shape = NETWORKS[name]
    model = built(make)
    origin = {n: p.detach() + 0.01 * normal(*p.shape, seed=i) for i, (n, p) in enumerate(model.named_parameters())}
    x = normal(retain, *shape)
    forget = normal(3, *shape, seed=1), torch.tensor([0, 1, 2])
    return model, Probe(x.split(4), forget, model.state_dict() | origin), origin


def moved(model: nn.Module, symmetry: NullSpace, probe: Probe, seed: int = 0) -> tuple[nn.Module, NullMove]:
    """A copy of the model after a move, which leaves the model itself bit for bit as it was."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    examples = [x.clone() for x in probe.retain]
    move = symmetry.move(model, generator=torch.Generator().manual_seed(seed), probe=probe)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(x, kept) for x, kept in zip(probe.retain, examples, strict=True))
    after = deepcopy(model)
    apply_move(after, move)
    return after, move


def assert_alike(found: nn.Module, expected: nn.Module) -> None:
    for (name, value), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-9, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")


class Clamped(nn.Module):
    """`nn.Hardsigmoid`, which torch cannot differentiate twice."""

    def forward(self, x: Tensor) -> Tensor:
        return (x / 6 + 0.5).clamp(0, 1)


def without_hardsigmoid(model: nn.Module) -> nn.Module:
    copy = deepcopy(model)
    for module in list(copy.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Hardsigmoid):
                setattr(module, name, Clamped())
    return copy


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def lengths(move: NullMove) -> float:
    return float(torch.cat([shift.flatten() for shift in move.shifts.values()]).norm())


# ---------------------------------------------------------------------------------------------------- the algorithm


OPTIONS: list[dict[str, Any]] = [
    {"energy": 0.9, "eta": 0.02, "beta": 0.3, "steps": 3},
    {"energy": 0.99, "steps": 2},
    {"energy": 1.0, "step_size": 0.2, "dispersion": 1.5},
    {"energy": 0.95, "k_max": 3, "protect": "both", "rule": "singular_values"},
    {"k": 2, "eta": 0.05, "dispersion": 0.4, "batch_norm": "project"},
]
# Where one pixel alone is active singular values are equal, so that which are the first k is not determined.
CASES = [
    (name, each) for name in NETWORKS for each in OPTIONS if name != "mobile" or each.keys().isdisjoint({"k", "k_max"})
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_move_is_the_printed_step(name: str, options: dict[str, Any]) -> None:
    model, probe, origin = start(name, retain=3 if options.get("energy") == 1 else 14)
    found, move = moved(model, NullSpace(**options), probe)
    expected = without_hardsigmoid(model)
    warp_loop.Teleport(**options)(expected, probe.retain, probe.forget, origin)
    assert_alike(found, expected)
    assert set(move.shifts) | set(move.left) == set(origin)
    assert not set(move.shifts) & set(move.left)
    energies = [2 * warp_loop.gradient_energy(without_hardsigmoid(each), probe.forget)[0] for each in (model, found)]
    assert move.forget_energies == pytest.approx(tuple(energies), rel=1e-9)


@pytest.mark.parametrize("name", [*NETWORKS, "vision transformer"])
@pytest.mark.parametrize("aim", ["descent", "random"])
@pytest.mark.parametrize("protect", ["retain", "both"])
def test_at_energy_1_even_long_moves_keep_the_outputs(name: str, aim: Any, protect: Any) -> None:
    make, shape = (GEOMETRIES | ARCHITECTURES)[name]
    model, x, forget = built(make), normal(3, *shape), (normal(2, *shape, seed=1), torch.tensor([0, 2]))
    null = NullSpace(energy=1.0, step_size=0.05, aim=aim, protect=protect)
    _, move = moved(model, null, Probe([x], forget))
    far = deepcopy(model)
    long = replace(move, shifts={name: 100.0 * shift for name, shift in move.shifts.items()})
    apply_move(far, long)
    with torch.no_grad():
        assert float((far(x) - model(x)).abs().max()) < 1e-10
        change = float((far(forget[0]) - model(forget[0])).abs().max())
    assert change < 1e-10 if protect == "both" else change > 1e-3
    back = deepcopy(far)
    apply_move(back, long.inverse())
    assert_alike(back, model)
    assert move.inverse().forget_energies is None


def test_a_gradient_that_lies_almost_in_the_span_leaves_no_rounding_errors() -> None:
    """What is left of it is made as long as any other step."""
    model, x = built(lambda: nn.Linear(30, 3)), normal(6, 30)
    forget = x[:3] + 1e-9 * normal(3, 30, seed=1), torch.tensor([0, 1, 2])
    found, move = moved(model, NullSpace(energy=1.0, step_size=1.0, dispersion=0.0), Probe([x], forget))
    assert lengths(move) > 1.0
    torch.testing.assert_close(found(x), model(x), rtol=0, atol=1e-12)


def test_a_random_move_is_as_long_as_the_descent_and_orthogonal_to_the_inputs() -> None:
    model, probe, _ = start("strided")
    for options in ({"step_size": 0.1}, {"eta": 0.05, "beta": 0.2}):
        _, descent = moved(model, NullSpace(energy=0.9, **options), probe)
        _, random = moved(model, NullSpace(energy=0.9, aim="random", **options), probe)
        _, again = moved(model, NullSpace(energy=0.9, aim="random", **options), probe)
        _, other = moved(model, NullSpace(energy=0.9, aim="random", **options), probe, seed=1)
        assert lengths(random) == pytest.approx(lengths(descent), rel=1e-12)
        assert all(torch.equal(shift, again.shifts[name]) for name, shift in random.shifts.items())
        assert not torch.equal(random.shifts["0.weight"], other.shifts["0.weight"])
        for basis in random.bases.values():
            rows = torch.cat([random.shifts[name].reshape(len(basis.basis), -1, w) for name, w in widths(basis)], 2)
            assert float((rows @ basis.basis).abs().max()) < 1e-14


def widths(basis: Any) -> list[tuple[str, int]]:
    return list(zip(basis.names, [basis.d - len(basis.names) + 1, 1], strict=False))


def test_the_length_is_relative_to_the_weights_that_move_and_that_data_reach() -> None:
    model, probe, origin = start("dead taps")
    _, move = moved(model, NullSpace(energy=0.9, step_size=0.07), probe)
    parts = []
    for path, x in warp_loop.inputs(model, probe.retain, ["0", "2", "5"]).items():
        weight, reached = origin[f"{path}.weight"].flatten(1), (x[0] != 0).any(1)
        parts += [(weight * reached[:-1]).flatten(), origin[f"{path}.bias"]]
        assert path == "0" or not bool(reached.all())
        assert bool((move.shifts[f"{path}.weight"].flatten(1)[:, ~reached[:-1]] == 0).all())
    assert lengths(move) == pytest.approx(0.07 * float(torch.cat(parts).norm()))


class Tied(nn.Module):
    """One weight by two layers, or one layer called twice; one of them frozen, one of unlike groups."""

    def __init__(self, *, once: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.again = self.second if once else nn.Linear(6, 6)
        if not once:
            self.again.weight, self.again.bias = self.second.weight, self.second.bias
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.again(torch.tanh(self.second(torch.tanh(self.first(x)))))))


def test_a_weight_of_two_layers_moves_beside_the_inputs_of_both() -> None:
    once, twice = (built(lambda once=once: Tied(once=once)) for once in (True, False))
    twice.load_state_dict({name: once.state_dict()[name.replace("again", "second")] for name in twice.state_dict()})
    forget = normal(2, 6, seed=1), torch.tensor([0, 1])
    probe = Probe([normal(3, 6)], forget)
    found, expected = moved(twice, NullSpace(energy=0.9), probe)[0], deepcopy(once)
    warp_loop.Teleport(energy=0.9)(expected, probe.retain, forget, weights_of(once))
    assert_alike(found, expected)


# ------------------------------------------------------------------------------------------------------- networks


def test_attention_moves_like_the_same_block_of_linear_layers() -> None:
    plain, fused = built(lambda: VisionTransformer(plain=True)), built(VisionTransformer)
    state = plain.state_dict()
    for name in fused.state_dict():
        if "in_proj" in name:
            kind = name.rpartition("_")[2]
            stem = name.removesuffix(f"in_proj_{kind}")
            state[name] = torch.cat([state.pop(f"{stem}{part}.{kind}") for part in ("queries", "keys", "values")])
    fused.load_state_dict(state)
    x, forget = normal(2, 1, 6, 6), (normal(2, 1, 6, 6, seed=1), torch.tensor([0, 2]))
    torch.testing.assert_close(fused(x), plain(x))
    options: dict[str, Any] = {"energy": 0.9, "eta": 0.01, "beta": 0.2, "steps": 2}
    found, _ = moved(fused, NullSpace(**options), Probe([x], forget))
    expected = deepcopy(plain)
    warp_loop.Teleport(**options)(expected, [x], forget, weights_of(plain))
    values = dict(expected.named_parameters())
    for name, value in found.named_parameters():
        if "in_proj" in name:
            kind = name.rpartition("_")[2]
            stem = name.removesuffix(f"in_proj_{kind}")
            other = torch.cat([values[f"{stem}{part}.{kind}"] for part in ("queries", "keys", "values")])
        else:
            other = values[name]
        torch.testing.assert_close(value, other, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 0.1, "step_size": 0.1}, "eta is 0.1 and step_size is 0.1; give one of them"),
        ({"beta": 0.1, "dispersion": 0.0}, "beta is 0.1 and dispersion is 0.0; give one of them"),
        ({"energy": 0.0}, "energy to protect is 0.0; it must be above 0 and at most 1"),
        ({"energy": 1.01}, "energy to protect is 1.01; it must be above 0 and at most 1"),
        ({"energy": float("nan")}, "energy is nan; it must be a finite number"),
        ({"eta": -1.0}, "eta is -1.0; it must be above 0"),
        ({"step_size": 0}, "step_size is 0; it must be above 0"),
        ({"beta": -0.5}, "beta is -0.5; it must be at least 0"),
        ({"k": 0}, "k is 0; it must be a whole number of at least 1"),
        ({"k_max": 1.5}, "k_max is 1.5; it must be a whole number"),
        ({"steps": True}, "steps is True; it must be a whole number"),
        ({"aim": "up"}, "aim is 'up'; did you mean|aim is 'up'"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NullSpace(**options)
    with pytest.raises(InputError, match="rounds is 0"):
        TrackedNullSpace(rounds=0)


def test_examples_are_needed() -> None:
    model, generator, x = nn.Linear(3, 2), torch.Generator(), torch.ones(1, 3)
    for probe in (None, Probe([])):
        with pytest.raises(InputError, match="needs examples that are to be kept"):
            NullSpace().move(model, generator=generator, probe=probe)
    for null in (NullSpace(), NullSpace(aim="random", eta=0.1)):
        with pytest.raises(InputError, match="examples to forget"):
            null.move(model, generator=generator, probe=Probe([x]))
    assert lengths(NullSpace(aim="random").move(model, generator=generator, probe=Probe([x]))) > 0


def test_k_beyond_the_inputs_is_clamped_with_a_note() -> None:
    """Also where the batch has fewer examples than k."""
    model, probe, _ = start("tokens", retain=5)
    _, move = moved(model, NullSpace(k=6), probe)
    assert [basis.ranks for basis in move.bases.values()] == [(6,), (6,), (5,)]
    assert any(
        "layers have fewer than k=6 directions in their inputs that torch.float64 tells apart (last.weight: 5)" in n
        for n in move.notes
    )
    assert any("saw fewer inputs than they have directions (last.weight: 5 of 9)" in note for note in move.notes)
    _, move = moved(model, NullSpace(k=100), probe)
    assert "no null space" in move.left["first.weight"]
    assert move.left["first.bias"] == "the bias of a weight that stays"


def test_a_network_that_nothing_can_move_in_says_so() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    _, move = moved(model, NullSpace(energy=1.0), Probe([normal(50, 3)], (normal(2, 3), torch.tensor([0, 1]))))
    assert move.shifts == {}
    assert move.notes[-1] == "no layer could move"


@pytest.mark.parametrize("where", ["inside", "output", "examples", "forget"])
def test_numbers_that_are_none_are_one_clear_error(where: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x, forget = torch.ones(2, 3), torch.ones(2, 3)
    with torch.no_grad():
        if where in ("inside", "output"):
            model[0 if where == "inside" else 2].bias[0] = torch.nan
        elif where == "examples":
            x[0, 0] = torch.inf
        else:
            forget[1, 2] = torch.nan
    before = deepcopy(model.state_dict())
    null = NullSpace(energy=0.9)
    with pytest.raises((DataError, InputError), match=r"NaN or infin|is nan; repair"):
        null.move(model, generator=torch.Generator(), probe=Probe([x], (forget, torch.tensor([0, 1]))))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.int32])
def test_half_and_whole_weights_are_refused(kind: torch.dtype) -> None:
    model = nn.Linear(3, 2, bias=False)
    model.weight = nn.Parameter(torch.ones(2, 3, dtype=kind), kind.is_floating_point)
    probe = Probe([torch.ones(1, 3, dtype=kind)], (torch.ones(1, 3, dtype=kind), torch.tensor([1])))
    with pytest.raises(InputError, match=f"weight is {kind}.*float"):
        NullSpace().move(model, generator=torch.Generator(), probe=probe)


class Odd(nn.Module):
    """Frozen, read twice, of another kind, called by no one."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.read, self.free = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.up, self.norm = nn.ConvTranspose1d(1, 1, 1), nn.LayerNorm(6)
        self.unused, self.last = nn.Linear(2, 2), nn.Linear(6, 3)
        self.frozen.requires_grad_(False)
        self.free.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.read(torch.tanh(self.frozen(x)))) + F.linear(x, self.read.weight)
        return self.last(self.norm(torch.tanh(self.free(self.up(x[:, None])[:, 0]))))


def test_every_parameter_moves_or_says_why_not() -> None:
    model, forget = built(Odd), (normal(2, 6, seed=1), torch.tensor([0, 1]))
    after, move = moved(model, NullSpace(energy=1.0), Probe([normal(3, 6)], forget))
    alone = "not the weight of Linear, Conv or MultiheadAttention layers alone"
    assert set(move.shifts) == {"free.weight", "last.weight", "last.bias"}
    assert {name: re.split("[:;]", why)[0] for name, why in move.left.items()} == {
        "frozen.weight": "frozen",
        "frozen.bias": "frozen",
        "free.bias": "frozen",
        "read.weight": alone,
        "read.bias": "one-dimensional, and no moving weight's bias",
        "up.weight": alone,
        "up.bias": "one-dimensional, and no moving weight's bias",
        "norm.weight": "one-dimensional, and no moving weight's bias",
        "norm.bias": "one-dimensional, and no moving weight's bias",
        "unused.weight": "no input of its layer was seen",
        "unused.bias": "the bias of a weight that stays",
    }
    assert move.bases["free.weight"].d == 6
    assert [name for name, why in move.left.items() if why.startswith(alone)] == ["read.weight", "up.weight"]
    torch.testing.assert_close(after(normal(3, 6)), model(normal(3, 6)), rtol=0, atol=1e-12)


def test_batch_norms_of_one_parameter_are_projected_once() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.BatchNorm1d(4)))
    model[3].weight = model[1].weight
    probe = Probe([normal(9, 4)], (normal(2, 4, seed=1), torch.tensor([0, 1])))
    _, move = moved(model, NullSpace(k=2, batch_norm="project"), probe)
    assert set(move.shifts) == {"0.weight", "0.bias", "1.weight", "1.bias", "3.bias"}
    assert "does not keep the function" in move.notes[-1]


def test_a_model_that_fails_on_the_way_is_left_as_it_was() -> None:
    model, probe, _ = start("strided")
    before = deepcopy(model.state_dict())
    wrong = Probe(probe.retain, (normal(2, 2, 5, 5), torch.tensor([0, 7])))
    with pytest.raises((IndexError, RuntimeError, InputError)):
        NullSpace(energy=0.9).move(model, generator=torch.Generator(), probe=wrong)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("steps", [1, 3])
def test_a_step_that_goes_too_far_ends_the_move(steps: int) -> None:
    model = built(lambda: nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.ReLU())))).float()
    probe = Probe([normal(3, 6).float()], (normal(2, 6, seed=1).float(), torch.tensor([0, 1])))
    _, move = moved(model, NullSpace(energy=0.9, eta=1e37, steps=steps), probe)
    assert move.forget_energies is not None
    assert move.forget_energies[0] < move.forget_energies[1] == float("inf")


def test_single_precision_finds_the_same_bases() -> None:
    model, probe, _ = start("strided", retain=40)
    single = Probe([x.float() for x in probe.retain], (probe.forget[0].float(), probe.forget[1]))
    for energy in (0.9, 0.99, 1.0):
        double = moved(model, NullSpace(energy=energy), probe)[1]
        found = moved(deepcopy(model).float(), NullSpace(energy=energy), single)[1]
        assert set(found.shifts) == set(double.shifts)
        assert [b.ranks for b in found.bases.values()] == [b.ranks for b in double.bases.values()]
        for name, basis in found.bases.items():
            other = double.bases[name].basis
            held = (basis.basis.double().mT @ other).square().sum((1, 2))
            torch.testing.assert_close(held, other.square().sum((1, 2)), rtol=1e-5, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["strided", "one dimension", "tokens"])
@pytest.mark.parametrize("kind", [NullSpace, TrackedNullSpace])
def test_moves_on_a_gpu_are_those_on_the_cpu(name: str, kind: type[NullSpace]) -> None:
    """Also where the gradient energy is captured, and then replayed."""
    model, probe, _ = start(name)
    models, nulls = (model, deepcopy(model).cuda()), (kind(energy=0.9), kind(energy=0.9))
    for aim in ("descent", "descent", "descent", "random"):
        found = []
        for each, null in zip(models, nulls, strict=True):
            null.aim = aim  # type: ignore[assignment]
            where = next(each.parameters()).device
            forget = tuple(part.to(where) for part in probe.forget)
            shown = Probe([x.to(where) for x in probe.retain], forget, probe.reference)
            found.append(null.move(each, generator=torch.Generator().manual_seed(0), probe=shown))
            apply_move(each, found[-1])
        for parameter, shift in found[0].shifts.items():
            torch.testing.assert_close(found[1].shifts[parameter].cpu(), shift, rtol=1e-9, atol=1e-9)
