from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.symmetry import null_space
from warp_unlearning.symmetry.input_bases import InputBasis, exact_bases
from warp_unlearning.symmetry.null_move import NullMove
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.symmetry import Probe, settings_of

NONE = "no null space: the inputs span every direction that any input reaches"


class Block(nn.Module):
    """A residual block with batch norm and an activation that writes over its input."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(outside)
        self.skip = nn.Conv2d(inside, outside, 1, stride=stride) if inside != outside or stride > 1 else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(h)) + self.skip(x))


class Tied(nn.Module):
    """One weight in two layers with biases of their own, and one module called twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.twice = nn.Linear(width, width)
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.out(torch.tanh(self.twice(torch.tanh(self.twice(h)))))


def chain(widths: list[int], biases: list[bool], activation: Callable[[], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for (inside, outside), bias in zip(pairwise(widths), biases, strict=True):
        layers += [nn.Linear(inside, outside, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])


Case = tuple[nn.Module, Tensor]


@st.composite
def cases(draw: st.DrawFn, kit: Any) -> Case:
    """A network and a batch on which at least some of its layers have a null space."""
    kind = draw(st.sampled_from(["chain", "conv2d", "conv1d", "residual", "tied"]))
    seed, count = draw(st.integers(0, 10**6)), draw(st.integers(1, 5))
    event(kind)
    if kind == "chain":
        widths = [*draw(st.lists(st.integers(3, 14), min_size=1, max_size=3)), 3]
        biases = draw(st.lists(st.booleans(), min_size=len(widths) - 1, max_size=len(widths) - 1))
        activation = draw(st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU]))
        model = kit.built(lambda: chain(widths, biases, activation), seed)
        return model, kit.normal(count, widths[0], seed=seed)
    if kind == "tied":
        return kit.built(lambda: Tied(12), seed), kit.normal(min(count, 2), 12, seed=seed)
    if kind == "residual":
        stride, size = draw(st.sampled_from([1, 2])), draw(st.integers(2, 4))
        x = kit.normal(count, 4, size, size, seed=seed)
        return kit.built(lambda: headed(x, Block(4, 6, stride), Block(6, 6, 1)), seed), x
    flat = kind == "conv1d"
    size, groups = draw(st.integers(5, 6)), draw(st.sampled_from([1, 2]))
    shape = {
        "kernel_size": draw(st.integers(1, 3)),
        "stride": draw(st.integers(1, 2)),
        "padding": draw(st.integers(0, 1)),
        "dilation": draw(st.integers(1, 2)),
        "bias": draw(st.booleans()),
    }
    conv: Any = nn.Conv1d if flat else nn.Conv2d
    x = kit.normal(min(count, 2), 4, *([size] if flat else [size, size]), seed=seed)
    return kit.built(lambda: headed(x, conv(4, 6, groups=groups, **shape), nn.ReLU()), seed), x


def headed(x: Tensor, *layers: nn.Module) -> nn.Sequential:
    """The layers, flattened and with a linear layer to three classes at their end."""
    stem = nn.Sequential(*layers, nn.Flatten()).double().eval()
    return stem.append(nn.Linear(stem(x).shape[1], 3))


def changes(kit: Any, model: nn.Module, x: Tensor, move: NullMove) -> tuple[float, float]:
    """The largest change of a logit by the move, scaled until each layer goes a tenth of its norm, and by shifts of the
    same length in each layer that are not projected.
    """
    state = dict(model.named_parameters())
    moved = {n: s for n, s in move.shifts.items() if float(s.norm()) > 0}
    paths = {n.rpartition(".")[0] for n in moved if n.endswith("weight")}
    shares = [
        kit.norm({n: s for n, s in moved.items() if n.rpartition(".")[0] == path})
        / kit.norm({n: state[n].detach() for n in moved if n.rpartition(".")[0] == path})
        for path in paths
    ]
    factor = max(1.0, 0.1 / min(shares))
    anywhere = {n: kit.normal(*s.shape, seed=i) for i, (n, s) in enumerate(moved.items())}
    same_length = {n: factor * float(moved[n].norm()) * v / v.norm() for n, v in anywhere.items()}
    with torch.no_grad():
        before = model(x)
        by_move = (kit.moved(model, move.scaled(factor))(x) - before).abs().max()
        return float(by_move), float((kit.shifted(model, same_length)(x) - before).abs().max())


