"""Studies of rows beside the paper: what a defence costs, and who rebuilds images (Figures 8, 9, 11; Tables 2, 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import floor, log10
from statistics import median
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

from ..stats.intervals import Estimate, mean
from . import schema
from .compare import Cell, Table, beside, bullets, difference, direction, mapped, ratio, shown
from .drawing import look
from .figures import Mark, Panel, dots_plot
from .paper_numbers import PaperNumber, in_order, paper_table, row_name
from .paper_study import Section
from .read import checked
from .schema_shadow import Rows
from .utility_figures import Line, lines_plot
from .words import counted, defense_label, method_label

_TIMES = (
    "The paper timed on an RTX 4090: seconds on another machine are not compared, shares are. The interval of a share "
    "is from the two separate intervals, so that it is wide. The mean over methods is of those measured here."
)
_EXACT_AND_FAST = (("warp", "fastwarp"), ("warp_guarded (0.1)", "fastwarp_guarded (0.1)"))


class _Row(BaseModel):
    """What is shown of a row; it holds more."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class _Teleports(_Row):
    """The seconds of every teleport of each run, where they are known."""

    each: tuple[tuple[float, ...], ...] = ()


class Timed(_Row):
    """The time of one method with one defence, mean over so many runs."""

    method: str
    defense: str | None
    seconds: schema.Estimate
    runs: schema.Count
    teleports: _Teleports | None = None

    @property
    def row(self) -> str:
        """The row as our tables and the paper's name it."""
        return row_name(self.method, self.defense)


Read = TypeVar("Read", bound=_Row)
Times = Mapping[tuple[str, str | None], Timed]


def runtime(rows: Rows) -> Section:
    """Seconds and extra shares of every method and defence, and the paper's statements about them."""
    found = {(row.method, row.defense): row for row in _each(Timed, rows)}
    methods, defenses = in_order(m for m, _ in found), dict.fromkeys(d for _, d in found)
    timed = [found[arm] for arm in product(methods, defenses) if arm in found]
    # The shortest time has four digits that count, so that shares can be checked.
    known = [row.seconds.value for row in timed if row.seconds.value]
    digits = max(2, 3 - floor(log10(min(known)))) if known else 2
    lines = [_time_line(row, found.get((row.method, None)), digits) for row in timed]
    claims, judged = _time_claims(found, methods)
    marks = tuple(
        Mark(method_label(m), defense_label(d), look(d, list(defenses)), row.seconds) for (m, d), row in found.items()
    )
    times = Table(["arm", "seconds", "runs", "more than without the defence, %"], lines)
    plot = dots_plot("Time to unlearn one model", [Panel("seconds", marks, start=0.0)], width=3.6)
    return Section("Runtime", [_TIMES, times, bullets(claims), _teleports(timed)], {"runtime": plot}, judged)


def _each(model: type[Read], study: Rows) -> list[Read]:
    return [checked(model, row, f"row {i} of the study {study.study}") for i, row in enumerate(study.rows)]


def _time_line(row: Timed, base: Timed | None, digits: int) -> list[Cell | str]:
    seconds = beside(row.seconds, paper_table("fig:fastTime").number(row.row), digits=digits, compared=False)
    if row.defense is None:
        return [row.row, seconds, f"{row.runs}", ""]
    printed = (
        paper_table("fig:runtime").number(method_label(row.method), "extra time") if row.defense == "warp" else None
    )
    printed = printed or paper_share(method_label(row.method), row.defense)
    return [row.row, seconds, f"{row.runs}", beside(_extra(row, base), printed, digits=1, scale=100)]


def _extra(row: Timed, base: Timed | None) -> Estimate | None:
    """The share by which it takes longer than without the defence."""
    found = None if base is None else ratio(row.seconds, base.seconds)
    return None if found is None else mapped(found, 1, -1)


def paper_share(method: str, defense: str) -> PaperNumber | None:
    """The paper's extra time in percent from the seconds it prints, and all it may stand for; None without both.

    >>> str(paper_share("BT", "fastwarp"))
    'about 17'
    """
    paper = paper_table("fig:fastTime")
    base, found = paper.number(method), paper.number(f"{method} + {defense_label(defense)}")
    if base is None or found is None or base.value is None or found.value is None:
        return None
    value, low, high = (
        100 * (top / bottom - 1)
        for top, bottom in ((found.value, base.value), (found.low, base.high), (found.high, base.low))
    )
    return PaperNumber(f"~{value:.0f}", value, low, high)


