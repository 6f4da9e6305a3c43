"""Moves of transformers in every known layout, and blocks that look like one and are not quite: what cannot be
confirmed stays, and the report says why. Networks are small, their affine maps and biases random.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.networks import Calls
from tests.oracles.symmetry import (
    assert_symmetric,
    distance,
    equal_states,
    generator,
    moved_by,
    normal,
    relative_change,
)
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import MLP
from warp_unlearning.symmetry.attention import AttentionBasis
from warp_unlearning.symmetry.attention_check import draw_axes
from warp_unlearning.symmetry.attention_layouts import Part, Place
from warp_unlearning.symmetry.base import Probe
from warp_unlearning.symmetry.moves import HeadMap
from warp_unlearning.symmetry.rescaling import Law

HEADS, HEAD_WIDTH, HIDDEN = 2, 4, 10
WIDTH = HEADS * HEAD_WIDTH
# Free channels of a block: queries and keys, values, two norms, units.
BLOCK = 4 * WIDTH + HIDDEN


IMAGES = normal(3, 1, 6, 6, seed=9)


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights N(0, 1/inputs), scales around 1, biases around 0, embeddings small; in float64, in eval mode."""
    drawn = generator(seed)
    model.double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=drawn, dtype=torch.float64)
            small = "pos" in name or "token" in name or p.dim() == 1
            size = p[0].numel() ** 0.5 if not small else 3.0 if p.dim() == 1 else 10.0
            p.copy_(noise / size + (1.0 if p.dim() == 1 and not name.endswith("bias") else 0.0))
    return model


# ------------------------------------------------------------------------------------------------ networks


