"""The parts of a transformer that can move, and where they stand in the weights, by the names and shapes of its layers.

A part is a set of channels that one group of tensors makes and another reads; all operations in between commute with
its kind of map:

- heads: made ← M made, read ← M⁻ᵀ read, with a d×d matrix M for every head. Queries and keys are multiplied in Q Kᵀ
  alone; values and the columns of the output layer in W_o V alone, as softmax weights mix tokens and not channels.
- norms: made ← τ made, read ← read / τ, one factor a channel. The affine map of a norm and the linear layers behind it.
- units: made and read in another order. An activation that acts on every unit alike lies in between; it need not be
  homogeneous, so that there are no factors.

`AttentionBasis` asks for `known_parts`, and has them tried by `attention_check` before it relies on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import nn

Kind = Literal["heads", "norms", "units"]


@dataclass(frozen=True)
class Place:
    """Where channels stand: along `axis` of the tensor `name`, from entry `start` on."""

    name: str
    axis: int
    start: int = 0


Places = tuple[Place, ...]


@dataclass(frozen=True)
class Part:
    """Channels that may move together: `groups` heads of `width`, or one group. `label` names them in reports.

    They stand at the places `made` in the weights that make them, and at `read` in those that read them, all within the
    module at the path `home`. `pinned` says why they stay; None if they are free.
    """

    kind: Kind
    label: str
    home: str
    groups: int
    width: int
    made: Places
    read: Places
    pinned: str | None = None

    @property
    def channels(self) -> int:
        """How many channels there are."""
        return self.groups * self.width

    @property
    def places(self) -> Places:
        """Where they stand."""
        return self.made + self.read


class _Attention(NamedTuple):
    """One attention layer: `heads` of `width` channels, and where queries, keys, values stand in the weights that make
    them. `output` reads the values, `inputs` the layer's input; `pins` says why queries with keys, and values, stay.
    """

    heads: int
    width: int
    query: Places
    key: Places
    value: Places
    output: Places
    inputs: Places
    pins: tuple[str | None, str | None] = (None, None)


def known_parts(model: nn.Module) -> list[Part]:
    """The parts of `model` by its structure, in the order of its modules; none without an attention layer."""
    parts: list[Part] = []
    for path, module in model.named_modules():
        for layout, blocks in _LAYOUTS.items():
            block_parts = max((_block(path, module, layout, *names) for names in blocks), key=len)
            module_parts = [*_heads(path, module, layout(path, module)), *block_parts]
            if module_parts:
                parts += module_parts
                break
    return parts


def norm_part(home: str, path: str, norm: Any, readers: Places, *, pin: str | None = None) -> list[Part]:
    """The part of a norm's output, whose channels stand at `readers` in weights that read it; none without a norm."""
    if norm is None or isinstance(norm, nn.Identity):
        return []
    name = described(path, norm)
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        pin = f"{name}, which is neither LayerNorm nor RMSNorm"
    elif norm.weight is None or len(norm.normalized_shape) != 1:
        pin = f"{name}, which has no weight for every channel"
    made = tuple(Place(_at(path, n), axis=0) for n in ("weight", "bias") if getattr(norm, n, None) is not None)
    width = getattr(norm, "normalized_shape", (0,))[-1]
    return [Part("norms", f"output of {name}", home, 1, width, made, readers, pin)]


def columns(path: str) -> Places:
    """Where the channels that a linear layer reads stand: the columns of its weight."""
    return (Place(_at(path, "weight"), axis=1),)


def described(path: str, module: nn.Module) -> str:
    """A module's type and path, as reports name it."""
    return f"{type(module).__name__} {path}".strip()


def _heads(path: str, module: nn.Module, layer: _Attention | None) -> list[Part]:
    """Both parts of an attention layer's heads: queries with keys, and values with the output layer."""
    if layer is None:
        return []
    name, size, pins = described(path, module), (layer.heads, layer.width), layer.pins
    return [
        Part("heads", f"queries and keys of {name}", path, *size, layer.query, layer.key, pins[0]),
        Part("heads", f"values and output of {name}", path, *size, layer.value, layer.output, pins[1]),
    ]