def _time_claims(found: Times, methods: Iterable[str]) -> tuple[list[str], list[Cell]]:
    texts, cells = [], []
    for defense in dict.fromkeys(defense for _, defense in found if defense is not None):
        shares = {m: _extra(found[m, defense], found.get((m, None))) for m in methods if (m, defense) in found}
        known = {m: share for m, share in shares.items() if share is not None}
        printed = paper_table("fig:runtime").number("mean", "extra time") if defense == "warp" else None
        cell = beside(_mean_of(known.values()), printed, digits=1, scale=100)
        cells.append(cell)
        others = shown(_mean_of(share for m, share in known.items() if m != "ngp"), digits=1, scale=100)
        texts.append(
            f"{defense_label(defense)}, mean over {counted(len(known), 'method')}, %: {cell}; without NGP, which the "
            f"paper calls an exception: {others}"
        )
    for method, (exact, fast) in product(methods, _EXACT_AND_FAST):
        rows = [found.get((method, defense)) for defense in (None, exact, fast)]
        base, *times = (None if row is None else row.seconds for row in rows)
        # The time that WARP adds over the time that FastWARP adds.
        faster = ratio(*(difference(seconds, base) for seconds in times))
        if faster is not None:
            printed = paper_table("fig:fastTime, ratio").number("teleport time") if exact == "warp" else None
            cells.append(beside(faster, printed, digits=2))
            names = " over those of ".join(map(defense_label, (exact, fast)))
            texts.append(f"{method_label(method)}, teleports of {names}: {cells[-1]}")
    return texts, cells


def _mean_of(found: Iterable[Estimate]) -> Estimate | None:
    """The mean with the mean of the ends: no narrower than any dependence between them allows."""
    parts = list(zip(*((e.value, e.low, e.high) for e in found), strict=True))
    return Estimate(*(sum(part) / len(part) for part in parts)) if parts else None


def _teleports(timed: Sequence[Timed]) -> Table:
    """The first teleport of a run decomposes, also where later ones are tracked, and captures what they repeat."""

    def ends(found: Sequence[float]) -> str:
        return f"{1000 * min(found):.1f} to {1000 * max(found):.1f}"

    rows = []
    for row in timed:
        each = () if row.teleports is None else row.teleports.each
        first = [run[0] for run in each if run]
        if later := [seconds for run in each for seconds in run[1:]]:
            rows.append([row.row, ends(first), f"{1000 * median(later):.1f}", ends(later), f"{len(later)}"])
    return Table(["teleports, ms", "the first of a run", "later ones: median", "all of them", "how many"], rows)


class _Scores(_Row):
    """One number an image by metric, in the same order for every row of one study."""

    per_image: dict[str, tuple[float, ...]]


class _Share(_Row):
    """The chance that a reconstruction resembles its own target more than others of its class."""

    share: schema.Estimate


class _Beyond(_Row):
    """Whether the attack shows more than the prior; rows of earlier versions say it in other words."""

    identification: _Share | None
    outcome: str = ""
    verdict: str = ""


class ImageRow(_Row):
    """An attack on an arm; `failed` says why it has no scores."""

    attack: str
    arm: str = "cob"
    sigma: float | None = None
    spread: float | None = None
    failed: str = ""
    scores: _Scores | None = None
    beyond: _Beyond | None = None

    @model_validator(mode="after")
    def _scored_or_failed(self) -> Self:
        if not self.failed and (self.scores is None or self.beyond is None):
            raise ValueError("scores and beyond are missing, and it did not fail")
        return self

    def values(self, metric: str) -> tuple[float, ...]:
        """One number an image; none where the metric was not taken."""
        return () if self.scores is None else self.scores.per_image.get(metric, ())

    @property
    def share(self) -> Estimate | None:
        """The chance that it resembles its own target more than others of its class, None where nobody tried."""
        named = self.beyond and self.beyond.identification
        return named.share if named else None

    def cell(self, *, starred: bool = False) -> str:
        """The mean PSNR and the share as the cell of a table."""
        share = "" if self.share is None else f"; {shown(self.share, digits=2)}"
        says = {self.beyond.outcome, self.beyond.verdict} if self.beyond else set()
        beyond = " *" if starred and says & {"does not hold", "beyond the prior"} else ""
        return "failed" if self.failed else f"{shown(_mean(self.values('psnr')), digits=1)}{share}{beyond}"


def _mean(values: Sequence[float]) -> Estimate | None:
    """The mean over images with Student's interval."""
    return mean(values) if values else None