class Attention(nn.Module):
    """timm's: fused queries, keys and values; what is done to them in between is up to subclasses."""

    def __init__(self, heads: int = HEADS, width: int = HEAD_WIDTH, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, inner = heads, heads * width
        self.qkv, self.proj = nn.Linear(inner, 3 * inner, bias=bias), nn.Linear(inner, inner)
        self.drop = nn.Dropout(dropout)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / q.shape[-1] ** 0.5

    def heads(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return (self.drop(self.scores(q, k).softmax(-1)) @ v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.heads(x))


class Mlp(nn.Module):
    def __init__(self, width: int = WIDTH, hidden: int = HIDDEN, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.drop(F.gelu(self.fc1(x))))


class Block(nn.Module):
    def __init__(self, attention: nn.Module | None = None, mlp: nn.Module | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), attention or Attention()
        self.norm2, self.mlp = nn.LayerNorm(width), mlp or Mlp()
        self.gamma = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma * self.attn(self.norm1(x))
        return x + self.gamma * self.mlp(self.norm2(x))


class EncoderBlock(nn.Module):
    """torchvision's."""

    def __init__(self, heads: int, width: int, hidden: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(heads * width), nn.LayerNorm(heads * width)
        self.self_attention = nn.MultiheadAttention(heads * width, heads, dropout, bias=bias, batch_first=True)
        layers = nn.Linear(heads * width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, heads * width)
        self.mlp = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class OldSelfAttention(nn.Module):
    """Hugging Face's before release 5."""

    def __init__(self, heads: int, width: int, bias: bool) -> None:
        super().__init__()
        self.num_attention_heads = heads
        self.query, self.key, self.value = (nn.Linear(heads * width, heads * width, bias=bias) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2) for layer in layers)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def dense(inputs: int, outputs: int) -> nn.Module:
    return nn.ModuleDict({"dense": nn.Linear(inputs, outputs)})


class OldLayer(nn.Module):
    def __init__(self, heads: int, width: int, hidden: int, bias: bool, dropout: float) -> None:
        super().__init__()
        inner = heads * width
        parts = {"attention": OldSelfAttention(heads, width, bias), "output": dense(inner, inner)}
        self.attention, self.drop = nn.ModuleDict(parts), nn.Dropout(dropout)
        self.intermediate, self.output = dense(inner, hidden), dense(hidden, inner)
        self.layernorm_before, self.layernorm_after = nn.LayerNorm(inner), nn.LayerNorm(inner)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.attention["attention"](self.layernorm_before(x))
        x = x + self.drop(self.attention["output"]["dense"](heads))
        return x + self.output["dense"](F.gelu(self.intermediate["dense"](self.layernorm_after(x))))


class Net(nn.Module):
    """Images in, classes out."""

    def __init__(self, *blocks: nn.Module, norm: nn.Module | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(1, width, 2, 2), nn.ModuleList(blocks)
        self.norm, self.head = norm or nn.LayerNorm(width), nn.Linear(width, 3)

    def tokens(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(self.tokens(x)).mean(1))


class TokensFirst(nn.Module):
    """torch's encoder layer, given tokens along the first axis."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


class Logits(nn.Module):
    """A Hugging Face classifier that answers with a tensor."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        found = self.inner(x)
        return found.logits if hasattr(found, "logits") else found.last_hidden_state


def hugging_face_options(
    heads: int = HEADS, width: int = HEAD_WIDTH, hidden: int = HIDDEN, bias: bool = True, dropout: float = 0.0
) -> dict[str, Any]:
    sizes = {"hidden_size": heads * width, "num_hidden_layers": 2, "num_attention_heads": heads}
    images = {"intermediate_size": hidden, "image_size": 6, "patch_size": 2, "num_channels": 1, "num_labels": 3}
    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return {**sizes, **images, **drops, "qkv_bias": bias}


def hugging_face(variant: int, *sizes: Any) -> nn.Module:
    options = hugging_face_options(*sizes)
    if variant < 2:
        return Logits(ViTForImageClassification(ViTConfig(**options)))
    kind = DeiTForImageClassification if variant == 2 else DeiTForImageClassificationWithTeacher
    return Logits(kind(DeiTConfig(**options)))


def fused(variant: int, heads: int, width: int, hidden: int, bias: bool, dropout: float) -> nn.Module:
    each = (
        (Attention(heads, width, bias, dropout), Mlp(heads * width, hidden, bias, dropout), heads * width)
        for _ in range(2)
    )
    return Net(*(Block(*parts) for parts in each), width=heads * width)


def encoder_layers(variant: int, heads: int, width: int, hidden: int, bias: bool, dropout: float) -> nn.Module:
    first = variant % 2 == 0
    kinds: dict[str, Any] = {"activation": "gelu" if variant > 1 else "relu", "batch_first": first, "norm_first": True}
    layers = [nn.TransformerEncoderLayer(heads * width, heads, hidden, dropout, bias=bias, **kinds) for _ in range(2)]
    return Net(*(layer if first else TokensFirst(layer) for layer in layers), width=heads * width)


LAYOUTS: dict[str, Callable[..., nn.Module]] = {
    "hugging_face": hugging_face,
    "hugging_face_old": lambda _, *sizes: Net(OldLayer(*sizes), OldLayer(*sizes), width=sizes[0] * sizes[1]),
    "fused": fused,
    "torchvision": lambda _, *sizes: Net(EncoderBlock(*sizes), EncoderBlock(*sizes), width=sizes[0] * sizes[1]),
    "encoder_layer": encoder_layers,
}
SIZES = st.tuples(
    st.integers(0, 3), st.integers(1, 3), st.integers(3, 6), st.integers(8, 20), st.booleans(), st.just(0.0)
)


def free(model: nn.Module, **options: Any) -> int:
    return AttentionBasis().report(model, **options).free


def pins(model: nn.Module, **options: Any) -> dict[str, str]:
    """Tensor and reasons of what stays, but for what no layout speaks of."""
    report = AttentionBasis().report(model, **options)
    return {p.tensor: " ".join(p.reasons) for p in report.pinned if "no attention block" not in p.reasons[0]}


def assert_kept(
    model: nn.Module, x: Any = IMAGES, *, modes: tuple[bool, ...] = (False, True), **options: Any
) -> nn.Module:
    """The function stays in eval and in train mode, and the weights move; the moved network."""
    state = deepcopy(model)
    moved = moved_by(model, AttentionBasis().move(model, generator=generator(1), **options))
    assert equal_states(model, state)
    for training in modes:
        assert relative_change(deepcopy(model).train(training), deepcopy(moved).train(training), x) < 1e-9
    assert not equal_states(model, moved)
    return moved


# ------------------------------------------------------------------------------------------------ known layouts


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25)
@given(sizes=SIZES, seed=st.integers(0, 10**6))
def test_function_gradients_and_inputs_follow_and_the_move_can_be_undone(layout: str, sizes: Any, seed: int) -> None:
    model = randomised(LAYOUTS[layout](*sizes), seed)
    x = normal(3, 1, 6, 6, seed=seed)
    law: Law = "lognormal" if seed % 2 else "uniform"
    assert_symmetric(model, AttentionBasis(law=law).move(model, generator=generator(seed)), x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_part_is_free_and_the_same_dropout_keeps_train_mode(layout: str) -> None:
    """But for the order of units, whose dropout falls on others then; they are no less free for it."""
    model = randomised(LAYOUTS[layout](1, HEADS, HEAD_WIDTH, HIDDEN, True, 0.3))
    report = AttentionBasis().report(model)
    assert report.free == 2 * BLOCK + WIDTH
    stem, head = report.pinned
    assert (stem.count, head.count) == (WIDTH, 3)
    assert [p.reasons[0].split()[0] for p in (stem, head)] == ["Conv2d", "Linear"]
    model.train()
    moved = moved_by(model, AttentionBasis(units=False).move(model, generator=generator(1)))
    assert distance(model, moved) > 0.3
    torch.manual_seed(5)
    before = model(IMAGES)
    torch.manual_seed(5)
    torch.testing.assert_close(moved(IMAGES), before, rtol=1e-10, atol=1e-10)


KINDS = {
    "heads": ({"attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight"}, 2 * (2 * WIDTH)),
    "norms": (
        {"norm1.weight", "norm1.bias", "attn.qkv.weight", "norm2.weight", "norm2.bias", "mlp.fc1.weight"}
        | {"norm.weight", "norm.bias", "head.weight"},
        2 * (2 * WIDTH) + WIDTH,
    ),
    "units": ({"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight"}, 2 * HIDDEN),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_moves_its_own_tensors_and_can_be_switched_off(kind: Any) -> None:
    model = randomised(Net(Block(), Block()))
    symmetry = AttentionBasis(**{name: name == kind for name in KINDS})
    move = symmetry.move(model, generator=generator())
    moved = moved_by(model, move)
    state = model.state_dict()
    changed = {n.replace("blocks.0.", "") for n, v in moved.state_dict().items() if not torch.equal(v, state[n])}
    assert {n for n in changed if "blocks" not in n} == KINDS[kind][0]
    assert relative_change(model, moved, IMAGES) < 1e-10
    report = symmetry.report(model)
    assert report.free == KINDS[kind][1]
    off = {f"{name}=False" for name in KINDS if name != kind}
    assert off <= {reason for pinned in report.pinned for reason in pinned.reasons}
    # Labels follow the order of units; a general matrix leaves them where they are.
    labels = torch.arange(HIDDEN * WIDTH).reshape(HIDDEN, WIDTH)
    found = move.selection("blocks.0.mlp.fc1.weight", labels)
    assert sorted(found[:, 0].tolist()) == labels[:, 0].tolist()
    assert torch.equal(found, labels) is (kind != "units")


def test_settings_that_cannot_be() -> None:
    with pytest.raises(InputError, match="neither heads nor norms nor units"):
        AttentionBasis(heads=False, norms=False, units=False)
    with pytest.raises(InputError, match="negative"):
        AttentionBasis(spread=1.0)


def test_one_generator_gives_one_move_and_another_gives_another() -> None:
    model = randomised(Net(Block(), Block()))
    first, again, other = (moved_by(model, AttentionBasis().move(model, generator=generator(i))) for i in (1, 1, 2))
    assert equal_states(first, again)
    assert not torch.allclose(first.blocks[0].attn.qkv.weight, other.blocks[0].attn.qkv.weight)
    ratios = [first.blocks[i].attn.qkv.weight / model.blocks[i].attn.qkv.weight for i in range(2)]
    assert not torch.allclose(*ratios)


@pytest.mark.parametrize(("law", "spread"), [("uniform", 0.5), ("uniform", 0.9), ("lognormal", 0.3)])
def test_the_law_of_the_matrices(law: Law, spread: float) -> None:
    """Singular values follow the law, directions none: E[M] = 0, and both signs of the determinant occur."""
    part = Part("heads", "", "", 4000, 3, (Place("q", 0),), (Place("k", 0),))
    axes = draw_axes([part], law=law, spread=spread, generator=generator(3))
    (made,), (read,) = axes["q"], axes["k"]
    assert isinstance(made, HeadMap)
    assert isinstance(read, HeadMap)
    product = made.matrices.mT @ read.matrices
    torch.testing.assert_close(product, torch.eye(3, dtype=torch.float64).expand_as(product), rtol=0, atol=1e-12)
    singular = torch.linalg.svdvals(made.matrices)
    if law == "uniform":
        assert float(singular.max()) <= 1 + spread + 1e-9
        assert float(singular.min()) >= 1 - spread - 1e-9
        assert abs(float(singular.mean()) - 1) < 0.02
        assert abs(float(singular.std()) - spread / 3**0.5) < 0.02
    else:
        assert abs(float(singular.log().mean()) + spread**2) < 0.01
        assert abs(float(singular.log().std()) - spread) < 0.01
    assert float(made.matrices.mean(0).abs().max()) < 0.05
    # Each entry of a uniformly rotated matrix has a third of the mean squared singular value as its own.
    second = (made.matrices**2).mean(0) / (singular**2).mean()
    torch.testing.assert_close(second, torch.full_like(second, 1 / 3), atol=0.03, rtol=0)
    assert abs(float(torch.linalg.det(made.matrices).sign().mean())) < 0.06


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_coarse_weights_are_refused_but_for_the_order_of_units(dtype: torch.dtype) -> None:
    model = randomised(Net(Block()))
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.LayerNorm):
            layer.weight = nn.Parameter((100 * layer.weight).to(dtype), dtype.is_floating_point)
    for symmetry in (AttentionBasis(), AttentionBasis(heads=False)):
        with pytest.raises(InputError, match=r"blocks\.0\..* is .*\.float\(\)"):
            symmetry.move(model, generator=generator())
    moved = moved_by(model, AttentionBasis(heads=False, norms=False).move(model, generator=generator()))
    before, after = (m.blocks[0].mlp.fc1.weight.detach() for m in (model, moved))
    assert torch.equal(before.sort(0).values, after.sort(0).values)
    assert not torch.equal(before, after)
    if dtype.is_floating_point:
        assert relative_change(model.double(), moved.double(), IMAGES) < 1e-10


@pytest.mark.parametrize("model", [MLP(inputs=4, classes=2), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))])
def test_a_network_without_attention_stays_bit_identical_and_says_why(model: nn.Module) -> None:
    assert equal_states(model, moved_by(model, AttentionBasis().move(model, generator=generator())))
    report = AttentionBasis().report(model)
    assert report.free == 0
    names = [name for name, _ in model.named_parameters() if name.endswith("weight")]
    assert [pinned.tensor for pinned in report.pinned] == names
    assert all("no attention block of a known layout" in pinned.reasons[0] for pinned in report.pinned)


# ------------------------------------------------------------------------------------------------ Hugging Face


def test_a_backbone_whose_output_is_the_last_norm_keeps_it() -> None:
    model = randomised(Logits(ViTModel(ViTConfig(**hugging_face_options()))))
    moved = assert_kept(model)
    assert pins(model)["inner.layernorm.weight"] == "output"
    assert torch.equal(moved.inner.layernorm.weight, model.inner.layernorm.weight)


def test_neither_a_softmax_in_single_precision_nor_hooks_that_record_are_reasons_to_stay() -> None:
    """Eager attention computes a softmax in float32 in a float64 network too."""
    config = ViTConfig(**hugging_face_options(), attn_implementation="eager")
    model = randomised(Logits(ViTForImageClassification(config)))
    model.inner(IMAGES, output_hidden_states=True)
    assert any(module._forward_hooks for module in model.modules())
    assert free(model) == 2 * BLOCK + WIDTH
    moved = moved_by(model, AttentionBasis().move(model, generator=generator()))
    assert relative_change(model, moved, IMAGES) < 1e-6


# ------------------------------------------------------------------------------------------------ almost a layout


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding: each plane of two channels turned by an angle that grows with the position."""
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.3], dtype=x.dtype)
    left, right = x[..., :2], x[..., 2:]
    return torch.cat((left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()), -1)


class Rotary(Attention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(rotated(q), rotated(k))


class Biased(Attention):
    """A learned bias of the attention weights by relative position, and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.relative = nn.Parameter(torch.zeros(HEADS, 40))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(q.shape[-2])
        distance = place[:, None] - place
        return (super().scores(q, k) + self.relative[:, distance + 20]).masked_fill(distance < 0, float("-inf"))


class NormedQueries(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(HEAD_WIDTH), nn.Identity()

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(self.q_norm(q), self.k_norm(k))


class DroppedHeads(Attention):
    """Dropout of the heads' channels, in train mode alone: a mask of channels is another one in another basis."""

    def heads(self, x: Tensor) -> Tensor:
        return F.dropout(super().heads(x), 0.5, self.training)


class Grouped(Attention):
    """Two heads of queries for one of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, WIDTH + 2 * HEAD_WIDTH)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        heads = self.qkv(x).unflatten(-1, (HEADS + 2, HEAD_WIDTH)).transpose(1, 2)
        return heads[:, :HEADS], heads[:, HEADS : HEADS + 1], heads[:, HEADS + 1 :]


ATTENTIONS: dict[type[Attention], list[str]] = {
    Rotary: ["queries and keys of Rotary blocks.0.attn: .*a rotary embedding"],
    Biased: [],
    NormedQueries: ["LayerNorm blocks.0.attn.q_norm, which normalises the queries"],
    DroppedHeads: ["values and output of DroppedHeads"],
    Grouped: ["16 channels .* 8, in 2 heads", "16 channels .* 8, in 2 heads"],
}


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_what_an_attention_layer_does_to_its_heads_pins_them_and_nothing_else(kind: type[Attention]) -> None:
    model = randomised(Net(Block(kind()), Block(kind())))
    report = AttentionBasis().report(model)
    first = [p for p in report.pinned if p.tensor == "blocks.0.attn.qkv.weight"]
    assert len(first) == len(ATTENTIONS[kind])
    for pinned, reason in zip(first, ATTENTIONS[kind], strict=True):
        assert pinned.count == WIDTH
        assert re.search(reason, pinned.reasons[0]), pinned.reasons
    assert report.free == 2 * (BLOCK - len(first) * WIDTH) + WIDTH
    assert_kept(model, modes=(False,) if kind is DroppedHeads else (False, True))


class Projections(nn.Module):
    """Queries, keys and values in layers of their own, under Hugging Face's names."""

    def __init__(self, *, key_heads: int, heads: int = HEADS) -> None:
        super().__init__()
        self.num_attention_heads = heads
        inner = key_heads * HEAD_WIDTH
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, inner), nn.Linear(WIDTH, inner)

    def forward(self, x: Tensor) -> Tensor:
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for layer in layers)
        return self.o_proj(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"key_heads": 1}, "8 query channels for 4 key channels .grouped queries"),
        ({"key_heads": 2, "heads": 3}, "8 channels, which 3 heads do not divide"),
        # With too few heads, a move would mix those there are.
        ({"key_heads": 2, "heads": 1}, "queries and keys of Projections blocks.0.attn: a move of it changes"),
        ({"key_heads": 2}, None),
    ],
)
def test_projections_move_if_there_are_as_many_keys_as_queries(options: dict[str, int], reason: str | None) -> None:
    model = randomised(Net(Block(Projections(**options))))
    found = pins(model)
    if reason is None:
        assert found == {}
    else:
        assert found.keys() == {"blocks.0.attn.q_proj.weight", "blocks.0.attn.v_proj.weight"}
        assert re.search(reason, found["blocks.0.attn.q_proj.weight"])
    assert_kept(model)


