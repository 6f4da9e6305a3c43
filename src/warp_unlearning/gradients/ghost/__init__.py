"""Squared norms of per-example parameter gradients from what enters and leaves a layer: one file a layer type.

Importing this package registers every rule.
"""

from . import batch_norm, convolution, embedding, group_norm, layer_norm, linear

__all__ = ["batch_norm", "convolution", "embedding", "group_norm", "layer_norm", "linear"]
