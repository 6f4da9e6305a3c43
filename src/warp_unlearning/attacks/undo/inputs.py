"""Pre-steps that use what enters the layers: *span*, *filter* and *input-layer*.

A layer computes W p + b, so the gradient of [W b] is a combination of inputs [p; 1] and lies where inputs have energy;
a null-space move lies where they have least. The inputs are those of the attacker's probes.

The inputs of a network are pinned. So whatever a change of basis does to an update, a row [ΔW_i Δb_i] of a first layer
is multiplied by one number. In a fully connected first layer a single example has ΔW_i = δ_i xᵀ and Δb_i = δ_i, and
ΔW_i / Δb_i is the example itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import DataError, InputError
from ...linalg.subspace import SecondMoment, rank_for
from ...symmetry.layer_inputs import LinearWeight, linear_weights, observe
from .base import Held, NotApplicable, Undo, Weights, at_length_of, cleaning, difference
from .channels import over_taps
from .probes import ProbeGradients

# Products that the second moment of a layer's inputs may take. Beyond that a sample of them is used, but of no fewer
# than half their dimensions.
MOST_PRODUCTS = 2**35
_BATCH = 64
# The energy of the directions from which *filter* reads the size of the update.
_LEADING = 0.9


@dataclass(frozen=True, eq=False)
class InputSpectrum:
    """The inputs of one weight, and of the bias that goes with it: for each group of the layer eigenvectors of their
    second moment in the columns of (d, k), leading ones first, and the energy along each, (k,). Where there is a bias,
    the constant input 1 is the last of the d coordinates.
    """

    weight: str
    bias: str | None
    vectors: tuple[Tensor, ...]
    energies: tuple[Tensor, ...]

    def ranks(self, energy: float) -> tuple[int, ...]:
        """For each group the fewest directions that hold so much of the inputs' energy; 1 means the numerical rank."""
        return tuple(int(rank_for(values, energy)) for values in self.energies)

    def rows(self, values: Weights, *, points: int = 1) -> Tensor:
        """[W b] as rows (groups, rows, d); with `points` of a stack, (groups, points · rows, d)."""
        width = len(self.vectors[0]) - (self.bias is not None)
        stacked = values[self.weight].reshape(points, len(self.vectors), -1, width)
        if self.bias is not None:
            bias = values[self.bias].reshape(*stacked.shape[:3], 1)
            stacked = torch.cat([stacked, bias.to(stacked.dtype)], dim=3)
        return stacked.transpose(0, 1).flatten(1, 2)

    def parameters(self, rows: Tensor, like: Weights) -> dict[str, Tensor]:
        """The weight and the bias of rows (groups, rows, d)."""
        if self.bias is None:
            return {self.weight: rows.reshape(like[self.weight].shape)}
        parts = {self.weight: rows[..., :-1], self.bias: rows[..., -1]}
        return {name: part.reshape(like[name].shape) for name, part in parts.items()}