class OrderedUnits(Mlp):
    """Takes the units for a sequence, always or in train mode alone."""

    def __init__(self, *, always: bool) -> None:
        super().__init__(dropout=0.0 if always else 0.5)
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        units = self.drop(F.gelu(self.fc1(x)))
        return self.fc2(units.cumsum(-1) if self.always or self.training else units)


class GatedUnits(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 2 * HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.fc1(x).chunk(2, -1)
        return self.fc2(left * F.silu(right))


class Leaky(Block):
    """The first norm's output is added to the residual stream too."""

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attn(normed) + normed
        return x + self.mlp(self.norm2(x))


class Widened(Block):
    """What attention reads is more than the norm makes."""

    def __init__(self) -> None:
        super().__init__()
        self.attn.qkv = nn.Linear(2 * WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(torch.cat((self.norm1(x), x), -1))
        return x + self.mlp(self.norm2(x))


class Renamed(Block):
    """Its state goes by other names than its parameters."""

    def state_dict(self, *args: Any, **named: Any) -> Any:
        super().state_dict(*args, **named)
        state = named["destination"]
        for name in [name for name in state if "mlp.fc1" in name]:
            state[name.replace("mlp.fc1", "mlp.first")] = state.pop(name)
        return state


NORM1, NORM2, FC1 = (f"blocks.0.{name}.weight" for name in ("norm1", "norm2", "mlp.fc1"))
BLOCKS: dict[str, tuple[Callable[[], nn.Module], dict[str, str]]] = {
    "leaky": (Leaky, {NORM1: "output of LayerNorm blocks.0.norm1: .* another reader"}),
    "widened": (Widened, {NORM1: r"qkv.weight, whose shape \(24, 16\) does not fit 8 channels: output of Layer"}),
    "ordered": (lambda: Block(mlp=OrderedUnits(always=True)), {FC1: "units of Linear blocks.0.mlp.fc1"}),
    "ordered in training": (lambda: Block(mlp=OrderedUnits(always=False)), {FC1: "units of Linear blocks.0.mlp.fc1"}),
    "gated": (lambda: Block(mlp=GatedUnits()), {FC1: "reads 10 channels of the 20 .*gated"}),
    "renamed": (Renamed, {NORM2: "another name in the state", FC1: "another name in the state"}),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_norms_and_units_that_something_else_depends_on_stay(name: str) -> None:
    make, expected = BLOCKS[name]
    model = randomised(Net(make()))
    found = pins(model)
    assert found.keys() == expected.keys()
    for tensor, reason in expected.items():
        assert re.search(reason, found[tensor]), found
    assert_kept(model, modes=(False,) if "training" in name else (False, True))


@pytest.mark.parametrize(("norm_first", "stuck"), [(True, 0), (False, 2 * WIDTH)])
def test_the_norms_of_a_post_norm_encoder_layer_stay(norm_first: bool, stuck: int) -> None:
    model = randomised(
        Net(nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True, norm_first=norm_first))
    )
    assert free(model) == BLOCK - stuck + WIDTH
    assert pins(model).keys() == ({NORM1, NORM2} if stuck else set())
    post = "residual stream of TransformerEncoderLayer blocks.0, which is post-norm"
    assert all(post in reason for reason in pins(model).values())
    assert_kept(model)


class TwoHeads(Net):
    """A second head, in train mode alone or always; or one that reads something else than the norm."""

    def __init__(self, *blocks: nn.Module, when: str) -> None:
        super().__init__(*blocks)
        self.when, self.second = when, nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Any:
        normed = self.norm(self.tokens(x)).mean(1)
        if self.when == "always":
            return self.head(normed), self.second(normed)
        if self.when == "training":
            return (self.head(normed), normed.relu()) if self.training else self.head(normed)
        return self.head(normed), self.second(normed.tanh())


@pytest.mark.parametrize(("when", "moves"), [("always", True), ("training", False), ("through_tanh", False)])
def test_the_last_norm_moves_if_linear_layers_alone_read_it(when: str, moves: bool) -> None:
    model = randomised(TwoHeads(Block(), when=when))
    assert ("norm.weight" in pins(model)) is not moves
    moved = assert_kept(model)
    assert torch.equal(moved.norm.weight, model.norm.weight) is not moves
    assert torch.equal(moved.second.weight, model.second.weight) is not moves


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (nn.RMSNorm(WIDTH), None),
        (nn.LayerNorm(WIDTH, bias=False), None),
        (nn.LayerNorm(WIDTH, elementwise_affine=False), "has no weight for every channel"),
        (nn.BatchNorm1d(9), "neither LayerNorm nor RMSNorm"),
    ],
)
def test_norms_move_if_they_have_a_weight_for_every_channel(norm: nn.Module, reason: str | None) -> None:
    block = Block()
    block.norm1 = norm
    model = randomised(Net(block, norm=deepcopy(norm) if reason is None else None))
    assert [reason in why for why in pins(model, probe=Probe([IMAGES])).values()] == [True] * (reason is not None)
    assert_kept(model, probe=Probe([IMAGES]))


