from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.linalg.co_subspace import CoSubspace
from warp_unlearning.linalg.principal_subspaces import principal_subspaces
from warp_unlearning.linalg.subspace import Rule, Subspace, principal_subspace
from warp_unlearning.models.small_resnet import SmallResNet
from warp_unlearning.symmetry import input_bases
from warp_unlearning.symmetry.input_bases import InputBasis, exact_bases, may_round, observed_rows
from warp_unlearning.symmetry.layer_inputs import layer_rows


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double().eval()


def moved(model: nn.Module, bases: dict[str, InputBasis], *, projected: bool, seed: int = 0) -> nn.Module:
    """A copy with a random update of every weight that has a basis, and of the bias that goes with it."""
    model = deepcopy(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for i, (name, basis) in enumerate(bases.items()):
            weight = normal(*tensors[name].shape, seed=seed + i).to(tensors[name])
            bias = None if basis.bias is None else normal(*tensors[basis.bias].shape, seed=seed + i + 50).to(weight)
            if projected:
                weight, bias = basis.project_out(weight, bias)
            tensors[name] += weight
            if basis.bias is not None and bias is not None:
                tensors[basis.bias] += bias
    return model


def relative_change(model: nn.Module, bases: dict[str, InputBasis], x: Tensor) -> float:
    """How much a projected update changes the output, against the same one without projection."""
    with torch.no_grad():
        kept, changed = (moved(model, bases, projected=p)(x) - model(x) for p in (True, False))
    assert float(changed.abs().max()) > 0.1
    return float(kept.abs().max() / changed.abs().max())


conv = st.fixed_dictionaries(
    {
        "kernel_size": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "stride": st.tuples(st.integers(1, 2), st.integers(1, 2)),
        "padding": st.tuples(st.integers(0, 2), st.integers(0, 2)),
        "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
        "groups": st.sampled_from([1, 2, 4]),
        "bias": st.booleans(),
        "padding_mode": st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    }
)


@settings(max_examples=40)
@given(options=conv, images=st.integers(1, 3), split=st.integers(1, 3))
def test_an_update_out_of_the_inputs_span_keeps_a_convolutions_output(
    options: dict[str, Any], images: int, split: int
) -> None:
    layer = built(lambda: nn.Conv2d(4, 8, **options))
    x = normal(images, 4, 5, 6)
    bases = exact_bases(layer, x.split(split), energy=1.0)
    (basis,) = bases.values()
    rows = layer_rows(layer, x)
    if options["bias"]:
        rows = torch.cat([rows, torch.ones(*rows.shape[:2], 1, dtype=rows.dtype)], dim=2)
    assert basis.positions == rows.shape[1]
    assert basis.d == rows.shape[2]
    assert [block.rank for block in basis.blocks] == [int(torch.linalg.matrix_rank(block)) for block in rows]
    assert torch.equal(basis.reached, (rows != 0).any(1))
    assert basis.free == int(basis.reached.sum()) - basis.rank
    assert relative_change(layer, bases, x) <= 1e-12


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False)
        self.act = nn.ReLU(inplace=True)
        self.hidden = nn.Linear(54, 60)
        self.out = nn.Linear(60, 5)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.conv(x)))
        x = self.act(self.grouped(x)).flatten(1)
        return self.out(input=self.act(self.hidden(x)))


def test_all_layers_may_move_at_once_and_the_function_stays() -> None:
    model, x = built(Net), normal(9, 2, 5, 5)
    bases = exact_bases(model, x.split(4), energy=1.0)
    assert list(bases) == ["conv.weight", "grouped.weight", "hidden.weight", "out.weight"]
    assert [b.bias for b in bases.values()] == ["conv.bias", None, "hidden.bias", "out.bias"]
    assert bases["hidden.weight"].rank == 9
    assert bases["hidden.weight"].free > 0
    assert bases["conv.weight"].free == 0
    assert all(b.captured == pytest.approx(1.0) for b in bases.values())
    assert relative_change(model, bases, x) <= 1e-12