@settings(max_examples=60)
@given(data=st.data())
def test_at_full_energy_a_move_is_not_felt_and_layers_without_a_null_space_stay(kit: Any, data: st.DataObject) -> None:
    model, x = data.draw(cases(kit))
    move = NullSpace(energy=1.0, aim="random", step_size=0.5, radius=10).move(
        model, generator=kit.generator(1), probe=kit.probe(x)
    )
    names = {id(p): n for n, p in reversed(list(model.named_parameters()))}
    for path, layer in model.named_modules():
        if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
            continue
        name = names[id(layer.weight)]
        owners = [p for p, m in model.named_modules() if getattr(m, "weight", None) is layer.weight]
        rows = torch.cat([kit.inputs(model, owner, [x]) for owner in owners], dim=1)
        shared = len(owners) > 1
        beside = kit.complement(rows, constant=layer.bias is not None and not shared)
        if torch.linalg.matrix_rank(beside, tol=1e-6).sum() == 0:
            assert move.left[name] == NONE
            assert name not in move.shifts
        else:
            assert name not in move.left
            assert float(move.shifts[name].norm()) > 0, path
            assert shared == (f"{path}.bias" in move.left) or layer.bias is None
    event(f"moves: {bool(move.shifts)}")
    if move.shifts:
        felt, reference = changes(kit, model, x, move)
        assert felt <= 1e-10 * reference


def mlp() -> nn.Sequential:
    return chain([12, 20, 16, 3], [True, False, True], nn.ReLU)


def smooth() -> nn.Sequential:
    """Every unit is active, so that every weight is reached."""
    return chain([12, 20, 16, 3], [True, False, True], nn.Tanh)


