"""Layout of Hugging Face vision transformers (ViT, DeiT): queries, keys and values in layers of their own.

Two sets of names are known: q_proj, k_proj, v_proj, o_proj, mlp.fc1, mlp.fc2; and attention.query, attention.key,
attention.value, output.dense, intermediate.dense, output.dense of releases before 5. Recognised by structure, so that
the library need not be there.
"""

from __future__ import annotations

from torch import nn

from .attention_parts import Part, child, columns, described, head_parts, joined, norm_part, rows, unit_part

PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("attention.query", "attention.key", "attention.value", "output.dense"),
)
UNITS = (("mlp.fc1", "mlp.fc2"), ("intermediate.dense", "output.dense"))


def hugging_face_parts(path: str, module: nn.Module) -> list[Part]:
    """Heads if `module` is an attention layer, norms and units if it is a block around one."""
    return [*_heads(path, module), *_block(path, module)]


def _heads(path: str, module: nn.Module) -> list[Part]:
    names = _projections(module)
    heads = _head_count(module)
    if names is None or heads is None:
        return []
    query, key, value, output = (child(module, name) for name in names)
    paths = [joined(path, name) for name in names]
    made = (query.out_features, key.out_features, value.out_features, output.in_features)
    pin = None
    if len(set(made)) > 1:
        pin = f"{described(path, module)} has {made[0]} query channels for {made[1]} key channels (grouped queries)"
    elif heads < 1 or made[0] % heads:
        pin = f"{described(path, module)} has {made[0]} channels, which {heads} heads do not divide"
    return head_parts(
        path,
        module,
        heads=made[0] if pin else heads,
        width=1 if pin else made[0] // heads,
        query=rows(paths[0], query),
        key=rows(paths[1], key),
        value=rows(paths[2], value),
        output=columns(paths[3]),
        pins=(pin, pin),
    )


def _block(path: str, module: nn.Module) -> list[Part]:
    attention = child(module, "attention")
    before, after = child(module, "layernorm_before"), child(module, "layernorm_after")
    names = None if attention is None else _projections(attention)
    if names is None or before is None or after is None:
        return []
    inside = joined(path, "attention")
    readers = tuple(place for name in names[:3] for place in columns(joined(inside, name)))
    parts = norm_part(path, joined(path, "layernorm_before"), before, readers)
    for first, second in UNITS:
        makes, reads = child(module, first, nn.Linear), child(module, second, nn.Linear)
        if makes is not None and reads is not None:
            parts += norm_part(path, joined(path, "layernorm_after"), after, columns(joined(path, first)))
            return parts + unit_part(path, joined(path, first), makes, joined(path, second), reads)
    return parts


def _projections(module: nn.Module) -> tuple[str, ...] | None:
    for names in PROJECTIONS:
        if all(child(module, name, nn.Linear) is not None for name in names):
            return names
    return None


def _head_count(module: nn.Module) -> int | None:
    for owner in (module, child(module, "attention"), getattr(module, "config", None)):
        heads = getattr(owner, "num_attention_heads", None)
        if isinstance(heads, int):
            return heads
    return None