def test_layers_that_are_shared_called_twice_hooked_or_computed() -> None:
    """A block that is called twice moves as one; what has another name, a hook or a computed weight stays."""
    again = randomised(Net(nn.Sequential(block := Block(), block)))
    assert "shares its values with blocks.0.1.attn.qkv.weight" in pins(again)["blocks.0.0.attn.qkv.weight"]

    class Repeated(Net):
        def tokens(self, x: Tensor) -> Tensor:
            return self.blocks[0](super().tokens(x))

    model = randomised(Repeated(Block()))
    assert free(model) == BLOCK + WIDTH
    assert_kept(model)
    model = randomised(Net(Block(), Block()))
    model.blocks[1].mlp.fc1.weight = model.blocks[0].mlp.fc1.weight
    model.blocks[1].attn.qkv.bias = nn.Parameter(model.blocks[0].attn.qkv.bias.data)
    found = pins(model)
    assert "shares its values with blocks.1.mlp.fc1.weight" in found[FC1]
    assert "another name" in found["blocks.1.mlp.fc1.weight"]
    assert "shares its values with blocks.0.attn.qkv.bias" in found["blocks.1.attn.qkv.weight"]
    assert_kept(model)
    model = randomised(Net(Block(), Block()))
    weight_norm(model.blocks[1].mlp.fc1)
    assert "fc1.weight, which is computed from others" in pins(model)["blocks.1.mlp.fc1.weight"]
    assert_kept(model)
    calls: list[int] = []
    model = randomised(Net(Block(), Block()))
    model.blocks[0].mlp.fc1.register_forward_hook(lambda *_: calls.append(1))
    assert "Linear blocks.0.mlp.fc1, which has forward hooks" in pins(model)[NORM1]
    # The hook is on the MLP, out of sight of the attention layer.
    assert free(model) == BLOCK + 2 * WIDTH
    assert not calls


