"""*Update alignment*: does the difference of two models point along the gradient of an example's loss?

score(x) = cos(θ_u − θ_org, ∇ℓ(x; θ_org)). It is positive where the update raised the loss of x, to first order: for
examples that were forgotten. The difference may be one that a pre-step has cleaned (`attacks.undo`); all differences
of one original share one pass over the candidates' gradients, which are never held for more than a chunk of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...errors import DataError, InputError
from ..undo.base import Weights
from ..undo.channels import kernel_directions
from ..undo.probes import single_gradients

# Numbers in a chunk of gradients; a GPU needs large ones to be busy.
_CHUNK = 2**27
_CHUNK_ELSEWHERE = 2**30
_MOST = 128


def update_alignment(
    original: nn.Module,
    differences: Mapping[str, Weights],
    *,
    candidates: tuple[Tensor, Tensor],
    by_kernel: Collection[str] = (),
    float64: bool = False,
) -> dict[str, NDArray[np.float64]]:
    """One score in [−1, 1] for every candidate (x, y) and each difference, by the difference's name; 0 where the
    gradient or the difference is zero.

    `differences` hold θ_u − θ_org for parameters of the original. A tensor that one leaves out, or where it is zero
    throughout, is not compared: gradients count by what they are in the others. For differences named in `by_kernel`
    the score is the mean cosine over kernels (of a convolution; single numbers elsewhere), which scales of channels do
    not change; kernels of zeros are not compared. The original is taken in eval mode, on its device; `float64` computes
    the gradients in that precision.
    """
    _check(original, differences, candidates, by_kernel)
    model = deepcopy(original).eval()
    model = model.double() if float64 else model
    for p in model.parameters():
        p.requires_grad_(p.is_floating_point())
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    first = next(iter(named.values()))
    alignment = Alignment(named, differences, by_kernel=by_kernel)
    x, y = (t.to(first.device) for t in candidates)
    x = x.to(first.dtype) if x.is_floating_point() else x
    chunk = _CHUNK if x.device.type == "cpu" else _CHUNK_ELSEWHERE
    size = max(1, min(_MOST, chunk // sum(p.numel() for p in named.values())))
    for some_x, some_y in zip(torch.split(x, size), torch.split(y, size), strict=True):
        alignment.add(single_gradients(model, some_x, some_y))
    return alignment.scores()


class Alignment:
    """Scores of candidates whose gradients are shown a few at a time.

    `named` are the parameters that gradients are taken of; differences and `by_kernel` are those of `update_alignment`.
    """

    def __init__(
        self, named: Mapping[str, Tensor], differences: Mapping[str, Weights], *, by_kernel: Collection[str] = ()
    ) -> None:
        self._shapes = {name: p.shape for name, p in named.items()}
        self._names = list(differences)
        whole = _Stack({n: d for n, d in differences.items() if n not in by_kernel}, named, by_kernel=False)
        apart = _Stack({n: d for n, d in differences.items() if n in by_kernel}, named, by_kernel=True)
        self._stacks = (whole, apart)
        self._parts: list[dict[str, Tensor]] = []

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """The next candidates, (points, *parameter) by name."""
        whole, apart = self._stacks
        self._parts.append(whole.scores(gradients) | apart.scores(gradients))

    def add_rows(self, rows: Tensor) -> None:
        """The next candidates as rows (points, d) of all parameters, flattened one after the other."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        parts = zip(self._shapes.items(), torch.split(rows, sizes, 1), strict=True)
        self.add({name: part.view(len(part), *shape) for (name, shape), part in parts})

    def scores(self) -> dict[str, NDArray[np.float64]]:
        """The scores of all candidates so far, by the name of the difference."""
        return {name: torch.cat([part[name] for part in self._parts]).cpu().numpy() for name in self._names}


class _Stack:
    """Several differences side by side: by parameter a matrix (numbers, differences), its columns of unit length over
    all parameters (or of kernels' directions over their number), and which of them are compared there.
    """

    def __init__(self, differences: Mapping[str, Weights], named: Mapping[str, Tensor], *, by_kernel: bool) -> None:
        self._names, self._by_kernel = list(differences), by_kernel
        self._columns: dict[str, Tensor] = {}
        self._compared: dict[str, Tensor] = {}
        if not self._names:
            return
        stacked: dict[str, Tensor] = {}
        for name, p in named.items():
            given = [differences[key].get(name, torch.zeros_like(p)).to(p.device).double() for key in self._names]
            if by_kernel:
                given = [kernel_directions(value, p.dim()) for value in given]
            stacked[name] = torch.stack([value.flatten() for value in given], dim=1)
        total = torch.stack([columns.square().sum(0) for columns in stacked.values()]).sum(0)
        # By kernel the sum of squares is the number of kernels that are compared.
        size = (total if by_kernel else total.sqrt()).clamp(min=1e-300)
        # At unit length no difference is too short for the precision of the gradients.
        self._columns = {name: (columns / size).to(named[name].dtype) for name, columns in stacked.items()}
        self._compared = {name: (columns != 0).any(0) for name, columns in stacked.items()}

    def scores(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Scores (points,) of a chunk, by the name of the difference."""
        if not self._names:
            return {}
        dots, energies = [], []
        for name, columns in self._columns.items():
            g = kernel_directions(gradients[name], gradients[name].dim() - 1) if self._by_kernel else gradients[name]
            flat = g.flatten(1)
            dots.append((flat @ columns).double())
            energies.append(
                torch.linalg.vector_norm(flat, dim=1, keepdim=True).double().square() * self._compared[name]
            )
        found = torch.stack(dots).sum(0)
        if not self._by_kernel:
            found = found / torch.stack(energies).sum(0).sqrt().clamp(min=1e-300)
        return {name: found[:, i] for i, name in enumerate(self._names)}


def _check(
    original: nn.Module,
    differences: Mapping[str, Weights],
    candidates: tuple[Tensor, Tensor],
    by_kernel: Collection[str],
) -> None:
    x, y = candidates
    if len(x) == 0 or len(x) != len(y):
        raise DataError(f"the candidates are {len(x)} inputs and {len(y)} labels; give as many of both, at least one")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise DataError("the candidates hold NaN or infinity; remove or repair those examples")
    if not differences:
        raise InputError("there is no difference to align with; give at least one, by name")
    stray = sorted(set(by_kernel) - set(differences))
    if stray:
        raise InputError(f"by_kernel names {stray[0]!r}, which is none of the differences {', '.join(differences)}")
    shapes = {name: p.shape for name, p in original.named_parameters()}
    for key, weights in differences.items():
        for name, value in weights.items():
            if shapes.get(name) != value.shape:
                own = f"shape {tuple(shapes[name])}" if name in shapes else "no such parameter"
                raise InputError(
                    f"the difference {key!r} has {name!r} of shape {tuple(value.shape)}, and the original has {own}; "
                    "give differences of its parameters"
                )
            if not bool(value.isfinite().all()):
                raise InputError(f"{name!r} of the difference {key!r} holds NaN or infinity")
