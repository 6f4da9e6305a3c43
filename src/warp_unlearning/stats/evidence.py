"""From the outputs of the original, the new and perhaps retrained models on the same rows to a verdict.

Every array has one entry a row, forgotten and unseen rows in any order; a score is higher where a model knows the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from .area import Matched, MatchedArea, area_estimate, match, matched_area, standard_error
from .exchange import DRAWS, learned_more, paired_drop, permutation_p, rank_p
from .holm import holm
from .intervals import Estimate
from .roc import Floats
from .tails import student_beyond, student_tail
from .verdict import LEVEL, MARGIN, MAX_DROP, STILL, Evidence, Needs, Null, Verdict, judge

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
class Attack:
    """The scores (n,) of one attack on the new, the original, and each retrained model.

    Of an attack on both models, `new` scores the pair (original, new), each of `retrained` the pair (original,
    retrained), and there is no `original`.
    """

    name: str
    needs: Needs
    new: ArrayLike
    original: ArrayLike | None
    retrained: Sequence[ArrayLike] = ()

    def __post_init__(self) -> None:
        models = {"the new model": self.new, "the original": self.original}
        models |= {f"retrained model {i}": scores for i, scores in enumerate(self.retrained, 1)}
        for whose, scores in models.items():
            wrong = np.flatnonzero(~np.isfinite(np.asarray([] if scores is None else scores, dtype=np.float64)))
            if wrong.size:
                raise InputError(
                    f"the attack {self.name} gives row {wrong[0]} of {whose} a score that is no finite number, as "
                    f"{wrong.size} rows in all; leave out the attack or those rows"
                )


def alone(
    attacks: Sequence[Attack],
    rows: Matched,
    *,
    generator: np.random.Generator,
    level: float = LEVEL,
    draws: int = DRAWS,
) -> tuple[Evidence, ...]:
    """Attacks on the new model: its forgotten rows against unseen ones. Attacks without two unequal scores are void."""
    areas = {a.name: matched_area(a.new, rows) for a in attacks}
    attacks = [a for a in attacks if not areas[a.name].void]
    if not attacks:
        return ()
    alone_p, adjusted = permutation_p(np.array([a.new for a in attacks]), rows, generator=generator, draws=draws)
    found = []
    for attack, p, q in zip(attacks, alone_p, adjusted, strict=True):
        area, error = area_estimate(areas[attack.name], rows, level=level)
        before = matched_area(_original(attack), rows)
        power = area_estimate(before, rows, level=1 - (1 - level) / len(attacks))[0]
        seen = Estimate(abs(power.value - 0.5), max(power.low - 0.5, 0.5 - power.high), 0.5)
        original = area_estimate(before, rows, level=level)[0]
        deviation = Estimate(area.value - 0.5, area.low - 0.5, area.high - 0.5)
        found.append(
            Evidence(attack.name, attack.needs, area, original, (), deviation, error, float(p), float(q), seen)
        )
    return tuple(found)


def beside(
    attacks: Sequence[Attack], rows: Matched, *, margin: float = MARGIN, level: float = LEVEL
) -> tuple[Evidence, ...]:
    """Attacks on the new model and on retrained ones over the same rows.

    p is the largest over references of P(T > (|d| − margin (1 + 1/m)) / error), 1 where the new model is not on the
    same side of all of them; retrained models differ among themselves, hence the margin. Attacks on both models are
    compared by |A − ½|, and more than a reference is all that counts against them.
    """
    attacks = [a for a in attacks if not matched_area(a.new, rows).void]
    found: list[Evidence] = []
    for both in (False, True):
        same = [a for a in attacks if a.needs.startswith("both") == both]
        parts = [_beside(a, rows, margin, level, len(same)) for a in same]
        adjusted = holm([e.p for e in parts]) if parts else ()
        found += [replace(e, adjusted=float(q)) for e, q in zip(parts, adjusted, strict=True)]
    return tuple(found)


def _beside(attack: Attack, rows: Matched, margin: float, level: float, attacks: int) -> Evidence:
    hidden, tail = attack.needs.startswith("both"), (1 - level) / 2
    if not attack.retrained:
        raise InputError(f"the attack {attack.name} was made on no retrained model; give one score a row for each")
    areas = [matched_area(scores, rows) for scores in (attack.new, *attack.retrained)]
    estimates = [area_estimate(a, rows, level=level)[0] for a in areas]
    new, *references = [a.strength for a in areas] if hidden else areas
    nothing = MatchedArea(0.0, np.zeros_like(new.influence))
    original = nothing if hidden else matched_area(_original(attack), rows)
    slack, ps, ends, errors, seen = margin * (1 + 1 / len(references)), [], [], [], []
    for reference in references:
        d, power = new - reference, reference - original
        error, freedom = standard_error(d.influence, rows)
        error = max(error, 1e-12)
        ends.append(_interval(d.value, error, freedom, tail))
        ps.append(student_tail(((d.value if hidden else abs(d.value)) - slack) / error, freedom))
        errors.append(error)
        seen.append(_interval(abs(power.value), *standard_error(power.influence, rows), tail / attacks))
    same_side = len({np.sign(e.value) for e in ends}) == 1 and ends[0].value != 0
    p = max(ps) if same_side else 1.0
    deviation = Estimate(
        float(np.mean([e.value for e in ends])),
        0.0 if hidden else min(e.low for e in ends),  # less trace than retraining leaves is no fault
        max(e.high for e in ends),
    )
    least = Estimate(min(s.value for s in seen), min(s.low for s in seen), 0.5)
    before = None if hidden else area_estimate(original, rows, level=level)[0]
    return Evidence(
        attack.name, attack.needs, estimates[0], before, tuple(estimates[1:]), deviation, max(errors), p, p, least
    )


def _interval(value: float, error: float, freedom: float, tail: float) -> Estimate:
    reach = student_beyond(tail, freedom) * error
    return Estimate(value, max(value - reach, -1.0), min(value + reach, 1.0))


def _original(attack: Attack) -> ArrayLike:
    if attack.original is None:
        raise InputError(f"the attack {attack.name} has no scores on the original model; give one a row")
    return attack.original


def judge_outputs(
    original: Outputs,
    new: Outputs,
    *,
    forgot: ArrayLike,
    classes: ArrayLike,
    generator: np.random.Generator,
    references: Mapping[str, Outputs] | None = None,
    attacks: Sequence[Attack] = (),
    gone: Sequence[int] = (),
    drawn: bool = False,
    ours: bool = False,
    word: str | None = None,
    copies: int = 0,
    margin: float = MARGIN,
    level: float = LEVEL,
    max_drop: float = MAX_DROP,
    draws: int = DRAWS,
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
    for name, outputs in named.items():
        _check(name, outputs, mask, labels, original.probabilities.shape[-1])
    if not mask.any():
        raise InputError(f"none of the {mask.size} rows is forgotten; mark at least one")
    tests = ~mask & ~np.isin(labels, list(gone))
    before, after = original.correct[tests], new.correct[tests]
    here = np.isin(labels, labels[mask]) & np.isin(labels, labels[~mask])
    null: Null = "ours" if ours else "drawn" if drawn else "retrained" if models else "unseen"
    rise, closer, fake, evidence = None, False, "", tuple[Evidence, ...]()
    moved = _movement(mask)
    if here.any() and not ours:
        rows = match(mask[here], labels[here])
        rise = learned_more(original.correct[here], new.correct[here], rows, level=level)
        closer = rank_p(new.confidence[here] - original.confidence[here], rows) < 1 - level
        fake = _fake(models, original, new, moved)
        every = [*_own_attacks(original, new, models), *attacks]
        given = [_only(a, here) for a in every]
        single = [a for a in given if a.needs.startswith("new")]
        pairs = [a for a in given if a.needs.startswith("both") and models]
        if null == "retrained":
            evidence = beside([*single, *pairs], rows, margin=margin, level=level)
        else:
            evidence = alone(single, rows, generator=generator, level=level, draws=draws)
            evidence += beside(pairs, rows, margin=margin, level=level)
    return judge(
        evidence,
        rows=int(mask.sum() if ours else mask[here].sum()),
        unseen=int((~mask[here]).sum()),
        null=null,
        references=len(models),
        fake=fake,
        moved=moved(original, new),
        drop=_drop(before, after, level),
        tests=int(tests.sum()),
        accuracy=[float(m.correct[tests].mean()) for m in named.values()] if tests.any() else (),
        risen=rise,
        closer=closer,
        copies=copies,
        left=0 if ours else int((mask & ~here).sum()),
        word=word,
        margin=margin,
        level=level,
        max_drop=max_drop,
    )


def _check(name: str, outputs: Outputs, mask: NDArray[np.bool_], labels: NDArray[np.int64], width: int) -> None:
    """Raise unless there is one finite confidence, one answer, one distribution and one class for each row."""
    sizes = {len(outputs.confidence), len(outputs.correct), len(outputs.probabilities), mask.size, labels.size}
    if len(sizes) > 1 or np.ndim(outputs.probabilities) != 2:
        raise InputError(f"the arrays of {name} hold {sorted(sizes)} rows; give one entry a row in every array")
    if outputs.probabilities.shape[1] != width:
        found = outputs.probabilities.shape[1]
        raise InputError(f"{name} has {found} outputs, the original {width}; give models of the same task")
    for what, values in (("confidence", outputs.confidence[:, None]), ("output", outputs.probabilities)):
        wrong = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if wrong.size:
            raise InputError(
                f"the {what} of {name} in row {wrong[0]} is not a finite number, as in {wrong.size} of {mask.size}: "
                "give a model whose outputs are finite"
            )


def _own_attacks(original: Outputs, new: Outputs, models: Mapping[str, Outputs]) -> list[Attack]:
    """Confidence and accuracy, which is an attack with the scores 0 and 1."""
    others = models.values()
    right, sure = [m.correct.astype(float) for m in others], [m.confidence for m in others]
    return [
        Attack("confidence", "new outputs", new.confidence, original.confidence, sure),
        Attack("accuracy", "new outputs", new.correct.astype(float), original.correct.astype(float), right),
    ]


def _only(attack: Attack, here: NDArray[np.bool_]) -> Attack:
    """The scores of these rows."""
    original = None if attack.original is None else np.asarray(attack.original)[here]
    retrained = [np.asarray(scores)[here] for scores in attack.retrained]
    return Attack(attack.name, attack.needs, np.asarray(attack.new)[here], original, retrained)


def _movement(mask: NDArray[np.bool_]) -> Callable[[Outputs, Outputs], tuple[float, float]]:
    """How far two models are apart on the forgotten and at most 2,000 unseen rows, evenly spaced: the mean total
    variation ½ Σ |p − q| and the share of answers that differ.
    """
    unseen = np.flatnonzero(~mask)
    if unseen.size > MOVED_ROWS:
        unseen = unseen[np.linspace(0, unseen.size - 1, MOVED_ROWS).astype(np.intp)]
    at = np.concatenate([np.flatnonzero(mask), unseen])

    def between(one: Outputs, other: Outputs) -> tuple[float, float]:
        p, q = np.asarray(one.probabilities)[at], np.asarray(other.probabilities)[at]
        return float(np.abs(p - q).sum(1).mean() / 2), float((p.argmax(1) != q.argmax(1)).mean())

    return between


def _fake(
    models: Mapping[str, Outputs],
    original: Outputs,
    new: Outputs,
    moved: Callable[[Outputs, Outputs], tuple[float, float]],
) -> str:
    """A sentence on the first reference that is one of the two models; empty if none is."""
    for name, reference in models.items():
        for whose, model in (("the original's", original), ("the new model's", new)):
            if max(moved(reference, model)) <= STILL:
                return f"{name} gives {whose} outputs"
    return ""


def _drop(before: NDArray[np.bool_], after: NDArray[np.bool_], level: float) -> Estimate | None:
    if not before.size:
        return None
    return paired_drop(int((after & ~before).sum()), int((before & ~after).sum()), before.size, level=level)
