"""Blocks that look like a known layout and are not quite: what cannot be confirmed stays, and the report says why."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from warp_unlearning.symmetry.attention_basis import AttentionBasis
from warp_unlearning.symmetry.move import apply_move
from warp_unlearning.symmetry.symmetry import Probe

HEADS, HEAD_WIDTH, HIDDEN = 2, 4, 10
WIDTH = HEADS * HEAD_WIDTH
BLOCK = 4 * WIDTH + HIDDEN


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Attention(nn.Module):
    """Fused queries, keys and values; what is done to them in between is up to subclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).reshape(*x.shape[:2], 3, HEADS, HEAD_WIDTH).permute(2, 0, 3, 1, 4).unbind(0)

    def meet(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / HEAD_WIDTH**0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.proj((self.meet(q, k).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, attention: nn.Module | None = None, mlp: nn.Module | None = None) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH), attention or Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), mlp or Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    """Images in, classes out."""

    def __init__(self, *blocks: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 2, 2)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = norm or nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def tokens(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(self.tokens(x)).mean(1))


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    drawn = generator(seed)
    model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=drawn, dtype=torch.float64)
            size = parameter[0].numel() ** 0.5 if parameter.dim() > 1 else 3.0
            parameter.copy_(noise / size + (1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0))
    return model


def pins(model: nn.Module, **options: Any) -> dict[str, str]:
    """Tensor and reasons of what stays, but for what no layout speaks of."""
    report = AttentionBasis().report(model, **options)
    return {p.tensor: " ".join(p.reasons) for p in report.pinned if "no attention block" not in p.reasons[0]}