def _paired(left: ImageRow | None, right: ImageRow | None, metric: str) -> Estimate | None:
    """The mean over images of left − right with Student's interval; None where the images are not the same number."""
    a, b = (() if row is None else row.values(metric) for row in (left, right))
    return _mean([x - y for x, y in zip(a, b, strict=True)]) if len(a) == len(b) else None


_ARMS = ("none", "cob", "warp", "fastwarp", "warp_guarded", "conjugate", "kick")
_METRICS = {"psnr": "PSNR", "lpips": "LPIPS", "ssim": "SSIM", "mse": "MSE", "feature_mse": "feature MSE"}
_FILTERED = ("generative@filtered", "filtered")
_IMAGES = (
    "The paper's images are those of ImageNet-1K and its generator is a large one: its absolute numbers are shown, "
    "and not compared. What is compared are directions: whether the filter helps, and whether the defence hurts, "
    "paired over the same targets."
)


def reconstruction(study: Rows) -> Section:
    """PSNR of every attack on every arm, the paper's three rows beside ours, and paired differences.

    The paper's attacker filters the difference and searches through a generator; ours that filter the same way search
    over pixels ("filtered") or through a generator ("generative@filtered"). Its defence is the change of basis ("cob").
    """
    rows = _each(ImageRow, study)
    found = {(row.attack, row.arm): row for row in rows}
    attacks = dict.fromkeys(row.attack for row in rows)
    names = sorted(dict.fromkeys(row.arm for row in rows), key=lambda a: _ARMS.index(a) if a in _ARMS else len(_ARMS))
    others = [name for name in names if name != "none"]
    every, taken = [], []
    for attack in attacks:
        own = [found.get((attack, name)) for name in names]
        every.append([attack, *("not measured" if row is None else row.cell(starred=True) for row in own)])
        changes = [_paired(found.get((attack, "none")), found.get((attack, name)), "psnr") for name in others]
        taken.append([attack, *(f"{shown(c, digits=2)}: {direction(c)}" if c else "not measured" for c in changes)])
    parts: list[object] = [
        _IMAGES,
        "### The paper's rows",
        Table(["paper's row", "ours", *_METRICS.values()], _paper_rows(found)),
        "### Every attack: PSNR in dB; own-target share",
        Table(["attack", *names], every),
        "A star marks what goes beyond the prior: better than the best blind attack, or a share above ½, by the "
        "interval of each.",
    ]
    if others and "none" in names:
        parts += ["### PSNR that a defence takes, in dB, paired", Table(["attack", *others], taken)]
    marks = []
    for row in rows:
        defense = None if row.arm == "none" else row.arm
        marks.append((row, (row.attack, defense_label(defense), look(defense, list(others)))))
    quality = tuple(Mark(*names, _mean(row.values("psnr"))) for row, names in marks)
    shares = tuple(Mark(*names, row.share) for row, names in marks)
    plot = dots_plot("Reconstruction", [Panel("PSNR, dB", quality), Panel("own-target share", shares, 0.5)])
    return Section("Reconstruction", [*parts, _filter_claims(found)], {"reconstruction": plot})


def _paper_rows(found: Mapping[tuple[str, str], ImageRow]) -> list[list[Cell | str]]:
    """The paper's rows with the attack of ours that is nearest; of the paper's two kinds of LPIPS that by VGG."""
    filtered = next((name for name in _FILTERED if (name, "none") in found), _FILTERED[-1])
    lines: list[list[Cell | str]] = []
    for label, attack, arm, where, row in (
        ("generator, no filter, no defence", "generative", "none", "tab:recon_core", "GIFD"),
        ("filter, no defence", filtered, "none", "tab:recon_core", "filtered"),
        ("filter, change of basis", filtered, "cob", "tab:recon_teleport", "filtered + WARP"),
    ):
        own = found.get((attack, arm))
        made = []
        for metric, column in _METRICS.items():
            paper = paper_table(where).number(row, "LPIPS (VGG)" if column == "LPIPS" else column)
            ours, digits = _mean(own.values(metric)) if own else None, 2 if metric in ("psnr", "feature_mse") else 3
            made.append(beside(ours, paper, digits=digits, compared=False))
        lines.append([label, f"{attack}, {arm}", *made])
    return lines


