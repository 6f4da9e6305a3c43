"""What a model forgot and what it kept, beside its original and retrained ones, and whether that holds.

A retrained model never saw the forget set, so it is what unlearning aims at. The gap to it is measured on the forget
set as the mean total variation distance between the two models' predicted distributions, ½ Σ_c |p_c − q_c|, in [0, 1],
and as the Kolmogorov-Smirnov distance between the distributions of their losses. The verdict compares the forgotten
rows with unseen rows of their classes, or with what retrained models say of them (`stats.verdict`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.examples import Examples, as_examples
from ..data.files import to_json
from ..errors import InputError
from ..randomness import Streams, whole
from ..stats.evidence import Outputs, judge_outputs
from ..stats.intervals import Estimate, mean, proportion
from ..stats.verdict import Verdict
from ..training.scoring import checked_logits, logit_confidence
from .checks import check_examples, copies_of, device_of, network_for
from .guard import generators_kept

SCHEMA_VERSION = 2
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
Retrained = nn.Module | Sequence[nn.Module] | None
Parts = Mapping[str, Tensor]  # logits or labels of each set


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
        said = {"verdict": self.verdict.as_json()}
        return {"schema_version": SCHEMA_VERSION, "reference": reference, **to_json({**asdict(self), **said})}

    def __repr__(self) -> str:
        rows = ", ".join(f"{count:,} {what}" for what, count in self.counts.items())
        return f"ModelComparison({', '.join(self.models)} on {rows} rows; {self.verdict.sentence})"

    def _repr_html_(self) -> str:
        head = ["model", *(f"{what} ({count:,})" for what, count in self.counts.items())]
        body = [[name, *(str(e) for e in scores.accuracy.values())] for name, scores in self.models.items()]
        return html_table(head, body, self.verdict)


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
    given = {"forget": forget, "retain": retain} | ({} if test is None else {"test": test})
    seed = whole(seed)
    check_drawn(drawn)
    sets = {what: as_examples(source, what=what) for what, source in given.items()}
    models = _named(original, unlearned, retrained, sets["forget"])
    classes = {n: check_examples(m, {w: e.to(device_of(m)) for w, e in sets.items()}) for n, m in models.items()}
    if len(set(classes.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in classes.items())
        raise InputError(f"the models have different numbers of classes ({found}); give models of one task")
    outputs = {
        name: {what: _logits(m, name, part, what, classes[name]) for what, part in sets.items()}
        for name, m in models.items()
    }
    labels = {what: examples.y.cpu() for what, examples in sets.items()}
    scores = {name: _scores(outputs[name], labels) for name in models}
    gaps = {
        name: Gap(
            *_distances(outputs[name]["forget"], outputs[reference]["forget"], labels["forget"]),
            {what: e.value - scores[reference].accuracy[what].value for what, e in scores[name].accuracy.items()},
        )
        for reference in list(models)[2:3]
        for name in models
        if name != reference
    }
    word = drawn if isinstance(drawn, str) else None
    verdict = _judged(outputs, sets, drawn=bool(drawn), ours=ours, word=word, seed=seed)
    return ModelComparison(scores, gaps, {what: len(examples) for what, examples in sets.items()}, verdict)


def check_drawn(drawn: object) -> None:
    """Raise unless `drawn` is true, false, or who says so."""
    if not isinstance(drawn, bool | str):
        raise InputError(f"drawn is {drawn!r}; give True or False, or who says that the rows were drawn at random")


def judge_models(
    original: nn.Module,
    unlearned: nn.Module,
    *,
    forget: Examples,
    test: Examples | None = None,
    retain: Examples | None = None,
    retrained: Retrained = (),
    drawn: bool = False,
    ours: bool = False,
    word: str | None = None,
    seed: int = 0,
) -> Verdict:
    """Whether the unlearned model changed, still works, and does not give the forgotten rows away.

    Test rows that are also forgotten or retained are left out; those of classes that `retain` no longer has do not
    count for the accuracy. `word` says who states what the rows are compared with.
    """
    models = _named(original, unlearned, retrained, forget)
    asked = {"forget": forget} | ({} if test is None else {"test": test})
    outputs = {name: {what: _logits(m, name, part, what) for what, part in asked.items()} for name, m in models.items()}
    sets = asked | ({} if retain is None else {"retain": retain})
    return _judged(outputs, sets, drawn=drawn, ours=ours, word=word, seed=seed)


def _judged(outputs: Mapping[str, Parts], sets: Mapping[str, Examples], *, seed: int, **how: Any) -> Verdict:
    y, test, retain = sets["forget"].y.cpu(), sets.get("test"), sets.get("retain")
    found, forgotten, gone, left_out = {name: parts["forget"] for name, parts in outputs.items()}, len(y), [], 0
    if test is not None:
        unseen = torch.ones(len(test), dtype=torch.bool)
        for what in sets.keys() - {"test"}:
            unseen[copies_of(sets[what], test)] = False
        left_out = int((~unseen).sum())
        gone = [] if retain is None else sorted(set(test.y.tolist()) - set(retain.y.tolist()))
        y = torch.cat([y, test.y.cpu()[unseen]])
        found = {name: torch.cat([found[name], parts["test"][unseen]]) for name, parts in outputs.items()}
    models = {
        name: Outputs(
            logit_confidence(logits_.numpy(), y.numpy()),
            (logits_.argmax(1) == y).numpy(),
            F.softmax(logits_, dim=1).numpy(),
        )
        for name, logits_ in found.items()
    }
    verdict = judge_outputs(
        models.pop("original"),
        models.pop("unlearned"),
        forgot=np.arange(len(y)) < forgotten,
        classes=y.numpy(),
        generator=np.random.default_rng(Streams(seed, "judge").number("permutations")),
        references=models,
        gone=gone,
        **how,
    )
    if not left_out:
        return verdict
    rows = f"{left_out:,} test row{'s are' if left_out > 1 else ' is'} also forgotten or retained, and left out"
    return replace(verdict, assumes=(*verdict.assumes, rows))


def output_distance(output: Tensor, reference: Tensor) -> Tensor:
    """Total variation distance ½ Σ_c |p_c − q_c| between softmaxed logits of shape (n, classes), for each example."""
    return 0.5 * (F.softmax(output, dim=1) - F.softmax(reference, dim=1)).abs().sum(1)


def html_table(head: Sequence[str], body: Sequence[Sequence[str]], verdict: Verdict) -> str:
    """A table with the verdict's lines below, for notebooks."""
    rows = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    rows += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body]
    table = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>{table}</table><pre>{escape(chr(10).join(verdict.lines))}</pre>"