def flat(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else torch.cat([o.flatten() for o in output])


def assert_kept(
    model: nn.Module, x: Any | None = None, *, modes: tuple[bool, ...] = (False, True), **options: Any
) -> nn.Module:
    """The function stays in eval and in train mode, and the weights move; the moved network."""
    x = torch.randn(2, 1, 6, 6, generator=generator(9), dtype=torch.float64) if x is None else x
    state = deepcopy(model.state_dict())
    moved = deepcopy(model)
    apply_move(moved, AttentionBasis().move(model, generator=generator(1), **options))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        for training in modes:
            before, after = flat(deepcopy(model).train(training)(x)), flat(deepcopy(moved).train(training)(x))
            assert float((after - before).abs().max() / before.abs().max()) < 1e-9
    assert not all(torch.equal(value, state[name]) for name, value in moved.state_dict().items())
    return moved


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding: each plane of two channels turned by an angle that grows with the position."""
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.3], dtype=x.dtype)
    left, right = x[..., :2], x[..., 2:]
    return torch.cat((left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()), -1)


class Rotary(Attention):
    def meet(self, q: Tensor, k: Tensor) -> Tensor:
        return super().meet(rotated(q), rotated(k))


class Cosine(Attention):
    def meet(self, q: Tensor, k: Tensor) -> Tensor:
        return 5 * super().meet(nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1))


class Interleaved(Attention):
    """Rows of qkv in the order (heads, 3, width)."""

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).reshape(*x.shape[:2], HEADS, 3, HEAD_WIDTH).permute(3, 0, 2, 1, 4).unbind(0)


class Biased(Attention):
    """A learned bias of the attention weights by relative position, and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.relative = nn.Parameter(torch.zeros(HEADS, 40))

    def meet(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(q.shape[-2])
        distance = place[:, None] - place
        scores = super().meet(q, k) + self.relative[:, distance + 20]
        return scores.masked_fill(distance < 0, float("-inf"))


class NormedQueries(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(HEAD_WIDTH), nn.Identity()

    def meet(self, q: Tensor, k: Tensor) -> Tensor:
        return super().meet(self.q_norm(q), self.k_norm(k))


class NormedValues(Attention):
    """A norm between the heads and `proj`, as some of timm's have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.proj(self.norm((self.meet(q, k).softmax(-1) @ v).transpose(1, 2).flatten(2)))


class DroppedHeads(Attention):
    """Dropout of the heads' channels, in train mode alone."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.proj(self.drop((self.meet(q, k).softmax(-1) @ v).transpose(1, 2).flatten(2)))


class Grouped(Attention):
    """Two heads of queries for one of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, WIDTH + 2 * HEAD_WIDTH)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        heads = self.qkv(x).reshape(*x.shape[:2], HEADS + 2, HEAD_WIDTH).transpose(1, 2)
        return heads[:, :HEADS], heads[:, HEADS : HEADS + 1], heads[:, HEADS + 1 :]


class OwnBiases(Attention):
    """Biases of queries and values that are no part of qkv."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.q_bias = nn.Parameter(torch.ones(WIDTH))

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super().split(x)
        return q + self.q_bias.reshape(HEADS, 1, HEAD_WIDTH), k, v


class SinglePrecision(Attention):
    """Rounds to float32 on the way, whatever its weights are."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.float() for part in self.split(x))
        return self.proj((self.meet(q, k).softmax(-1) @ v).transpose(1, 2).flatten(2).to(x.dtype))


ATTENTIONS: dict[str, tuple[Callable[[], Attention], dict[str, tuple[int, str]]]] = {
    "rotary": (Rotary, {"qk": (WIDTH, "queries and keys of Rotary blocks.0.attn: .*a rotary embedding")}),
    "cosine": (Cosine, {"qk": (WIDTH, "queries and keys of Cosine blocks.0.attn")}),
    "interleaved": (Interleaved, {"qk": (WIDTH, "queries and keys"), "v": (WIDTH, "values and output")}),
    "biased": (Biased, {}),
    "normed_queries": (NormedQueries, {"qk": (WIDTH, "LayerNorm blocks.0.attn.q_norm, which normalises the queries")}),
    "normed_values": (NormedValues, {"v": (WIDTH, "LayerNorm blocks.0.attn.norm, which normalises the values")}),
    "grouped": (Grouped, {"qk": (WIDTH, "16 channels .* 8, in 2 heads"), "v": (WIDTH, "16 channels .* 8, in 2 heads")}),
    "own_biases": (OwnBiases, {"qk": (WIDTH, "queries and keys of OwnBiases")}),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_what_an_attention_layer_does_to_its_heads_pins_them_and_nothing_else(name: str) -> None:
    make, expected = ATTENTIONS[name]
    model = randomised(Net(Block(make()), Block(make())))
    report = AttentionBasis().report(model)
    first = [p for p in report.pinned if p.tensor == "blocks.0.attn.qkv.weight"]
    assert len(first) == len(expected)
    for pinned, (count, reason) in zip(first, expected.values(), strict=True):
        assert pinned.count == count
        assert re.search(reason, pinned.reasons[0]), pinned.reasons
    stuck = sum(count for count, _ in expected.values())
    assert report.free == 2 * (BLOCK - stuck) + WIDTH
    assert_kept(model)


def test_rounding_inside_is_no_reason_to_stay() -> None:
    model = randomised(Net(Block(SinglePrecision()), Block(SinglePrecision())))
    assert AttentionBasis().report(model).free == 2 * BLOCK + WIDTH
    moved = deepcopy(model)
    apply_move(moved, AttentionBasis().move(model, generator=generator()))
    x = torch.randn(2, 1, 6, 6, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(moved(x), model(x), rtol=0, atol=1e-5)


def test_dropout_of_the_channels_of_heads_pins_them() -> None:
    """A mask of channels is another one in another basis."""
    model = randomised(Net(Block(DroppedHeads())))
    assert pins(model).keys() == {"blocks.0.attn.qkv.weight"}
    assert "values and output of DroppedHeads" in pins(model)["blocks.0.attn.qkv.weight"]
    assert AttentionBasis().report(model).free == BLOCK - WIDTH + WIDTH


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
        ({"key_heads": 2, "heads": 1}, "queries and keys of Projections blocks.0.attn: a move of it changes"),
        ({"key_heads": 2}, None),
    ],
)
def test_projections_move_if_there_are_as_many_keys_as_queries(options: dict[str, int], reason: str | None) -> None:
    """Told of too few heads, a move would mix those there are."""
    model = randomised(Net(Block(Projections(**options))))
    found = pins(model)
    if reason is None:
        assert found == {}
    else:
        assert found.keys() == {"blocks.0.attn.q_proj.weight", "blocks.0.attn.v_proj.weight"}
        assert re.search(reason, found["blocks.0.attn.q_proj.weight"])
    assert_kept(model)


class Renamed(Net):
    """Its state goes by other names than its parameters."""

    def state_dict(self, *args: Any, **named: Any) -> Any:
        state = super().state_dict(*args, **named)
        return {name.replace("mlp.fc1", "mlp.first"): value for name, value in state.items()}


def test_parameters_that_the_state_calls_otherwise_stay() -> None:
    model = randomised(Renamed(Block()))
    assert pins(model).keys() == {"blocks.0.norm2.weight", "blocks.0.mlp.fc1.weight"}
    assert_kept(model)


class DroppedUnits(Mlp):
    def __init__(self, *, ordered: bool) -> None:
        super().__init__()
        self.drop, self.ordered = nn.Dropout(0.5), ordered

    def forward(self, x: Tensor) -> Tensor:
        units = self.drop(nn.functional.gelu(self.fc1(x)))
        return self.fc2(units.cumsum(-1) if self.ordered and self.training else units)


def test_dropout_of_units_pins_nothing_but_what_else_is_done_to_them_in_train_mode_does() -> None:
    model = randomised(Net(Block(mlp=DroppedUnits(ordered=False))))
    assert pins(model) == {}
    moved = assert_kept(model, modes=(False,))
    assert not torch.equal(moved.blocks[0].mlp.fc1.weight, model.blocks[0].mlp.fc1.weight)
    assert pins(randomised(Net(Block(mlp=DroppedUnits(ordered=True))))).keys() == {"blocks.0.mlp.fc1.weight"}


class ResidualPostNorm(Block):
    """Norms behind attention and MLP, under the names of those before."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm1(self.attn(x))
        return x + self.norm2(self.mlp(x))


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


class OrderedUnits(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)).cumsum(-1))


class Gated(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 2 * HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.fc1(x).chunk(2, -1)
        return self.fc2(left * nn.functional.silu(right))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            ResidualPostNorm,
            {"blocks.0.norm1.weight": "output of LayerNorm", "blocks.0.norm2.weight": "output of LayerNorm"},
        ),
        (Leaky, {"blocks.0.norm1.weight": "output of LayerNorm blocks.0.norm1: .* another reader"}),
        (
            Widened,
            {"blocks.0.norm1.weight": r"qkv.weight, whose shape \(24, 16\) does not fit 8 channels: output of Layer"},
        ),
        (lambda: Block(mlp=OrderedUnits()), {"blocks.0.mlp.fc1.weight": "units of Linear blocks.0.mlp.fc1"}),
        (lambda: Block(mlp=Gated()), {"blocks.0.mlp.fc1.weight": "reads 10 channels of the 20 .*gated"}),
    ],
)
def test_norms_and_units_that_something_else_depends_on_stay(
    block: Callable[[], Block], expected: dict[str, str]
) -> None:
    model = randomised(Net(block()))
    found = pins(model)
    assert found.keys() == expected.keys()
    for tensor, reason in expected.items():
        assert re.search(reason, found[tensor]), found
    assert_kept(model)


