from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.models.networks import MLP, SmallResNet
from warp_unlearning.symmetry.moves import AxisMap, BlockMap, ChannelMove, MomentumReset, Translation, apply_move


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def vector(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def axis_maps(draw: st.DrawFn, axis: int, length: int) -> AxisMap:
    order = draw(st.none() | st.permutations(range(length)).map(torch.tensor))
    positive = st.floats(0.1, 10)
    signed = st.tuples(positive, st.sampled_from([-1.0, 1.0])).map(lambda pair: pair[0] * pair[1])
    scale = draw(st.none() | st.lists(signed, min_size=length, max_size=length).map(vector))
    return AxisMap(axis, order, scale)


SHAPE = (4, 3, 2, 2)
moves = st.tuples(axis_maps(0, 4), axis_maps(1, 3)).map(lambda maps: ChannelMove({"w": maps}))


@settings(deadline=None)
@given(moves, st.integers(0, 1000))
def test_each_entry_goes_where_its_axes_say(move: ChannelMove, seed: int) -> None:
    value, rows, columns = normal(*SHAPE, seed=seed), *move.axes["w"]
    expected = torch.empty(SHAPE, dtype=torch.float64)
    for i in range(4):
        for j in range(3):
            from_i = i if rows.order is None else int(rows.order[i])
            from_j = j if columns.order is None else int(columns.order[j])
            factor = (1.0 if rows.scale is None else float(rows.scale[i])) * (
                1.0 if columns.scale is None else float(columns.scale[j])
            )
            expected[i, j] = factor * value[from_i, from_j]
    torch.testing.assert_close(move.point("w", value), expected)


@settings(deadline=None)
@given(moves, st.integers(0, 1000))
def test_the_pairing_of_gradients_with_steps_is_kept(move: ChannelMove, seed: int) -> None:
    gradient, step = normal(*SHAPE, seed=seed), normal(*SHAPE, seed=seed + 1)
    before = float((gradient * step).sum())
    after = float((move.covector("w", gradient) * move.point("w", step)).sum())
    assert after == pytest.approx(before, rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(moves, st.integers(0, 1000))
def test_the_inverse_undoes_all(move: ChannelMove, seed: int) -> None:
    value, back = normal(*SHAPE, seed=seed), move.inverse()
    chosen = value > 0
    torch.testing.assert_close(back.point("w", move.point("w", value)), value)
    torch.testing.assert_close(move.point("w", back.point("w", value)), value)
    torch.testing.assert_close(back.covector("w", move.covector("w", value)), value)
    assert torch.equal(back.selection("w", move.selection("w", chosen)), chosen)
    columns = normal(3 * 4, 5, seed=seed)
    torch.testing.assert_close(back.inputs("w", move.inputs("w", columns)), columns)


@settings(deadline=None)
@given(axis_maps(0, 4), axis_maps(0, 4), st.integers(0, 1000))
def test_two_maps_of_one_axis_are_undone_in_turn(first: AxisMap, second: AxisMap, seed: int) -> None:
    move, value = ChannelMove({"w": (first, second)}), normal(4, 2, seed=seed)
    torch.testing.assert_close(move.point("w", value), second.apply(first.apply(value)))
    torch.testing.assert_close(move.inverse().point("w", move.point("w", value)), value)


@settings(deadline=None)
@given(moves, st.integers(0, 1000))
def test_a_choice_of_entries_follows_the_entries(move: ChannelMove, seed: int) -> None:
    value = normal(*SHAPE, seed=seed)
    chosen = value > 0.3
    kept = torch.where(chosen, value, torch.zeros_like(value))
    followed = move.selection("w", chosen)
    assert followed.dtype == torch.bool
    torch.testing.assert_close(torch.where(followed, move.point("w", value), 0.0), move.point("w", kept))


@settings(deadline=None)
@given(moves, st.integers(0, 1000))
def test_a_moved_weight_answers_moved_inputs_with_the_moved_response(move: ChannelMove, seed: int) -> None:
    """W′ p′ = A (W p): inputs undo the in-axis and the response follows the out-axis."""
    weight, inputs = normal(*SHAPE, seed=seed), normal(3 * 4, 5, seed=seed + 1)
    response = weight.flatten(1) @ inputs
    moved = move.point("w", weight).flatten(1) @ move.inputs("w", inputs)
    torch.testing.assert_close(moved, move.axes["w"][0].apply(response))


def test_a_basis_without_directions_has_none_after_a_move() -> None:
    move = ChannelMove({"w": (AxisMap(1, torch.tensor([2, 0, 1])),)})
    assert move.inputs("w", torch.zeros(12, 0)).shape == (12, 0)


def test_tensors_not_named_stay() -> None:
    value = normal(3, 3)
    move = ChannelMove({"w": (AxisMap(0, torch.tensor([2, 0, 1])),)})
    for how in (move.point, move.covector, move.selection, move.inputs):
        assert how("other", value) is value


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 5), min_size=3, max_size=3),
    st.lists(st.floats(0.2, 5), min_size=3, max_size=3),
    st.permutations(range(3)),
)
def test_running_variances_scale_with_their_offset(variance: list[float], scale: list[float], order: list[int]) -> None:
    """The deviation √(v + ε) that batch norm divides by scales exactly, even where v is smaller than ε."""
    epsilon = 1e-2
    move = ChannelMove({"v": (AxisMap(0, torch.tensor(order), vector(scale) ** 2),)}, {"v": epsilon})
    moved = move.point("v", vector(variance))
    for i in range(3):
        expected = scale[i] * (variance[order[i]] + epsilon) ** 0.5
        assert float(moved[i] + epsilon) ** 0.5 == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(move.inverse().point("v", moved), vector(variance))


