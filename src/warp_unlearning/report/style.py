"""How figures look: colours that colour-blind readers tell apart, each with its own line style and marker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from warnings import catch_warnings, filterwarnings

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

INK = "#1b1b1b"
FAINT = "#6b6b6b"
GRID = "#d9d9d9"
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
    "axes.unicode_minus": True,
    "figure.dpi": 100,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "path.simplify_threshold": 0.3,
    "pdf.fonttype": 42,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "warp report",
    "text.color": INK,
    # A name from outside may hold `$`, which is text here and never mathematics.
    "text.parse_math": False,
    "text.usetex": False,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8.0,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8.0,
}


@dataclass(frozen=True)
class Look:
    """Colour, line and marker of one defence."""

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


def look(defense: str | None, defenses: list[str | None]) -> Look:
    """The look of a defence; those this module does not know share three others, in the order of `defenses`."""
    if defense in _LOOKS:
        return _LOOKS[defense]
    unknown = [name for name in defenses if name not in _LOOKS]
    return _OTHERS[unknown.index(defense) % len(_OTHERS)]


@contextmanager
def house_style() -> Iterator[None]:
    """The style above and matplotlib's defaults, whatever the user's own settings; put back afterwards.

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


def percent(rate: float, _: object = None) -> str:
    """A tick label.

    >>> percent(0.001), percent(1.0)
    ('0.1 %', '100 %')
    """
    return f"{100 * rate:g} %"


PERCENT = FuncFormatter(percent)
