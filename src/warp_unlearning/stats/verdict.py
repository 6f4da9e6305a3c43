"""The judge: one verdict on an unlearned model, from numbers alone.

Four claims: *moved* (the outputs changed), *works* (test accuracy is kept), *forgotten* (the new model does not give
the rows away), *hidden* (both models together give away no more than after retraining). Each holds, does not hold, or
cannot be said, and the verdict is the worst of them. Rows that were not drawn at random may be easier or harder than
others by nature, so a gap to unseen rows then proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, isfinite, sqrt
from typing import Any, Literal, NamedTuple, get_args

from ..errors import InputError
from .area import LEVEL
from .exchange import Rise
from .intervals import Estimate
from .roc import Rate

Outcome = Literal["holds", "does not hold", "cannot be said"]
# What an attack is given. "new": the claim "forgotten"; "both": the original model too, the claim "hidden".
Needs = Literal["new outputs", "new weights", "both outputs", "both weights"]
# What the rows are compared with: a model of our own training, unseen rows of a random request, retrained models, or
# unseen rows of a request that nobody drew.
Null = Literal["ours", "drawn", "retrained", "unseen"]
# What there may be too few of: the rows of one request, or the shadows of an audit of many.
Counted = Literal["rows", "shadows"]

EXIT: dict[Outcome, int] = {"does not hold": 1, "cannot be said": 3, "holds": 0}  # the worst first
MARGIN, MAX_DROP = 0.05, 0.02
# Of our own retraining only a collapse is excluded: its accuracy is what the remaining rows are worth.
COLLAPSE = 0.20
# Outputs that differ by less than this on average, and as few answers, are those of the same model.
STILL = 0.001


@dataclass(frozen=True)
class Evidence:
    """One attack, whose scores are higher where a model knows a row.

    `area` is that of the new model (of both models for a *hidden* attack), .5 where it recognises nothing; `original`
    and `retrained` are those of the same attack on the other models. `deviation` is area − reference, ½ or each
    retrained model, from the lowest to the highest end; `error` its largest standard error, None for one row.
    `adjusted` is `p` over all attacks of the claim. `seen` is |original − reference|: what the attack can see. `rates`
    are true-positive rates, judged only where a gate bounds them.
    """

    attack: str
    needs: Needs
    area: Estimate
    original: Estimate | None
    retrained: tuple[Estimate, ...]
    deviation: Estimate
    error: float | None
    p: float
    adjusted: float
    seen: Estimate
    rates: tuple[Rate, ...] = ()

    @property
    def claim(self) -> str:
        """The claim that this attack is evidence for."""
        return "hidden" if self.needs.startswith("both") else "forgotten"


@dataclass(frozen=True)
class Claim:
    """One claim: its outcome, the reason in two or three words, and a sentence with the numbers."""

    name: str
    outcome: Outcome
    reason: str
    sentence: str
    rows_needed: int | None = None
    strongest: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The claims in the order they are judged, the evidence, and what all of it assumes.

    `rows` and `unseen` are what was counted of them: rows, or the shadows that made them.
    """

    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]
    null: Null
    assumes: tuple[str, ...]
    rows: int
    unseen: int
    margin: float = MARGIN
    level: float = LEVEL
    max_drop: float = MAX_DROP
    counted: Counted = "rows"

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of a claim: *does not hold*, then *cannot be said*, then *holds*."""
        return worst([claim.outcome for claim in self.claims])

    @property
    def exit(self) -> int:
        """The exit code of a command: 0 holds, 1 does not hold, 3 cannot be said."""
        return EXIT[self.outcome]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of all claims with the worst outcome."""
        return tuple(c.reason for c in self.claims if c.outcome == self.outcome and c.reason != "moved")

    @property
    def sentence(self) -> str:
        """The outcome, why, and the exit code."""
        why = "; ".join(c.sentence for c in self.claims if c.outcome == self.outcome and c.reason != "moved")
        return f"{self.outcome}: {why} (exit {self.exit})"

    @property
    def lines(self) -> tuple[str, ...]:
        """What is printed: one line a claim, what is assumed, and the verdict."""
        claims = [
            f"{c.name:<10}{c.outcome:<15}{'' if c.reason == c.name else f'{c.reason}: '}{c.sentence}"
            for c in self.claims
        ]
        if self.null != "ours" and all(c.name != "hidden" for c in self.claims):
            why = "no attack saw both models" if self.null == "retrained" else "retraining changes these rows too"
            if self.null == "retrained" and any(c.reason == "nothing moved" for c in self.claims):
                why = "no attack on both models tells any two rows apart"
            claims.append(f"hidden    not judged: {why}")
        return (*claims, *(f"assumes   {text}" for text in self.assumes), self.sentence)

    def as_json(self) -> dict[str, Any]:
        """Plain data with the outcome, exit code, reasons and sentence."""
        said = {"outcome": self.outcome, "exit": self.exit, "reasons": self.reasons, "sentence": self.sentence}
        return said | asdict(self)