def settle(model: nn.Module, x: Tensor) -> nn.Module:
    """Random affine parameters and running statistics in all batch norms, then eval mode."""
    with torch.no_grad():
        for i, module in enumerate(model.modules()):
            if isinstance(module, nn.BatchNorm2d):
                module.weight.copy_(normal(len(module.weight), seed=i) + 1)
                module.bias.copy_(normal(len(module.bias), seed=i + 100))
        model.train()
        model(x)
    return model.eval()


def hidden_move(model: SmallResNet, block: str, out_scale: Tensor, relu_scale: Tensor, order: Tensor) -> ChannelMove:
    """The inner channels of a block permuted, rescaled before its first batch norm and again before its ReLU."""
    epsilon = model.get_submodule(f"{block}.bn1").eps
    return ChannelMove(
        {
            f"{block}.conv1.weight": (AxisMap(0, order, out_scale),),
            f"{block}.bn1.weight": (AxisMap(0, order, relu_scale),),
            f"{block}.bn1.bias": (AxisMap(0, order, relu_scale),),
            f"{block}.bn1.running_mean": (AxisMap(0, order, out_scale),),
            f"{block}.bn1.running_var": (AxisMap(0, order, out_scale**2),),
            f"{block}.conv2.weight": (AxisMap(1, order, 1 / relu_scale),),
        },
        {f"{block}.bn1.running_var": epsilon},
    )


@pytest.mark.parametrize("block", ["layer1", "layer2", "layer3"])
def test_a_move_of_a_residual_network_keeps_its_logits(block: str) -> None:
    model, x = SmallResNet(width=4).double(), normal(6, 1, 8, 8)
    settle(model, x)
    before, state = model(x), {n: t.clone() for n, t in model.state_dict().items()}
    channels = len(model.get_submodule(f"{block}.bn1").weight)
    out_scale, relu_scale = normal(channels, seed=5).exp(), normal(channels, seed=6).exp()
    order = torch.randperm(channels, generator=torch.Generator().manual_seed(7))
    move = hidden_move(model, block, out_scale, relu_scale, order)
    apply_move(model, move)
    assert not torch.allclose(model.get_parameter(f"{block}.conv1.weight"), state[f"{block}.conv1.weight"])
    torch.testing.assert_close(model(x), before, rtol=1e-12, atol=1e-12)
    apply_move(model, move.inverse())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=1e-12, atol=1e-12)


def test_the_inputs_of_a_moved_layer_are_the_moved_inputs() -> None:
    model, x = SmallResNet(width=4).double(), normal(6, 1, 8, 8)
    settle(model, x)
    block = model.layer2
    move = hidden_move(
        model, "layer2", normal(8, seed=5).exp(), normal(8, seed=6).exp(), torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
    )
    seen: list[Tensor] = []
    handle = block.conv2.register_forward_pre_hook(
        lambda module, args: seen.append(F.unfold(args[0], module.kernel_size, module.dilation, module.padding).mT)
    )
    model(x)
    apply_move(model, move)
    model(x)
    handle.remove()
    first, second = (patches.flatten(0, 1).T for patches in seen)
    torch.testing.assert_close(move.inputs("layer2.conv2.weight", first), second)