@pytest.mark.parametrize("protect", ["both", "retain"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("make", [mlp, lambda: nn.Linear(12, 3)], ids=["mlp", "one layer"])
def test_a_descent_at_full_energy_is_not_felt_either(kit: Any, make: Any, steps: int, protect: Any) -> None:
    """Most of the gradients lie in the span of the inputs, some of them wholly: what is left is rounding error."""
    model, x, y = kit.built(make), kit.normal(4, 12), torch.tensor([0, 1, 2])
    forget = kit.normal(3, 12, seed=1), y
    move = NullSpace(energy=1.0, step_size=0.3, steps=steps, protect=protect).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
    )
    assert kit.norm(move.shifts) > 0.05 * kit.norm(dict(model.state_dict()))
    felt, reference = changes(kit, model, x, move)
    assert felt <= 1e-10 * reference
    if protect == "both":
        felt, reference = changes(kit, model, forget[0], move)
        assert felt <= 1e-10 * reference


def test_without_a_forget_batch_the_dispersion_alone_moves(kit: Any) -> None:
    model, x = kit.built(smooth), kit.normal(4, 12)
    move = NullSpace(energy=1.0, step_size=0.2).move(model, generator=kit.generator(), probe=kit.probe(x))
    assert kit.norm(move.shifts) == pytest.approx(0.2 * kit.norm({n: model.state_dict()[n] for n in move.shifts}))
    assert move.energies is None
    felt, reference = changes(kit, model, x, move)
    assert felt <= 1e-10 * reference
    with pytest.raises(InputError, match="nothing to descend; give forget"):
        NullSpace(dispersion=0).move(model, generator=kit.generator(), probe=kit.probe(x))


def test_a_layer_without_a_null_space_stays_and_says_why(kit: Any) -> None:
    model = kit.built(lambda: chain([3, 20, 2], [True, True], nn.ReLU))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    move = NullSpace(energy=1.0).move(model, generator=kit.generator(), probe=kit.probe(kit.normal(9, 3)))
    assert move.left == {"0.weight": NONE, "0.bias": "one-dimensional"}
    after = kit.moved(model, move).state_dict()
    assert [n for n in before if torch.equal(before[n], after[n])] == ["0.weight", "0.bias"]


def test_where_nothing_can_move_nothing_does(kit: Any) -> None:
    model, x, y = kit.built(lambda: nn.Linear(2, 3)), kit.normal(30, 2), torch.arange(3)
    for aim in ("descent", "random"):
        move = NullSpace(energy=1.0, aim=aim).move(
            model, generator=kit.generator(), probe=kit.probe(x, forget=(kit.normal(3, 2), y))
        )
        assert not move.shifts
        assert move.notes == ("no layer could move",)
        assert move.left == {"weight": NONE, "bias": "one-dimensional"}


@pytest.mark.parametrize("aim", ["descent", "random"])
def test_a_weight_whose_only_free_direction_needs_its_frozen_bias_stays(kit: Any, aim: Any) -> None:
    """Three inputs of length three span everything; beside the constant they would leave one direction."""
    model, x = kit.built(lambda: nn.Linear(3, 2)), kit.normal(3, 3)
    free = NullSpace(energy=1.0, aim=aim).move(model, generator=kit.generator(), probe=kit.probe(x))
    assert set(free.shifts) == {"weight", "bias"}
    model.bias.requires_grad_(False)
    move = NullSpace(energy=1.0, aim=aim).move(model, generator=kit.generator(), probe=kit.probe(x))
    assert not move.shifts
    assert move.left == {"weight": NONE, "bias": "frozen: requires_grad is False"}


@pytest.mark.parametrize("zero_input", [False, True])
def test_with_a_frozen_bias_the_weight_alone_moves_and_is_not_felt(kit: Any, zero_input: bool) -> None:
    """An input of zeros puts the constant itself into the span."""
    model, x = kit.built(mlp), kit.normal(4, 12)
    if zero_input:
        x[0] = 0
    model[0].bias.requires_grad_(False)
    move = NullSpace(energy=1.0, aim="random", step_size=0.5).move(model, generator=kit.generator(), probe=kit.probe(x))
    assert set(move.shifts) == {"0.weight", "2.weight", "4.weight", "4.bias"}
    assert set(move.left) == {"0.bias"}
    shift = move.shifts["0.weight"]
    assert float(shift.norm()) > 0.1
    assert float((shift @ x.T).abs().max()) < 1e-14
    felt, reference = changes(kit, model, x, move)
    assert felt <= 1e-10 * reference


def test_dead_taps_stay(kit: Any) -> None:
    """A 3x3 kernel on a 1x1 map sees its centre alone: eight ninths of it reach nothing and must not move, nor lend
    the kick or the dispersion any length.
    """
    make = lambda: nn.Sequential(nn.Conv2d(12, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3))  # noqa: E731
    model, x = kit.built(make), kit.normal(4, 12, 1, 1)
    forget = kit.normal(3, 12, 1, 1, seed=1), torch.arange(3)
    away = deepcopy(model)
    with torch.no_grad():
        away[0].weight.add_(kit.normal(6, 12, 3, 3, seed=4))
    alive = torch.zeros(6, 12, 3, 3, dtype=torch.bool)
    alive[:, :, 1, 1] = True
    for aim, reference in (("random", None), ("descent", None), ("descent", away)):
        symmetry = NullSpace(energy=1.0, aim=aim, step_size=0.3, radius=100)
        move = symmetry.move(model, generator=kit.generator(), probe=kit.probe(x, forget=forget, reference=reference))
        shift = move.shifts["0.weight"]
        assert bool((shift[~alive] == 0).all())
        assert float(shift[alive].norm()) > 0.01
        base = (model if reference is None else reference).state_dict()
        unit = kit.norm({n: base[n] * (alive if n == "0.weight" else 1) for n in move.shifts})
        steps = [0.3 * unit / 2**k for k in range(5)]
        assert any(kit.norm(move.shifts) == pytest.approx(step) for step in steps)
        if aim == "random":
            assert kit.norm(move.shifts) == pytest.approx(steps[0])


def test_a_random_move_has_exactly_the_length_asked_for(kit: Any) -> None:
    model, x = kit.built(smooth), kit.normal(3, 12)
    forget = kit.normal(3, 12, seed=1), torch.arange(3)
    unit = kit.norm(dict(model.state_dict()))
    moves = {}
    for length in (0.07, 0.4):
        move = NullSpace(aim="random", step_size=length).move(
            model, generator=kit.generator(3), probe=kit.probe(x, forget=forget)
        )
        assert kit.norm(move.shifts) == pytest.approx(length * unit, rel=1e-12)
        assert move.energies is not None
        before, after = move.energies
        assert before == pytest.approx(kit.energy(model, *forget), rel=1e-9)
        assert after == pytest.approx(kit.energy(kit.moved(model, move), *forget), rel=1e-9)
        moves[length] = move
    for name, shift in moves[0.07].shifts.items():
        torch.testing.assert_close(0.4 / 0.07 * shift, moves[0.4].shifts[name])


def test_the_generator_alone_decides(kit: Any) -> None:
    model, x = kit.built(mlp), kit.normal(4, 12)
    forget = kit.normal(3, 12, seed=1), torch.arange(3)
    for options in ({"aim": "random"}, {"aim": "descent"}, {"aim": "descent", "steps": 3}):
        found = []
        for seed, noise in ((1, 0), (1, 1), (2, 0)):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(noise)
                state = torch.get_rng_state()
                move = NullSpace(**options).move(  # type: ignore[arg-type]
                    model, generator=kit.generator(seed), probe=kit.probe(x, forget=forget)
                )
                assert torch.equal(state, torch.get_rng_state())
            found.append(move.shifts)
        assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])
        assert not any(torch.equal(found[0][n], found[2][n]) for n in found[0])


