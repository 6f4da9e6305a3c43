"""`audit_pair`: every attack that needs no shadow model on an original and an unlearned model, and the verdict.

Attacks score the forgotten examples and all unseen ones of their classes, on the original, the unlearned and the
retrained models. Those on the weights of both models are repeated after every pre-step that may undo a defence. Their
scores are the evidence of one verdict (`stats.verdict`): attacks on the new model alone for *forgotten*, attacks on
both for *hidden*, which is judged beside retrained models only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ...data.examples import TensorExamples, as_examples, as_tensors
from ...data.files import to_json
from ...errors import InputError
from ...models.own import check_examples
from ...models.weights import model_digest
from ...randomness import Streams
from ...stats.area import area_estimate, match, matched_area, strength_of
from ...stats.evidence import AttackScores, Outputs, judge_outputs
from ...stats.intervals import Estimate
from ...stats.roc import RATES, Rate, independent_rate
from ...stats.verdict import MARGIN, MAX_DROP, Needs, Verdict, check_bounds
from ...training.scoring import logit_confidence
from ...unlearning.checks import finite_logits, network_for
from ...unlearning.record import examples_digest
from ..undo import default_steps, make_pre_step
from .base import NAIVE, Attack, check_pair, device_of
from .gradient_difference import GradientDifference
from .pair_scores import DEFAULT, ORIGINAL, PairScorer, PairScores, as_attack, divide, unseen_rows

Floats = NDArray[np.float64]
SCHEMA_VERSION = 2


@dataclass(frozen=True)
class AttackRow:
    """One attack after one pre-step, as it is printed.

    `auc` is the area of the unlearned model, forgotten against unseen examples of the same classes; `original` and
    `retrained` are those of the same attack on these models. `rates` are the larger of both tails', over unseen
    examples in the proportions of the forgotten classes.
    """

    name: str
    attack: str
    step: str
    needs: Needs
    auc: Estimate
    original: Estimate | None
    retrained: tuple[Estimate, ...]
    rates: tuple[Rate, ...]

    @property
    def strength(self) -> Estimate:
        """max(AUC, 1 − AUC) with the interval that the area's implies: an area of .1 leaks as much as one of .9."""
        return strength_of(self.auc)


@dataclass(frozen=True, eq=False)
class PairAudit:
    """Every attack on one pair of models that needs no shadow model, and the verdict.

    `models` holds accuracy and mean loss on forgotten and unseen examples by model. `scores` are those of the unlearned
    model by row: of the forgotten examples at `forget_index` in the forget set, then of the unseen ones at `test_index`
    in the test set, whose labels are `classes`.
    """

    verdict: Verdict
    rows: tuple[AttackRow, ...]
    not_tried: Mapping[str, str]
    models: Mapping[str, Mapping[str, float]]
    counts: Mapping[str, int]
    digests: Mapping[str, str]
    settings: Mapping[str, Any]
    threat: tuple[str, ...]
    notes: tuple[str, ...]
    scores: Mapping[str, Floats] = field(repr=False)
    forget_index: NDArray[np.int64] = field(repr=False)
    test_index: NDArray[np.int64] = field(repr=False)
    classes: NDArray[np.int64] = field(repr=False)

    def row(self, name: str) -> AttackRow:
        """The row of that name, such as "update alignment after span"."""
        return next(row for row in self.rows if row.name == name)

    @property
    def strongest(self) -> str:
        """The row furthest from ½; empty where nothing could be compared."""
        return max(self.rows, key=lambda row: row.strength.value).name if self.rows else ""

    def strongest_strength(self, *, level: float = 0.95) -> Estimate:
        """The strength of the strongest row, with an interval that holds for all rows at once (Bonferroni's)."""
        if not self.rows:
            return Estimate(0.5, 0.5, 1.0)
        matched = match(np.arange(len(self.classes)) < len(self.forget_index), self.classes)
        areas, each = [matched_area(s, matched) for s in self.scores.values()], 1 - (1 - level) / len(self.rows)
        found = [strength_of(area_estimate(a, matched, level=each)[0]) for a in areas if not a.void]
        best = max(row.strength.value for row in self.rows)
        return Estimate(best, max((e.low for e in found), default=0.5), max((e.high for e in found), default=1.0))

    def as_json(self) -> dict[str, Any]:
        """Plain data with the version of its form."""
        apart = ("scores", "forget_index", "test_index", "classes", "rows", "verdict")
        about = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        rows = [{**asdict(row), "rates": [rate.summary() for rate in row.rates]} for row in self.rows]
        strongest = {"strongest": self.strongest, "strongest_strength": asdict(self.strongest_strength())}
        found: dict[str, Any] = to_json({**about, **strongest, "rows": rows, "verdict": self.verdict.as_json()})
        return {"schema_version": SCHEMA_VERSION, "kind": "pair", **found}


