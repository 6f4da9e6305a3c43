"""nᵢ = Σₜₜ' Kₜₜ' Γₜₜ': K are inner products of patches, Γ those of output gradients, tap by tap.

Patches are never laid out. Tap δ of the patch at t lies at the input position s(t, δ), so K is a sum over taps of cuts
of the inner products A of input positions: Kₜₜ' = Σ_δ A[s(t, δ), s(t', δ)]. With S the sum of the cuts of Γ pasted back
to where those of A came from, ∂n/∂a = 2·a·S and ∂n/∂G = 2·G·K. Nothing is kept, which suits a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from torch import Tensor

from .geometry import Geometry
from .kernel_contraction import Kept, KernelContraction, Size

Cut = tuple[slice, ...]


class Gram(KernelContraction):
    """By inner products of positions; the cost is counted in multiplications."""

    # 4 MiB in float32, which caches hold.
    chunk = 2**20

    def cost(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """Those of A, Γ and the sum over taps."""
        taps = geometry.size[0] * geometry.size[1]
        within, without = inputs[0] * inputs[1], outputs[0] * outputs[1]
        return within**2 * geometry.width + without**2 * (geometry.out + taps)

    def numbers(self, inputs: Size, outputs: Size, geometry: Geometry) -> int:
        """Those in A and Γ."""
        return (inputs[0] * inputs[1]) ** 2 + (outputs[0] * outputs[1]) ** 2

    def norms(self, a: Tensor, g: Tensor, geometry: Geometry, *, wants_a: bool, wants_g: bool) -> tuple[Tensor, Kept]:
        """Nothing is kept."""
        return (_patch_products(a, g, geometry) * _products(g)).flatten(1).sum(1), ()

    def pullbacks(
        self, a: Tensor, g: Tensor, kept: Kept, twice: Tensor, geometry: Geometry, *, wants_a: bool
    ) -> tuple[Tensor | None, Tensor]:
        """With K and Γ computed again."""
        twice = twice.view(-1, 1, 1)
        for_g = (g.flatten(2) @ (_square(_patch_products(a, g, geometry)) * twice)).reshape(g.shape)
        if not wants_a:
            return None, for_g
        between_outputs = _products(g)
        pasted = a.new_zeros(len(a), *a.shape[2:], *a.shape[2:])
        for into, out_of in _cuts(a, g, geometry):
            pasted[out_of].add_(between_outputs[into])
        return (a.flatten(2) @ (_square(pasted) * twice)).reshape(a.shape), for_g


def _patch_products(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """K, shape (n, *output, *output)."""
    between_inputs = _products(a)
    total = g.new_zeros(len(g), *g.shape[2:], *g.shape[2:])
    for into, out_of in _cuts(a, g, geometry):
        total[into].add_(between_inputs[out_of])
    return total


def _products(x: Tensor) -> Tensor:
    """Inner products over channels between positions, shape (n, height, width, height, width)."""
    rows = x.flatten(2)
    return (rows.mT @ rows).reshape(len(x), *x.shape[2:], *x.shape[2:])


def _square(products: Tensor) -> Tensor:
    return products.flatten(3).flatten(1, 2)


def _cuts(a: Tensor, g: Tensor, geometry: Geometry) -> Iterator[tuple[Cut, Cut]]:
    """For every tap the outputs that have it inside the image, and the inputs it lies at, as cuts of the products."""
    whole = slice(None)
    for taps in product(range(geometry.size[0]), range(geometry.size[1])):
        pairs = [_cut(a.shape[2 + k], g.shape[2 + k], geometry, k, tap) for k, tap in enumerate(taps)]
        into, out_of = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
        yield (whole, *into, *into), (whole, *out_of, *out_of)


def _cut(inputs: int, outputs: int, geometry: Geometry, axis: int, tap: int) -> tuple[slice, slice]:
    stride, offset = geometry.stride[axis], tap * geometry.dilation[axis] - geometry.padding[axis]
    first = max(0, -(offset // stride))
    after = max(first, min(outputs, (inputs - 1 - offset) // stride + 1))
    start = first * stride + offset
    reach = (after - first - 1) * stride + 1 if after > first else 0
    return slice(first, after), slice(start, start + reach, stride)