def test_two_moves_from_one_generator_differ(kit: Any) -> None:
    model, x, generator = kit.built(mlp), kit.normal(4, 12), kit.generator()
    symmetry = NullSpace(aim="random")
    first, second = (symmetry.move(model, generator=generator, probe=kit.probe(x)) for _ in range(2))
    assert not torch.equal(first.shifts["0.weight"], second.shifts["0.weight"])


@pytest.mark.parametrize("grad", [True, False])
def test_the_model_is_left_as_it_was(kit: Any, grad: bool) -> None:
    model = kit.built(lambda: nn.Sequential(Block(3, 5, 1), nn.Flatten(), nn.Linear(5 * 9, 3)))
    model.train()
    model[0].bn2.eval()
    model[0].bn1.weight.requires_grad_(False)
    model[0].conv1.weight.grad = torch.ones_like(model[0].conv1.weight)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    with torch.set_grad_enabled(grad):
        move = NullSpace(batch_norm="project").move(
            model,
            generator=kit.generator(),
            probe=kit.probe(kit.normal(2, 3, 3, 3), forget=(kit.normal(3, 3, 3, 3, seed=1), torch.arange(3))),
        )
        assert torch.is_grad_enabled() == grad
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]
    assert bool((model[0].conv1.weight.grad == 1).all())
    assert [p.grad is None for p in model.parameters()].count(False) == 1
    assert not model[0].bn1.weight.requires_grad
    assert all(len(m._forward_pre_hooks) == 0 for m in model.modules())
    assert not any(s.requires_grad for s in move.shifts.values())
    assert "0.bn1.weight" in move.left
    assert "0.bn1.bias" in move.shifts
    assert not any("running" in n for n in move.shifts)