def audit_pair(
    original: nn.Module,
    unlearned: nn.Module,
    *,
    forget: object,
    test: object,
    retain: object | None = None,
    retrained: nn.Module | Sequence[nn.Module] | None = None,
    attacks: Sequence[str | Attack] | str | None = None,
    steps: Sequence[str] | str | None = None,
    defense: str | None = None,
    drawn: bool | str = False,
    margin: float = MARGIN,
    max_drop: float = MAX_DROP,
    background: int = 1000,
    probes: int = 512,
    ridge: float = 1e-3,
    relative_ridge: bool = True,
    repetitions: int = 1,
    seed: int = 0,
) -> PairAudit:
    """Attack a pair of models with everything that needs no shadow model, and judge it.

    Each set is a pair of tensors (x, y), a `Dataset` of such pairs, or a `DataLoader`. `retrained` are models that were
    trained without the forget set: one can accuse, two are needed to hold. `drawn` says that the forgotten examples
    were drawn at random within their classes (as a text, who says so).

    `attacks` are names, FILE.py:Class, or objects with `name`, `needs` and `score`; accuracy and confidence are always
    among the evidence. Attacks on the weights of both models are repeated after all `steps` that apply, or after those
    against `defense`: its name, "none", or None where it is unknown. Up to `background` test examples, at most a third,
    are left to the attacker to fit; `probes` is how many examples of `retain`, or of the background without it, he uses
    to undo a defence. `ridge`, `relative_ridge` and `repetitions` are those of the gradient difference. `seed` decides
    the draws of the auditor.
    """
    auditor = PairAuditor(
        original,
        forget=forget,
        test=test,
        retain=retain,
        retrained=retrained,
        attacks=attacks,
        drawn=drawn,
        margin=margin,
        max_drop=max_drop,
        background=background,
        probes=probes,
        ridge=ridge,
        relative_ridge=relative_ridge,
        repetitions=repetitions,
        seed=seed,
    )
    return auditor.audit(unlearned, defense=defense, steps=steps)