class CrossAttention(nn.Module):
    """torch's attention in a block of its own: keys and values of other widths, and a learned key and value."""

    def __init__(self) -> None:
        super().__init__()
        options: dict[str, Any] = {"kdim": 5, "vdim": 3, "add_bias_kv": True, "batch_first": True}
        self.mix = nn.MultiheadAttention(WIDTH, HEADS, **options)
        self.before, self.wide = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(x, x[..., :5], x[..., 1:4])[0]
        return x + self.wide(self.before(x)).relu()


def test_the_heads_of_torch_attention_move_in_any_block_and_so_do_norms_before_a_layer() -> None:
    model = randomised(Net(CrossAttention()))
    assert free(model) == 4 * WIDTH
    moved = assert_kept(model)
    for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v"):
        assert not torch.equal(getattr(moved.blocks[0].mix, name), getattr(model.blocks[0].mix, name))

    class Decoder(Net):
        def tokens(self, x: Tensor) -> Tensor:
            x = self.stem(x).flatten(2).mT
            return self.blocks[0](x, x[:, 1:])

    model = randomised(
        Decoder(nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True, norm_first=True))
    )
    # Two attention layers, the norm before the linear layers and the last one; not the norms and units of the block.
    assert free(model) == 6 * WIDTH
    assert_kept(model)