@pytest.mark.parametrize(("norm_first", "stuck"), [(True, 0), (False, 2 * WIDTH)])
def test_the_norms_of_a_post_norm_encoder_layer_stay(norm_first: bool, stuck: int) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True, norm_first=norm_first)
    model = randomised(Net(layer))
    found = pins(model)
    assert AttentionBasis().report(model).free == BLOCK - stuck + WIDTH
    if stuck:
        assert found.keys() == {"blocks.0.norm1.weight", "blocks.0.norm2.weight"}
        assert all(
            "residual stream of TransformerEncoderLayer blocks.0, which is post-norm" in r for r in found.values()
        )
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


@pytest.mark.parametrize(("when", "free"), [("always", True), ("training", False), ("through_tanh", False)])
def test_the_last_norm_moves_if_linear_layers_alone_read_it(when: str, free: bool) -> None:
    model = randomised(TwoHeads(Block(), when=when))
    found = pins(model)
    assert ("norm.weight" in found) is not free
    moved = assert_kept(model)
    assert torch.equal(moved.norm.weight, model.norm.weight) is not free
    assert torch.equal(moved.second.weight, model.second.weight) is not free


@pytest.mark.parametrize("norm", [nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH, bias=False)])
def test_norms_without_a_bias_move(norm: nn.Module) -> None:
    block = Block()
    block.norm1 = deepcopy(norm)
    model = randomised(Net(block, norm=norm))
    assert AttentionBasis().report(model).free == BLOCK + WIDTH
    assert_kept(model)


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (nn.LayerNorm(WIDTH, elementwise_affine=False), "has no weight for every channel"),
        (nn.BatchNorm1d(4), "neither LayerNorm nor RMSNorm"),
    ],
)
def test_other_norms_stay(norm: nn.Module, reason: str) -> None:
    block = Block()
    block.norm1 = norm
    model = randomised(Net(block))
    x = torch.randn(2, 1, 4, 4, generator=generator(), dtype=torch.float64)
    (found,) = pins(model).values()
    assert reason in found
    assert_kept(model, x)


