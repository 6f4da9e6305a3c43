"""Data sets as tensors, batches drawn from them, and splits."""