def _filter_claims(found: Mapping[tuple[str, str], ImageRow]) -> str:
    """The paper's claim about the filter, and the attacker it does not try."""
    filtered = next((name for name in _FILTERED if (name, "none") in found), None)
    plain = "generative" if filtered == "generative@filtered" else "inversion"
    helps = None if filtered is None else _paired(found.get((filtered, "none")), found.get((plain, "none")), "psnr")
    undone = _paired(found.get(("canonical", "cob")), found.get(("inversion", "none")), "psnr")
    without, with_it = (paper_table("tab:recon_core").value(row, "PSNR") or 0.0 for row in ("GIFD", "filtered"))
    return bullets(
        [
            f"The filter, PSNR with it less without it ({filtered or 'filtered'} and {plain}, no defence), dB: "
            f"{shown(helps, digits=2)}; {direction(helps, falls='it helps', rises='it hurts')}; the paper: it "
            f"helps, by {with_it - without:.2f}.",
            "Undoing the change of basis in closed form, PSNR with the defence undone less without a defence, dB: "
            f"{shown(undone, digits=2)}; the paper does not try it.",
        ]
    )


_FITTED = (
    "The paper prints no number for its Figure 11 and varies one σ. It calls it the width of the attacker's prior, "
    "and also what the defender controls; here they are two axes. It says that σ = 0 is the attacker who does not "
    "adapt, and that at σ = 0 the adaptive attacker does better than that one: both cannot be."
)
Fits = Mapping[tuple[str, float | None, float | None], ImageRow]


def adaptive(study: Rows) -> Section:
    """The attacker who fits image and change of basis together: PSNR by the attacker's σ and the defender's spread, and
    the directions that the paper states.
    """
    rows = _each(ImageRow, study)
    found = {(row.attack, row.sigma, row.spread): row for row in reversed(rows)}
    spreads = sorted({row.spread for row in rows if row.spread is not None})
    sigmas = sorted({row.sigma for row in rows if row.sigma is not None})
    columns = dict.fromkeys((row.attack, row.sigma) for row in rows)
    ordered = sorted(columns, key=lambda pair: (pair[0] != "adaptive", pair[1] or 0.0))
    names = {"inversion": "as it is", "canonical": "undone in closed form"}
    heads = [names.get(attack, attack) if sigma is None else f"σ = {sigma:g}" for attack, sigma in ordered]
    lines = [
        [f"{s:g}", *(found[*column, s].cell() if (*column, s) in found else "not measured" for column in ordered)]
        for s in spreads
    ]
    panels = [
        (label, [Line(f"spread {s:g}", "cob", [(x, _mean(_at(found, x, s, metric))) for x in sigmas]) for s in spreads])
        for label, metric in (("feature MSE", "feature_mse"), ("PSNR, dB", "psnr"))
    ]
    parts: list[object] = [_FITTED, "PSNR in dB; own-target share.", Table(["defender's spread", *heads], lines)]
    plot = lines_plot("Adaptive reconstruction by the attacker's σ", "attacker's σ", panels)
    parts.append(bullets(_sigma_claims(found, sigmas, spreads)))
    return Section("Adaptive reconstruction", parts, {"adaptive": plot})


def _at(found: Fits, sigma: float, spread: float, metric: str) -> tuple[float, ...]:
    row = found.get(("adaptive", sigma, spread))
    return () if row is None else row.values(metric)


def _sigma_claims(found: Fits, sigmas: Sequence[float], spreads: Sequence[float]) -> list[str]:
    """The paper: errors grow with σ, and at the largest σ adapting gains nothing."""
    if len(sigmas) < 2 or not spreads:
        return ["σ was not varied."]
    texts, (least, most) = [], (sigmas[0], sigmas[-1])
    for spread in spreads:
        first, last = (found.get(("adaptive", sigma, spread)) for sigma in (least, most))
        worse = _paired(last, first, "feature_mse")
        gain = _paired(last, found.get(("inversion", None, spread)), "psnr")
        hurts = direction(worse, falls="σ hurts the attacker, as in the paper", rises="σ helps, unlike in the paper")
        helps = direction(
            gain, falls="adapting helps, unlike in the paper", rises="adapting hurts, as the paper allows"
        )
        texts.append(
            f"spread {spread:g}: feature MSE at σ = {most:g} less that at σ = {least:g}: {shown(worse, digits=2)}, "
            f"{hurts}; PSNR of the adaptive attacker at σ = {most:g} less that of one who does not adapt, dB: "
            f"{shown(gain, digits=2)}, {helps}"
        )
    if len(spreads) > 1:
        narrow, wide = (found.get(("adaptive", most, spread)) for spread in (spreads[0], spreads[-1]))
        lost = _paired(narrow, wide, "psnr")
        effect = direction(lost, falls="a wide spread hurts this attacker", rises="a wide spread helps this attacker")
        texts.append(f"PSNR at σ = {most:g}, narrowest spread less widest, dB: {shown(lost, digits=2)}, {effect}")
    return texts
