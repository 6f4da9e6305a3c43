"""`compare()` and the judge: what a model forgot and kept, beside its original and retrained models.

A retrained model never saw the forget set, so it is what unlearning aims at. The gap to it is measured on the forget
set as the mean total variation distance between the two models' predicted distributions, ½ Σ_c |p_c − q_c|, in [0, 1],
and as the Kolmogorov-Smirnov distance between the distributions of their losses. The verdict (`stats.verdict`) compares
the forgotten rows with unseen rows of their classes, or with the same rows under retrained models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.examples import Examples
from ..data.files import to_json
from ..errors import InputError
from ..randomness import Streams, whole
from ..stats.evidence import Outputs, judge_outputs
from ..stats.intervals import Estimate, mean, proportion
from ..stats.verdict import Verdict
from ..training.scoring import logit_confidence
from .checks import as_sets, check_examples, copies_of, device_of, finite_logits, network_for

SCHEMA_VERSION = 2
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
Retrained = nn.Module | Sequence[nn.Module] | None
Parts = Mapping[str, Tensor]  # logits or labels of each set
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ModelScores:
    """Accuracy on each set with a 95 % interval, and the distribution of the loss on the forget set."""

    accuracy: Mapping[str, Estimate]
    forget_loss_mean: Estimate
    forget_loss_quantiles: Mapping[str, float]


@dataclass(frozen=True)
class Gap:
    """How far a model is from the first retrained one; accuracy differences are model minus retrained."""

    forget_output: Estimate
    forget_loss: float
    accuracy: Mapping[str, float]


@dataclass(frozen=True)
class ModelComparison:
    """Scores of each model by name ("original", "unlearned", "retrained" or "retrained 1", "retrained 2", ...), gaps to
    the first retrained one, the number of rows of each set, and the verdict on the unlearned model.
    """

    models: Mapping[str, ModelScores]
    gaps: Mapping[str, Gap]
    counts: Mapping[str, int]
    verdict: Verdict

    def rows(self) -> list[dict[str, Any]]:
        """A plain row for each model and set, as a `pandas.DataFrame` takes them."""
        return [
            {"model": name, "set": what, "rows": self.counts[what], "accuracy": e.value, "low": e.low, "high": e.high}
            for name, scores in self.models.items()
            for what, e in scores.accuracy.items()
        ]

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the version of its form; a bound that is infinite is None, as JSON has no infinity."""
        reference = "retrained model" if len(self.models) > 2 else "none: no retrained model was given"
        plain = to_json({**asdict(self), "verdict": self.verdict.as_json()})
        return {"schema_version": SCHEMA_VERSION, "reference": reference, **plain}

    def __repr__(self) -> str:
        rows = ", ".join(f"{count:,} {what}" for what, count in self.counts.items())
        return f"ModelComparison({', '.join(self.models)} on {rows} rows; {self.verdict.sentence})"

    def _repr_html_(self) -> str:
        head = ["model", *(f"{what} ({count:,})" for what, count in self.counts.items())]
        body = [[name, *(str(e) for e in scores.accuracy.values())] for name, scores in self.models.items()]
        rows = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
        rows += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body]
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table>{table}</table><pre>{escape(chr(10).join(self.verdict.lines))}</pre>"


def compare(
    original: nn.Module,
    unlearned: nn.Module,
    *,
    forget: object,
    retain: object,
    test: object | None = None,
    retrained: Retrained = (),
    drawn: bool | str = False,
    ours: bool = False,
    seed: int = 0,
) -> ModelComparison:
    """Score the models on the forget, retain and test sets, each a pair of tensors, a `Dataset` or a `DataLoader`, and
    judge the unlearned one.

    `retrained` are models trained without the forget set. `drawn` says that the forget set was drawn at random within
    its classes (as a text, who says so), `ours` that this software trained the unlearned model from fresh weights
    without it.
    """
    sets, seed, word = as_sets(forget=forget, retain=retain, test=test), whole(seed), word_of(drawn)
    models = _named(original, unlearned, retrained, sets["forget"])
    for model in models.values():
        check_examples(model, {what: examples.to(device_of(model)) for what, examples in sets.items()})
    logits = _logits(models, sets)
    verdict = _judge(logits, sets, drawn=bool(drawn), ours=ours, word=word, seed=seed).verdict
    labels = {what: examples.y.cpu() for what, examples in sets.items()}
    scores = {name: _scores(parts, labels) for name, parts in logits.items()}
    gaps = {
        name: Gap(
            *_distances(parts["forget"], logits[reference]["forget"], labels["forget"]),
            {what: e.value - scores[reference].accuracy[what].value for what, e in scores[name].accuracy.items()},
        )
        for reference in list(models)[2:3]
        for name, parts in logits.items()
        if name != reference
    }
    return ModelComparison(scores, gaps, {what: len(examples) for what, examples in sets.items()}, verdict)


def word_of(drawn: object) -> str | None:
    """Who says that rows were drawn at random, if `drawn` names them; raises unless it is true, false or a text."""
    if not isinstance(drawn, bool | str):
        raise InputError(f"drawn is {drawn!r}; give True or False, or who says that the rows were drawn at random")
    return drawn if isinstance(drawn, str) else None


class Judged(NamedTuple):
    """The verdict, and the shares of right answers of both models, as `Unlearned` has them."""

    verdict: Verdict
    before: dict[str, float | None]
    after: dict[str, float | None]


