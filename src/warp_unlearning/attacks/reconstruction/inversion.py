"""Gradient inversion: the image whose gradient points where the difference does (Geiping et al., 2020).

Minimises 1 − cos(∇θ ℓ(x, y), t) + tv · TV(x) over all parameters at once by signed Adam, pixels kept in [0, 1].
"""

from __future__ import annotations

from .descent import descend
from .problem import Candidates, Problem, Search, smoothness


def invert(problem: Problem, search: Search) -> Candidates:
    """An image for every target and restart."""
    found = descend(
        {"image": problem.image_variable(search)},
        lambda values: problem.matching(values["image"], values) + smoothness(values["image"], search),
        iterations=search.iterations,
        watch=problem.watch,
    )
    images = found.values["image"]
    return problem.candidates(images, found.losses - smoothness(images, search))