class Repeated(Net):
    """One block, several times over."""

    def tokens(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).mT
        for _ in range(3):
            x = self.blocks[0](x)
        return x


def test_one_block_called_several_times_moves_as_one() -> None:
    model = randomised(Repeated(Block()))
    assert AttentionBasis().report(model).free == BLOCK + WIDTH
    assert_kept(model)


def test_a_block_under_two_names_stays() -> None:
    shared = Block()
    model = randomised(Net(shared, Block(), shared))
    found = pins(model)
    assert found["blocks.0.attn.qkv.weight"].count("shares its values with blocks.2.attn.qkv.weight") == 1
    assert not any(name.startswith("blocks.1") for name in found)
    assert AttentionBasis().report(model).free == BLOCK + WIDTH
    assert_kept(model)


def test_tensors_tied_between_blocks_stay() -> None:
    model = randomised(Net(Block(), Block()))
    model.blocks[1].mlp.fc1.weight = model.blocks[0].mlp.fc1.weight
    model.blocks[1].attn.qkv.bias = nn.Parameter(model.blocks[0].attn.qkv.bias.data)
    found = pins(model)
    assert "shares its values with blocks.1.mlp.fc1.weight" in found["blocks.0.mlp.fc1.weight"]
    assert "another name" in found["blocks.1.mlp.fc1.weight"]
    assert "shares its values with blocks.0.attn.qkv.bias" in found["blocks.1.attn.qkv.weight"]
    assert_kept(model)


def test_hooks_inside_a_block_pin_it() -> None:
    model = randomised(Net(Block(), Block()))
    calls: list[int] = []
    model.blocks[0].mlp.fc1.register_forward_hook(lambda *_: calls.append(1))
    found = pins(model)
    assert "Linear blocks.0.mlp.fc1, which has forward hooks" in found["blocks.0.norm1.weight"]
    assert "norm.weight" in found
    # The hook is on the MLP, out of sight of the attention layer.
    assert AttentionBasis().report(model).free == BLOCK + 2 * WIDTH
    assert not calls


def test_weights_computed_from_others_stay() -> None:
    model = randomised(Net(Block(), Block()))
    weight_norm(model.blocks[0].mlp.fc1)
    found = pins(model)
    assert "blocks.0.mlp.fc1.weight, which is computed from others" in found["blocks.0.mlp.fc1.weight"]
    assert "blocks.0.norm2.weight" in found
    assert_kept(model)