class PairAuditor:
    """`audit_pair` for several unlearned models of one original, of which the same examples were forgotten.

    What depends on the original and the sets alone is computed once. As long as an auditor lives it holds that on the
    original's device, some 200 bytes for each parameter of a ResNet-18. The models must not be changed meanwhile.
    """

    def __init__(
        self,
        original: nn.Module,
        *,
        forget: object,
        test: object,
        retain: object | None = None,
        retrained: nn.Module | Sequence[nn.Module] | None = None,
        attacks: Sequence[str | Attack] | str | None = None,
        drawn: bool | str = False,
        margin: float = MARGIN,
        max_drop: float = MAX_DROP,
        background: int = 1000,
        probes: int = 512,
        ridge: float = 1e-3,
        relative_ridge: bool = True,
        repetitions: int = 1,
        seed: int = 0,
    ) -> None:
        if background < 2:
            raise InputError(f"background is {background}; attacks need at least 2 examples to fit")
        if probes < 1:
            raise InputError(f"probes is {probes}; give the attacker at least one example")
        if not isinstance(drawn, bool | str):
            raise InputError(f"drawn is {drawn!r}; give True, False, or who says that the rows were drawn at random")
        check_bounds(margin, max_drop)
        if test is None:
            raise InputError("an audit needs examples that no model saw: give them as test=(x, y)")
        streams = Streams(seed, "pair audit")
        self._seed = seed
        self._judging: dict[str, Any] = {"drawn": bool(drawn), "word": drawn if isinstance(drawn, str) else None}
        self._judging |= {"margin": margin, "max_drop": max_drop}
        fit: dict[str, Any] = {"ridge": ridge, "relative_ridge": relative_ridge, "repetitions": repetitions}
        asked = [attacks] if isinstance(attacks, str) else attacks or DEFAULT
        self._attacks = [_made(attack, streams=streams, **fit) for attack in asked]
        names = [a.name for a in self._attacks]
        self._settings = {"attacks": names, **fit, "seed": seed}
        if len(names) > len(set(names)):
            raise InputError(f"two of the attacks {', '.join(names)} have one name; give each once")
        self._device = device_of(original, what="original")
        given = {"forget": forget, "test": test} | ({} if retain is None else {"retain": retain})
        sets = {what: as_examples(source, what=what).to(self._device) for what, source in given.items()}
        self._sets = {what: as_tensors(examples) for what, examples in sets.items()}
        self._original = self._network(original, "original")
        references = [retrained] if isinstance(retrained, nn.Module) else list(retrained or ())
        self._references = {f"retrained {i}": self._network(m, f"retrained {i}") for i, m in enumerate(references, 1)}
        self._known_digests = _digests({"original": self._original, **self._references})
        unseen, self._notes = unseen_rows(self._sets)
        self._divide(unseen, background, streams.generator("held out"))
        source, order = self._sets.get("retain", self._background), streams.generator("probes")
        self._probes = source.select(torch.randperm(len(source), generator=order)[:probes].sort().values)

    def audit(
        self, unlearned: nn.Module, *, defense: str | None = None, steps: Sequence[str] | str | None = None
    ) -> PairAudit:
        """Attack the original and this model, and judge it."""
        asked = (steps,) if isinstance(steps, str) else steps
        if asked is not None and not asked:
            raise InputError('no pre-step was given; give at least "naive"')
        for step in asked or ():
            make_pre_step(step)
        if any(a.needs == "both weights" for a in self._attacks):
            tried = tuple(default_steps(defense) if asked is None else asked)
        elif set(asked or ()) <= {NAIVE}:
            tried = (NAIVE,)
        else:
            raise InputError(
                "no attack here holds the weights of both models, so there is nothing to undo; give no step"
            )
        models = {"unlearned": self._network(unlearned, "unlearned"), **self._references}
        logits = {ORIGINAL: self._logits} | {name: self._logits_of(name, model) for name, model in models.items()}
        found, not_tried = list[PairScores](), dict[str, str]()
        if self._matched is not None:
            at = torch.from_numpy(self._here)
            known = {name: z[at] for name, z in logits.items()}
            found, not_tried = self._scorer.score(models, self._attacks, steps=tried, logits=known)
        table = tuple(self._row(each) for each in found)
        digests = {"original": self._known_digests["original"], "unlearned": model_digest(models["unlearned"])}
        forgotten, probes, background = int(self._forgot[self._here].sum()), len(self._probes), len(self._background)
        mode = ["the unlearned model was given in train mode and scored in eval mode"] if unlearned.training else []
        equal = ", ".join(each.name for each in found if self._area(each).void)
        return PairAudit(
            verdict=self._judged(found, logits),
            rows=table,
            not_tried=not_tried,
            models={name: self._about(z) for name, z in logits.items()},
            counts={"forgotten": forgotten, "never seen": int(self._here.sum()) - forgotten}
            | {"test": int((~self._forgot).sum()), "background": background, "probes": probes},
            digests=digests | self._known_digests | self._set_digests,
            settings={"defense": defense, "steps": list(tried), **self._settings},
            threat=_threat(probes, background, from_retain="retain" in self._sets),
            notes=(*self._notes, *mode, *([f"all scores of a class are equal by {equal}"] if equal else [])),
            scores={each.name: each.scores["unlearned"] for each in found},
            forget_index=np.flatnonzero(self._here & self._forgot),
            test_index=self._test_rows[self._here[~self._forgot]],
            classes=self._classes[self._here],
        )

    def _network(self, model: nn.Module, what: str) -> nn.Module:
        """The user's model as a network that takes the sets, and that the attacks can be made on."""
        network = network_for(model, self._sets["forget"], what=f"the {what} model")
        if device_of(network, what=what) != self._device:
            raise InputError(f"the {what} model is on another device than {self._device}; move both to one device")
        if what == "original":
            check_examples(network, dict(self._sets))
        weighing = [a.name for a in self._attacks if a.needs == "both weights"]
        if weighing and what != "original":
            try:
                check_pair(self._original, network)
            except InputError as error:
                raise InputError(f"the attack {weighing[0]} needs the weights of both models: {error}") from error
        return network

    def _divide(self, unseen: Tensor, background: int, generator: torch.Generator) -> None:
        """Leave some unseen rows to the attacker, and put the others behind the forgotten ones."""
        fitted, rest = divide(self._sets["test"].y.cpu()[unseen], background, generator)
        self._background = self._sets["test"].select(unseen[fitted])
        forget, tests = self._sets["forget"], self._sets["test"].select(unseen[rest])
        self._test_rows = unseen[rest].numpy()
        self._rows = TensorExamples(torch.cat([forget.x, tests.x]), torch.cat([forget.y, tests.y]))
        self._classes = self._rows.y.cpu().numpy()
        forgot = self._forgot = np.arange(len(self._classes)) < len(forget)
        self._here = np.isin(self._classes, np.intersect1d(self._classes[forgot], self._classes[~forgot]))
        self._matched = match(forgot[self._here], self._classes[self._here]) if self._here.any() else None

    def _logits_of(self, name: str, model: nn.Module) -> Tensor:
        return finite_logits(model, self._rows, "forgotten or unseen", whose=f"{name} model")

    @cached_property
    def _logits(self) -> Tensor:
        return self._logits_of("original", self._original)

    @cached_property
    def _set_digests(self) -> dict[str, str]:
        return {f"{what} set": examples_digest(self._sets[what]) for what in ("forget", "test")}

    @cached_property
    def _scorer(self) -> PairScorer:
        where = np.flatnonzero(self._here)

        def row_name(i: int) -> str:
            forgotten = bool(self._forgot[where[i]])
            row = where[i] if forgotten else self._test_rows[where[i] - self._forgot.sum()]
            return f"row {row} of the {'forget' if forgotten else 'test'} set"

        return PairScorer(
            self._original,
            candidates=self._rows.select(torch.from_numpy(where)),
            background=self._background,
            probes=self._probes,
            row_name=row_name,
        )

    def _judged(self, found: Sequence[PairScores], logits: Mapping[str, Tensor]) -> Verdict:
        y = torch.from_numpy(self._classes)
        outputs = {
            name: Outputs(_confidence(z, y), (z.argmax(1) == y).numpy(), F.softmax(z, dim=1).numpy())
            for name, z in logits.items()
        }

        attacks = []
        for each in found:
            if each.name in ("accuracy", "confidence"):
                continue  # the judge has these of its own
            whole = {name: np.zeros(len(y)) for name in each.scores}
            for name, scores in each.scores.items():
                whole[name][self._here] = scores  # rows of other classes are compared with nothing
            new, beside = whole["unlearned"], [whole[name] for name in self._references]
            attacks.append(AttackScores(each.name, each.attack.needs, new, whole.get(ORIGINAL), beside))
        retain, test = self._sets.get("retain"), self._sets["test"]
        seed = Streams(self._seed, "judge").number("permutations")
        return judge_outputs(
            outputs.pop(ORIGINAL),
            outputs.pop("unlearned"),
            forgot=self._forgot,
            classes=self._classes,
            generator=np.random.default_rng(seed),
            references=outputs,
            attacks=attacks,
            gone=[] if retain is None else sorted(set(test.y.tolist()) - set(retain.y.tolist())),
            **self._judging,
        )

    def _area(self, each: PairScores, model: str = "unlearned") -> Any:
        assert self._matched is not None
        return matched_area(each.scores[model], self._matched)

    def _row(self, each: PairScores) -> AttackRow:
        assert self._matched is not None
        areas = {name: area_estimate(self._area(each, name), self._matched)[0] for name in each.scores}
        labels, forgot, scores = self._classes[self._here], self._forgot[self._here], each.scores["unlearned"]
        forgotten, never = scores[forgot], scores[~forgot][_in_proportion(labels[forgot], labels[~forgot])]
        retrained = tuple(areas[name] for name in self._references)
        rates = tuple(_rate(forgotten, never, fpr) for fpr in RATES)
        about = (each.name, each.attack.name, each.step, each.attack.needs)
        return AttackRow(*about, areas["unlearned"], areas.get(ORIGINAL), retrained, rates)

    def _about(self, logits: Tensor) -> dict[str, float]:
        y, found = torch.from_numpy(self._classes), dict[str, float]()
        right, losses = (logits.argmax(1) == y).numpy(), F.cross_entropy(logits, y, reduction="none").numpy()
        for what, rows in (("forgotten", self._forgot), ("unseen", self._here & ~self._forgot)):
            if rows.any():
                found |= {f"accuracy, {what}": float(right[rows].mean()), f"loss, {what}": float(losses[rows].mean())}
        return found


