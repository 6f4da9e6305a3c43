"""The page: templates filled with a report's texts, tables and figures. Everything from outside is escaped."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..version import __version__
from .drawing import Gallery, Plot
from .figures import (
    attack_gallery,
    cost_gallery,
    histogram_gallery,
    reconstruction_gallery,
    risk_gallery,
    roc_gallery,
)
from .opening import pair_opening, shadow_opening
from .pair_results import PairResults
from .reconstruction_images import Pictures
from .reconstruction_opening import reconstruction_opening
from .reconstruction_results import ReconstructionResults
from .reconstruction_tables import score_table, way_table
from .results import Results
from .shadow_results import ShadowResults
from .tables import attack_table, further_table, matrix, privacy_table, settings_table, stage_table
from .untested import not_tested
from .utility_figures import radar_gallery


@dataclass(frozen=True)
class Report:
    """A page, and the figures in it by their names."""

    html: str
    figures: tuple[tuple[str, Plot], ...]


@dataclass(frozen=True)
class _Drawn:
    """A gallery whose figures are SVG."""

    gallery: Gallery
    figures: tuple[Markup, ...]


def make_report(results: Results, *, pictures: Pictures | None = None) -> Report:
    """The report of any kind of results; the same results give the same bytes. `pictures` are for a reconstruction,
    whose page shows no image without them.
    """
    if isinstance(results, ReconstructionResults):
        return _reconstruction(results, pictures)
    return _shadow(results) if isinstance(results, ShadowResults) else _pair(results)


def _shadow(results: ShadowResults) -> Report:
    galleries = {
        "roc": roc_gallery(results, "linear"),
        "roc_log": roc_gallery(results, "log"),
        "histogram": histogram_gallery(results),
        "radar": radar_gallery(results),
        "risk": risk_gallery(results),
        "cost": cost_gallery(results),
    }
    return _render(
        "shadow.html.j2",
        galleries,
        results=results,
        opening=shadow_opening(results),
        matrix=matrix(results),
        privacy=privacy_table(results),
        further=further_table(results),
        settings=settings_table(results),
        stages=stage_table(results),
        untested=not_tested(results),
    )


def _pair(results: PairResults) -> Report:
    return _render(
        "pair.html.j2",
        {"attacks": attack_gallery(results)},
        results=results,
        opening=pair_opening(results),
        table=attack_table(results),
    )


def _reconstruction(results: ReconstructionResults, pictures: Pictures | None) -> Report:
    notes = list(results.notes)
    for model in results.models:
        notes += [f"{model.name}: {note}" for note in model.notes]
        notes += [f"{model.name}, {attack.name}: {note}" for attack in model.attacks for note in attack.notes]
    return _render(
        "reconstruction.html.j2",
        {"psnr": reconstruction_gallery(results)},
        results=results,
        opening=reconstruction_opening(results, images=pictures is not None),
        table=score_table(results),
        ways=way_table(results),
        tests=sum(len(model.attacks) for model in results.models),
        notes=tuple(notes),
        pictures=pictures,
    )


def _render(template: str, galleries: dict[str, Gallery], **content: Any) -> Report:
    templates = _templates()
    style = Markup(templates.get_template("report.css").render())
    html = templates.get_template(template).render(
        **content,
        **{key: _drawn(gallery) for key, gallery in galleries.items()},
        date=_readable(content["results"].date),
        style=style,
        style_digest=base64.b64encode(sha256(str(style).encode()).digest()).decode(),
        version=__version__,
    )
    return Report(html, _named(list(galleries.values())))


def _drawn(gallery: Gallery) -> _Drawn:
    # The SVG writer escapes every text in it; nothing else here is passed on unescaped.
    pairs = zip(gallery.names(), gallery.plots, strict=True)
    return _Drawn(gallery, tuple(Markup(plot.svg(name)) for name, plot in pairs))


def _named(galleries: Sequence[Gallery]) -> tuple[tuple[str, Plot], ...]:
    return tuple(pair for gallery in galleries for pair in zip(gallery.names(), gallery.plots, strict=True))


def _readable(date: str) -> str:
    """A date to the minute where it is one, else the text as it is.

    >>> _readable("2026-01-02T03:04:05+00:00")
    '2026-01-02 03:04 UTC'
    """
    try:
        found = datetime.fromisoformat(date)
    except ValueError:
        return date
    return f"{found:%Y-%m-%d %H:%M %Z}".strip()


def _unbroken(value: Any) -> Any:
    """Keep a number and its percent sign on one line."""
    return value.replace(" %", "\u00a0%") if type(value) is str else value


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("warp_unlearning", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_unbroken,
    )