def test_dropout_and_batch_statistics_play_no_part(kit: Any) -> None:
    """The move is that of eval mode whatever mode the model is in."""
    make = lambda: nn.Sequential(nn.Linear(9, 12), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.ReLU(), nn.Linear(12, 3))  # noqa: E731
    model, x = kit.built(make), kit.normal(4, 9)
    probe = kit.probe(x, forget=(kit.normal(3, 9, seed=1), torch.arange(3)))
    calm = NullSpace().move(model, generator=kit.generator(), probe=probe)
    wild = NullSpace().move(model.train(), generator=kit.generator(), probe=probe)
    assert all(torch.equal(s, wild.shifts[n]) for n, s in calm.shifts.items())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"energy": 0}, "energy to protect is 0; it must be above 0 and at most 1"),
    ({"energy": -0.5}, "above 0"),
    ({"energy": 1.01}, "at most 1"),
    ({"energy": float("nan")}, "finite"),
    ({"energy": "most"}, "energy is 'most'"),
    ({"step_size": 0}, "step_size is 0; it must be above 0"),
    ({"step_size": float("inf")}, "finite"),
    ({"radius": -1}, "radius is -1"),
    ({"dispersion": -0.1}, "dispersion is -0.1; it must be at least 0"),
    ({"kick": -1}, "kick is -1"),
    ({"kick": True}, "kick is True"),
    ({"steps": 0}, "steps is 0; it must be a whole number of at least 1"),
    ({"steps": 1.5}, "steps is 1.5"),
    ({"halvings": -1}, "halvings is -1"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"forget_size": 0}, "forget_size is 0"),
    ({"aim": "descend"}, "did you mean 'descent'"),
    ({"rule": "squares"}, "rule is 'squares'"),
    ({"protect": "forget"}, "protect is 'forget'"),
    ({"batch_norm": "frozen"}, "did you mean 'freeze'"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_unusable_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NullSpace(**options)


def test_bounds_that_are_allowed() -> None:
    NullSpace(energy=1, dispersion=0, kick=0, halvings=0, batch_size=1, forget_size=1)


def test_how_much_it_wants_to_see_and_what_it_says_of_itself() -> None:
    symmetry = NullSpace(batch_size=7, forget_size=5)
    assert symmetry.looks_at == (7, 5)
    told = settings_of(symmetry)
    assert told["batch_size"] == 7
    assert told["energy"] == 0.99
    assert json.loads(json.dumps(told)) == told


def test_data_that_cannot_be_used_are_refused(kit: Any) -> None:
    model, x, y = kit.built(mlp), kit.normal(4, 12), torch.arange(3)
    spoilt = x.clone()
    spoilt[2, 3] = float("nan")
    endless = x.clone()
    endless[1, 1] = float("inf")
    for bad in (spoilt, endless):
        for probe in (kit.probe(x, bad), kit.probe(x, forget=(bad[:3], y))):
            for protect in ("both", "retain"):
                for aim in ("descent", "random"):
                    with pytest.raises(DataError, match="NaN or infinite"):
                        NullSpace(protect=protect, aim=aim).move(  # type: ignore[arg-type]
                            model, generator=kit.generator(), probe=probe
                        )
    for nothing in (None, Probe(())):
        with pytest.raises(InputError, match="give retain="):
            NullSpace().move(model, generator=kit.generator(), probe=nothing)


def test_weights_that_are_not_finite_are_refused(kit: Any) -> None:
    model = kit.built(mlp)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(DataError, match=r"inputs of the layer of 2\.weight hold NaN"):
        NullSpace().move(model, generator=kit.generator(), probe=kit.probe(kit.normal(4, 12)))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_coarse_weights_are_refused(kit: Any, kind: torch.dtype) -> None:
    model, x = kit.built(mlp).to(kind), kit.normal(4, 12).to(kind)
    with pytest.raises(InputError, match=rf"weight is {kind}, .*convert the model with \.float\(\)"):
        NullSpace(aim="random").move(model, generator=kit.generator(), probe=kit.probe(x))


class Counting(nn.Module):
    """A layer of whole numbers before one of real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Linear(12, 20, bias=False)
        self.whole.weight = nn.Parameter(torch.arange(240).reshape(20, 12) % 5 - 2, requires_grad=False)
        self.real = nn.Linear(20, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.real(self.whole((4 * x).long()).double())


def test_weights_of_whole_numbers_are_refused(kit: Any) -> None:
    with pytest.raises(InputError, match=r"whole\.weight is torch\.int64.*\.float\(\)"):
        NullSpace(aim="random").move(Counting(), generator=kit.generator(), probe=kit.probe(kit.normal(4, 12)))


def test_float32_is_kept_to_its_own_rounding(kit: Any) -> None:
    model, x = kit.built(mlp).float(), kit.normal(4, 12).float()
    move = NullSpace(energy=1.0, aim="random", step_size=0.5).move(model, generator=kit.generator(), probe=kit.probe(x))
    assert all(s.dtype == torch.float32 for s in move.shifts.values())
    with torch.no_grad():
        before, after = model(x), kit.moved(model, move)(x)
    assert float((after - before).abs().max()) < 1e-5 * float(before.abs().max())


def test_too_few_examples_are_noted(kit: Any) -> None:
    model = kit.built(lambda: nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)))
    move = NullSpace(energy=0.9).move(model, generator=kit.generator(), probe=kit.probe(kit.normal(5, 12)))
    (note,) = move.notes
    assert "2 layers saw fewer inputs than they have directions (2.weight: 5 of 21)" in note
    assert "batch_size" in note
    move = NullSpace(energy=0.9).move(model, generator=kit.generator(), probe=kit.probe(kit.normal(15, 12)))
    assert "1 layers" in move.notes[0]
    move = NullSpace(energy=0.9).move(model, generator=kit.generator(), probe=kit.probe(kit.normal(40, 12)))
    assert move.notes == ()


def test_batches_count_together(kit: Any) -> None:
    model, x = kit.built(mlp), kit.normal(6, 12)
    whole = NullSpace(energy=1.0, aim="random").move(model, generator=kit.generator(), probe=kit.probe(x))
    parts = NullSpace(energy=1.0, aim="random").move(model, generator=kit.generator(), probe=kit.probe(x[:1], x[1:]))
    for name, shift in whole.shifts.items():
        torch.testing.assert_close(parts.shifts[name], shift, rtol=1e-9, atol=1e-12)
    assert whole.bases["0.weight"].positions == parts.bases["0.weight"].positions == 6


def test_how_much_is_protected_follows_energy_and_rule(kit: Any) -> None:
    model, x = kit.built(mlp), kit.normal(40, 12) * torch.logspace(0, -3, 12, dtype=torch.float64)
    ranks = {}
    for energy, rule in ((0.9, "energy"), (0.999, "energy"), (0.9, "singular_values"), (1.0, "energy")):
        move = NullSpace(energy=energy, rule=rule, aim="random").move(  # type: ignore[arg-type]
            model, generator=kit.generator(), probe=kit.probe(x)
        )
        ranks[energy, rule] = move.bases["0.weight"].rank
        assert move.bases["0.weight"].captured >= energy - 1e-12 or rule == "singular_values"
    rows = torch.cat([x, torch.ones(40, 1, dtype=torch.float64)], dim=1)
    values = torch.linalg.svdvals(rows)
    for (energy, rule), rank in ranks.items():
        weights = values.square() if rule == "energy" else values
        share = (weights / weights.sum()).cumsum(0)
        assert rank == (13 if energy == 1 else int((share < energy).sum()) + 1)
    assert ranks[0.9, "energy"] < ranks[0.9, "singular_values"] < ranks[1.0, "energy"]


class Odd(nn.Module):
    """A weight that a functional call reads too, an embedding tied to a layer, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 12)
        self.inner = nn.Linear(12, 12)
        self.again = nn.Linear(12, 12)
        self.out = nn.Linear(12, 7, bias=False)
        self.out.weight = self.table.weight
        self.idle = nn.Linear(12, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        h = torch.tanh(self.inner(self.table(tokens).mean(1)))
        h = torch.tanh(F.linear(torch.tanh(self.again(h)), self.again.weight))
        return self.out(h)


def test_weights_that_something_else_reads_stay_and_are_named(kit: Any) -> None:
    model, tokens = kit.built(Odd), torch.arange(12).reshape(4, 3) % 7
    move = NullSpace(energy=1.0, step_size=0.3).move(
        model, generator=kit.generator(), probe=kit.probe(tokens, forget=(tokens[:2] // 2, torch.arange(2)))
    )
    assert set(move.shifts) == {"inner.weight", "inner.bias"}
    assert set(move.left) == set(dict(model.named_parameters())) - set(move.shifts)
    other = "read by something other than a Linear or Conv layer"
    assert move.left["table.weight"] == move.left["again.weight"] == other
    assert move.left["idle.weight"] == "read by no Linear or Conv layer that the batch reached"
    assert (kit.moved(model, move)(tokens) - model(tokens)).abs().max() < 1e-12


class Branching(nn.Module):
    """torch.fx cannot trace it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if bool(h.sum() > 0):
            h = 2 * h
        return self.second(F.relu(h))


def test_a_network_that_cannot_be_traced_moves_all_the_same(kit: Any) -> None:
    model, x = kit.built(Branching), kit.normal(4, 12)
    move = NullSpace(energy=1.0, step_size=0.3).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=(kit.normal(3, 12, seed=1), torch.arange(3)))
    )
    assert set(move.shifts) == {"first.weight", "first.bias", "second.weight", "second.bias"}
    felt, reference = changes(kit, model, x, move)
    assert felt <= 1e-10 * reference


class Encoder(nn.Module):
    """Tokens through torch's own encoder layer, whose attention reads its weights without calling their modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(9, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.first(x)).mean(1))


def test_token_sequences_are_inputs_one_by_one_and_fused_attention_stays(kit: Any) -> None:
    model, x = kit.built(Encoder), kit.normal(2, 3, 9)
    forget = kit.normal(2, 3, 9, seed=1), torch.arange(2)
    move = NullSpace(energy=1.0, step_size=0.3, protect="retain").move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=forget)
    )
    paths = ("first", "layer.linear1", "layer.linear2", "out")
    assert set(move.shifts) == {f"{path}.{leaf}" for path in paths for leaf in ("weight", "bias")}
    assert move.bases["first.weight"].positions == 6
    assert move.bases["out.weight"].positions == 2
    for name in ("layer.self_attn.in_proj_weight", "layer.self_attn.out_proj.weight"):
        assert move.left[name] == "read by something other than a Linear or Conv layer"
    felt, reference = changes(kit, model, x, move)
    assert felt <= 1e-10 * reference


def test_computed_weights_stay_and_the_others_move(kit: Any) -> None:
    model = kit.built(lambda: nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)))
    parametrizations.weight_norm(model[0])
    x = kit.normal(4, 12)
    move = NullSpace(energy=1.0, step_size=0.3).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=(kit.normal(3, 12, seed=1), torch.arange(3)))
    )
    assert set(move.shifts) == {"2.weight", "2.bias"}
    assert {n for n in move.left if "original" in n} == {
        "0.parametrizations.weight.original0",
        "0.parametrizations.weight.original1",
    }
    felt, reference = changes(kit, model, x, move)
    assert felt <= 1e-10 * reference