class LowRank(nn.Module):
    """An adapter around a layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.low = base, nn.Linear(base.in_features, 2, bias=False)
        self.high = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.high(self.low(x))


def test_layers_inside_adapters_are_not_known_and_are_named() -> None:
    model = randomised(Net(Block(), Block()))
    model.blocks[0].attn.qkv = LowRank(model.blocks[0].attn.qkv).double()
    named = {p.tensor: p.reasons[0] for p in AttentionBasis().report(model).pinned}
    for layer in ("attn.qkv.base", "attn.qkv.low", "attn.qkv.high", "attn.proj", "mlp.fc1", "mlp.fc2"):
        assert f"Linear blocks.0.{layer}, which belongs to no attention block" in named[f"blocks.0.{layer}.weight"]
    # Both layers behind the first norm read it as it is.
    assert AttentionBasis().report(model).free == 2 * WIDTH + BLOCK + WIDTH
    assert_kept(model)


class TakesADict(nn.Module):
    """No guess makes an input for it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: dict[str, Tensor]) -> Any:
        return self.inner(batch["image"].reshape(-1, 1, 6, 6))


def test_without_an_input_for_the_whole_the_largest_module_that_has_one_is_tried() -> None:
    model = randomised(TakesADict(Net(Block())))
    x = {"image": torch.randn(2, 36, generator=generator(), dtype=torch.float64)}
    assert AttentionBasis().report(model).free == BLOCK
    (found,) = pins(model).values()
    assert "TakesADict, which no random input could be found for" in found
    assert_kept(model, x)


class RopeBlock(Block):
    def forward(self, x: Tensor, rope: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x) if rope is None else self.norm1(x) * rope)
        return x + self.mlp(self.norm2(x))


class PassesRope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = RopeBlock()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.block(batch["tokens"], rope=batch["rope"])


def test_a_module_that_may_be_given_more_than_is_known_is_not_tried_alone() -> None:
    """Called without its option it would seem to keep its function."""
    model = randomised(PassesRope())
    found = pins(model)
    assert found.keys() >= {"block.norm1.weight", "block.norm2.weight", "block.mlp.fc1.weight"}
    assert all("could not be tried" in reason for reason in found.values())
    drawn = [torch.randn(2, 5, WIDTH, generator=generator(i), dtype=torch.float64) for i in range(2)]
    # Its attention layer takes nothing else, and is tried alone.
    assert AttentionBasis().report(model).free == 2 * WIDTH
    assert_kept(model, {"tokens": drawn[0], "rope": drawn[1]})


class Flat(nn.Module):
    """Takes vectors of a length that it does not say, and makes tokens of them."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.head = Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.block(x.reshape(len(x), 7, WIDTH))).flatten(1)[:, :WIDTH])


def test_a_probe_lends_its_shape() -> None:
    model = randomised(Flat())
    retain = torch.full((5, 7 * WIDTH), float("nan"))
    probe = Probe(retain=[retain])
    assert "Flat, which no random input" in pins(model)["norm.weight"]
    assert pins(model, probe=probe) == {}
    x = torch.randn(3, 7 * WIDTH, generator=generator(), dtype=torch.float64)
    assert_kept(model, x)
    assert_kept(model, x, probe=probe)


class Words(nn.Module):
    """Token numbers in; as many as it has positions, if it has any."""

    def __init__(self, positions: int | None = None) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(11, WIDTH), Block()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11)
        self.positions = None if positions is None else nn.Parameter(torch.zeros(positions, WIDTH))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        return self.head(self.norm(self.block(x if self.positions is None else x + self.positions)))


def test_token_numbers_are_guessed_or_taken_from_a_probe() -> None:
    words = torch.arange(10).reshape(2, 5)
    model = randomised(Words())
    assert pins(model) == {}
    assert_kept(model, words)
    model = randomised(Words(positions=5))
    assert pins(model).keys() == {"norm.weight"}
    assert pins(model, probe=Probe(retain=[words])) == {}
    assert_kept(model, words, probe=Probe(retain=[words]))


def test_one_token_says_nothing_about_queries_so_the_block_is_tried_on_more() -> None:
    class OneToken(Net):
        image_size = 2

    model = randomised(OneToken(Block(), Block(Rotary())))
    found = pins(model)
    assert found.keys() == {"blocks.1.attn.qkv.weight"}
    assert "output of Block blocks.1" in found["blocks.1.attn.qkv.weight"]


class Unknown(nn.Module):
    """An attention layer with names of its own around torch's."""

    def __init__(self) -> None:
        super().__init__()
        options: dict[str, Any] = {"kdim": 5, "vdim": 3, "add_bias_kv": True, "batch_first": True}
        self.mix = nn.MultiheadAttention(WIDTH, HEADS, **options)
        self.before, self.wide = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(x, x[..., :5], x[..., 1:4])[0]
        return x + self.wide(self.before(x)).relu()