@pytest.mark.parametrize("energy", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("rule", ["energy", "singular_values"])
def test_less_energy_keeps_the_leading_directions(energy: float, rule: Any) -> None:
    model, x = built(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))), normal(40, 6)
    found = exact_bases(model, x.split(7), energy=energy, rule=rule)["2.weight"]
    with torch.no_grad():
        hidden = torch.cat([F.relu(model[0](x)), torch.ones(40, 1, dtype=torch.float64)], dim=1)
    _, values, right = np.linalg.svd(hidden.numpy(), full_matrices=False)
    weights = values**2 if rule == "energy" else values
    rank = int(np.searchsorted(np.cumsum(weights) / weights.sum(), energy)) + 1
    (block,) = found.blocks
    assert found.rank == block.rank == rank
    np.testing.assert_allclose((block.basis @ block.basis.T).numpy(), right[:rank].T @ right[:rank], atol=1e-8)
    assert found.captured == pytest.approx((values[:rank] ** 2).sum() / (values**2).sum())


def test_taps_that_meet_only_padding_are_not_reached_and_do_not_move() -> None:
    model, x = built(lambda: nn.Conv2d(3, 2, 3, padding=1)), normal(4, 3, 1, 1)
    basis = exact_bases(model, [x], energy=1.0)["weight"]
    assert basis.reached.reshape(-1)[:-1].reshape(3, 9).any(0).tolist() == [i == 4 for i in range(9)]
    weight, bias = basis.project_out(normal(2, 3, 3, 3), normal(2))
    assert bias is not None
    middle = torch.zeros(3, 3, dtype=torch.bool)
    middle[1, 1] = True
    assert weight[..., ~middle].abs().max() == 0
    assert basis.rank == 4
    assert basis.free == 0


def test_coordinates_that_inputs_no_longer_reach_do_not_move() -> None:
    alive, reached = torch.ones(4, dtype=torch.bool), torch.tensor([[True, True, False, True]])
    normals = torch.linalg.qr(normal(4, 2)).Q
    basis = InputBasis("weight", None, (CoSubspace(normals, alive, 0.9),), reached, 9)
    weight, _ = basis.project_out(normal(3, 4, seed=1), None)
    assert weight[:, 2].abs().max() == 0
    assert weight[:, 3].abs().max() > 0


@pytest.mark.parametrize("examples", [5, 60])
def test_all_of_the_energy_includes_inputs_that_are_almost_nothing(examples: int) -> None:
    sizes = torch.tensor([1.0, 1.0, 1e-9, 1e-10], dtype=torch.float64)
    x = normal(examples, 4) * sizes @ normal(4, 7, seed=1)
    bases = exact_bases(built(lambda: nn.Linear(7, 3, bias=False)), x.split(9), energy=1.0)
    assert bases["weight"].rank == 4


