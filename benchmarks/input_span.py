"""Attackers on null-space moves: the part of an update that lies where a gradient can.

The gradient of a linear layer's weight is a combination of the layer's inputs, so it lies where inputs have energy; a
null-space move lies where they have least. Both attackers take the eigenvectors of each layer's inputs on probe points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from channel_factors import Weights
from torch import Tensor, nn

from warp_unlearning.symmetry.layer_inputs import input_second_moments

# Chosen on models of the seeds 100 and 101, out of 0.9, 0.95, 0.98, 0.99 and 0.995.
SPAN = 0.9


@dataclass(frozen=True, eq=False)
class InputSpectrum:
    """Of one weight (out, d): the eigenvectors of its inputs in the columns of (d, d), the energy of the inputs along
    each, leading ones first, and the mean energy of probe points' unit gradients along each.
    """

    vectors: Tensor
    inputs: Tensor
    gradients: Tensor

    def leading(self, energy: float) -> Tensor:
        """Bool (d,): the fewest directions that hold so much of the inputs' energy."""
        before = self.inputs.cumsum(0) - self.inputs
        return before < energy * self.inputs.sum()


def input_spectra(model: nn.Module, x: Tensor, gradients: Weights) -> dict[str, InputSpectrum]:
    """The spectrum of every linear weight on the probe points x; `gradients` (points, *shape) are of unit length."""
    spectra = {}
    for name, moment in input_second_moments(model, [x]).items():
        values, vectors = torch.linalg.eigh(moment)
        vectors = vectors.flip(1)
        along = (gradients[name].flatten(2) if gradients[name].dim() > 2 else gradients[name]) @ vectors
        spectra[name] = InputSpectrum(vectors, values.flip(0).clamp(min=0), along.square().sum(1).mean(0))
    return spectra


def onto_span(spectra: Mapping[str, InputSpectrum], delta: Weights) -> dict[str, Tensor]:
    """The difference of each weight projected on the directions that hold `SPAN` of its inputs' energy."""
    return _shrunk(
        delta,
        {name: s.vectors for name, s in spectra.items()},
        {name: s.leading(SPAN).double() for name, s in spectra.items()},
    )


def filtered(spectra: Mapping[str, InputSpectrum], delta: Weights) -> dict[str, Tensor]:
    """The difference of each weight shrunk in every direction to the energy that a gradient has there.

    With o the energy of the difference along a direction and a·s what a gradient has there on average, a being read off
    the leading directions, o = a·s + noise, and the coefficient of Wiener's filter is a·s / o, at most 1. It needs
    no knowledge of how much of the inputs' energy the defender protects.
    """
    seen = {name: (delta[name].flatten(1) @ s.vectors).square().sum(0) for name, s in spectra.items()}
    leading = {name: s.leading(SPAN) for name, s in spectra.items()}
    scale = sum(float(seen[n][k].sum()) for n, k in leading.items()) / sum(
        float(spectra[n].gradients[k].sum()) for n, k in leading.items()
    )
    shares = {n: (scale * s.gradients / seen[n].clamp(min=1e-300)).clamp(max=1) for n, s in spectra.items()}
    return _shrunk(delta, {name: s.vectors for name, s in spectra.items()}, shares)


def _shrunk(delta: Weights, vectors: Weights, shares: Weights) -> dict[str, Tensor]:
    found = dict(delta)
    for name, basis in vectors.items():
        rows = delta[name].flatten(1)
        found[name] = (rows @ basis * shares[name] @ basis.mT).reshape(delta[name].shape)
    return found