def test_gradients_after_a_move_are_the_moved_gradients() -> None:
    model, x = MLP(inputs=5, classes=3, hidden=(4,)).double(), normal(6, 5)
    target = normal(6, 3, seed=1)
    scale, order = vector([2.0, 0.5, 3.0, 1.5]), torch.tensor([2, 0, 3, 1])
    move = ChannelMove(
        {
            "layers.0.weight": (AxisMap(0, order, scale),),
            "layers.0.bias": (AxisMap(0, order, scale),),
            "layers.2.weight": (AxisMap(1, order, 1 / scale),),
        }
    )

    def gradients() -> dict[str, Tensor]:
        loss = (model(x) - target).square().sum()
        return dict(
            zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
        )

    before = gradients()
    apply_move(model, move)
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, move.covector(name, before[name]))


@settings(deadline=None)
@given(st.floats(-3, 3), st.integers(0, 1000))
def test_a_translation_shifts_points_and_nothing_else(factor: float, seed: int) -> None:
    shift, value, step = (normal(4, 3, seed=seed + i) for i in range(3))
    move = Translation({"w": shift})
    torch.testing.assert_close(move.point("w", value), value + shift)
    torch.testing.assert_close(move.point("w", value + step) - move.point("w", value), step)
    for how in (move.covector, move.selection, move.inputs):
        assert how("w", value) is value
    assert move.point("other", value) is value
    torch.testing.assert_close(move.scaled(factor).point("w", value), value + factor * shift)
    torch.testing.assert_close(move.inverse().point("w", move.point("w", value)), value)


def test_a_reset_is_the_move_inside_but_for_the_optimizer() -> None:
    inside = ChannelMove({"w": (AxisMap(0, torch.tensor([1, 0]), vector([2.0, 4.0])), AxisMap(1, None, vector([3.0])))})
    move, value = MomentumReset(inside), normal(2, 1)
    for how in ("point", "covector", "selection"):
        assert torch.equal(getattr(move, how)("w", value), getattr(inside, how)("w", value))
    assert not torch.equal(move.point("w", value), move.covector("w", value))
    columns = normal(1, 2)
    assert torch.equal(move.inputs("w", columns), inside.inputs("w", columns))
    assert not isinstance(move.inverse(), MomentumReset)
    torch.testing.assert_close(move.inverse().point("w", move.point("w", value)), value)


def test_blocks_of_rows_go_each_their_own_way() -> None:
    blocks = BlockMap((AxisMap(1, torch.tensor([1, 0])), AxisMap(1, None, vector([2.0, 5.0]))))
    value = vector([1.0, 2.0, 3.0, 4.0]).reshape(2, 2)
    assert blocks.apply(value).tolist() == [[2.0, 1.0], [6.0, 20.0]]
    assert blocks.apply_inverse_transpose(value).tolist() == [[2.0, 1.0], [1.5, 0.8]]
    assert blocks.reorder(value).tolist() == [[2.0, 1.0], [3.0, 4.0]]
    torch.testing.assert_close(blocks.inverse().apply(blocks.apply(value)), value)


def test_a_tied_weight_moves_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    before = model[0].weight.detach().clone()
    apply_move(model, Translation({"0.weight": torch.ones(3, 3)}))
    assert torch.equal(model[1].weight, before + 1)


def test_frozen_parameters_and_buffers_are_moved_in_place() -> None:
    model = nn.BatchNorm1d(2)
    model.weight.requires_grad_(False)
    kept = model.weight, model.running_mean
    apply_move(model, Translation({"weight": torch.ones(2), "running_mean": torch.full((2,), 3.0)}))
    assert model.weight is kept[0]
    assert model.running_mean is kept[1]
    assert model.weight.tolist() == [2.0, 2.0]
    assert model.running_mean.tolist() == [3.0, 3.0]
    assert not model.weight.requires_grad
    assert int(model.num_batches_tracked) == 0