def input_spectra(held: Held) -> list[InputSpectrum]:
    """The spectrum of every linear weight that the probes reach, in float64."""
    moments: dict[str, SecondMoment] = {}
    weights = {weight.name: weight for weight in linear_weights(held.model)}
    # The sample of inputs is no secret, and the same each time.
    generator = torch.Generator().manual_seed(0)
    batches = torch.split(held.x, _BATCH)

    def record(weight: LinearWeight, columns: Tensor) -> None:
        d, positions = columns.shape[1:]
        most = max(1, max(MOST_PRODUCTS // d**2, d // 2) // len(batches))
        if positions > most:
            columns = columns[:, :, torch.randperm(positions, generator=generator)[:most].to(columns.device)]
        moments.setdefault(weight.name, SecondMoment(torch.float64)).add(columns)

    observe(held.model, batches, weights.values(), record)
    if not moments:
        kind = type(held.original).__name__
        raise NotApplicable(f"{kind} has no Linear or convolution layer that the probes reach")
    return [_spectrum(weights[name], moments.pop(name)) for name in list(moments)]


def _spectrum(weight: LinearWeight, moment: SecondMoment) -> InputSpectrum:
    if not bool(moment.energy.isfinite().all()):
        raise DataError(
            f"inputs of the layer of {weight.name} hold NaN or infinity; check the examples and the weights"
        )
    found = moment.leading(1.0)
    vectors = tuple(basis[:, :rank] for basis, rank in zip(found.basis, found.ranks, strict=True))
    energies = tuple(values[:rank] for values, rank in zip(found.energies, found.ranks, strict=True))
    return InputSpectrum(weight.name, weight.bias, vectors, energies)


@dataclass(frozen=True)
class Span:
    """Δ[W b] of every linear layer is projected on the leading directions B of its inputs, those that hold `energy` of
    them: Δ B Bᵀ. A null-space move has no component there. Other parameters stay as they are.

    The default was chosen on other networks than those of the reported numbers, out of 0.9, 0.95, 0.98, 0.99 and 0.995.
    """

    name: ClassVar[str] = "span"

    energy: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.energy <= 1:
            raise InputError(f"the energy of the span is {self.energy}; it must be above 0 and at most 1")

    def prepared(self, held: Held) -> Undo:
        """Decompose the inputs of every layer."""
        spectra = held.once(input_spectra)

        def clean(delta: dict[str, Tensor]) -> dict[str, Tensor]:
            found: dict[str, Tensor] = {}
            for spectrum in spectra:
                bases = [v[:, :k] for v, k in zip(spectrum.vectors, spectrum.ranks(self.energy), strict=True)]
                rows = [part @ basis @ basis.mT for part, basis in zip(spectrum.rows(delta), bases, strict=True)]
                found |= spectrum.parameters(torch.stack(rows), delta)
            return found

        return cleaning(held, clean)


@dataclass(frozen=True)
class WienerFilter:
    """Δ[W b] of every linear layer, each direction of its inputs times a·s / o, at most 1; all that lies beside these
    directions counts as one. Other parameters stay as they are.

    o is the energy of the difference along a direction, s what a probe's gradient has there on average, and a·s / o the
    coefficient of Wiener's filter, since o = a·s + noise. a comes from the leading directions of all layers. The filter
    needs no knowledge of how much of the inputs' energy a defender protects.
    """

    name: ClassVar[str] = "filter"

    def prepared(self, held: Held) -> Undo:
        """Decompose the inputs of every layer, and measure probe gradients along them."""
        spectra, expected = held.once(input_spectra), held.once(gradient_energies)
        return cleaning(held, lambda delta: _filtered(spectra, expected, delta))


def gradient_energies(held: Held) -> dict[str, list[Tensor]]:
    """The mean energy of the probes' unit gradients along the directions of every weight's inputs, and beside them all
    as a last number, by group.
    """
    spectra, gradients = held.once(input_spectra), held.once(ProbeGradients)
    means = {s.weight: [vectors.new_zeros(vectors.shape[1] + 1) for vectors in s.vectors] for s in spectra}
    for chunk in gradients:
        for s in spectra:
            found = _energies(s, s.rows(chunk, points=len(chunk[s.weight])))
            means[s.weight] = [m + e / len(gradients) for m, e in zip(means[s.weight], found, strict=True)]
    return means


def _energies(spectrum: InputSpectrum, rows: Tensor) -> list[Tensor]:
    found = []
    for part, vectors in zip(rows, spectrum.vectors, strict=True):
        along = (part @ vectors.to(part.dtype)).square().sum(0).double()
        whole = part.square().sum().double()
        # What is left by subtraction is rounding error where the vectors span everything that gradients reach.
        beside = (whole - along.sum()).clamp(min=0)
        found.append(torch.cat([along, torch.where(beside > 1e-6 * whole, beside, 0.0)[None]]))
    return found


def _filtered(spectra: list[InputSpectrum], expected: dict[str, list[Tensor]], delta: Weights) -> dict[str, Tensor]:
    seen = {s.weight: _energies(s, s.rows(delta)) for s in spectra}
    size = _leading_energy(spectra, seen) / _leading_energy(spectra, expected)
    found: dict[str, Tensor] = {}
    for s in spectra:
        rows = []
        for part, vectors, e, o in zip(s.rows(delta), s.vectors, expected[s.weight], seen[s.weight], strict=True):
            share = (size * e / o.clamp(min=1e-300)).clamp(max=1)
            along = part @ vectors
            beside = part - along @ vectors.mT
            rows.append((along * share[:-1]) @ vectors.mT + beside * share[-1])
        found |= s.parameters(torch.stack(rows), delta)
    return found


def _leading_energy(spectra: list[InputSpectrum], energies: dict[str, list[Tensor]]) -> Tensor:
    parts = [e[:k].sum() for s in spectra for e, k in zip(energies[s.weight], s.ranks(_LEADING), strict=True)]
    return torch.stack(parts).sum().clamp(min=1e-300)


@dataclass(frozen=True)
class InputLayer:
    """Rows [ΔW_i Δb_i] of the first layers at one length for all, so that together they are as long as they were; rows
    of zeros stay, and all other parameters are those of the original.
    """

    name: ClassVar[str] = "input-layer"

    def prepared(self, held: Held) -> Undo:
        """Find the layers that read the input."""
        first = held.once(first_layers)

        def clean(delta: dict[str, Tensor]) -> dict[str, Tensor]:
            rows: dict[str, Tensor] = {}
            for weight in first:
                rows |= _unit_rows(weight, delta)
            aligned = at_length_of(rows, {name: delta[name] for name in rows})
            return {name: aligned.get(name, torch.zeros_like(value)) for name, value in delta.items()}

        return cleaning(held, clean)


def first_layers(held: Held) -> list[LinearWeight]:
    """Linear weights that no other weights lie before: everything between the input and their layers is fixed."""
    after: dict[nn.Module, bool] = {}

    def note(layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        x = args[0] if args else next(iter(named.values()))
        after[layer] = after.get(layer, False) or x.requires_grad

    weights = list(linear_weights(held.model))
    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for w in weights for m in w.layers]
    try:
        # A tensor that depends on a trainable weight is one that autograd follows.
        with torch.enable_grad():
            held.model(held.x[:1])
    finally:
        for handle in handles:
            handle.remove()
    found = [w for w in weights if all(after.get(layer) is False for layer in w.layers)]
    if not found:
        raise NotApplicable(f"no Linear, Conv1d or Conv2d layer of {type(held.original).__name__} reads its input")
    return found


def implied_inputs(held: Held, state: Weights) -> dict[str, Tensor]:
    """ΔW_i / Δb_i for every row of each fully connected first layer with a bias, (rows, d) by weight name; NaN in rows
    whose bias did not change.

    After an update on one example each row is that example, in the form in which it enters the layer.
    """
    delta = difference(held.model, state)
    found = {}
    for weight in held.once(first_layers):
        if weight.bias is not None and isinstance(weight.layers[0], nn.Linear):
            moved = delta[weight.bias].unsqueeze(1)
            found[weight.name] = torch.where(moved == 0, torch.nan, delta[weight.name] / moved)
    if not found:
        raise NotApplicable(f"{type(held.original).__name__} has no fully connected first layer with a bias")
    return found


def _unit_rows(weight: LinearWeight, delta: Weights) -> dict[str, Tensor]:
    names = [weight.name] if weight.bias is None else [weight.name, weight.bias]
    energy = torch.stack([delta[name].reshape(len(delta[name]), -1).square().sum(1) for name in names]).sum(0)
    factors = energy.sqrt().clamp(min=1e-300).reciprocal()
    return {name: delta[name] * over_taps(factors, delta[name]) for name in names}
