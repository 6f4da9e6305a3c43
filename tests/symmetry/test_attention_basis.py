"""Moves of vision transformers in every known layout; networks are small, their affine maps and biases random."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
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
from warp_unlearning.symmetry.attention_basis import AttentionBasis
from warp_unlearning.symmetry.attention_draw import draw_axes
from warp_unlearning.symmetry.attention_parts import Part, Place
from warp_unlearning.symmetry.change_of_basis import ChangeOfBasis
from warp_unlearning.symmetry.compose import Compose
from warp_unlearning.symmetry.head_map import HeadMap
from warp_unlearning.symmetry.laws import Law
from warp_unlearning.symmetry.move import Move, apply_move

PATCH = 2


@dataclass(frozen=True)
class Sizes:
    """A small vision transformer."""

    heads: int = 2
    head_width: int = 4
    hidden: int = 12
    depth: int = 2
    grid: int = 2
    channels: int = 1
    classes: int = 5
    bias: bool = True
    variant: int = 0
    dropout: float = 0.0
    seed: int = 0

    @property
    def width(self) -> int:
        return self.heads * self.head_width

    @property
    def image(self) -> int:
        return PATCH * self.grid


SIZES = st.builds(
    Sizes,
    heads=st.integers(1, 3),
    head_width=st.integers(3, 6),
    hidden=st.integers(8, 20),
    depth=st.integers(1, 3),
    grid=st.integers(2, 3),
    channels=st.sampled_from([1, 3]),
    classes=st.integers(2, 6),
    bias=st.booleans(),
    variant=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


class Logits(nn.Module):
    """A Hugging Face classifier that answers with a tensor."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        found = self.inner(x)
        return found.logits if hasattr(found, "logits") else found.last_hidden_state