def check_bounds(margin: float, max_drop: float) -> None:
    """Refuse a margin of areas or an allowed drop of the accuracy that bounds nothing."""
    if not 0 < margin < 0.5:
        raise InputError(f"margin {margin} (--margin): give a distance of areas above 0 and below .5")
    if not 0 < max_drop < 1:
        raise InputError(f"max_drop {max_drop} (--max-drop): give a share of right answers above 0 and below 1")


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """*does not hold* if one is, else *cannot be said* if one is, else *holds*."""
    return next(outcome for outcome in EXIT if outcome in outcomes)


class _Rules(NamedTuple):
    """What claims share of what `judge` was told."""

    counted: Counted
    rows: int
    unseen: int
    null: Null
    references: int
    fake: str
    margin: float
    level: float


def judge(
    evidence: Sequence[Evidence],
    *,
    rows: int,
    unseen: int,
    null: Null,
    references: int = 0,
    fake: str = "",
    moved: tuple[float, float] | None = None,
    drop: Estimate | None = None,
    tests: int = 0,
    accuracy: Sequence[float] = (),
    risen: Rise | None = None,
    closer: bool = False,
    left: int = 0,
    word: str | None = None,
    margin: float = MARGIN,
    level: float = LEVEL,
    max_drop: float = MAX_DROP,
    counted: Counted = "rows",
) -> Verdict:
    """The verdict on `rows` forgotten rows beside `unseen` rows of their classes; on as many shadows where `counted`.

    `references` counts retrained models; `fake` names one that is the original or the new model. `moved` is the mean
    total variation of the outputs and the share of answers changed; `drop` that of accuracy on `tests` rows, `accuracy`
    before, after, and of each reference. `risen` and `closer`: answers, or the confidence, rose more on the rows than
    on unseen ones. `left` rows have no unseen row of their class. `word` says
    who states what the null rests on, "your word" unless given.
    """
    check_bounds(margin, max_drop)
    if null not in get_args(Null) or not 0.5 <= level < 1:
        raise InputError(
            f"null {null!r}, level {level}: give one of {', '.join(get_args(Null))}, and a level in [.5, 1)"
        )
    rules = _Rules(counted, rows, unseen, null, references, fake, margin, level)
    claims = [] if moved is None or null == "ours" else [_moved(*moved)]
    claims.append(_works(drop, tests, accuracy, rules, max_drop))
    claims.append(_forgotten(evidence, rules, risen, closer))
    if any(e.claim == "hidden" for e in evidence):
        claims.append(_by_attacks("hidden", evidence, rules))
    assumes = _assumes(evidence, rules, left, word)
    return Verdict(tuple(claims), tuple(evidence), null, assumes, rows, unseen, margin, level, max_drop, counted)


def rows_needed(rows: int, unseen: int, *, error: float | None = None, margin: float = MARGIN) -> int:
    """How many forgotten rows, with unseen rows in the same ratio, let "holds" be said in .88 of cases without a leak.

    `error` is the standard error of the area at `rows`; without a finite one, that of scores that know nothing.

    >>> rows_needed(150, 3000)
    454
    """
    least = error if error and isfinite(error) else sqrt((1 / rows + 1 / unseen) / 12)
    return ceil(rows * (3.6 * least / margin) ** 2)


def _moved(distance: float, changed: float) -> Claim:
    answers = f"{100 * changed:.3g} % of the answers changed" if changed else "no answer changed"
    found = f"outputs differ by {share(distance, 4)} on average and {answers}"
    if max(distance, changed) <= STILL:
        return Claim("moved", "does not hold", "nothing moved", f"{found}; what was known of these rows still is")
    return Claim("moved", "holds", "moved", found)


