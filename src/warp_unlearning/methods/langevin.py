"""Noisy gradient descent on what is kept, after Langevin unlearning (Chien et al., 2024): a noise level, not a
guarantee (the level for a given ε is computed in `stats.langevin`).

The accounting behind `epsilon` assumes a strongly convex loss and a training that was noisy from the start. A deep
network has neither, so ε names how much noise is added, and nothing more.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import InputError, WarpWarning
from ..gradients.per_sample import clipped_mean_gradient
from ..linalg.subspace import global_norm
from ..stats.langevin import langevin_noise
from ..symmetry.moves import Move, compose
from ..training.stepper import Stepper
from ..training.update import Update, Updates
from .base import NormMode, Task, option, require
from .neg_grad_plus import Anchor


class NoiseWarning(WarpWarning):
    """The noise will drown the weights."""


@dataclass(frozen=True, kw_only=True)
class Langevin:
    """Projected noisy gradient descent on α (ℓ_retain + λ ‖θ − θ_p‖²) − (1 − α) ℓ_forget from the original weights θ_p:

        θ ← Π[θ − η g + √(2ησ²) N(0, I)],    g = α meanᵢ clip(∇ℓᵢ + 2λ(θ − θ_p)) − (1 − α) meanⱼ clip(∇ℓⱼ),

    with i over a retain batch and j over a forget batch. As the accounting demands, the gradient of each example is
    clipped to norm C = `clip`, for retain examples together with the pull λ = `pull` towards θ_p. Π scales the weights
    down to norm `radius` if they exceed it; without a radius it does nothing.

    σ is `noise`, or with `epsilon` what the accounting gives for η, C, strong convexity m = 2αλ, K = all steps, S = the
    size of the forget set, n = forget and retain. At small ε or for large forget sets that noise destroys a deep
    network, and a warning says so beforehand. The task's seed draws the noise, and deletion records hold that seed:
    whoever reads it can subtract the noise.
    """

    name: ClassVar[str] = "langevin"
    norm_mode: ClassVar[NormMode] = "eval"
    forgets: ClassVar[bool] = False
    adds_noise: ClassVar[bool] = True

    noise: float = option(1e-3, "σ: standard deviation of the noise before the factor √(2 lr)")
    epsilon: float | None = option(
        None, "noise by the closed form for this ε instead of `noise`; a label, not a guarantee"
    )
    delta: float | None = option(None, "δ of the closed form; 1/n unless given")
    alpha: float = option(0.95, "weight of the retain loss; 1 - alpha weighs the forget loss, which is ascended")
    clip: float = option(1.0, "C: norm to which each example's gradient is clipped")
    pull: float = option(0.5, "λ: weight of the squared distance to the original weights in the retain loss")
    radius: float | None = option(None, "norm of all weights beyond which a step is scaled back to it")
    lr: float = option(0.01, "step size η")
    epochs: int = option(3, "passes over the retain set")
    batch_size: int = option(128, "examples a batch")

    def __post_init__(self) -> None:
        require(self, positive=("epsilon", "delta", "clip", "lr", "radius"), shares=("alpha",))
        require(self, counts=("epochs", "batch_size"), not_negative=("noise", "pull"))
        convexity = 2 * self.alpha * self.pull
        if self.epsilon is not None and not 0 < self.lr * convexity <= 1:
            raise InputError(
                f"langevin: lr is {self.lr}, alpha {self.alpha} and pull {self.pull}; the accounting behind epsilon "
                "holds for 0 < 2 · lr · alpha · pull ≤ 1"
            )

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """Yield after every step: a clipped gradient, then noise, then the projection Π."""
        count = task.batch_count("retain", self.batch_size)
        total = self.epochs * count
        scale = sqrt(2 * self.lr) * self.noise_level(forget=len(task.forget), retain=len(task.retain), steps=total)
        _warn_if_drowned(model, scale * sqrt(total), self.epsilon)
        stepper = Stepper(model, momentum=0.0)
        anchor = Anchor(model)
        noise = _Noise(task.streams.generator("noise", device=stepper.parameters[0].device))
        forget = task.batches("forget", self.batch_size)
        for e in range(self.epochs):
            for i, retain in enumerate(task.batches("retain", self.batch_size, epoch=e), e * count + 1):
                pull = torch.autograd.grad(self.pull * anchor.distance_squared(model), stepper.parameters)
                beside = dict(zip(stepper.names, pull, strict=True))
                gradient, loss = clipped_mean_gradient(model, *retain, clip=self.clip, beside=beside)
                terms = {"retain": loss}
                if self.alpha < 1:
                    ascent, terms["forget"] = clipped_mean_gradient(model, *next(forget), clip=self.clip)
                    gradient = {n: self.alpha * g - (1 - self.alpha) * ascent[n] for n, g in gradient.items()}
                stepper.step_along(gradient, lr=self.lr)
                noise.add_to(stepper.names, stepper.parameters, scale)
                self._project(list[Tensor](stepper.parameters))
                move = yield Update(i, total, e, i == (e + 1) * count, terms)
                anchor.carry(move)
                noise.carry(move)

    @torch.no_grad()
    def _project(self, parameters: list[Tensor]) -> None:
        """Π: scale all weights down to norm `radius` where they exceed it."""
        if self.radius is not None:
            torch._foreach_mul_(parameters, (self.radius / global_norm(parameters)).clamp(max=1.0))

    def noise_level(self, *, forget: int, retain: int, steps: int) -> float:
        """σ: as given, or by the closed form for `epsilon`."""
        if self.epsilon is None:
            return self.noise
        return langevin_noise(
            self.epsilon,
            steps=steps,
            strong_convexity=2 * self.alpha * self.pull,
            step_size=self.lr,
            clip=self.clip,
            removed=forget,
            total=forget + retain,
            delta=self.delta,
        )


class _Noise:
    """Gaussian noise that follows permutations, so that each weight gets the same draw wherever moves have put it."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._move: Move | None = None

    @torch.no_grad()
    def add_to(self, names: list[str], parameters: list[nn.Parameter], scale: float) -> None:
        """Add to every weight a fresh draw of standard deviation `scale`."""
        for name, p in zip(names, parameters, strict=True):
            drawn = torch.randn(p.shape, generator=self._generator, device=p.device, dtype=p.dtype)
            if self._move is not None:
                drawn = self._move.selection(name, drawn)
            p.add_(drawn, alpha=scale)

    def carry(self, move: Move | None) -> None:
        """Let later draws follow this move too."""
        if move is not None:
            self._move = compose(self._move, move)


def _warn_if_drowned(model: nn.Module, spread: float, epsilon: float | None) -> None:
    """Warn where the noise of all steps, of standard deviation `spread`, exceeds half of a typical weight."""
    sizes = [float(p.detach().square().mean().sqrt()) for p in model.parameters() if p.dim() > 1]
    typical = sorted(sizes)[len(sizes) // 2] if sizes else 1.0
    if spread > 0.5 * typical:
        cause = f"epsilon={epsilon} asks for" if epsilon is not None else "`noise` amounts to"
        warnings.warn(
            f"langevin: {cause} noise of standard deviation {spread:.3g} over all steps, where a typical weight is "
            f"{typical:.3g}; the model will not stay usable. Raise epsilon, "
            "forget fewer examples, lower clip, or set a smaller noise",
            NoiseWarning,
            stacklevel=2,
        )
