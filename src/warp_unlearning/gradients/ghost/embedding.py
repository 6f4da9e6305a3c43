"""Embedding: row v of ∂ℓ/∂E is Σ gₜ over the positions t that hold token v, and zero for `padding_idx`."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from .rule import GhostRule, register


@register(nn.Embedding)
class EmbeddingRule(GhostRule):
    """The table of nn.Embedding, inputs (batch, ...) of token numbers."""

    def gradient(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """(batch, tokens, width)."""
        table = cast(nn.Embedding, layer)
        cells, rows = _cells(table, a, g)
        whole = g.new_zeros(len(a) * table.num_embeddings, table.embedding_dim)
        return whole.index_add(0, cells, rows).reshape(len(a), table.num_embeddings, table.embedding_dim)

    def squared_norm(self, layer: nn.Module, name: str, a: Tensor, g: Tensor) -> Tensor:
        """Over the rows that occur alone, so that the size of the table does not matter."""
        table = cast(nn.Embedding, layer)
        cells, rows = _cells(table, a, g)
        present, slots = torch.unique(cells, return_inverse=True)
        sums = g.new_zeros(len(present), table.embedding_dim).index_add(0, slots, rows)
        owners = present.div(table.num_embeddings, rounding_mode="floor")
        return g.new_zeros(len(a)).index_add(0, owners, sums.square().sum(1))


def _cells(table: nn.Embedding, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """example·tokens + token for every position, shape (positions,), and the rows of g that belong to them."""
    tokens = a.reshape(len(a), -1)
    example = torch.arange(len(a), device=a.device)[:, None]
    cells = (example * table.num_embeddings + tokens).flatten()
    rows = g.reshape(-1, table.embedding_dim)
    if table.padding_idx is None:
        return cells, rows
    counts = tokens.flatten() != table.padding_idx
    return cells[counts], rows[counts]