def _named(original: nn.Module, unlearned: nn.Module, retrained: Retrained, forget: Examples) -> dict[str, nn.Module]:
    if not (retrained is None or isinstance(retrained, nn.Module | list | tuple)):
        raise InputError(f"retrained is a {type(retrained).__name__}; give a model, or a list of models")
    others = [retrained] if isinstance(retrained, nn.Module) else list(retrained or ())
    names = ["retrained"] if len(others) == 1 else [f"retrained {i}" for i in range(1, len(others) + 1)]
    given = {"original": original, "unlearned": unlearned} | dict(zip(names, others, strict=True))
    return {name: network_for(model, forget, what=f"the {name} model") for name, model in given.items()}


def _logits(model: nn.Module, name: str, examples: Examples, what: str, classes: int | None = None) -> Tensor:
    part = examples.to(device_of(model))
    # A data set that augments gives every model the same inputs.
    with generators_kept(part.y.device, start=0):
        found = checked_logits(model, part, what, classes=classes)
    broken = (~found.isfinite().all(1)).nonzero()
    if len(broken):
        row = int(broken[0])
        raise InputError(f"the {name} model's output in row {row} is not finite; its weights are damaged")
    return found


def _scores(outputs: Parts, labels: Parts) -> ModelScores:
    accuracy = {w: proportion(int((o.argmax(1) == labels[w]).sum()), len(o)) for w, o in outputs.items()}
    losses = _losses(outputs["forget"], labels["forget"])
    quantiles = {f"{q:g}": float(v) for q, v in zip(QUANTILES, np.quantile(losses, QUANTILES), strict=True)}
    return ModelScores(accuracy, mean(losses), quantiles)


def _distances(output: Tensor, reference: Tensor, y: Tensor) -> tuple[Estimate, float]:
    from scipy.stats import ks_2samp  # takes a second to import

    outputs = mean(output_distance(output, reference).numpy())
    return outputs, float(ks_2samp(_losses(output, y), _losses(reference, y)).statistic)


def _losses(output: Tensor, y: Tensor) -> NDArray[np.float64]:
    return cast("NDArray[np.float64]", F.cross_entropy(output, y, reduction="none").numpy())