def _made(attack: str | Attack, *, streams: Streams, ridge: float, relative_ridge: bool, repetitions: int) -> Attack:
    """The attack; the gradient difference by name has these settings, that of the paper but for its ridge."""
    made = as_attack(attack)
    if isinstance(attack, str) and isinstance(made, GradientDifference):
        made = replace(made, repetitions=repetitions, generator=streams.generator(f"background of {made.name}"))
        if made.by == "distance":
            made = replace(made, ridge=ridge, relative=relative_ridge)
    return made


def _confidence(logits: Tensor, y: Tensor) -> Floats:
    return logit_confidence(logits.numpy(), y.numpy())


def _rate(forgotten: Floats, never: Floats, fpr: float) -> Rate:
    """The larger rate of both tails, at a level corrected for there being two: an attacker may call low scores
    forgotten as well as high ones.
    """
    up, down = (independent_rate(sign * forgotten, sign * never, fpr, level=0.975) for sign in (1, -1))
    if up.tpr is None or down.tpr is None:
        return up
    larger = max(up.tpr, down.tpr, key=lambda estimate: estimate.value)
    return Rate(fpr, Estimate(larger.value, larger.low, max(up.tpr.high, down.tpr.high)), up.negatives)


def _in_proportion(forgotten: NDArray[np.int64], unseen: NDArray[np.int64]) -> NDArray[np.intp]:
    """Positions of unseen labels, first come first taken, with the classes in the proportions of the forgotten ones."""
    classes, counts = np.unique(forgotten, return_counts=True)
    there = np.array([(unseen == c).sum() for c in classes])
    scarce = int((there / counts).argmin())
    wanted = np.maximum(counts * there[scarce] // counts[scarce], 1)
    return np.concatenate([np.flatnonzero(unseen == c)[:n] for c, n in zip(classes, wanted, strict=True)])


def _digests(models: Mapping[str, nn.Module]) -> dict[str, str]:
    """Digests by name; refuses a reference that is another reference under another name."""
    found = {name: model_digest(model) for name, model in models.items()}
    seen: dict[str, str] = {}
    for name, digest in found.items():
        if name != "original" and digest in seen:
            whose, why = seen[digest], "two references are two trainings"
            if digest == found["original"]:
                whose, why = f"the original, as {whose} has", "a reference is trained without the forgotten rows"
            raise InputError(f"the model {name} has the very weights of {whose}; {why}")
        if name != "original":
            seen[digest] = name
    return found


def _threat(probes: int, background: int, *, from_retain: bool) -> tuple[str, ...]:
    origin = "retained training examples" if from_retain else "the same held-out examples"
    return (
        "The attacker holds both models, weights and architecture, and each candidate with its label.",
        f"The attacker holds {background} examples that neither model saw, to fit the attacks on, and {probes} "
        f"{origin}, to undo a defence with.",
        "The attacker holds no shadow model and does not know what a defence drew at random.",
    )
