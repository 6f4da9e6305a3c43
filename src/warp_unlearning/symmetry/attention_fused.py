"""Layout of timm's blocks: `proj`, and one layer `qkv` for queries, keys and values, whose rows are (3, heads, width).

Norms of queries or keys (q_norm, k_norm) pin the queries and keys, a norm before `proj` the values. Layer scale acts
behind all of these, and additive biases of the attention weights do not see the basis.
"""

from __future__ import annotations

from torch import nn

from .attention_parts import Part, Place, child, columns, described, head_parts, joined, norm_part, unit_part

INNER_NORMS = ((("q_norm", "k_norm"), "queries and keys"), (("norm",), "values"))


def fused_parts(path: str, module: nn.Module) -> list[Part]:
    """Heads if `module` is an attention layer, norms and units if it is a block around one."""
    return [*_heads(path, module), *_block(path, module)]


def _heads(path: str, module: nn.Module) -> list[Part]:
    if not _is_attention(module):
        return []
    qkv, proj = child(module, "qkv"), child(module, "proj")
    heads, inner = int(module.num_heads), int(proj.in_features)  # type: ignore[arg-type]
    weight, bias = joined(path, "qkv.weight"), joined(path, "qkv.bias")

    def rows_from(start: int) -> tuple[Place, ...]:
        return (Place(weight, 0, start), *(() if qkv.bias is None else (Place(bias, 0, start),)))

    pins = [_inner_norm(path, module, names, what) for names, what in INNER_NORMS]
    if qkv.out_features != 3 * inner or heads < 1 or inner % heads:
        odd = (
            f"{described(path, module)} makes {qkv.out_features} channels out of which proj reads {inner}, in {heads} "
            "heads: not three times as many (grouped queries?)"
        )
        return head_parts(
            path,
            module,
            heads=inner,
            width=1,
            query=rows_from(0),
            key=(),
            value=rows_from(0),
            output=columns(joined(path, "proj")),
            pins=(odd, odd),
        )
    return head_parts(
        path,
        module,
        heads=heads,
        width=inner // heads,
        query=rows_from(0),
        key=rows_from(inner),
        value=rows_from(2 * inner),
        output=columns(joined(path, "proj")),
        pins=pins,
    )


def _inner_norm(path: str, module: nn.Module, names: tuple[str, ...], what: str) -> str | None:
    for name in names:
        norm = child(module, name)
        if norm is not None and not isinstance(norm, nn.Identity):
            return f"{described(joined(path, name), norm)}, which normalises the {what}"
    return None


def _block(path: str, module: nn.Module) -> list[Part]:
    attention = child(module, "attn")
    if attention is None or not _is_attention(attention):
        return []
    first, second = joined(path, "mlp.fc1"), joined(path, "mlp.fc2")
    makes, reads = child(module, "mlp.fc1", nn.Linear), child(module, "mlp.fc2", nn.Linear)
    parts = norm_part(path, joined(path, "norm1"), child(module, "norm1"), columns(joined(path, "attn.qkv")))
    if makes is not None:
        parts += norm_part(path, joined(path, "norm2"), child(module, "norm2"), columns(first))
    return parts + unit_part(path, first, makes, second, reads)


def _is_attention(module: nn.Module) -> bool:
    layers = (child(module, "qkv", nn.Linear), child(module, "proj", nn.Linear))
    return None not in layers and isinstance(getattr(module, "num_heads", None), int)
