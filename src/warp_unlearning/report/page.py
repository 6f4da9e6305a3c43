"""The page: templates filled with a report's texts, tables and figures. Everything from outside is escaped."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..data.files import write_atomically
from ..errors import DataError, InputError
from ..version import __version__
from .drawing import Form, Gallery, Plot
from .figures import (
    arms_plot,
    attack_gallery,
    cost_gallery,
    histogram_gallery,
    reconstruction_gallery,
    risk_gallery,
    roc_gallery,
)
from .images import Pictures, read_pictures
from .opening import not_tested, pair_opening, reconstruction_opening, shadow_opening
from .read import Results, read, results_file
from .schema import Pair, Reconstruction
from .schema_shadow import Shadow
from .tables import (
    attack_table,
    further_table,
    matrix,
    pair_tiles,
    privacy_table,
    reconstruction_tiles,
    score_table,
    settings_table,
    shadow_tiles,
    stage_table,
    way_table,
)
from .utility_figures import radar_gallery
from .words import Pairs, flat

FORMS: tuple[Form, ...] = ("png", "pdf")


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


@dataclass(frozen=True)
class WrittenReport:
    """Where the page is, and the figures."""

    page: Path
    figures: tuple[Path, ...]


def write_report(
    results: Path, *, out: Path | None = None, figures: Path | None = None, images: bool = False
) -> WrittenReport:
    """Write the page to `out`, by default beside the results with the ending .html, and its figures as PNG and PDF
    into the folder `figures` where one is given. Files appear whole or not at all, readable by their owner alone.

    With `images` the page of a reconstruction shows what was forgotten and what attacks made of it; its name then ends
    in -with-images.html, so that it is not taken for the one to share.
    """
    source = results_file(results)
    page = source.with_name(f"{source.stem}{'-with-images' if images else ''}.html") if out is None else out
    if page.is_dir():
        raise InputError(f"{page} is a folder; name a file for the report, such as {page / 'report.html'}")
    if page.resolve() == source.resolve():
        raise InputError(f"{page} is the results file itself; name another file for the report, ending in .html")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise InputError(f"{figures} is a file; name a folder for the figures")
    report = _made(read(source), source.parent, images)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, report.html.encode())
    return WrittenReport(page, () if figures is None else _write_figures(report, figures))


def make_report(results: Results, *, pictures: Pictures | None = None) -> Report:
    """The report of any kind of results; the same results give the same bytes. `pictures` are for a reconstruction,
    whose page shows no image without them.
    """
    if isinstance(results, Reconstruction):
        return _reconstruction(results, pictures)
    if isinstance(results, Shadow):
        return _shadow(results)
    if isinstance(results, Pair):
        return _pair(results)
    command = "reproduce" if results.kind == "study" else results.kind
    raise InputError(
        f"results.json is a result of `warp {command}`, of which there is no page; `warp report` is for an audit, a "
        "study of arms or a reconstruction: `warp audit pair BEFORE AFTER --out FOLDER` makes what is reported"
    )


def _made(results: Results, folder: Path, images: bool) -> Report:
    if not images:
        return make_report(results)
    if not isinstance(results, Reconstruction):
        raise InputError(f"the results are those of a {results.kind} audit, which has no images; leave out --images")
    return make_report(results, pictures=read_pictures(results, folder))


def _write_figures(report: Report, folder: Path) -> tuple[Path, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, plot in report.figures:
        for form in FORMS:
            path = folder / f"{name}.{form}"
            write_atomically(path, plot.file(form))
            written.append(path)
    return tuple(written)


def _shadow(results: Shadow) -> Report:
    galleries = {
        "first": _first(arms_plot("AUC of every way, alone and defended", results.arms)),
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
        tiles=shadow_tiles(results),
        matrix=matrix(results),
        privacy=privacy_table(results),
        further=further_table(results),
        settings=settings_table(results),
        stages=stage_table(results),
        failures=[(failure.job, failure.reason) for failure in results.failures],
        untested=not_tested(results),
    )


def _pair(results: Pair) -> Report:
    if not results.rows:
        raise DataError("the audit compares no row, as no unseen row has a class of the forgotten ones")
    return _render(
        "pair.html.j2",
        {"first": attack_gallery(results)},
        results=results,
        opening=pair_opening(results),
        tiles=pair_tiles(results),
        counts=_numbered(results.counts),
        level=results.verdict.level,
        table=attack_table(results),
    )


def _reconstruction(results: Reconstruction, pictures: Pictures | None) -> Report:
    every = reconstruction_gallery(results)
    first, others = (
        replace(every, name=n, plots=p) for n, p in (("first", every.plots[:1]), ("psnr", every.plots[1:]))
    )
    notes = list(results.notes)
    for model in results.models:
        notes += [f"{model.name}: {note}" for note in model.notes]
        notes += [f"{model.name}, {attack.name}: {note}" for attack in model.attacks for note in attack.notes]
    return _render(
        "reconstruction.html.j2",
        {"first": first, "psnr": others},
        results=results,
        opening=reconstruction_opening(results, images=pictures is not None),
        tiles=reconstruction_tiles(results),
        counts=_numbered(results.counts),
        level=results.level,
        table=score_table(results),
        ways=way_table(results),
        tests=sum(len(model.attacks) for model in results.models),
        notes=tuple(notes),
        pictures=pictures,
    )


def _first(plot: Plot) -> Gallery:
    text = "The area under the curve of every way with its interval; at ½ the attacker guesses."
    return Gallery("first", plot.title, text, (plot,))


def _numbered(counts: Mapping[str, int]) -> Pairs:
    return tuple((name, f"{number:,}") for name, number in counts.items())


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
    templates = Environment(
        loader=PackageLoader("warp_unlearning", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_unbroken,
    )
    templates.filters["flat"] = flat
    return templates
