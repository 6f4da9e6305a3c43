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
from ..models.own import check_network
from ..randomness import Streams, whole
from ..stats.evidence import Outputs, judge_outputs
from ..stats.intervals import Estimate, mean, proportion
from ..stats.verdict import LEVEL, MARGIN, MAX_DROP, Verdict
from ..training.scoring import checked_logits, logit_confidence
from .checks import check_examples, copies_of, network_for
from .guard import generators_kept

SCHEMA_VERSION = 2
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_NO_REFERENCE = "none: no retrained model was given"
Retrained = nn.Module | Sequence[nn.Module] | None


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
        reference = "retrained model" if any("retrained" in n for n in self.models) else _NO_REFERENCE
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
    classes = _check_classes(models, sets)
    outputs = {
        name: {what: _logits(m, part, what, classes) for what, part in sets.items()} for name, m in models.items()
    }
    labels = {what: examples.y.cpu() for what, examples in sets.items()}
    scores = {name: _scores(outputs[name], labels) for name in models}
    references = [name for name in models if name.startswith("retrained")]
    gaps = {
        name: Gap(
            *_distances(outputs[name]["forget"], outputs[references[0]]["forget"], labels["forget"]),
            {w: e.value - scores[references[0]].accuracy[w].value for w, e in scores[name].accuracy.items()},
        )
        for name in models
        if references and name != references[0]
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
    copies: int = 0,
    seed: int = 0,
    margin: float = MARGIN,
    level: float = LEVEL,
    max_drop: float = MAX_DROP,
) -> Verdict:
    """Whether the unlearned model changed, still works, and does not give the forgotten rows away.

    Test rows that are also forgotten or retained are left out; those of classes that `retain` no longer has do not
    count for the accuracy. `copies` of the rows were left out with them; `word` says who states what the rows are
    compared with.
    """
    models = _named(original, unlearned, retrained, forget)
    sets = {w: e for w, e in (("forget", forget), ("retain", retain), ("test", test)) if e is not None}
    asked = {w: e for w, e in sets.items() if w != "retain"}
    outputs = {name: {what: _logits(m, part, what) for what, part in asked.items()} for name, m in models.items()}
    limits = {"margin": margin, "level": level, "max_drop": max_drop}
    return _judged(outputs, sets, drawn=drawn, ours=ours, seed=seed, word=word, copies=copies, **limits)


def _judged(
    outputs: Mapping[str, Mapping[str, Tensor]],
    sets: Mapping[str, Examples],
    *,
    seed: int,
    **how: Any,
) -> Verdict:
    forget, retain, test = sets["forget"], sets.get("retain"), sets.get("test")
    unseen = torch.ones(0 if test is None else len(test), dtype=torch.bool)
    gone: list[int] = []
    if test is not None:
        for seen in (forget, *(() if retain is None else (retain,))):
            unseen[copies_of(seen, test).cpu()] = False
        gone = [] if retain is None else sorted(set(test.y.tolist()) - set(retain.y.tolist()))
    y = torch.cat([forget.y.cpu(), *(() if test is None else (test.y.cpu()[unseen],))])
    found = {
        name: _outputs(torch.cat([parts["forget"], *(() if test is None else (parts["test"][unseen],))]), y)
        for name, parts in outputs.items()
    }
    verdict = judge_outputs(
        found.pop("original"),
        found.pop("unlearned"),
        forgot=np.arange(len(y)) < len(forget),
        classes=y.numpy(),
        generator=np.random.default_rng(Streams(seed, "judge").number("permutations")),
        references=found,
        gone=gone,
        **how,
    )
    left_out = int((~unseen).sum())
    if not left_out:
        return verdict
    rows = f"{left_out:,} test row{'s are' if left_out > 1 else ' is'} also forgotten or retained, and left out"
    return replace(verdict, assumes=(*verdict.assumes, rows))


def _outputs(found: Tensor, y: Tensor) -> Outputs:
    if not bool(found.isfinite().all()):
        row = int((~found.isfinite().all(1)).nonzero()[0])
        raise InputError(f"a model's output in row {row} is not finite; its weights are damaged or it diverged")
    confidence = logit_confidence(found.numpy(), y.numpy())
    correct = (found.argmax(1) == y).numpy()
    return Outputs(confidence, correct, F.softmax(found, dim=1).numpy())


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
    for name, model in given.items():
        check_network(model, what=f"the {name} model")
    return {name: network_for(model, _beside(model, forget), what=f"the {name} model") for name, model in given.items()}


def _beside(model: nn.Module, examples: Examples) -> Examples:
    """The examples on the device of the model, which stays where it is."""
    return examples.to(next(model.parameters()).device)


def _logits(model: nn.Module, examples: Examples, what: str, classes: int | None = None) -> Tensor:
    part = _beside(model, examples)
    # A data set that augments gives every model the same inputs.
    with generators_kept(part.y.device, start=0):
        return checked_logits(model, part, what, classes=classes)


def _check_classes(models: Mapping[str, nn.Module], sets: Mapping[str, Examples]) -> int:
    """How many classes all models have; an error unless each takes every set."""
    classes = {name: check_examples(m, {w: _beside(m, e) for w, e in sets.items()}) for name, m in models.items()}
    if len(set(classes.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in classes.items())
        raise InputError(f"the models have different numbers of classes ({found}); give models of one task")
    return classes["original"]


def _scores(outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> ModelScores:
    right = {what: int((output.argmax(1) == labels[what]).sum()) for what, output in outputs.items()}
    accuracy = {what: proportion(right[what], len(output)) for what, output in outputs.items()}
    losses = _losses(outputs["forget"], labels["forget"])
    quantiles = {f"{q:g}": float(v) for q, v in zip(QUANTILES, np.quantile(losses, QUANTILES), strict=True)}
    return ModelScores(accuracy, mean(losses), quantiles)


def _distances(output: Tensor, reference: Tensor, y: Tensor) -> tuple[Estimate, float]:
    """Mean total variation distance of outputs, and Kolmogorov-Smirnov distance of losses."""
    # Takes a second to import.
    from scipy.stats import ks_2samp

    outputs = mean(output_distance(output, reference).numpy())
    return outputs, float(ks_2samp(_losses(output, y), _losses(reference, y)).statistic)


def _losses(output: Tensor, y: Tensor) -> NDArray[np.float64]:
    return cast("NDArray[np.float64]", F.cross_entropy(output, y, reduction="none").numpy())
