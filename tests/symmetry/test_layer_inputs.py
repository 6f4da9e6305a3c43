from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.networks import Calls
from tests.oracles import warp_loop
from tests.oracles.symmetry import built, normal
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.linalg.subspace import SecondMoment
from warp_unlearning.symmetry.layer_inputs import (
    LinearWeight,
    linear_weights,
    observe,
    reached_inputs,
    read_by_others,
)


def seen(model: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """All that `observe` shows, (groups, d, positions) by weight name."""
    found: dict[str, list[Tensor]] = {}
    observe(
        model, batches, linear_weights(model), lambda weight, x: found.setdefault(weight.name, []).append(x.clone())
    )
    return {name: torch.cat(parts, 2) for name, parts in found.items()}


def by_name(model: nn.Module) -> dict[str, LinearWeight]:
    return {weight.name: weight for weight in linear_weights(model)}


@st.composite
def convolutions(draw: Callable[..., Any]) -> tuple[nn.Module, Tensor]:
    """A convolution of one to three dimensions and images that it can be applied to."""
    axes = draw(st.integers(1, 3))
    each = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(axes))  # noqa: E731
    kernel, dilation, size = each(1, 3), each(1, 2), each(3, 5)
    mode = draw(st.sampled_from(["zeros", "circular", "reflect", "replicate"]))
    padding = draw(st.sampled_from(["same", "valid", "numbers"]))
    padding = each(0, 2) if padding == "numbers" else padding
    stride = (1,) * axes if padding == "same" else each(1, 3)
    groups = draw(st.sampled_from([1, 2]))
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    layer = kind(2, 2, kernel, stride, padding, dilation, groups, draw(st.booleans()), mode).double()  # type: ignore
    x = normal(*draw(st.sampled_from([(2,), ()])), 2, *size)
    try:
        layer(x)
    except RuntimeError:
        size = tuple(6 + n for n in size)
        x = normal(2, 2, *size)
    return layer, x