class PatchEmbed(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.img_size = (s.image, s.image)
        self.proj = nn.Conv2d(s.channels, s.width, PATCH, PATCH)

    def forward(self, x: Tensor) -> Tensor:
        assert tuple(x.shape[-2:]) == self.img_size
        return self.proj(x).flatten(2).transpose(1, 2)


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(1e-5 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class FusedAttention(nn.Module):
    """timm's attention: one layer for queries, keys and values."""

    def __init__(self, s: Sizes, *, qk_norm: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_dim = s.heads, s.head_width
        self.qkv = nn.Linear(s.width, 3 * s.width, bias=s.bias)
        self.q_norm = nn.LayerNorm(s.head_width) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(s.head_width) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(s.dropout)
        self.proj = nn.Linear(s.width, s.width)
        self.proj_drop = nn.Dropout(s.dropout)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        scores = q * self.head_dim**-0.5 @ k.transpose(-2, -1)
        weights = self.attn_drop((scores if attn_mask is None else scores + attn_mask).softmax(-1))
        return self.proj_drop(self.proj((weights @ v).transpose(1, 2).reshape(b, n, c)))


class Mlp(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.fc1, self.act, self.drop1 = nn.Linear(s.width, s.hidden, bias=s.bias), nn.GELU(), nn.Dropout(s.dropout)
        self.norm, self.fc2 = nn.Identity(), nn.Linear(s.hidden, s.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.norm(self.drop1(self.act(self.fc1(x)))))


class FusedBlock(nn.Module):
    def __init__(self, s: Sizes, *, layer_scale: bool = False, qk_norm: bool = False) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(s.width), FusedAttention(s, qk_norm=qk_norm)
        self.ls1 = LayerScale(s.width) if layer_scale else nn.Identity()
        self.norm2, self.mlp = nn.LayerNorm(s.width), Mlp(s)
        self.ls2 = LayerScale(s.width) if layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class FusedViT(nn.Module):
    """timm's vision transformer: class token and `norm`, or the mean over tokens and `fc_norm`."""

    def __init__(self, s: Sizes, *, average: bool = False, layer_scale: bool = False, qk_norm: bool = False) -> None:
        super().__init__()
        self.average = average
        self.patch_embed = PatchEmbed(s)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, s.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, s.grid**2 + 1, s.width))
        blocks = [FusedBlock(s, layer_scale=layer_scale, qk_norm=qk_norm) for _ in range(s.depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.Identity() if average else nn.LayerNorm(s.width)
        self.fc_norm = nn.LayerNorm(s.width) if average else nn.Identity()
        self.head_drop, self.head = nn.Dropout(s.dropout), nn.Linear(s.width, s.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        x = self.norm(self.blocks(x))
        x = x[:, 1:].mean(1) if self.average else x[:, 0]
        return self.head(self.head_drop(self.fc_norm(x)))


class MLPBlock(nn.Sequential):
    """torchvision's."""

    def __init__(self, s: Sizes) -> None:
        drops = nn.Dropout(s.dropout), nn.Dropout(s.dropout)
        super().__init__(nn.Linear(s.width, s.hidden), nn.GELU(), drops[0], nn.Linear(s.hidden, s.width), drops[1])


class EncoderBlock(nn.Module):
    """torchvision's."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.ln_1, self.dropout = nn.LayerNorm(s.width, eps=1e-6), nn.Dropout(s.dropout)
        self.self_attention = nn.MultiheadAttention(s.width, s.heads, s.dropout, bias=s.bias, batch_first=True)
        self.ln_2, self.mlp = nn.LayerNorm(s.width, eps=1e-6), MLPBlock(s)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.dropout(x) + input
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.zeros(1, s.grid**2 + 1, s.width))
        layers = OrderedDict((f"encoder_layer_{i}", EncoderBlock(s)) for i in range(s.depth))
        self.layers, self.ln = nn.Sequential(layers), nn.LayerNorm(s.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(x + self.pos_embedding))


class TorchvisionViT(nn.Module):
    def __init__(self, s: Sizes, *, pre_logits: bool = False) -> None:
        super().__init__()
        self.image_size, self.hidden_dim = s.image, s.width
        self.conv_proj = nn.Conv2d(s.channels, s.width, PATCH, PATCH)
        self.class_token, self.encoder = nn.Parameter(torch.zeros(1, 1, s.width)), Encoder(s)
        inner = {"pre_logits": nn.Linear(s.width, s.width), "act": nn.Tanh()} if pre_logits else {}
        self.heads = nn.Sequential(OrderedDict({**inner, "head": nn.Linear(s.width, s.classes)}))

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.shape[-1] == self.image_size, "wrong image size")
        x = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        return self.heads(self.encoder(torch.cat((self.class_token.expand(len(x), -1, -1), x), 1))[:, 0])


class EncoderLayerViT(nn.Module):
    """A network of one's own around torch.nn.TransformerEncoder; it does not say what size its images have."""

    def __init__(
        self, s: Sizes, *, norm_first: bool = True, batch_first: bool = True, activation: str = "gelu"
    ) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.stem = nn.Conv2d(s.channels, s.width, PATCH, PATCH)
        self.positions = nn.Parameter(torch.zeros(s.grid**2, s.width))
        kinds: dict[str, Any] = {"activation": activation, "batch_first": batch_first, "norm_first": norm_first}
        layer = nn.TransformerEncoderLayer(s.width, s.heads, s.hidden, s.dropout, bias=s.bias, **kinds)
        norm = nn.LayerNorm(s.width)
        self.encoder = nn.TransformerEncoder(layer, s.depth, norm, enable_nested_tensor=False)
        self.head = nn.Linear(s.width, s.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2) + self.positions
        x = self.encoder(x) if self.batch_first else self.encoder(x.transpose(0, 1)).transpose(0, 1)
        return self.head(x.mean(1))


class OldSelfAttention(nn.Module):
    """Hugging Face's before release 5."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.num_attention_heads, self.attention_head_size = s.heads, s.head_width
        self.query, self.key, self.value = (nn.Linear(s.width, s.width, bias=s.bias) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        shape = (*x.shape[:2], self.num_attention_heads, self.attention_head_size)
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return (F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2),)


class OldDense(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, added: Tensor | float = 0.0) -> Tensor:
        return self.dense(x) + added


class OldAttention(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.attention, self.output = OldSelfAttention(s), OldDense(s.width, s.width)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.output(self.attention(x)[0]),)


class OldLayer(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.attention = OldAttention(s)
        self.intermediate, self.output = OldDense(s.width, s.hidden), OldDense(s.hidden, s.width)
        self.layernorm_before, self.layernorm_after = nn.LayerNorm(s.width), nn.LayerNorm(s.width)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        x = x + self.attention(self.layernorm_before(x))[0]
        return (self.output(F.gelu(self.intermediate(self.layernorm_after(x))), x),)


class OldViT(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embeddings = PatchEmbed(s)
        self.layer = nn.ModuleList(OldLayer(s) for _ in range(s.depth))
        self.layernorm, self.classifier = nn.LayerNorm(s.width), nn.Linear(s.width, s.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embeddings(x)
        for layer in self.layer:
            x = layer(x)[0]
        return self.classifier(self.layernorm(x)[:, 0])


def hugging_face_options(s: Sizes) -> dict[str, Any]:
    return {
        "hidden_size": s.width,
        "num_hidden_layers": s.depth,
        "num_attention_heads": s.heads,
        "intermediate_size": s.hidden,
        "image_size": s.image,
        "patch_size": PATCH,
        "num_channels": s.channels,
        "num_labels": s.classes,
        "qkv_bias": s.bias,
        "hidden_dropout_prob": s.dropout,
        "attention_probs_dropout_prob": s.dropout,
    }


def hugging_face(s: Sizes) -> nn.Module:
    options = hugging_face_options(s)
    if s.variant < 2:
        return Logits(ViTForImageClassification(ViTConfig(**options)))
    if s.variant == 2:
        return Logits(DeiTForImageClassification(DeiTConfig(**options)))
    return Logits(DeiTForImageClassificationWithTeacher(DeiTConfig(**options)))


LAYOUTS: dict[str, Callable[[Sizes], nn.Module]] = {
    "hugging_face": hugging_face,
    "hugging_face_old": OldViT,
    "fused": lambda s: FusedViT(s, average=s.variant % 2 == 1, layer_scale=s.variant > 1),
    "torchvision": lambda s: TorchvisionViT(s, pre_logits=s.variant > 1),
    "encoder_layer": lambda s: EncoderLayerViT(
        s, batch_first=s.variant % 2 == 0, activation="gelu" if s.variant > 1 else "relu"
    ),
}


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights N(0, 1/inputs), embeddings N(0, 0.1²), scales around 1, biases around 0; in float64, in eval mode."""
    drawn = generator(seed)
    model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=drawn, dtype=torch.float64)
            if "pos" in name or "token" in name:
                parameter.copy_(0.1 * noise)
            elif parameter.dim() > 1:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_(0.3 * noise + (0.0 if name.endswith("bias") else 1.0))
    return model


def images(s: Sizes, batch: int = 3) -> Tensor:
    return normal(batch, s.channels, s.image, s.image, seed=s.seed + 1)


def moved_by(model: nn.Module, move: Move) -> nn.Module:
    moved = deepcopy(model)
    apply_move(moved, move)
    return moved


def relative_change(model: nn.Module, moved: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        before, after = model(x), moved(x)
    return float((after - before).abs().max() / before.abs().max())


def distance(model: nn.Module, moved: nn.Module) -> float:
    before, after = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (model, moved))
    return float((after - before).norm() / before.norm())


def equal_states(model: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(x), torch.arange(len(x)) % 2)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


def entering(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What enters each linear layer, shape (d, positions), by the name of its weight."""
    found: dict[str, Tensor] = {}
    handles = []
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear):

            def record(module: nn.Module, args: tuple[Tensor, ...], name: str = f"{path}.weight") -> None:
                found[name] = args[0].detach().flatten(0, -2).T

            handles.append(layer.register_forward_pre_hook(record))
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=44)
@given(sizes=SIZES)
def test_the_function_stays_and_the_weights_move(layout: str, sizes: Sizes) -> None:
    model, x = randomised(LAYOUTS[layout](sizes), sizes.seed), images(sizes)
    move = AttentionBasis().move(model, generator=generator(sizes.seed))
    moved = moved_by(model, move)
    assert relative_change(model, moved, x) < 1e-10
    assert distance(model, moved) > 0.3
    single = deepcopy(model).float()
    assert relative_change(single, moved_by(single, move), x.float()) < 1e-4


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=4)
@given(sizes=SIZES)
def test_gradients_and_inputs_follow_and_the_move_can_be_undone(layout: str, sizes: Sizes) -> None:
    model, x = randomised(LAYOUTS[layout](sizes), sizes.seed), images(sizes)
    move = AttentionBasis(law="lognormal").move(model, generator=generator(sizes.seed))
    moved = moved_by(model, move)
    found = gradients(moved, x)
    for name, gradient in gradients(model, x).items():
        expected = move.covector(name, gradient)
        torch.testing.assert_close(found[name], expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max()) + 1e-14)
    entered = entering(moved, x)
    for name, columns in entering(model, x).items():
        torch.testing.assert_close(entered[name], move.inputs(name, columns), rtol=1e-9, atol=1e-9)
    back = moved_by(moved, move.inverse())
    for name, value in back.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_part_of_every_layout_is_free(layout: str) -> None:
    """Per block: width for queries and keys, for values, and for each norm, and the units; then the last norm."""
    s = Sizes(variant=1)
    report = AttentionBasis().report(randomised(LAYOUTS[layout](s)))
    assert report.free == s.depth * (4 * s.width + s.hidden) + s.width
    stem, head = report.pinned
    assert (stem.count, head.count) == (s.width, s.classes)
    assert [p.reasons[0].split()[0] for p in (stem, head)] == ["Conv2d", "Linear"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_function_stays_in_train_mode_under_the_same_dropout(layout: str) -> None:
    """But for the order of units, whose dropout falls on others then; they are no less free for it."""
    s = Sizes(dropout=0.3)
    model, x = randomised(LAYOUTS[layout](s)).train(), images(s)
    state = torch.get_rng_state()
    moved = moved_by(model, AttentionBasis(units=False).move(model, generator=generator(1)))
    assert torch.equal(torch.get_rng_state(), state)
    assert moved.training
    assert distance(model, moved) > 0.3
    torch.manual_seed(5)
    before = model(x)
    torch.manual_seed(5)
    torch.testing.assert_close(moved(x), before, rtol=1e-10, atol=1e-10)
    assert AttentionBasis().report(model).free == s.depth * (4 * s.width + s.hidden) + s.width


@pytest.mark.parametrize("kind", ["heads", "norms", "units"])
def test_each_kind_moves_its_own_tensors_and_can_be_switched_off(kind: str) -> None:
    s = Sizes()
    model, x = randomised(FusedViT(s)), images(s)
    only = {name: name == kind for name in ("heads", "norms", "units")}
    moved = moved_by(model, AttentionBasis(**only).move(model, generator=generator()))  # type: ignore[arg-type]
    changed = {
        n.replace("blocks.0.", "") for n, v in moved.state_dict().items() if not torch.equal(v, model.state_dict()[n])
    }
    first_block_and_end = {n for n in changed if "blocks" not in n}
    assert (
        first_block_and_end
        == {
            "heads": {"attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight"},
            "norms": {"norm1.weight", "norm1.bias", "attn.qkv.weight", "norm2.weight", "norm2.bias", "mlp.fc1.weight"}
            | {"norm.weight", "norm.bias", "head.weight"},
            "units": {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight"},
        }[kind]
    )
    assert relative_change(model, moved, x) < 1e-10
    report = AttentionBasis(**only).report(model)  # type: ignore[arg-type]
    each = {"heads": 2 * s.width, "norms": 2 * s.width, "units": s.hidden}
    assert report.free == s.depth * each[kind] + (s.width if kind == "norms" else 0)
    off = {f"{name}=False" for name in each if name != kind}
    assert off <= {reason for pinned in report.pinned for reason in pinned.reasons}


def test_nothing_to_move_is_refused() -> None:
    with pytest.raises(InputError, match="neither heads nor norms nor units"):
        AttentionBasis(heads=False, norms=False, units=False)


def test_a_spread_that_would_make_a_matrix_singular_is_refused() -> None:
    with pytest.raises(InputError, match="negative"):
        AttentionBasis(spread=1.0)


def test_one_generator_gives_one_move_and_another_gives_another() -> None:
    model = randomised(FusedViT(Sizes()))
    first, again, other = (moved_by(model, AttentionBasis().move(model, generator=generator(i))) for i in (1, 1, 2))
    assert equal_states(first, again)
    assert not torch.allclose(first.blocks[0].attn.qkv.weight, other.blocks[0].attn.qkv.weight)
    assert not torch.allclose(
        first.blocks[0].attn.qkv.weight / model.blocks[0].attn.qkv.weight,
        first.blocks[1].attn.qkv.weight / model.blocks[1].attn.qkv.weight,
    )


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
        assert float(torch.linalg.cond(made.matrices).max()) <= (1 + spread) / (1 - spread) + 1e-9
        expected, deviation = torch.tensor(1.0), spread / 3**0.5
        torch.testing.assert_close(singular.mean().float(), expected, atol=0.02, rtol=0)
        assert abs(float(singular.std()) - deviation) < 0.02
    else:
        assert abs(float(singular.log().mean()) + spread**2) < 0.01
        assert abs(float(singular.log().std()) - spread) < 0.01
    assert float(made.matrices.mean(0).abs().max()) < 0.05
    # Each entry of a uniformly rotated matrix has a third of the mean squared singular value as its own.
    second = (made.matrices**2).mean(0) / (singular**2).mean()
    torch.testing.assert_close(second, torch.full_like(second, 1 / 3), atol=0.03, rtol=0)
    assert abs(float(torch.linalg.det(made.matrices).sign().mean())) < 0.06


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_weights_are_refused_but_for_the_order_of_units(dtype: torch.dtype) -> None:
    s = Sizes()
    model = randomised(FusedViT(s)).to(dtype)
    with pytest.raises(InputError, match=r"blocks\.0\..* is .*16.*\.float\(\)"):
        AttentionBasis().move(model, generator=generator())
    with pytest.raises(InputError, match="16"):
        AttentionBasis(heads=False).move(model, generator=generator())
    moved = moved_by(model, AttentionBasis(heads=False, norms=False).move(model, generator=generator()))
    weights = (m.blocks[0].mlp.fc1.weight.detach().double() for m in (model, moved))
    before, after = (w[w[:, 0].argsort()] for w in weights)
    assert torch.equal(before, after)
    assert not torch.equal(model.blocks[0].mlp.fc1.weight, moved.blocks[0].mlp.fc1.weight)
    assert relative_change(model.double(), moved.double(), images(s)) < 1e-10


def test_integer_weights_are_refused_but_for_the_order_of_units() -> None:
    model = FusedViT(Sizes())
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(torch.arange(layer.weight.numel()).reshape(layer.weight.shape), False)
    with pytest.raises(InputError, match="int64"):
        AttentionBasis().move(model, generator=generator())
    moved = moved_by(model, AttentionBasis(heads=False, norms=False).move(model, generator=generator()))
    assert moved.blocks[0].mlp.fc1.weight.dtype == torch.int64
    assert not torch.equal(model.blocks[0].mlp.fc1.weight, moved.blocks[0].mlp.fc1.weight)


def test_frozen_weights_move_too() -> None:
    s = Sizes()
    model = randomised(TorchvisionViT(s)).requires_grad_(False)
    moved = moved_by(model, AttentionBasis().move(model, generator=generator()))
    assert distance(model, moved) > 0.3
    assert relative_change(model, moved, images(s)) < 1e-10
    assert not any(p.requires_grad for p in model.parameters())


def test_labels_of_units_follow_and_those_of_heads_stay() -> None:
    model = randomised(FusedViT(Sizes()))
    move = AttentionBasis(heads=True, norms=True).move(model, generator=generator())
    moved = moved_by(model, AttentionBasis(heads=False, norms=False).move(model, generator=generator()))
    labels = torch.arange(12 * 8).reshape(12, 8)
    assert sorted(move.selection("blocks.0.mlp.fc1.weight", labels)[:, 0].tolist()) == labels[:, 0].tolist()
    assert not torch.equal(move.selection("blocks.0.mlp.fc1.weight", labels), labels)
    assert torch.equal(move.selection("blocks.0.attn.proj.weight", labels), labels)
    assert not equal_states(model, moved)


@pytest.mark.parametrize("model", [MLP(inputs=4, classes=2), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))])
def test_a_network_without_attention_stays_bit_identical_and_says_why(model: nn.Module) -> None:
    moved = moved_by(model, AttentionBasis().move(model, generator=generator()))
    assert equal_states(model, moved)
    report = AttentionBasis().report(model)
    assert report.free == 0
    names = [name for name, _ in model.named_parameters() if name.endswith("weight")]
    assert [pinned.tensor for pinned in report.pinned] == names
    assert all("no attention block of a known layout" in pinned.reasons[0] for pinned in report.pinned)


def test_it_composes_with_other_symmetries_on_a_network_without_attention() -> None:
    model, x = MLP(inputs=4, classes=2).double(), normal(3, 4)
    moved = moved_by(model, Compose(AttentionBasis(), ChangeOfBasis()).move(model, generator=generator()))
    assert distance(model, moved) > 0.1
    assert relative_change(model, moved, x) < 1e-10


def test_two_moves_one_after_the_other() -> None:
    s = Sizes()
    model, x = randomised(hugging_face(s)), images(s)
    move = Compose(AttentionBasis(), AttentionBasis(norms=False)).move(model, generator=generator())
    moved = moved_by(model, move)
    assert relative_change(model, moved, x) < 1e-10
    found = gradients(moved, x)
    for name, gradient in gradients(model, x).items():
        torch.testing.assert_close(found[name], move.covector(name, gradient), rtol=1e-7, atol=1e-10)


def test_a_backbone_whose_output_is_the_last_norm_keeps_it() -> None:
    s = Sizes()
    model, x = randomised(Logits(ViTModel(ViTConfig(**hugging_face_options(s))))), images(s)
    moved = moved_by(model, AttentionBasis().move(model, generator=generator()))
    assert relative_change(model, moved, x) < 1e-10
    pinned = {p.tensor: p.reasons for p in AttentionBasis().report(model).pinned}
    assert pinned["inner.layernorm.weight"] == ("output",)
    assert torch.equal(moved.inner.layernorm.weight, model.inner.layernorm.weight)


def test_a_softmax_in_single_precision_is_no_reason_to_stay() -> None:
    """Hugging Face's eager attention computes it so in a float64 network too."""
    s = Sizes(depth=3, heads=3)
    options = hugging_face_options(s)
    model = randomised(Logits(ViTForImageClassification(ViTConfig(**options, attn_implementation="eager"))))
    report = AttentionBasis().report(model)
    assert report.free == s.depth * (4 * s.width + s.hidden) + s.width
    moved = moved_by(model, AttentionBasis().move(model, generator=generator()))
    assert relative_change(model, moved, images(s)) < 1e-6


def test_hooks_that_hugging_face_installs_to_record_outputs_pin_nothing() -> None:
    s = Sizes(depth=1)
    model = randomised(ViTForImageClassification(ViTConfig(**hugging_face_options(s))))
    model(images(s), output_hidden_states=True)
    assert any(module._forward_hooks for module in model.modules())
    assert AttentionBasis().report(model).free == 4 * s.width + s.hidden + s.width