def _block(
    path: str, module: nn.Module, layout: Layout, attention: str, norm1: str, norm2: str, first: str, second: str
) -> list[Part]:
    """Norms and units of a block around an attention layer, by the names of its children."""
    inner = _child(module, attention)
    layer = None if inner is None else layout(_at(path, attention), inner)
    # A decoder layer has a second attention, which reads what the second norm makes.
    if layer is None or _child(module, "multihead_attn") is not None:
        return []
    makes, reads = _child(module, first, nn.Linear), _child(module, second, nn.Linear)
    pin = None
    if getattr(module, "norm_first", True) is False:
        pin = f"the residual stream of {described(path, module)}, which is post-norm: it adds to it"
    parts = norm_part(path, _at(path, norm1), _child(module, norm1), layer.inputs, pin=pin)
    if makes is None:
        return parts
    parts += norm_part(path, _at(path, norm2), _child(module, norm2), columns(_at(path, first)), pin=pin)
    if reads is None:
        return parts
    pin = None
    if makes.out_features != reads.in_features:
        pin = (
            f"{_at(path, second)} reads {reads.in_features} channels of the {makes.out_features} that "
            f"{_at(path, first)} makes (gated units)"
        )
    label = f"units of {described(_at(path, first), makes)}"
    made, read = _rows(_at(path, first), makes), columns(_at(path, second))
    return [*parts, Part("units", label, path, 1, makes.out_features, made, read, pin)]


def _torch_attention(path: str, module: nn.Module) -> _Attention | None:
    """Where heads stand in an nn.MultiheadAttention, in one weight or in three; None in any other module."""
    if not isinstance(module, nn.MultiheadAttention):
        return None
    inner = module.num_heads * module.head_dim
    joint = module.in_proj_weight is not None
    weights = ["in_proj_weight"] * 3 if joint else [f"{part}_proj_weight" for part in "qkv"]
    made: list[Places] = []
    for i, (weight, added) in enumerate(zip(weights, ("", "bias_k", "bias_v"), strict=True)):
        places = [Place(_at(path, weight), axis=0, start=i * inner * joint)]
        if module.in_proj_bias is not None:
            places.append(Place(_at(path, "in_proj_bias"), axis=0, start=i * inner))
        if added and getattr(module, added) is not None:
            places.append(Place(_at(path, added), axis=2))
        made.append(tuple(places))
    inputs = tuple(Place(_at(path, weight), axis=1) for weight in dict.fromkeys(weights))
    query, key, value = made
    output = columns(_at(path, "out_proj"))
    return _Attention(module.num_heads, module.head_dim, query, key, value, output, inputs)


def _timm_attention(path: str, module: nn.Module) -> _Attention | None:
    """Where heads stand in an attention layer of timm, None in any other module: the rows of one layer `qkv` are
    (3, heads, width). Norms of queries or keys (q_norm, k_norm) pin both, a norm before `proj` the values. Layer scale
    acts behind all of these, and additive biases of the attention weights do not see the basis.
    """
    qkv, proj = _child(module, "qkv", nn.Linear), _child(module, "proj", nn.Linear)
    heads = getattr(module, "num_heads", None)
    if qkv is None or proj is None or not isinstance(heads, int):
        return None
    inner, width = proj.in_features, 1
    pins = [_inner_norm(path, module, names, what) for names, what in _INNER_NORMS]
    if qkv.out_features != 3 * inner or heads < 1 or inner % heads:
        odd = (
            f"{described(path, module)} makes {qkv.out_features} channels out of which proj reads {inner}, in {heads} "
            "heads: not three times as many (grouped queries?)"
        )
        pins, heads = [odd, odd], inner
    else:
        width = inner // heads
    path = _at(path, "qkv")
    query, key, value = (tuple(Place(p.name, axis=0, start=i * inner) for p in _rows(path, qkv)) for i in range(3))
    output = columns(path.removesuffix("qkv") + "proj")
    return _Attention(heads, width, query, key, value, output, columns(path), (pins[0], pins[1]))