def test_the_heads_of_torch_attention_move_in_any_block_and_so_do_norms_before_a_layer() -> None:
    """Keys and values of other widths than queries, and a learned key and value besides."""
    model = randomised(Net(Unknown()))
    report = AttentionBasis().report(model)
    assert report.free == 4 * WIDTH
    moved = assert_kept(model)
    for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v"):
        assert not torch.equal(getattr(moved.blocks[0].mix, name), getattr(model.blocks[0].mix, name))


def test_a_decoder_layer_keeps_its_norms_and_units() -> None:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True, norm_first=True)

    class Decoder(Net):
        def tokens(self, x: Tensor) -> Tensor:
            x = self.stem(x).flatten(2).mT
            return self.blocks[0](x, x[:, 1:])

    model = randomised(Decoder(layer))
    # Two attention layers, the norm before the linear layers and the last one.
    assert AttentionBasis().report(model).free == 6 * WIDTH
    assert_kept(model)


class Uncopyable(Net):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("holds a lock")


def test_a_network_that_cannot_be_copied_stays() -> None:
    model = randomised(Uncopyable(Block()))
    assert not AttentionBasis().move(model, generator=generator()).axes
    assert all("cannot be copied to be tried (holds a lock)" in reason for reason in pins(model).values())


class Noisy(Net):
    """Not even the same twice."""

    draws = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(WIDTH, generator=self.draws, dtype=x.dtype)
        return self.head(self.norm(self.tokens(x)).mean(1) + noise)


def test_a_network_that_is_never_the_same_twice_stays() -> None:
    model = randomised(Noisy(Block()))
    assert AttentionBasis().report(model).free == 0
    assert not AttentionBasis().move(model, generator=generator()).axes


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_nothing_around_the_model_changes(mode: Any) -> None:
    model = randomised(Net(Block()))
    model.blocks[0].mlp.train()
    model.head.weight.requires_grad_(False)
    training = [module.training for module in model.modules()]
    frozen = [parameter.requires_grad for parameter in model.parameters()]
    state = torch.get_rng_state()
    with mode():
        move = AttentionBasis().move(model, generator=generator())
    assert len(move.axes) > 5
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == training
    assert [parameter.requires_grad for parameter in model.parameters()] == frozen
    assert all(parameter.grad is None for parameter in model.parameters())


def test_running_statistics_do_not_disturb_the_trial() -> None:
    class WithBatchNorm(Net):
        def __init__(self, *blocks: nn.Module) -> None:
            super().__init__(*blocks)
            self.batch_norm = nn.BatchNorm2d(WIDTH)

        def tokens(self, x: Tensor) -> Tensor:
            x = self.batch_norm(self.stem(x)).flatten(2).mT
            return self.blocks[0](x)

    model = randomised(WithBatchNorm(Block()))
    assert AttentionBasis().report(model).free == BLOCK + WIDTH
    assert_kept(model)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_on_a_gpu_moves_with_a_generator_anywhere(device: str) -> None:
    model = randomised(
        Net(Block(), nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True, norm_first=True))
    )
    model.cuda()
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    move = AttentionBasis().move(model, generator=torch.Generator(device).manual_seed(0))
    assert all(map(torch.equal, before, (torch.cuda.get_rng_state(), torch.get_rng_state())))
    moved = deepcopy(model)
    apply_move(moved, move)
    assert AttentionBasis().report(model).free == 2 * BLOCK + WIDTH
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64, device="cuda")
    torch.testing.assert_close(moved(x), model(x), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(moved.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)
