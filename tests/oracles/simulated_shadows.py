"""Shadow experiments drawn from a law whose leak is known: to check an audit, or to see what one could find.

For model m of shadow s and point p, in units of the point's own spread σ_p,

    score = μ_p + σ_p (a·A_s + √ρ·U_sp + √(1−ρ)·E_mp + shift),    A, U, E standard normal,

shift 0 for a point never seen, `signal`·w_p for one forgotten and `memorised`·w_p for one retained. ρ is the
correlation of siblings, a (`shadow_effect`) moves all points of a shadow together, w_p is log-normal with mean 1 and
log-standard-deviation `tail`: with a large one a few points hold most of the leak. U of complementary shadows has the
correlation `complement_correlation`: what one learns the other lacks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warp_unlearning.attacks.membership.shadow_design import ShadowDesign, shadow_design

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ShadowLaw:
    """What a simulated experiment is drawn from."""

    points: int = 300
    shadows: int = 16
    forget_sets: int = 4
    share: float = 1.0
    sibling_correlation: float = 0.5
    complement_correlation: float = 0.0
    shadow_effect: float = 0.0
    signal: float = 0.0
    memorised: float = 2.0
    tail: float = 0.0
    scale_spread: float = 0.3


@dataclass(frozen=True, eq=False)
class SimulatedShadows:
    """`scores`: shape (models, points), models as in the design; `original_scores`: shape (shadows, points)."""

    design: ShadowDesign
    scores: Floats
    original_scores: Floats


def simulate_shadows(law: ShadowLaw, generator: np.random.Generator) -> SimulatedShadows:
    """One experiment: points, design and noise are all drawn from the generator."""
    design = shadow_design(
        law.points, shadows=law.shadows, forget_sets=law.forget_sets, share=law.share, generator=generator
    )
    centre = generator.normal(2.0, 2.0, law.points)
    spread = np.exp(law.scale_spread * generator.normal(size=law.points))
    weight = np.exp(law.tail * generator.normal(size=law.points) - law.tail**2 / 2)
    together = law.shadow_effect * generator.normal(size=(law.shadows, 1))
    common = generator.normal(size=(law.shadows, law.points))
    common[1::2] *= np.sqrt(1 - law.complement_correlation**2)
    common[1::2] += law.complement_correlation * common[::2]
    shared = together + np.sqrt(law.sibling_correlation) * common
    own = np.sqrt(1 - law.sibling_correlation)

    original = shared + own * generator.normal(size=shared.shape) + law.memorised * weight * design.trained
    noise = own * generator.normal(size=(len(design.groups), law.points))
    shift = weight * (law.signal * design.forgotten + law.memorised * design.retained)
    return SimulatedShadows(
        design, centre + spread * (shared[design.groups] + noise + shift), centre + spread * original
    )
