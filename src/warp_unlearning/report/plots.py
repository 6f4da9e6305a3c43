"""A figure of the report: drawn into the page as SVG, and into files as PNG and PDF."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.figure import Figure

from .style import house_style
from .svg import inline_svg

Form = Literal["png", "pdf"]
_METADATA: dict[Form, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Plot:
    """`draw` is called in the house style and returns the figure; `description` says in words what it shows."""

    title: str
    description: str
    draw: Callable[[], Figure]

    def svg(self, name: str) -> str:
        """For the page, where `name` is unique."""
        with house_style():
            return inline_svg(self.draw(), name=name, title=self.title, description=self.description)

    def file(self, form: Form) -> bytes:
        """For a file; the same bytes each time."""
        buffer = io.BytesIO()
        with house_style():
            self.draw().savefig(buffer, format=form, dpi=200, metadata=_METADATA[form])
        return buffer.getvalue()


@dataclass(frozen=True)
class Gallery:
    """Figures of one kind. `name`, of letters and hyphens, is unique in the report."""

    name: str
    heading: str
    text: str
    plots: tuple[Plot, ...]

    def names(self) -> tuple[str, ...]:
        """A name for each figure, of lower-case letters, digits and hyphens whatever its title holds."""
        return tuple(
            "-".join(part for part in (self.name, f"{number:02d}", _slug(plot.title)) if part)
            for number, plot in enumerate(self.plots, 1)
        )


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower())[:40].strip("-")