@settings(max_examples=150)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@given(convolutions())
def test_a_weight_applied_to_the_inputs_is_what_the_convolution_computes(drawn: tuple[Any, Tensor]) -> None:
    layer, x = drawn
    inputs = seen(layer, [x])["weight"]
    assert torch.equal(inputs, warp_loop.inputs(layer, [x], [""])[""])
    rows = layer.weight.reshape(layer.groups, 2 // layer.groups, -1)
    if layer.bias is not None:
        rows = torch.cat([rows, layer.bias.reshape(layer.groups, -1, 1)], 2)
    images = 1 if x.dim() == len(layer.kernel_size) + 2 else 0
    torch.testing.assert_close((rows @ inputs).flatten(0, 1), layer(x).movedim(images, 0).reshape(2, -1))


def test_patches_are_the_same_however_images_lie_in_memory() -> None:
    layer, x = nn.Conv2d(4, 4, 3, stride=2, groups=2).double(), normal(9, 4, 6, 5)
    for other in (x.contiguous(memory_format=torch.channels_last), x[2:, :, 1:], x.transpose(2, 3), x.flip(0)[::2]):
        assert torch.equal(seen(layer, [other])["weight"], seen(layer, [other.clone()])["weight"])


def test_large_inputs_come_in_parts() -> None:
    layer, x, counts = nn.Conv2d(64, 2, 9, padding=4), torch.ones(40, 64, 20, 20), []
    observe(layer, [x], linear_weights(layer), lambda weight, columns: counts.append(columns.shape[2]))
    assert len(counts) > 1
    assert sum(counts) == 40 * 20 * 20


def overwriting(m: Any, x: Tensor) -> Tensor:
    """The first layer's input is normalised in place; the second's, kept for a sum, is written over."""
    hidden = F.relu(m.first(x.sub_(1.0)), inplace=True)
    x.zero_()
    out = m.second(hidden)
    hidden += out
    return F.relu(hidden, inplace=True)


def test_inputs_are_those_that_the_layer_read_and_the_examples_stay() -> None:
    layers = {"first": nn.Linear(5, 4, bias=False), "second": nn.Linear(4, 4, bias=False)}
    model, x = Calls(overwriting, **layers).double(), normal(3, 5)
    given_, moments = x.clone(), {w.name: SecondMoment(torch.float64) for w in linear_weights(model)}
    observe(model, [x], linear_weights(model), lambda weight, columns: moments[weight.name].add(columns))
    first = (x - 1).T
    second = F.relu(model.first.weight.detach() @ first)
    assert torch.equal(x, given_)
    for name, columns in (("first.weight", first), ("second.weight", second)):
        torch.testing.assert_close(moments[name].times(torch.eye(len(columns)).double()[None])[0], columns @ columns.T)
    read_by_others(model, x)
    assert torch.equal(x, given_)


def test_no_hook_stays_behind_and_the_fast_path_is_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    observe(model, [torch.ones(2, 3)], linear_weights(model), lambda weight, x: None)
    with pytest.raises(RuntimeError):
        observe(model, [torch.ones(2, 5)], linear_weights(model), lambda weight, x: None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(not module._forward_pre_hooks for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()


class Deaf(nn.Module):
    """Some channels are never active, kernels hang over the edge, and two layers share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3, stride=2), nn.Conv2d(6, 6, 3, padding=1, groups=3)
        self.linear, self.again = nn.Linear(6, 2), nn.Linear(6, 2)
        self.again.weight = self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first(x)) * torch.tensor([1.0, 0, 1, 1, 0, 1])[:, None, None]
        pooled = self.second(hidden).mean((2, 3))
        flags = torch.tensor([1.0, 1, 0, 0, 0, 0])
        return self.linear(pooled * flags) + self.again(input=pooled * flags.flip(0))


def test_reached_coordinates_are_those_of_any_input() -> None:
    model, batches = built(Deaf), [normal(2, 2, 3, 3, seed=1), normal(3, 2, 3, 3, seed=2)]
    found = reached_inputs(model, batches)
    assert set(found) == {"first.weight", "second.weight", "linear.weight"}
    assert bool(found["first.weight"].all())
    taps = torch.zeros(3, 2, 9, dtype=torch.bool)
    taps[:, :, 4] = torch.tensor([[1, 0], [1, 1], [0, 1]]).bool()
    assert torch.equal(found["second.weight"], taps.flatten(1))
    assert found["linear.weight"].tolist() == [[True, True, False, False, True, True]]


# ------------------------------------------------------------------------------------------------- which weights move


def test_every_linear_layer_is_found_with_its_bias_and_groups() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2),
        nn.BatchNorm2d(6),
        nn.Conv1d(2, 2, 3, bias=False),
        nn.Linear(3, 2),
        nn.LayerNorm(2),
    )
    found = by_name(model)
    assert list(found) == ["0.weight", "2.weight", "3.weight"]
    assert [(w.bias, w.groups, w.d) for w in found.values()] == [("0.bias", 2, 18), (None, 1, 6), ("3.bias", 1, 3)]
    assert found["0.weight"].tensor is model[0].weight
    assert found["0.weight"].layers == (model[0],)


class Shared(nn.Module):
    def __init__(self, *, same_bias: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        if same_bias:
            self.b.bias = self.a.bias


def test_a_bias_moves_only_where_all_layers_of_the_weight_have_it_and_no_other() -> None:
    for same, bias in ((True, "a.bias"), (False, None)):
        assert [(w.name, w.bias, len(w.layers)) for w in linear_weights(Shared(same_bias=same))] == [
            ("a.weight", bias, 2)
        ]
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].bias = model[0].bias
    assert [w.bias for w in linear_weights(model)] == [None, None]


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


class Untouched(nn.Linear):
    pass


def test_layers_that_compute_something_else_are_left_out() -> None:
    patched = nn.Linear(2, 2)
    patched.forward = lambda x: x @ patched.weight  # type: ignore[method-assign]
    model = nn.Sequential(Standardised(1, 1, 1), patched, Untouched(2, 2), nn.ConvTranspose2d(1, 1, 1))
    assert list(by_name(model)) == ["2.weight"]


def test_weights_that_others_hold_or_compute_or_share_in_other_groups_are_left_out() -> None:
    tied = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False), nn.Linear(5, 5))
    tied[0].weight = tied[1].weight
    assert list(by_name(tied)) == ["2.weight"]
    holder = nn.Module()
    holder.register_parameter("table", tied[2].weight)
    assert list(by_name(nn.Sequential(tied[2], holder))) == []
    normed = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    assert list(by_name(normed)) == ["1.weight"]
    unlike = nn.Sequential(nn.Conv2d(4, 12, 1, groups=2), nn.Conv2d(6, 12, 1, groups=3))
    unlike[1].weight = unlike[0].weight
    assert list(by_name(unlike)) == []


def test_weights_in_one_memory_are_left_out() -> None:
    """A decoder that is the encoder turned round is a parameter of its own, and moves with the other."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.detach().T)
    assert list(by_name(model)) == ["2.weight"]
    flat = torch.zeros(2 * 9)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[0].weight, model[1].weight = nn.Parameter(flat[:9].view(3, 3)), nn.Parameter(flat[9:].view(3, 3))
    assert list(by_name(model)) == ["0.weight", "1.weight"]


def test_what_the_network_itself_reads_is_known() -> None:
    def way(m: Any, x: Tensor) -> Tensor:
        x = m.second(torch.tanh(m.first(x))) + F.linear(x, m.first.weight) + m.second.bias
        return m.third(m.third(x))

    model = Calls(way, **{name: nn.Linear(4, 4) for name in ("first", "second", "third")})
    assert read_by_others(model, torch.ones(1, 4)) == {id(model.first.weight), id(model.second.bias)}


# ------------------------------------------------------------------------------------------------------- attention


class Attends(nn.Module):
    """Attention of tokens to themselves, or to other tokens, by `nn.MultiheadAttention`."""

    def __init__(self, *, cross: bool = False, masks: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, **options)
        self.cross, self.masks, self.first = cross, masks, options.get("batch_first", False)
        widths = options.get("kdim", 6), options.get("vdim", 6)
        self.maps = nn.ModuleList(nn.Linear(6, width) for width in widths)

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, examples first."""
        return (x, *(layer(x[:, :3]) for layer in self.maps)) if self.cross else (x, x, x)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part if self.first else part.transpose(0, 1) for part in self.inputs(x))
        masks = {}
        if self.masks:
            keys = k.shape[1 if self.first else 0]
            masks["key_padding_mask"] = torch.arange(keys).expand(len(x), -1) == keys - 1
            masks["attn_mask"] = torch.ones(x.shape[1], keys).triu(1).bool()
        out, _ = self.attention(q, k, value=v, need_weights=self.masks, **masks)
        return out if self.first else out.transpose(0, 1)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False, "batch_first": True},
    "masks": {"masks": True},
    "cross": {"cross": True, "batch_first": True},
    "cross, masks": {"cross": True, "masks": True},
    "other widths": {"cross": True, "kdim": 5, "vdim": 4},
    "added": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_inputs_of_attention(form: str) -> None:
    """in_proj reads queries, keys and values; the joined heads times out_proj's weight are the output."""
    model, x = built(lambda: Attends(**FORMS[form])), normal(2, 4, 6)
    found = seen(model, [x])
    layer = model.attention
    with torch.no_grad():
        parts = [part.reshape(-1, part.shape[-1]).T for part in model.inputs(x)]
        output = model(x)
    constant = layer.in_proj_bias is not None and layer.in_proj_weight is not None
    for i, part in enumerate("qkv"):
        joint = found.get("attention.in_proj_weight")
        shown = found[f"attention.{part}_proj_weight"][0] if joint is None else joint[i]
        # In any order, and filled up with zeros: what counts is the second moment.
        expected = torch.cat([parts[i], torch.ones(1, parts[i].shape[1]).double()]) if constant else parts[i]
        torch.testing.assert_close(shown @ shown.T, expected @ expected.T)
    heads = found["attention.out_proj.weight"][0]
    rows = layer.out_proj.weight
    if layer.out_proj.bias is not None:
        rows = torch.cat([rows, layer.out_proj.bias[:, None]], 1)
    joined = (rows @ heads).T.reshape(*(output if model.first else output.transpose(0, 1)).shape)
    torch.testing.assert_close(joined if model.first else joined.transpose(0, 1), output)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_the_layers_of_a_transformer_are_seen_where_torch_would_fuse_them(frozen: bool) -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 10, batch_first=True)
    model, x = built(lambda: nn.TransformerEncoder(layer, 2)), normal(3, 4, 6)
    model.requires_grad_(not frozen)
    found = seen(model, [x])
    assert len(found) == 8
    assert set(found) == set(by_name(model))
    expected = x.reshape(-1, 6).T
    torch.testing.assert_close(found["layers.0.self_attn.in_proj_weight"][0, :6], expected)
    assert read_by_others(model, x[:1]) & {id(w.tensor) for w in linear_weights(model)} == set()


class OwnAttention(nn.MultiheadAttention):
    """Reads its parts in its own way."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.out_proj(x + F.linear(x, self.in_proj_weight[:6]))


def test_attention_with_a_forward_pass_of_its_own_is_a_module_like_others() -> None:
    model, x = OwnAttention(6, 2).double(), normal(2, 4, 6)
    found = seen(model, [x])
    assert set(found) == {"out_proj.weight"}
    hidden = x + x @ model.in_proj_weight[:6].T
    torch.testing.assert_close(found["out_proj.weight"][0, :6], hidden.detach().reshape(-1, 6).T)
    assert id(model.out_proj.weight) not in read_by_others(model, x)


def test_keys_and_values_of_one_weight_are_both_seen() -> None:
    model = nn.MultiheadAttention(6, 2, kdim=5, vdim=5, batch_first=True, bias=False).double()
    model.v_proj_weight = model.k_proj_weight

    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x, x[..., :5], 2 * x[..., 1:])[0]

    x = normal(2, 4, 6)
    shown = seen(Calls(), [x])["model.k_proj_weight"][0]
    keys, values = x[..., :5].reshape(-1, 5), 2 * x[..., 1:].reshape(-1, 5)
    torch.testing.assert_close(shown @ shown.T, keys.T @ keys + values.T @ values)