def judge_models(
    original: nn.Module,
    unlearned: nn.Module,
    *,
    forget: Examples,
    test: Examples | None = None,
    retain: Examples | None = None,
    drawn: bool = False,
    ours: bool = False,
    word: str | None = None,
    seed: int = 0,
) -> Judged:
    """Whether the unlearned model changed, still works, and does not give the forgotten rows away.

    Test rows that are also forgotten or retained are left out; those of classes that `retain` no longer has do not
    count for the accuracy. `word` says who states what the rows are compared with.
    """
    sets = {"forget": forget} | ({} if test is None else {"test": test})
    logits = _logits(_named(original, unlearned, (), forget), sets)
    sets |= {} if retain is None else {"retain": retain}
    return _judge(logits, sets, drawn=drawn, ours=ours, word=word, seed=seed)


def _judge(logits: Mapping[str, Parts], sets: Mapping[str, Examples], *, seed: int, **how: Any) -> Judged:
    forget, test, retain = sets["forget"].y.cpu(), sets.get("test"), sets.get("retain")
    y, found, copies, gone = forget, {name: parts["forget"] for name, parts in logits.items()}, 0, list[int]()
    if test is not None:
        unseen = torch.ones(len(test), dtype=torch.bool)
        for what in sets.keys() - {"test"}:
            unseen[copies_of(sets[what], test)] = False
        copies = int((~unseen).sum())
        gone = [] if retain is None else sorted(set(test.y.tolist()) - set(retain.y.tolist()))
        y = torch.cat([y, test.y.cpu()[unseen]])
        found = {name: torch.cat([found[name], parts["test"][unseen]]) for name, parts in logits.items()}
    labels, forgot = y.numpy(), np.arange(len(y)) < len(forget)
    models = {
        name: Outputs(logit_confidence(z.numpy(), labels), (z.argmax(1) == y).numpy(), F.softmax(z, dim=1).numpy())
        for name, z in found.items()
    }
    before, after = (_shares(models[name].correct, labels, forgot, gone) for name in ("original", "unlearned"))
    verdict = judge_outputs(
        models.pop("original"),
        models.pop("unlearned"),
        forgot=forgot,
        classes=labels,
        generator=np.random.default_rng(Streams(seed, "judge").number("permutations")),
        references=models,
        gone=gone,
        **how,
    )
    if copies:
        rows = f"{copies:,} test row{'s are' if copies > 1 else ' is'} also forgotten or retained, and left out"
        verdict = replace(verdict, assumes=(*verdict.assumes, rows))
    return Judged(verdict, before, after)


def _shares(right: Mask, labels: NDArray[np.int64], forgot: Mask, gone: Sequence[int]) -> dict[str, float | None]:
    test, here = ~forgot, np.unique(labels[forgot])
    here = here[np.isin(here, labels[test])]
    by_class = [right[test & (labels == c)].mean() for c in here]
    weights = [(labels[forgot] == c).sum() for c in here]
    kept = test & ~np.isin(labels, gone)
    return {
        "forgotten": float(right[forgot].mean()),
        "unseen": float(np.average(by_class, weights=weights)) if by_class else None,
        "test": float(right[test].mean()) if test.any() else None,
        "kept": float(right[kept].mean()) if 0 < kept.sum() < test.sum() else None,
    }


def output_distance(output: Tensor, reference: Tensor) -> Tensor:
    """Total variation distance ½ Σ_c |p_c − q_c| between softmaxed logits of shape (n, classes), for each example."""
    return 0.5 * (F.softmax(output, dim=1) - F.softmax(reference, dim=1)).abs().sum(1)


def _named(original: nn.Module, unlearned: nn.Module, retrained: Retrained, forget: Examples) -> dict[str, nn.Module]:
    if not (retrained is None or isinstance(retrained, nn.Module | list | tuple)):
        raise InputError(f"retrained is a {type(retrained).__name__}; give a model, or a list of models")
    others = [retrained] if isinstance(retrained, nn.Module) else list(retrained or ())
    names = ["retrained"] if len(others) == 1 else [f"retrained {i}" for i in range(1, len(others) + 1)]
    given = {"original": original, "unlearned": unlearned} | dict(zip(names, others, strict=True))
    return {name: network_for(model, forget, what=f"the {name} model") for name, model in given.items()}


def _logits(models: Mapping[str, nn.Module], sets: Mapping[str, Examples]) -> dict[str, Parts]:
    return {
        name: {what: finite_logits(model, rows, what, whose=f"{name} model") for what, rows in sets.items()}
        for name, model in models.items()
    }


def _scores(logits: Parts, labels: Parts) -> ModelScores:
    accuracy = {w: proportion(int((z.argmax(1) == labels[w]).sum()), len(z)) for w, z in logits.items()}
    losses = _losses(logits["forget"], labels["forget"])
    quantiles = {f"{q:g}": float(v) for q, v in zip(QUANTILES, np.quantile(losses, QUANTILES), strict=True)}
    return ModelScores(accuracy, mean(losses), quantiles)


def _distances(logits: Tensor, reference: Tensor, y: Tensor) -> tuple[Estimate, float]:
    from scipy.stats import ks_2samp  # takes a second to import

    outputs = mean(output_distance(logits, reference).numpy())
    return outputs, float(ks_2samp(_losses(logits, y), _losses(reference, y)).statistic)


def _losses(logits: Tensor, y: Tensor) -> NDArray[np.float64]:
    return cast("NDArray[np.float64]", F.cross_entropy(logits, y, reduction="none").numpy())