# ------------------------------------------------------------------------------------------------ inputs to try


class Words(nn.Module):
    """Token numbers in, as many as it has positions if it has any."""

    def __init__(self, positions: int | None = None) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(11, WIDTH), Block()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11)
        self.positions = None if positions is None else nn.Parameter(torch.zeros(positions, WIDTH))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        return self.head(self.norm(self.block(x if self.positions is None else x + self.positions)))


def test_inputs_are_guessed_or_taken_from_a_probe() -> None:
    words = torch.arange(10).reshape(2, 5)
    for model, x in ((randomised(Words()), words), (randomised(nn.Sequential(Block())), normal(2, 5, WIDTH))):
        assert pins(model) == {}
        assert_kept(model, x)
    # Takes vectors of a length that it does not say, and makes tokens of them.
    flat = Calls(
        lambda m, x: m.head(m.norm(m.block(x.reshape(len(x), 7, WIDTH))).flatten(1)[:, :WIDTH]),
        block=Block(),
        norm=nn.LayerNorm(WIDTH),
        head=nn.Linear(WIDTH, 3),
    )
    nothing = torch.full((5, 7 * WIDTH), float("nan"))
    for model, x, probe in (
        (randomised(Words(positions=5)), words, Probe([words])),
        (randomised(flat), normal(3, 7 * WIDTH), Probe([nothing])),
    ):
        assert free(model) == 0
        assert all("could not be tried; give a probe with inputs" in reason for reason in pins(model).values())
        assert not AttentionBasis().move(model, generator=generator()).axes
        assert pins(model, probe=probe) == {}
        assert_kept(model, x, probe=probe)