class Twice(nn.Module):
    def __init__(self, *, shared_bias: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(20, 20), nn.Linear(20, 20)
        self.b.weight = self.a.weight
        if shared_bias:
            self.b.bias = self.a.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


@pytest.mark.parametrize("shared_bias", [True, False])
def test_a_shared_weight_is_projected_on_the_inputs_of_all_its_uses(shared_bias: bool) -> None:
    model, x = built(lambda: Twice(shared_bias=shared_bias)), normal(4, 20)
    bases = exact_bases(model, [x], energy=1.0)
    assert {n: (b.bias, b.rank, b.positions) for n, b in bases.items()} == {
        "a.weight": ("a.bias" if shared_bias else None, 8, 8)
    }
    assert relative_change(model, bases, x) <= 1e-12


def test_groups_that_differ_between_the_uses_of_a_weight_are_kept_apart() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Conv2d(4, 12, 3, groups=2, bias=False)
            self.wide = nn.Conv2d(8, 12, 3, groups=4, bias=False)
            self.wide.weight = self.narrow.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.narrow(x[:, :4]) + self.wide(x)

    model, x = built(Two), normal(2, 8, 4, 4)
    bases = exact_bases(model, [x], energy=1.0)
    assert len(bases["narrow.weight"].blocks) == 4
    assert relative_change(model, bases, x) <= 1e-12


def test_a_weight_may_move_without_its_bias() -> None:
    model, x = built(lambda: nn.Linear(8, 3)), normal(4, 8)
    basis = exact_bases(model, [x], energy=1.0)["weight"]
    update = normal(3, 8, seed=5)
    weight, bias = basis.project_out(update, None)
    assert bias is None
    inputs = np.linalg.qr(x.numpy().T)[0]
    expected = update.numpy() - update.numpy() @ inputs @ inputs.T
    np.testing.assert_allclose(weight.numpy(), expected, atol=1e-12)


def test_a_bias_that_does_not_belong_to_the_weight_is_refused() -> None:
    basis = exact_bases(built(lambda: nn.Linear(3, 2, bias=False)), [normal(4, 3)], energy=1.0)["weight"]
    with pytest.raises(InputError, match="no bias moves with weight"):
        basis.project_out(torch.zeros(2, 3), torch.zeros(2))


def test_a_basis_by_its_complement_projects_alike() -> None:
    x = normal(6, 9)
    basis = exact_bases(built(lambda: nn.Linear(9, 3)), [x], energy=0.9)["weight"]
    (own,) = basis.blocks
    assert isinstance(own, Subspace)
    normals = torch.linalg.qr(own.basis, mode="complete").Q[:, own.rank :]
    co = InputBasis(
        "weight", "bias", (CoSubspace(normals, torch.ones(10, dtype=torch.bool), 0.9),), basis.reached, basis.positions
    )
    assert co.rank == basis.rank
    for bias in (normal(3, seed=2), None):
        for mine, theirs in zip(
            co.project_out(normal(3, 9, seed=1), bias), basis.project_out(normal(3, 9, seed=1), bias), strict=True
        ):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bases_have_the_type_of_the_weight_and_no_coarser_than_float32(dtype: torch.dtype) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))).to(dtype)
    x = normal(5, 12).to(dtype)
    bases = exact_bases(model, [x], energy=1.0)
    assert all(block.basis.dtype == torch.float32 for b in bases.values() for block in b.blocks)
    weight, bias = bases["0.weight"].project_out(normal(8, 12).to(dtype), normal(8).to(dtype))
    assert weight.dtype == dtype
    assert bias is not None
    assert bias.dtype == dtype
    left = weight.double() @ x.double().T + bias.double()[:, None]
    size = weight.double().abs() @ x.double().T.abs() + bias.double().abs()[:, None]
    assert float((left.abs() / size).max()) <= 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("energy", [1.0, 0.9])
@pytest.mark.parametrize("examples", [3, 400])
def test_inputs_that_are_not_finite_are_an_error_that_names_the_layer(bad: float, energy: float, examples: int) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fine, self.hurt = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.fine(x).clone()
            hidden[0, 1] = bad
            return self.hurt(hidden)

    with pytest.raises(DataError, match=r"hurt\.weight hold NaN or infinity"):
        exact_bases(built(Broken), normal(examples, 4).split(50), energy=energy)


@pytest.mark.parametrize("energy", [0.0, 1.2, float("nan")])
def test_an_energy_that_makes_no_sense_is_an_error_before_anything_runs(energy: float) -> None:
    with pytest.raises(InputError, match="fraction of energy"):
        exact_bases(nn.Linear(2, 2), [normal(1, 3)], energy=energy)


def test_frozen_weights_have_bases_and_the_model_is_left_as_it_was() -> None:
    model, x = built(Net), normal(6, 2, 5, 5)
    model.requires_grad_(False)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    assert len(exact_bases(model, [x], energy=0.9)) == 4
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(not m._forward_pre_hooks for m in model.modules())
    assert exact_bases(model, [], energy=0.9) == {}


def test_many_images_are_laid_out_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = built(lambda: nn.Conv2d(3, 2, 3, padding=1)), normal(10, 3, 6, 6)
    whole = exact_bases(model, [x], energy=0.95)["weight"]
    monkeypatch.setattr("warp_unlearning.symmetry.input_bases._PIECE", 2 * 27 * 108)
    pieces = exact_bases(model, [x], energy=0.95)["weight"]
    assert pieces.positions == whole.positions == 360
    a, b = (basis.blocks[0].basis for basis in (whole, pieces))
    torch.testing.assert_close(a @ a.mT, b @ b.mT)


