"""Matrix products in the precision that convolutions have.

A product that stands for a convolution follows the convolutions' switch, `torch.backends.cudnn.conv.fp32_precision` or
the older `torch.backends.cudnn.allow_tf32`, and not that of matrix products: by torch's defaults convolutions run in
TF32 on a GPU that has it, and matrix products do not. Where convolutions are exact, so is the product; products in
float64 always are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# The switches' attributes read the same, and take ten times as long.
_read: Callable[[str, str], object] | None = getattr(torch._C, "_get_fp32_precision_getter", None)


def convolutions_round() -> bool:
    """Whether convolutions of float32 on CUDA devices may round to TF32."""
    return _of_convolutions() == "tf32"


class precision_of_convolutions:
    """Within the block matrix products on CUDA devices have it. The switch is the process's: no thread has its own."""

    def __enter__(self) -> None:
        """Turn the switch."""
        self.before = _of_products()
        wanted = _of_convolutions()
        if wanted != self.before:
            torch.backends.cuda.matmul.fp32_precision = wanted

    def __exit__(self, *_: object) -> None:
        """Turn it back."""
        if _of_products() != self.before:
            torch.backends.cuda.matmul.fp32_precision = self.before


def _of_convolutions() -> str:
    return str(torch.backends.cudnn.conv.fp32_precision if _read is None else _read("cuda", "conv"))  # type: ignore[attr-defined]


def _of_products() -> str:
    return str(torch.backends.cuda.matmul.fp32_precision if _read is None else _read("cuda", "matmul"))