class Uncopyable(Net):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("holds a lock")


class Noisy(Net):
    """Not even the same twice."""

    draws = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(WIDTH, generator=self.draws, dtype=x.dtype)
        return self.head(self.norm(self.tokens(x)).mean(1) + noise)


@pytest.mark.parametrize("kind", [Uncopyable, Noisy])
def test_a_network_that_cannot_be_tried_stays(kind: type[Net]) -> None:
    model = randomised(kind(Block()))
    assert free(model) == 0
    assert not AttentionBasis().move(model, generator=generator()).axes
    if kind is Uncopyable:
        assert all("cannot be copied to be tried (holds a lock)" in reason for reason in pins(model).values())


class WithBatchNorm(Net):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__(*blocks)
        self.stem = nn.Sequential(self.stem, nn.BatchNorm2d(WIDTH))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_nothing_around_the_model_changes(mode: Any) -> None:
    """Neither generators nor modes, frozen weights, gradients or running statistics."""
    model = randomised(WithBatchNorm(Block()))
    model.blocks[0].mlp.train()
    model.head.weight.requires_grad_(False)
    training = [module.training for module in model.modules()]
    frozen = [parameter.requires_grad for parameter in model.parameters()]
    before, state = deepcopy(model), torch.get_rng_state()
    with mode():
        move = AttentionBasis().move(model, generator=generator())
    assert "head.weight" in move.axes
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == training
    assert [parameter.requires_grad for parameter in model.parameters()] == frozen
    assert all(parameter.grad is None for parameter in model.parameters())
    assert equal_states(model, before)
    assert_kept(model.eval())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_on_a_gpu_moves_with_a_generator_anywhere(device: str) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True, norm_first=True)
    model = randomised(Net(Block(), layer)).cuda()
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    move = AttentionBasis().move(model, generator=torch.Generator(device).manual_seed(0))
    assert all(map(torch.equal, before, (torch.cuda.get_rng_state(), torch.get_rng_state())))
    moved = moved_by(model, move)
    assert free(model) == 2 * BLOCK + WIDTH
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64, device="cuda")
    torch.testing.assert_close(moved(x), model(x), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(moved.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)
