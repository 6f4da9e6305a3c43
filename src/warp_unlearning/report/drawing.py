"""How figures look, and what becomes of one: an SVG element for a page, or a file.

Colours are told apart by colour-blind readers, and each has its own line style and marker. Every figure has a title and
a description in words for readers who do not see it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal
from warnings import catch_warnings, filterwarnings
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..stats.intervals import Estimate

Form = Literal["svg", "png", "pdf"]

INK, FAINT, GRID = "#1b1b1b", "#6b6b6b", "#d9d9d9"
# Of Okabe and Ito's palette, those that stand out from white; forgotten and never-seen examples have two of their own.
FORGOTTEN, NEVER = "#d55e00", "#0072b2"

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "legend.handlelength": 2.4,
    "path.simplify_threshold": 0.3,
    "pdf.fonttype": 42,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "warp report",
    "text.color": INK,
    # A name from outside may hold `$`, which is text here and never mathematics.
    "text.parse_math": False,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8.0,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8.0,
}
_METADATA: dict[Form, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_DROPPED = (f"{_SVG}metadata", f"{_SVG}style")


@dataclass(frozen=True)
class Look:
    """Colour, line and marker."""

    color: str
    line: Any
    marker: str


_LOOKS: dict[str | None, Look] = {
    None: Look("#000000", "-", "o"),
    "warp": Look("#0072b2", (0, (6, 2)), "s"),
    "fastwarp": Look("#d55e00", (0, (3, 1.5)), "^"),
    "warp_guarded": Look("#56b4e9", (0, (4, 1, 1, 1)), "p"),
    "cob": Look("#009e73", (0, (6, 1.5, 1, 1.5)), "D"),
    "conjugate": Look("#aa4499", (0, (1, 1)), "v"),
}
_OTHERS = (Look("#e69f00", (0, (8, 2, 1, 2, 1, 2)), "P"), Look("#8c6d00", (0, (2, 4)), "X"), Look(FAINT, "-.", "*"))
# Series that are not defences are told apart by the same looks.
SERIES = tuple(_LOOKS.values())


def look(defense: str | None, defenses: list[str | None]) -> Look:
    """Return the look of a defence; unknown ones share three looks, in the order of `defenses`."""
    if defense in _LOOKS:
        return _LOOKS[defense]
    unknown = list(dict.fromkeys(name for name in defenses if name not in _LOOKS))
    return _OTHERS[unknown.index(defense) % len(_OTHERS)]


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in this style whatever the user's own settings, which are put back afterwards.

    Characters that the font lacks are drawn as boxes, without a warning for each.
    """
    with mpl.rc_context(), catch_warnings():
        filterwarnings("ignore", message=r"(?s)Glyph .* missing from font")
        filterwarnings("ignore", message=r"(?s).*Matplotlib currently does not support")
        mpl.rcdefaults()
        with mpl.rc_context(_RC):
            yield


def blank(width: float = 4.0, height: float = 3.1) -> Figure:
    """An empty figure of so many inches."""
    return Figure(figsize=(width, height), layout="constrained")


PERCENT = FuncFormatter(lambda rate, _: f"{100 * rate:g} %")


def interval(
    axes: Axes,
    at: float,
    estimate: Estimate | None,
    shown: Look,
    *,
    label: str = "",
    upright: bool = False,
    size: float = 4,
    least: float | None = None,
) -> None:
    """Draw a value at x, its interval as a bar: lying at height `at`, or `upright` over it. Ends stop at `least`."""
    if estimate is None:
        return
    ends = [end for end in (estimate.low, estimate.high) if isfinite(end)]
    drawn: list[tuple[list[float], dict[str, Any]]] = [([estimate.value], {"marker": shown.marker, "ms": size})]
    if len(ends) == 2:
        drawn.append(([end if least is None else max(end, least) for end in ends], {"lw": 1.3}))
    for values, kind in drawn:
        place = [at] * len(values)
        axes.plot(*((place, values) if upright else (values, place)), color=shown.color, **kind)
    if label:
        axes.plot([], [], color=shown.color, marker=shown.marker, ms=4, ls="none", label=label)


def legend_below(figure: Figure) -> None:
    """Show each label of all panels once, below them, in as many columns as there is room for."""
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(str(label), handle)
    # About 0.75 inches for a handle, and 0.065 for a character.
    room = int(figure.get_figwidth() / (0.75 + 0.065 * max(map(len, found), default=0)))
    if found:
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=max(1, min(room, 6)))


@dataclass(frozen=True)
class Plot:
    """`draw` is called in the house style and returns the figure; `description` says in words what it shows."""

    title: str
    description: str
    draw: Callable[[], Figure]

    def svg(self, name: str) -> str:
        """Return one `<svg>` element for a page in which `name`, of letters, digits and hyphens, is unique."""
        root = ET.fromstring(self._drawn("svg"))
        for parent in list(root.iter()):
            for child in list(parent):
                if child.tag in _DROPPED:
                    parent.remove(child)
        for element in root.iter():
            # Inside HTML an SVG element needs no namespaces, and prefixes would be read as parts of names.
            element.tag = element.tag.removeprefix(_SVG)
            element.attrib = {key.replace(_LINK, "href"): _own(key, text, name) for key, text in element.items()}
        for group in root.iter("g"):
            # Thousands of markers state one style, which they also inherit. Opacity would be that of the whole group.
            styles = {child.get("style", "") if child.tag == "use" else None for child in group}
            if len(group) > 2 and len(styles) == 1 and (style := styles.pop()) and " opacity" not in f" {style}":
                group.set("style", style)
                for child in group:
                    del child.attrib["style"]
        for key in ("width", "height", "version"):
            del root.attrib[key]
        root.attrib |= {"role": "img", "aria-labelledby": f"{name}-title {name}-description", "class": "figure"}
        root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
        for place, (tag, part, words) in enumerate(
            (("title", "title", self.title), ("desc", "description", self.description))
        ):
            element = ET.Element(tag, {"id": f"{name}-{part}"})
            element.text = words
            root.insert(place, element)
        return ET.tostring(root, encoding="unicode")

    def file(self, form: Form, name: str = "figure") -> bytes:
        """Return the contents of a file; the same bytes each time."""
        if form != "svg":
            return self._drawn(form)
        svg = self.svg(name).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}\n'.encode()

    def _drawn(self, form: Form) -> bytes:
        buffer = io.BytesIO()
        with house_style():
            self.draw().savefig(buffer, format=form, dpi=200 if form == "png" else 72, metadata=_METADATA[form])
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
        slugs = (re.sub(r"[^a-z0-9]+", "-", plot.title.lower())[:40].strip("-") for plot in self.plots)
        return tuple("-".join(filter(None, (self.name, f"{i:02d}", slug))) for i, slug in enumerate(slugs, 1))


def _own(key: str, text: str, name: str) -> str:
    """Give identifiers and what refers to them the prefix `name`, and lengths two decimals."""
    if key == "id":
        return f"{name}-{text}"
    if key == _LINK:
        return text.replace("#", f"#{name}-", 1)
    if key in ("d", "x", "y"):
        return re.sub(r"(\.\d\d)\d+", r"\1", text)
    return text.replace("url(#", f"url(#{name}-")