def _works(drop: Estimate | None, tests: int, accuracy: Sequence[float], rules: _Rules, max_drop: float) -> Claim:
    if drop is None:
        no_row = "no row measures the accuracy; give --test or --holdout"
        no_row = no_row if rules.counted == "rows" else "the accuracy of the original models is not known"
        return Claim("works", "cannot be said", "no test rows", no_row)
    allowed = COLLAPSE if rules.null == "ours" else max_drop
    sign, way = (1, "down") if drop.value >= 0 else (-1, "up")
    value, *ends = (share(100 * sign * end, 1) for end in (drop.value, *(drop.low, drop.high)[::sign]))
    found = f"{way} {value} points [{', '.join(ends)}]"
    if accuracy:
        found = f"test accuracy {share(accuracy[0])} → {share(accuracy[1])}, {found}"
    if accuracy[2:]:
        found += f"; retrained {', '.join(share(a) for a in accuracy[2:])}"
    if drop.low > max_drop:
        return Claim("works", "does not hold", "harmed", f"{found}; {share(100 * max_drop, 1)} allowed")
    if drop.high <= allowed:
        return Claim("works", "holds", "works", found)
    # So many let "works" be said in .8 of cases if nothing is lost.
    needed = ceil(tests * (1.43 * (drop.high - drop.low) / 2 / allowed) ** 2) if isfinite(drop.high) else 2 * tests
    what = "test rows" if rules.counted == "rows" else "shadows"
    more = f"about {needed:,} {what} would decide"
    more = more if needed > tests else f"too near the {share(100 * allowed, 1)} allowed"
    return Claim("works", "cannot be said", f"too few {what}", f"{found}; {more}", needed)


def _forgotten(evidence: Sequence[Evidence], rules: _Rules, risen: Rise | None, closer: bool) -> Claim:
    if rules.null == "ours":
        found = f"trained from fresh weights without the {rules.rows:,} rows"
        return Claim("forgotten", "holds", "forgotten by construction", found)
    if not rules.unseen:
        found = "nothing to compare the rows with: no unseen row of their classes; give --test or --holdout"
        return Claim("forgotten", "cannot be said", "no unseen rows", found)
    if rules.null == "unseen" and risen:
        found = f"right on {share(risen.after)} of the rows, {share(risen.before)} before; "
        found += f"unseen rows of their classes {share(risen.unseen)}"
        return Claim("forgotten", "does not hold", "learned more", found)
    found_by = _by_attacks("forgotten", evidence, rules)
    if rules.null != "retrained" and (risen or closer) and found_by.outcome == "holds":
        what = "right answers" if risen else "confidence"
        found = f"{found_by.sentence}, but {what} rose more on the rows than on unseen ones"
        return Claim("forgotten", "cannot be said", "known better than before", found, None, found_by.strongest)
    return found_by


def _by_attacks(name: str, evidence: Sequence[Evidence], rules: _Rules) -> Claim:
    """The claims "forgotten" and "hidden", which is judged beside retrained models only."""
    attacks = [e for e in evidence if e.claim == name]
    margin, beside = rules.margin, rules.null == "retrained" or name == "hidden"
    if not attacks:
        return Claim(name, "cannot be said", "every score is equal", "no attack tells any two rows of a class apart")
    if beside and rules.fake:
        return Claim(name, "cannot be said", "no reference", rules.fake)
    outside = [e for e in attacks if not (-margin <= e.deviation.low and e.deviation.high <= margin)]
    shown = [e for e in outside if e.adjusted < 1 - rules.level]
    blind = not any(e.seen.low > margin for e in attacks)
    could_see = any(e.seen.value > margin or e.error is None for e in attacks)
    strongest = max(shown or outside or attacks, key=lambda e: abs(e.deviation.value))
    unsure = blind and (beside or not shown)

    def said(outcome: Outcome, reason: str, sentence: str) -> Claim:
        return Claim(name, outcome, reason, sentence, strongest=strongest.attack)

    if unsure and not could_see:
        nobody = "no attack recognised them in the original either"
        if all(e.original is None for e in attacks):
            nobody = "nothing says what these attacks see in the original"
        if name == "hidden":
            nobody = "these attacks see nothing of retraining either; this audit would see nothing"
        elif beside:
            nobody = "the references know these rows as well as the original does; this audit would see nothing"
        clearest = max(attacks, key=lambda e: e.seen.low)
        if clearest.seen.low > 0 and (name == "hidden" or clearest.original is not None):
            whose = "retraining leaves" if name == "hidden" else "the original shows"
            most = f"{clearest.attack} {share(clearest.seen.value)}"
            nobody = f"the margin {share(margin)} is wider than what {whose}: {most}"
        return said("cannot be said", "blind", nobody)
    if shown and not unsure:
        if not beside and rules.null == "unseen":
            return said("cannot be said", "differs from unseen rows", _shown(strongest, rules.null, beside))
        reason = "recognised" if strongest.deviation.value > 0 else "over-forgotten"
        return said("does not hold", reason, _shown(strongest, rules.null, beside))
    if blind or outside:
        needed = max(rows_needed(rules.rows, rules.unseen, error=e.error, margin=margin) for e in attacks)
        wide, ends = strongest, _ends(strongest.deviation)
        if not outside:
            wide = max(attacks, key=lambda e: e.seen.low)
            ends = f"in the original {_ends(wide.seen)}"
        found = f"{wide.attack} {ends} at {rules.rows:,} {rules.counted if rules.rows != 1 else 'row'}"
        few, more = needed > rules.rows, f"about {needed:,} would decide"
        if few and rules.counted == "rows":
            more += "; this request has no more, so retraining or a shadow audit can"
        elif not few:
            more = f"the margin is {share(margin)}"
            more = "retrained models differ by as much; a third one would help" if beside else more
        reason = f"too few {rules.counted}" if few else "near the margin"
        return Claim(name, "cannot be said", reason, f"{found}; {more}", needed, wide.attack)
    if beside and rules.references < 2:
        one = f"within {share(margin)} of one retrained model; a second decides"
        return said("cannot be said", "one reference", one)
    than = f"{rules.references} retrained models" if beside else "unseen rows"
    by = ", ".join(e.attack for e in attacks) if len(attacks) <= 4 else f"all {len(attacks)} attacks"
    return said("holds", "not recognised", f"by {by}: within {share(margin)} of {than}")


