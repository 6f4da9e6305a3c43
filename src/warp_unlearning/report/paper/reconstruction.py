"""Tables 2 and 3: who rebuilds forgotten images from which defence, and does the subspace filter help?

The paper's attacker filters the difference and searches through a generator; ours that filter the same way search over
pixels ("filtered") or through a generator ("generative@filtered"). Its defence is the change of basis ("cob").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plots import Plot
from .agreement import Cell, beside, direction, shown
from .extent import missing_text, rows_text
from .image_rows import ImageRow, paired, read_rows
from .markdown import bullets, paragraphs, table
from .numbers import PaperNumber, paper_table
from .panels import Mark, Panel, rows_plot
from .rendered import Rendered, rendered
from .study import read_about

_ARMS = ("none", "cob", "warp", "fastwarp", "warp_guarded", "conjugate", "kick")
_METRICS = {
    "psnr": ("PSNR", 2),
    "lpips": ("LPIPS", 3),
    "ssim": ("SSIM", 3),
    "mse": ("MSE", 3),
    "feature_mse": ("feature MSE", 2),
}
_FILTERED = ("generative@filtered", "filtered")
_NOTE = (
    "The paper's images are those of ImageNet-1K and its generator is a large one: its absolute numbers are shown, "
    "and not compared. What is compared are directions: whether the filter helps, and whether the defence hurts, "
    "paired over the same targets."
)


def render(results: Mapping[str, Any], *, folder: str = "figures") -> Rendered:
    """PSNR of every attack on every arm, the paper's three rows beside ours, and paired differences."""
    whole, about = read_about(results)
    rows = read_rows(whole["rows"])
    arms = sorted(dict.fromkeys(row.arm for row in rows), key=lambda a: _ARMS.index(a) if a in _ARMS else len(_ARMS))
    attacks = list(dict.fromkeys(row.attack for row in rows))
    found = {(row.attack, row.arm): row for row in rows}
    beside_paper, cells = _paper_rows(found)
    return rendered(
        "Reconstruction",
        about,
        _NOTE,
        paragraphs("### The paper's rows", beside_paper).strip(),
        paragraphs(
            "### Every attack: PSNR in dB; own-target share",
            table(["attack", *arms], [[a, *(_cell(found.get((a, arm))) for arm in arms)] for a in attacks]),
            "A star marks what goes beyond the prior: better than the best blind attack, or a share above ½, by the "
            "interval of each.",
        ).strip(),
        paragraphs("### PSNR that a defence takes, in dB, paired", _taken(found, attacks, arms)).strip()
        if "none" in arms and len(arms) > 1
        else "",
        _claims(found),
        missing_text(about),
        plots={"reconstruction": _plot(rows)},
        folder=folder,
        cells=cells,
        intro=rows_text(about, len(rows)),
    )


def _paper_rows(found: Mapping[tuple[str, str], ImageRow]) -> tuple[str, list[Cell]]:
    """The paper's rows with the attack of ours that is nearest."""
    filtered = next((name for name in _FILTERED if (name, "none") in found), _FILTERED[-1])
    named = (
        ("generator, no filter, no defence", "generative", "none", "tab:recon_core", "GIFD"),
        ("filter, no defence", filtered, "none", "tab:recon_core", "filtered"),
        ("filter, change of basis", filtered, "cob", "tab:recon_teleport", "filtered + WARP"),
    )
    lines, cells = [], []
    for label, attack, arm, where, row in named:
        own = found.get((attack, arm))
        made = [
            beside(own.mean(metric) if own else None, _paper(where, row, column), digits=digits, compared=False)
            for metric, (column, digits) in _METRICS.items()
        ]
        cells += made
        lines.append([label, f"{attack}, {arm}", *made])
    return table(["paper's row", "ours", *(name for name, _ in _METRICS.values())], lines), cells


def _paper(where: str, row: str, column: str) -> PaperNumber | None:
    """Of the paper's two kinds of LPIPS that by VGG's features."""
    return paper_table(where).number(row, "LPIPS (VGG)" if column == "LPIPS" else column)


def _cell(row: ImageRow | None) -> str:
    if row is None:
        return "not measured"
    if row.failed:
        return "failed"
    share = "" if row.share is None else f"; {shown(row.share, digits=2)}"
    return f"{shown(row.mean('psnr'), digits=1)}{share}{' *' if row.beyond else ''}"


def _taken(found: Mapping[tuple[str, str], ImageRow], attacks: list[str], arms: list[str]) -> str:
    others = [arm for arm in arms if arm != "none"]
    rows = []
    for attack in attacks:
        base = found.get((attack, "none"))
        changes = [paired(base, found.get((attack, arm)), "psnr") for arm in others]
        rows.append([attack, *(f"{shown(c, digits=2)}: {direction(c)}" if c else "not measured" for c in changes)])
    return table(["attack", *others], rows)


def _claims(found: Mapping[tuple[str, str], ImageRow]) -> str:
    """The paper's two claims, and the attacker it does not try."""
    filtered = next((name for name in _FILTERED if (name, "none") in found), None)
    plain = "generative" if filtered == "generative@filtered" else "inversion"
    helps = None if filtered is None else paired(found.get((filtered, "none")), found.get((plain, "none")), "psnr")
    undone = paired(found.get(("canonical", "cob")), found.get(("inversion", "none")), "psnr")
    printed = paper_table("tab:recon_core")
    gain = [printed.number(row, "PSNR") for row in ("GIFD", "filtered")]
    theirs = sum((-1) ** (i + 1) * (n.value or 0.0) for i, n in enumerate(gain) if n is not None)
    return bullets(
        [
            f"The filter, PSNR with it less without it ({filtered or 'filtered'} and {plain}, no defence), dB: "
            f"{shown(helps, digits=2)}; {direction(helps, falls='it helps', rises='it hurts')}; the paper: it "
            f"helps, by {theirs:.2f}.",
            "Undoing the change of basis in closed form, PSNR with the defence undone less without a defence, dB: "
            f"{shown(undone, digits=2)}; the paper does not try it.",
        ]
    )


def _plot(rows: tuple[ImageRow, ...]) -> Plot:
    marks = tuple(Mark(row.attack, None if row.arm == "none" else row.arm, row.mean("psnr")) for row in rows)
    shares = tuple(Mark(row.attack, None if row.arm == "none" else row.arm, row.share) for row in rows)
    return rows_plot("Reconstruction", [Panel("PSNR, dB", marks), Panel("own-target share", shares, 0.5)])