class TwoSizes(nn.Module):
    """One convolution read on maps of one pixel, then on larger ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[:, :, :1, :1]).mean((2, 3)) + self.conv(x).mean((2, 3))


@pytest.mark.parametrize("dtype", [torch.float64, None])
def test_taps_that_meet_padding_alone_are_not_multiplied(dtype: torch.dtype | None) -> None:
    model = built(lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)))
    x = normal(60, 2, 1, 1)
    full, narrow = (observed_rows(model, x.split(25), dtype=dtype, met=met) for met in (False, True))
    for name, observed in narrow.items():
        everything = full[name].rows.second_moment()
        assert observed.rows.d == (everything.shape[1] - 1) // 9 + 1
        assert full[name].columns is None
        columns = observed.columns
        assert columns is not None
        torch.testing.assert_close(observed.rows.second_moment()[0], everything[0][columns][:, columns])
        torch.testing.assert_close(observed.whole().rows.second_moment(), everything)
        torch.testing.assert_close(observed.spread(observed.rows.energy()), full[name].rows.energy())
        some = columns[::2]
        torch.testing.assert_close(observed.within(some).second_moment()[0], everything[0][some][:, some])


def test_a_layer_that_meets_more_of_its_taps_later_has_all_of_them() -> None:
    model, x = built(TwoSizes), normal(20, 2, 3, 3)
    full, narrow = (observed_rows(model, [x], dtype=torch.float64, met=met) for met in (False, True))
    assert narrow["conv.weight"].taps is None
    torch.testing.assert_close(narrow["conv.weight"].rows.second_moment(), full["conv.weight"].rows.second_moment())
    for energy in (0.9, 1.0):
        assert exact_bases(model, [x], energy=energy)["conv.weight"].d == 19


def test_short_of_the_whole_span_single_precision_finds_the_same_bases() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = SmallResNet(classes=4, width=8).eval()
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    exact, single = (exact_bases(model, [x], energy=0.99, dtype=kind) for kind in (torch.float64, torch.float32))
    for name, basis in exact.items():
        ours, theirs = single[name].blocks[0], basis.blocks[0]
        assert ours.rank == theirs.rank, name
        assert ours.captured == pytest.approx(theirs.captured, abs=1e-5)
        # Directions at the edge, whose energies are nearly equal, may be exchanged in part.
        outside = ours.basis - theirs.basis @ (theirs.basis.mT @ ours.basis)
        assert float(outside.norm()) < 0.02 * theirs.rank**0.5


@pytest.mark.parametrize(
    ("energy", "rule", "rounded"),
    [
        (0.99, "energy", True),
        (0.9999, "energy", True),
        (0.99999, "energy", False),
        (1.0, "energy", False),
        (0.9, "singular_values", False),
    ],
)
def test_inputs_are_rounded_where_much_more_is_left_out(energy: float, rule: Rule, rounded: bool) -> None:
    assert may_round(energy, rule) is rounded


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_bases_of_rounded_inputs_hold_as_much_of_the_inputs_themselves() -> None:
    model = built(lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))).float().cuda()
    x = normal(400, 3, 9, 9).float().cuda()
    found, seen = exact_bases(model, [x], energy=0.99), observed_rows(model, [x], dtype=torch.float64)
    rounded = observed_rows(model, [x], rounded=True, dtype=torch.float64)
    for name, basis in found.items():
        block, whole = basis.blocks[0], seen[name].rows.second_moment()[0]
        assert not torch.equal(whole, rounded[name].rows.second_moment()[0])
        exact = principal_subspace(whole, 0.99)
        held = float((block.basis.double() * (whole @ block.basis.double())).sum() / whole.diagonal().sum())
        assert block.rank == exact.rank
        assert held == pytest.approx(exact.captured, abs=1e-5)


@pytest.mark.parametrize(
    ("device", "dtype", "rounds"),
    [
        ("cuda", torch.float32, True),
        ("cuda", torch.bfloat16, True),
        ("cuda", torch.float64, False),
        ("cpu", torch.float32, False),
    ],
)
def test_only_a_gpu_rounds_and_no_double_precision(device: str, dtype: torch.dtype, rounds: bool) -> None:
    assert input_bases._rounds(torch.device(device), dtype) is rounds


@pytest.mark.parametrize(("ranks", "expected"), [([3, 7], [3, 7]), ([3], [None, None]), (None, [None, None])])
def test_each_group_is_expected_to_need_what_it_needed(
    ranks: list[int] | None, expected: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int | None]] = []

    def noted(*args: Any, expected: list[int | None], **named: Any) -> list[Subspace]:
        seen.append(list(expected))
        return principal_subspaces(*args, expected=expected, **named)

    monkeypatch.setattr(input_bases, "principal_subspaces", noted)
    model = built(lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2)))
    exact_bases(model, [normal(20, 4, 6, 6)], energy=0.9, ranks=None if ranks is None else {"0.weight": ranks})
    assert seen == [expected]