def _shown(e: Evidence, null: Null, beside: bool) -> str:
    """What an attack shows beyond chance, in numbers."""
    gap, p = f"{signed(e.deviation.value)} {_ends(e.deviation)}", f"p {p_value(e.adjusted)}"
    more, less = e.deviation.value > 0, "less known than rows no model saw"
    if e.claim == "hidden":
        what = "weights" if e.needs == "both weights" else "outputs"
        by = share(e.deviation.value, 2)
        return f"{e.attack}: the {what} show the rows by {by} more than retraining does {_ends(e.deviation)}, {p}"
    if null == "unseen":
        known = "still known, or easier" if more else f"{less}, or harder"
        ways = "retrained models tell (--retrained), or --drawn if the rows were drawn at random"
        return f"{e.attack}: gap {gap}, {p}: {known} by nature; {ways}"
    found = f"{e.attack}: area {share(e.area.value)} [{share(e.area.low)}, {share(e.area.high)}], {p}"
    found += f", {gap} from the retrained models" if beside else ""
    return found if more else f"{found}: {less}"


def _assumes(evidence: Sequence[Evidence], rules: _Rules, left: int, word: str | None) -> tuple[str, ...]:
    found, by = ["unseen rows come from the source of the training rows"], word or "your word"
    if rules.null == "drawn":
        found.append(f"the rows were drawn at random within their classes, by {by}")
    elif rules.null == "unseen":
        found.append("holds means: looks like unseen rows; hard rows that are half forgotten look so too")
    elif rules.null == "ours" and word:
        found.append(f"trained without these rows by {by}")
    if rules.references:
        areas = [f"{e.attack} {', '.join(share(a.value) for a in e.retrained)}" for e in evidence if e.retrained]
        own = f"; their own areas: {'; '.join(areas)}" if 0 < len(areas) <= 4 else ""
        found.append(f"{rules.references} retrained: trained without these rows by your word{own}")
    if left:
        found.append(f"says nothing of {left:,} row{'s' * (left != 1)} whose class has no unseen row")
    return tuple(found)


def share(value: float, digits: int = 3) -> str:
    """A number as it is printed, without the 0 before the point: .893, -.050, 1.000; with one digit 3.0, .5."""
    return f"{round(value, digits) + 0.0:.{digits}f}".removeprefix("0").replace("-0.", "-.")


def signed(value: float) -> str:
    """The same with its sign: +.078."""
    return ("+" if value >= 0 else "") + share(value)


def p_value(p: float) -> str:
    """A p-value with one digit that counts: .03, 3e-4."""
    if p >= 0.001:
        return share(p, 2 if p >= 0.01 else 3)
    return f"{p:.0e}".replace("e-0", "e-")


def _ends(e: Estimate) -> str:
    return f"[{signed(e.low)}, {signed(e.high)}]"