def _inner_norm(path: str, module: nn.Module, names: tuple[str, ...], what: str) -> str | None:
    """The first norm inside the attention layer under one of `names`, as the reason that pins the heads' channels."""
    for name in names:
        norm = _child(module, name)
        if norm is not None and not isinstance(norm, nn.Identity):
            return f"{described(_at(path, name), norm)}, which normalises the {what}"
    return None


def _hugging_face_attention(path: str, module: nn.Module) -> _Attention | None:
    """Where heads stand in an attention layer of Hugging Face's ViT or DeiT, None in any other module: queries, keys
    and values have layers of their own, under two sets of names (the second before release 5).
    """
    names = next((known for known in _PROJECTIONS if all(_child(module, n, nn.Linear) for n in known)), None)
    owners = (module, _child(module, "attention"), getattr(module, "config", None))
    counts = (getattr(owner, "num_attention_heads", None) for owner in owners)
    heads = next((count for count in counts if isinstance(count, int)), None)
    if names is None or heads is None:
        return None
    query, key, value, output = (_child(module, name) for name in names)
    made = (query.out_features, key.out_features, value.out_features, output.in_features)
    width, pin = 1, None
    if len(set(made)) > 1:
        pin = f"{described(path, module)} has {made[0]} query channels for {made[1]} key channels (grouped queries)"
    elif heads < 1 or made[0] % heads:
        pin = f"{described(path, module)} has {made[0]} channels, which {heads} heads do not divide"
    else:
        width = made[0] // heads
    paths = [_at(path, name) for name in names]
    inputs = tuple(place for path in paths[:3] for place in columns(path))
    rows = [_rows(path, layer) for path, layer in zip(paths[:3], (query, key, value), strict=True)]
    return _Attention(made[0] // width, width, rows[0], rows[1], rows[2], columns(paths[3]), inputs, (pin, pin))


def _rows(path: str, layer: Any) -> Places:
    """Where the channels that a linear layer makes stand: the rows of its weight and its bias."""
    return tuple(Place(_at(path, name), axis=0) for name in ("weight", "bias") if getattr(layer, name) is not None)


def _at(path: str, name: str) -> str:
    """The path of a child; the root has the empty path."""
    return f"{path}.{name}" if path else name


def _child(module: nn.Module, path: str, kind: type[nn.Module] = nn.Module) -> Any:
    """The submodule at `path` if there is one of this `kind`, or None."""
    child: Any = module
    for name in path.split("."):
        child = child._modules.get(name) if isinstance(child, nn.Module) else None
    return child if isinstance(child, kind) else None


Layout = Callable[[str, nn.Module], _Attention | None]

# What recognises an attention layer, and the names of attention, norms and MLP layers in blocks around it.
_LAYOUTS: dict[Layout, tuple[tuple[str, str, str, str, str], ...]] = {
    _hugging_face_attention: (
        ("attention", "layernorm_before", "layernorm_after", "mlp.fc1", "mlp.fc2"),
        ("attention", "layernorm_before", "layernorm_after", "intermediate.dense", "output.dense"),
    ),
    _timm_attention: (("attn", "norm1", "norm2", "mlp.fc1", "mlp.fc2"),),
    _torch_attention: (
        ("self_attn", "norm1", "norm2", "linear1", "linear2"),
        ("self_attention", "ln_1", "ln_2", "mlp.0", "mlp.3"),
    ),
}
_PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("attention.query", "attention.key", "attention.value", "output.dense"),
)
_INNER_NORMS = ((("q_norm", "k_norm"), "queries and keys"), (("norm",), "values"))
