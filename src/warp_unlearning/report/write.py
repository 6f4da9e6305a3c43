"""From a results file to the report's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..data.files import write_atomically
from ..errors import InputError
from .drawing import Form
from .page import Report, make_report
from .reconstruction_images import read_pictures
from .reconstruction_results import ReconstructionResults
from .results import Results, read_results, results_file

FORMS: tuple[Form, ...] = ("png", "pdf")


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
    report = _made(read_results(source), source.parent, images)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, report.html.encode())
    return WrittenReport(page, () if figures is None else _write_figures(report, figures))


def _made(results: Results, folder: Path, images: bool) -> Report:
    if not images:
        return make_report(results)
    if not isinstance(results, ReconstructionResults):
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
