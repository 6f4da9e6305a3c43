"""Laws of the positive factors τ that channels are rescaled by.

- uniform: τ ~ U(1 − s, 1 + s), 0 < s < 1;
- lognormal: log τ ~ N(−s², s²), so that E[r²] = 1 for r = τ, the factor of the weights that lead into one free channel
  from a pinned one, and of the gradients that lead out of it into a pinned one. A weight between two free channels has
  the factor τ_out / τ_in, with E = exp(4s²) for its square, whatever the mean of log τ is;
- truncated_normal: τ ~ N(1, s²) given τ > 0.05. (Without the truncation, s = 0.8 makes 10.6 % of the factors negative,
  which no ReLU network survives.)
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from ..errors import InputError, nearest

Law = Literal["uniform", "lognormal", "truncated_normal"]

LEAST_NORMAL = 0.05
# Beyond it the factors of one network span more orders of magnitude than float32 weights bear.
LARGEST_LOG_SPREAD = 3.0


def check_law(law: str, spread: float) -> None:
    """Refuse an unknown law, and a spread that would make a scale zero, negative or infinite."""
    if law not in get_args(Law):
        raise InputError(f"law is {law!r}; {nearest(str(law), get_args(Law))}")
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not math.isfinite(spread) or spread <= 0:
        raise InputError(f"spread is {spread!r}; give a number above 0")
    if law == "uniform" and spread >= 1:
        raise InputError(
            f"spread is {spread}: uniform factors on 1 ± spread could be zero or negative; "
            "give a spread below 1, or law='lognormal'"
        )
    if law == "lognormal" and spread > LARGEST_LOG_SPREAD:
        raise InputError(
            f"spread is {spread}: it is the standard deviation of log τ; give at most {LARGEST_LOG_SPREAD:g}"
        )


def draw_scales(law: Law, count: int, *, spread: float, generator: torch.Generator) -> Tensor:
    """`count` independent factors in float64, on the CPU."""
    check_law(law, spread)
    device = generator.device
    if law == "lognormal":
        normal = torch.randn(count, generator=generator, dtype=torch.float64, device=device)
        return (spread * normal - spread**2).exp().cpu()
    uniform = torch.rand(count, generator=generator, dtype=torch.float64, device=device)
    if law == "uniform":
        return (1 + spread * (2 * uniform - 1)).cpu()
    below = torch.special.ndtr(torch.tensor((LEAST_NORMAL - 1) / spread, dtype=torch.float64, device=device))
    standard = torch.special.ndtri(below + (1 - below) * uniform)
    drawn: Tensor = (1 + spread * standard).clamp(min=LEAST_NORMAL).cpu()
    return drawn
