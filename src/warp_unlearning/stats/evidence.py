"""From the outputs of the original, the new and perhaps retrained models on the same rows to a verdict.

Every array has one entry a row, forgotten and unseen rows in any order; a score is higher where a model knows the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from .area import LEVEL, Matched, MatchedArea, area_estimate, match, matched_area, standard_error
from .exchange import DRAWS, learned_more, paired_drop, permutation_p, rank_p
from .holm import holm
from .intervals import Estimate
from .roc import Floats
from .tails import student_beyond, student_tail
from .verdict import MARGIN, MAX_DROP, STILL, Evidence, Needs, Null, Verdict, judge

# As many unseen rows as this say how far the outputs moved.
MOVED_ROWS = 2000


@dataclass(frozen=True, eq=False)
class Outputs:
    """One model on n rows: its confidence (n,) in the label, log p − log(1 − p), whether it is right (n,), and its
    predicted distributions (n, classes).
    """

    confidence: Floats
    correct: NDArray[np.bool_]
    probabilities: NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class AttackScores:
    """The scores (n,) of one attack on the new, the original, and each retrained model.

    Of an attack on both models, `new` scores the pair (original, new), each of `retrained` the pair (original,
    retrained), and `original` is None.
    """

    name: str
    needs: Needs
    new: ArrayLike
    original: ArrayLike | None
    retrained: Sequence[ArrayLike] = ()

    def __post_init__(self) -> None:
        if (self.original is None) != self.both:
            raise InputError(
                f"the attack {self.name} needs {self.needs}; give scores on the original, or None for both"
            )
        models = {"the new model": self.new, "the original": () if self.original is None else self.original}
        for whose, scores in (*models.items(), *((f"retrained model {i}", s) for i, s in enumerate(self.retrained, 1))):
            wrong = np.flatnonzero(~np.isfinite(np.asarray(scores, dtype=np.float64)))
            if wrong.size:
                raise InputError(
                    f"the attack {self.name} gives row {wrong[0]} of {whose} a score that is no finite number, as "
                    f"{wrong.size} rows in all; leave out those rows"
                )

    @property
    def both(self) -> bool:
        """Whether the attack sees the original model too."""
        return self.needs.startswith("both")

    def on(self, rows: NDArray[np.bool_]) -> AttackScores:
        """The scores of these rows."""
        original = None if self.original is None else np.asarray(self.original)[rows]
        retrained = [np.asarray(scores)[rows] for scores in self.retrained]
        return replace(self, new=np.asarray(self.new)[rows], original=original, retrained=retrained)

    def before(self, rows: Matched) -> MatchedArea:
        """The area on the original; of an attack on both models nothing, which is what they differ in."""
        if self.original is None:
            return MatchedArea(0.0, np.zeros(rows.forgot.size))
        return matched_area(self.original, rows)


def alone(
    attacks: Sequence[AttackScores], rows: Matched, *, generator: np.random.Generator, draws: int = DRAWS
) -> tuple[Evidence, ...]:
    """Attacks on the new model: its forgotten rows against unseen ones. Attacks without two unequal scores are void."""
    attacks = [a for a in attacks if not matched_area(a.new, rows).void]
    if not attacks:
        return ()
    ps = permutation_p(np.array([a.new for a in attacks]), rows, generator=generator, draws=draws)
    found = []
    for attack, p, adjusted in zip(attacks, *ps, strict=True):
        area, error = area_estimate(matched_area(attack.new, rows), rows)
        deviation, before = Estimate(area.value - 0.5, area.low - 0.5, area.high - 0.5), attack.before(rows)
        original = area_estimate(before, rows)[0]
        power = area_estimate(before, rows, level=1 - (1 - LEVEL) / len(attacks))[0]
        seen = Estimate(abs(power.value - 0.5), max(power.low - 0.5, 0.5 - power.high), 0.5)
        test = (deviation, _finite(error), float(p), float(adjusted), seen)
        found.append(Evidence(attack.name, attack.needs, area, original, (), *test))
    return tuple(found)


def beside(attacks: Sequence[AttackScores], rows: Matched, *, margin: float = MARGIN) -> tuple[Evidence, ...]:
    """Attacks on the new model and on m retrained ones over the same rows.

    p is the largest over references of P(T > (|d| − margin (1 + 1/m)) / error), 1 where the new model is not on the
    same side of all of them; retrained models differ among themselves, hence the margin. Attacks on both models are
    compared by |A − ½|, and more than a reference is all that counts against them.
    """
    found: list[Evidence] = []
    for both in (False, True):
        same = [a for a in attacks if a.both == both and not matched_area(a.new, rows).void]
        parts = [_beside(attack, rows, len(same), margin) for attack in same]
        adjusted = holm([e.p for e in parts]) if parts else ()
        found += [replace(e, adjusted=float(q)) for e, q in zip(parts, adjusted, strict=True)]
    return tuple(found)


def _beside(attack: AttackScores, rows: Matched, attacks: int, margin: float) -> Evidence:
    if not attack.retrained:
        raise InputError(f"the attack {attack.name} was made on no retrained model; give one score a row for each")
    areas = [matched_area(scores, rows) for scores in (attack.new, *attack.retrained)]
    estimates = [area_estimate(a, rows)[0] for a in areas]
    new, *references = [a.strength for a in areas] if attack.both else areas
    before, tail = attack.before(rows), (1 - LEVEL) / 2
    slack, ps, ends, errors, seen = margin * (1 + 1 / len(references)), [], [], [], []
    for reference in references:
        d, power = new - reference, reference - before
        error, freedom = standard_error(d.influence, rows)
        errors.append(max(error, 1e-12))
        ends.append(_interval(d.value, errors[-1], freedom, tail))
        ps.append(student_tail(((d.value if attack.both else abs(d.value)) - slack) / errors[-1], freedom))
        seen.append(_interval(abs(power.value), *standard_error(power.influence, rows), tail / attacks))
    same_side = len({np.sign(e.value) for e in ends}) == 1 and ends[0].value != 0
    p = max(ps) if same_side else 1.0
    lowest = 0.0 if attack.both else min(e.low for e in ends)  # less trace than retraining leaves is no fault
    deviation = Estimate(float(np.mean([e.value for e in ends])), lowest, max(e.high for e in ends))
    least = Estimate(min(s.value for s in seen), min(s.low for s in seen), 0.5)
    original = None if attack.both else area_estimate(before, rows)[0]
    test = (deviation, _finite(max(errors)), p, p, least)
    return Evidence(attack.name, attack.needs, estimates[0], original, tuple(estimates[1:]), *test)


def _finite(error: float) -> float | None:
    return error if np.isfinite(error) else None


def _interval(value: float, error: float, freedom: float, tail: float) -> Estimate:
    reach = student_beyond(tail, freedom) * error
    return Estimate(value, max(value - reach, -1.0), min(value + reach, 1.0))


def judge_outputs(
    original: Outputs,
    new: Outputs,
    *,
    forgot: ArrayLike,
    classes: ArrayLike,
    generator: np.random.Generator,
    references: Mapping[str, Outputs] | None = None,
    attacks: Sequence[AttackScores] = (),
    gone: Sequence[int] = (),
    drawn: bool = False,
    ours: bool = False,
    word: str | None = None,
    draws: int = DRAWS,
    margin: float = MARGIN,
    max_drop: float = MAX_DROP,
) -> Verdict:
    """The verdict on a new model from what the models say of the same n rows.

    `forgot` (n,) is True where a row is forgotten; the others are unseen by every model: the test rows. `classes` (n,)
    are labels; test rows of the classes in `gone`, forgotten whole, do not count for accuracy. `references` are
    retrained models by name. `attacks` come beside accuracy and confidence; those on both models need references.
    `drawn`: the rows were drawn at random within their classes; `ours`: this project trained the new model from fresh
    weights without them; `word` says who states it.
    """
    mask, labels, models = np.asarray(forgot, dtype=bool), np.asarray(classes), dict(references or {})
    named = {"the original": original, "the new model": new, **models}
    width = original.probabilities.shape[1]
    for name, found in named.items():
        sizes = {len(found.confidence), len(found.correct), len(found.probabilities), mask.size, labels.size}
        if len(sizes) > 1:
            raise InputError(f"the arrays of {name} hold {sorted(sizes)} rows; give one entry a row in every array")
        if found.probabilities.shape[1:] != (width,):
            outputs = found.probabilities.shape[1]
            raise InputError(f"{name} has {outputs} outputs, the original {width}; give models of the same task")
    if not mask.any():
        raise InputError(f"none of the {mask.size} rows is forgotten; mark at least one")
    # Accuracy is an attack with the scores 0 and 1.
    sure, right = ([m.confidence for m in named.values()], [m.correct.astype(float) for m in named.values()])
    every = [
        AttackScores(what, "new outputs", s[1], s[0], s[2:]) for what, s in (("confidence", sure), ("accuracy", right))
    ]
    tests = ~mask & ~np.isin(labels, list(gone))
    before, after = original.correct[tests], new.correct[tests]
    here = np.isin(labels, labels[mask]) & np.isin(labels, labels[~mask])
    null: Null = "ours" if ours else "drawn" if drawn else "retrained" if models else "unseen"
    unseen = np.flatnonzero(~mask)
    if unseen.size > MOVED_ROWS:
        unseen = unseen[np.linspace(0, unseen.size - 1, MOVED_ROWS).astype(np.intp)]
    shown = np.concatenate([np.flatnonzero(mask), unseen])
    rise, closer, fake, evidence = None, False, "", tuple[Evidence, ...]()
    if here.any() and not ours:
        rows = match(mask[here], labels[here])
        rise = learned_more(original.correct[here], new.correct[here], rows)
        closer = rank_p(new.confidence[here] - original.confidence[here], rows) < 1 - LEVEL
        known = (("the original's", original), ("the new model's", new))
        same = [(n, whose) for n, m in models.items() for whose, k in known if max(_apart(m, k, shown)) <= STILL]
        fake = "{} gives {} outputs".format(*same[0]) if same else ""
        given = [attack.on(here) for attack in (*every, *attacks) if models or not attack.both]
        if null == "retrained":
            evidence = beside(given, rows, margin=margin)
        else:
            evidence = alone([a for a in given if not a.both], rows, generator=generator, draws=draws)
            evidence += beside([a for a in given if a.both], rows, margin=margin)
    up, down = int((after & ~before).sum()), int((before & ~after).sum())
    return judge(
        evidence,
        rows=int(mask.sum() if ours else mask[here].sum()),
        unseen=int((~mask[here]).sum()),
        null=null,
        references=len(models),
        fake=fake,
        moved=_apart(original, new, shown),
        drop=paired_drop(up, down, before.size) if before.size else None,
        tests=int(tests.sum()),
        accuracy=[float(m.correct[tests].mean()) for m in named.values()] if tests.any() else (),
        risen=rise,
        closer=closer,
        left=0 if ours else int((mask & ~here).sum()),
        word=word,
        margin=margin,
        max_drop=max_drop,
    )


def _apart(one: Outputs, other: Outputs, at: NDArray[np.intp]) -> tuple[float, float]:
    """The mean total variation ½ Σ |p − q| of two models on some rows, and the share of answers that differ."""
    p, q = one.probabilities[at], other.probabilities[at]
    return float(np.abs(p - q).sum(1).mean() / 2), float((p.argmax(1) != q.argmax(1)).mean())
