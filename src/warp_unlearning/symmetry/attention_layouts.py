"""The layouts of transformers that are known: each names the parts that begin at one module, or none."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .attention_fused import fused_parts
from .attention_hugging_face import hugging_face_parts
from .attention_multihead import multihead_parts
from .attention_parts import Part

Layout = Callable[[str, nn.Module], list[Part]]

LAYOUTS: tuple[Layout, ...] = (hugging_face_parts, fused_parts, multihead_parts)


def known_parts(model: nn.Module) -> list[Part]:
    """The parts of `model` by its structure alone, in the order of its modules; none without an attention layer."""
    parts: list[Part] = []
    for path, module in model.named_modules():
        found = (layout(path, module) for layout in LAYOUTS)
        parts += next((some for some in found if some), [])
    return parts
