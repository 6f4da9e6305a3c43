"""Studies by name, and the one function that renders any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ...errors import InputError, nearest
from . import (
    adaptive,
    fastwarp,
    langevin,
    radar,
    reconstruction,
    risk_vs_norm,
    runtime,
    sensitivity,
    table1,
    tradeoff,
    whitebox,
)
from .rendered import Rendered


class Renderer(Protocol):
    """From the results of a study to its section."""

    def __call__(self, results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
        """Markdown whose links to figures start with `folder`, and the figures."""


STUDIES: Mapping[str, Renderer] = {
    "table1": table1.render,
    "whitebox": whitebox.render,
    "radar": radar.render,
    "risk-vs-norm": risk_vs_norm.render,
    "runtime": runtime.render,
    "fastwarp": fastwarp.render,
    "langevin": langevin.render,
    "tradeoff": tradeoff.render,
    "sensitivity": sensitivity.render,
    "reconstruction": reconstruction.render,
    "adaptive": adaptive.render,
}


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """The section of the study that the results name."""
    name = results.get("study")
    if not isinstance(name, str) or name not in STUDIES:
        raise InputError(f"unknown study {name!r}; {nearest(str(name), STUDIES)}")
    return STUDIES[name](results, folder=folder)