class WritesOver(nn.Module):
    """The input of a layer is written over after the layer has read it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(12, 20), nn.Linear(20, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        k = self.second(h)
        return self.out(F.relu_(h) + k)


def test_inputs_that_are_written_over_later_are_those_the_layer_read(kit: Any) -> None:
    model, x = kit.built(WritesOver), kit.normal(4, 12)
    move = NullSpace(energy=1.0, step_size=0.3).move(model, generator=kit.generator(), probe=kit.probe(x))
    felt, reference = changes(kit, model, x, move)
    assert felt <= 1e-10 * reference
    with pytest.raises(InputError, match="written over by a later in-place operation"):
        NullSpace().move(
            model, generator=kit.generator(), probe=kit.probe(x, forget=(kit.normal(3, 12, seed=1), torch.arange(3)))
        )


def test_a_model_that_returns_more_than_logits_is_refused(kit: Any) -> None:
    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    with pytest.raises(InputError, match="returns a tuple"):
        NullSpace().move(Pair(12, 3).double(), generator=kit.generator(), probe=kit.probe(kit.normal(4, 12)))


def test_a_bias_that_is_a_buffer_stays(kit: Any) -> None:
    model, x = kit.built(mlp), kit.normal(4, 12)
    bias = model[0].bias.detach().clone()
    del model[0].bias
    model[0].register_buffer("bias", bias)
    move = NullSpace(energy=1.0, step_size=0.3).move(model, generator=kit.generator(), probe=kit.probe(x))
    assert "0.weight" in move.shifts
    assert move.left["0.bias"] == "a buffer, not a parameter"
    felt, reference = changes(kit, model, x, move)
    assert felt <= 1e-10 * reference


def test_frozen_parameters_stay_bit_identical(kit: Any) -> None:
    model, x = kit.built(mlp), kit.normal(4, 12)
    model[0].requires_grad_(False)
    model[4].bias.requires_grad_(False)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    move = NullSpace(energy=1.0, step_size=0.3).move(
        model, generator=kit.generator(), probe=kit.probe(x, forget=(kit.normal(3, 12, seed=1), torch.arange(3)))
    )
    after = kit.moved(model, move).state_dict()
    assert {n for n in before if not torch.equal(before[n], after[n])} == {"2.weight", "4.weight"}
    frozen = "frozen: requires_grad is False"
    assert move.left == {"0.weight": frozen, "0.bias": frozen, "4.bias": frozen}
    felt, reference = changes(kit, model, x, move)
    assert felt <= 1e-10 * reference


def test_weights_of_zero_have_no_length_to_move_by(kit: Any) -> None:
    model, x = kit.built(lambda: nn.Linear(12, 3)), kit.normal(4, 12)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    for aim in ("descent", "random"):
        move = NullSpace(aim=aim).move(  # type: ignore[arg-type]
            model, generator=kit.generator(), probe=kit.probe(x, forget=(kit.normal(3, 12, seed=1), torch.arange(3)))
        )
        assert all(bool((s == 0).all()) for s in move.shifts.values())


def test_the_directions_that_the_last_move_needed_are_expected_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double().eval()
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected: list[dict[str, list[int]]] = []
    found: list[dict[str, list[int]]] = []

    def noted(*args: Any, ranks: dict[str, list[int]], **named: Any) -> dict[str, InputBasis]:
        expected.append(ranks)
        bases = exact_bases(*args, ranks=ranks, **named)
        found.append({name: [block.rank for block in basis.blocks] for name, basis in bases.items()})
        return bases

    monkeypatch.setattr(null_space, "exact_bases", noted)
    symmetry = NullSpace(energy=0.9, aim="random")
    draw = torch.Generator().manual_seed(2)
    for _ in range(2):
        symmetry.move(model, generator=draw, probe=Probe((x,)))
    symmetry.move(deepcopy(model), generator=draw, probe=Probe((x,)))
    assert expected == [{}, found[0], {}]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 7, 29])
def test_one_number_that_is_not_finite_is_found_wherever_it_is(bad: float, place: int) -> None:
    examples = torch.arange(30.0).reshape(5, 6)
    others = [torch.ones(2, 6), torch.empty(0, 6), torch.arange(4)]
    assert bool(null_space._finite([*others, examples]))
    examples.view(-1)[place] = bad
    assert not bool(null_space._finite([*others, examples]))
    assert null_space._finite([torch.arange(4)]) is None
