"""Layout of torch.nn.MultiheadAttention, in any network, and of two blocks around it.

The blocks are torch.nn.TransformerEncoderLayer (self_attn, norm1, norm2, linear1, linear2) and torchvision's
(self_attention, ln_1, ln_2, mlp.0, mlp.3). In a post-norm block the norms write the residual stream, so that they stay.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .attention_parts import Part, Place, child, columns, head_parts, joined, norm_part, unit_part

BLOCKS = (
    ("self_attn", "norm1", "norm2", "linear1", "linear2"),
    ("self_attention", "ln_1", "ln_2", "mlp.0", "mlp.3"),
)


def multihead_parts(path: str, module: nn.Module) -> list[Part]:
    """Heads if `module` is an attention layer, norms and units if it is a block around one."""
    if isinstance(module, nn.MultiheadAttention):
        return _heads(path, module)
    return _block(path, module)


def _heads(path: str, module: Any) -> list[Part]:
    inner = module.num_heads * module.head_dim
    bias_k = () if module.bias_k is None else (Place(joined(path, "bias_k"), 2),)
    bias_v = () if module.bias_v is None else (Place(joined(path, "bias_v"), 2),)
    return head_parts(
        path,
        module,
        heads=module.num_heads,
        width=module.head_dim,
        query=_rows(path, module, "q", 0),
        key=_rows(path, module, "k", inner) + bias_k,
        value=_rows(path, module, "v", 2 * inner) + bias_v,
        output=columns(joined(path, "out_proj")),
    )


def _rows(path: str, module: Any, name: str, start: int) -> tuple[Place, ...]:
    """Rows of one weight for all three, or of one of three weights; the bias is one for all in either case."""
    if module.in_proj_weight is not None:
        weight = Place(joined(path, "in_proj_weight"), 0, start)
    else:
        weight = Place(joined(path, f"{name}_proj_weight"), 0)
    return (weight, *(() if module.in_proj_bias is None else (Place(joined(path, "in_proj_bias"), 0, start),)))


def _block(path: str, module: nn.Module) -> list[Part]:
    for attention, first_norm, second_norm, first, second in BLOCKS:
        inner = child(module, attention, nn.MultiheadAttention)
        norms = (child(module, first_norm), child(module, second_norm))
        # A decoder layer has a second attention, which reads what the second norm makes.
        if inner is None or None in norms or child(module, "multihead_attn") is not None:
            continue
        makes, reads = child(module, first, nn.Linear), child(module, second, nn.Linear)
        pin = None
        if getattr(module, "norm_first", True) is False:
            pin = (
                f"the residual stream of {type(module).__name__} {path}".rstrip()
                + ", which is post-norm: it adds to it"
            )
        readers = tuple(Place(joined(path, f"{attention}.{name}"), 1) for name in _inputs(inner))
        parts = norm_part(path, joined(path, first_norm), norms[0], readers, pin=pin)
        if makes is not None:
            parts += norm_part(path, joined(path, second_norm), norms[1], columns(joined(path, first)), pin=pin)
        return parts + unit_part(path, joined(path, first), makes, joined(path, second), reads)
    return []


def _inputs(module: Any) -> tuple[str, ...]:
    if module.in_proj_weight is not None:
        return ("in_proj_weight",)
    return ("q_proj_weight", "k_proj_weight", "v_proj_weight")
