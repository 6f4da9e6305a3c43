"""`audit_pair`: all that two checkpoints alone tell about which examples were forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ...data.examples import Examples, TensorExamples, as_examples, as_tensors
from ...errors import DataError, InputError
from ...models.digest import model_digest
from ...models.example_checks import check_examples
from ...randomness import Streams
from ...stats.reading import MARGIN
from ...unlearning.checks import copies_of
from ...unlearning.record import examples_digest
from ..undoing.registry import default_steps
from .held_out import HeldOut, divide
from .model_pair import check_pair, device_of
from .pair_attacks import PairAttacker, PairScores
from .pair_report import PairAudit, overall, overall_beyond, rows_of, strongest_of


def audit_pair(
    original: nn.Module,
    unlearned: nn.Module,
    *,
    forget: object,
    test: object,
    retain: object | None = None,
    retrained: nn.Module | Sequence[nn.Module] = (),
    defense: str | None = None,
    steps: Sequence[str] | str | None = None,
    background: int = 1000,
    probes: int = 512,
    ridge: float = 1e-3,
    relative_ridge: bool = True,
    level: float = 0.95,
    margin: float = MARGIN,
    seed: int = 0,
) -> PairAudit:
    """Attack a pair of models with everything that needs no shadow model.

    Each set is a pair of tensors (x, y), a `Dataset` of such pairs, or a `DataLoader`. Forgotten examples are compared
    with test examples of the same classes in the same proportions; up to `background` test examples, at most a third,
    are left to the attacker to fit. `probes` is how many examples of `retain`, or of the background without it, the
    attacker uses to undo a defence, by all `steps` that apply, or by those against `defense`: its name, "none", or None
    where it is unknown. `retrained` is a model that never saw the forget set: the same attacks on the original and it
    show what even retraining reveals. With two of them, the attacks on this pair show what they find where nothing was
    forgotten. `seed` decides the draws of the auditor.
    """
    if background < 2:
        raise InputError(f"background is {background}; attacks need at least 2 examples to fit")
    references = [retrained] if isinstance(retrained, nn.Module) else list(retrained)
    models = {"original": original, "unlearned": unlearned}
    models |= {f"retrained {i + 1}": model for i, model in enumerate(references)}
    device = device_of(original, what="original")
    sets = _sets(original, {"forget": forget, "test": test, "retain": retain}, device)
    for model in models.values():
        check_pair(original, model)
    streams = Streams(seed, "pair audit")
    parts = divide(sets["forget"].y, sets["test"].y, background=background, generator=streams.generator("held out"))
    candidates, positives = _candidates(sets, parts), len(parts.forget)
    fitted = sets["test"].select(parts.background)
    held = _probes(sets.get("retain", fitted), probes, streams.generator("probes"))
    tried = tuple(default_steps(defense) if steps is None else [steps] if isinstance(steps, str) else steps)
    if not tried:
        raise InputError('no pre-step was given; give at least "naive"')
    known: dict[str, Any] = {"candidates": candidates, "background": fitted, "probes": held, "steps": tried}
    known |= {"ridge": ridge, "relative_ridge": relative_ridge}
    attacker = PairAttacker(original, **known)
    found = attacker.attack(unlearned)
    reference = attacker.attack(references[0]).scores if references else None
    apart = PairAttacker(references[0], **known).attack(references[1]).scores if len(references) > 1 else None
    rows = rows_of(found.scores, positives, retrained=reference, null=apart, level=level, margin=margin)
    return PairAudit(
        rows=rows,
        strongest=max(rows, key=lambda row: row.strength.value).name,
        strongest_strength=strongest_of(rows, found.scores, positives, level=level),
        verdict=overall(rows),
        beyond_retrained=overall_beyond(rows, margin=margin),
        not_tried=found.not_tried,
        counts={"forgotten": positives, "never seen": len(parts.non_members)}
        | {"background": len(fitted), "probes": len(held)},
        digests=_digests(models, sets),
        settings={"defense": defense, "steps": list(tried), "ridge": ridge, "relative_ridge": relative_ridge}
        | {"seed": seed},
        threat=threat_of(len(held), len(fitted), from_retain="retain" in sets),
        notes=(*parts.notes, *_notes(models, found, references)),
        level=level,
        margin=margin,
        scores=found.scores,
        forget_index=parts.forget.numpy(),
        test_index=parts.non_members.numpy(),
    )


def threat_of(probes: int, background: int, *, from_retain: bool) -> tuple[str, ...]:
    """What the attacker holds and what not, in sentences."""
    origin = "retained training examples" if from_retain else "the same held-out examples"
    return (
        "The attacker holds both models, weights and architecture, and each candidate with its label.",
        f"The attacker holds {background} examples that neither model saw, to fit the attacks on, and {probes} "
        f"{origin}, to undo a defence with.",
        "The attacker holds no shadow model and does not know what a defence drew at random.",
    )


def _sets(original: nn.Module, given: Mapping[str, object | None], device: torch.device) -> dict[str, TensorExamples]:
    sets: dict[str, Examples] = {
        what: as_examples(source, what=what).to(device) for what, source in given.items() if source is not None
    }
    check_examples(original, sets)
    fixed = {what: as_tensors(examples) for what, examples in sets.items()}
    overlap = copies_of(fixed["forget"], fixed["test"])
    if len(overlap):
        raise DataError(
            f"{len(overlap)} test examples are also in the forget set (first: test row {int(overlap[0])}); whoever was "
            "forgotten cannot stand for those never seen: remove them from the test set"
        )
    return fixed


def _candidates(sets: Mapping[str, TensorExamples], parts: HeldOut) -> TensorExamples:
    forgotten, never = sets["forget"].select(parts.forget), sets["test"].select(parts.non_members)
    return TensorExamples(torch.cat([forgotten.x, never.x]), torch.cat([forgotten.y, never.y]))


def _probes(source: TensorExamples, count: int, generator: torch.Generator) -> TensorExamples:
    if count < 1:
        raise InputError(f"probes is {count}; give the attacker at least one example")
    return source.select(torch.randperm(len(source), generator=generator)[:count].sort().values)


def _digests(models: Mapping[str, nn.Module], sets: Mapping[str, TensorExamples]) -> dict[str, str]:
    found = {name: model_digest(model) for name, model in models.items()}
    return found | {f"{what} set": examples_digest(sets[what]) for what in ("forget", "test")}


def _notes(models: Mapping[str, nn.Module], found: PairScores, references: Sequence[nn.Module]) -> list[str]:
    notes = [
        f"the {name} model was given in train mode and scored in eval mode"
        for name, model in models.items()
        if model.training
    ]
    notes += [f"{a}: all scores are equal, so that nothing is ranked" for a, s in found.scores.items() if not np.ptp(s)]
    if not references:
        notes.append(
            "no reference: without a retrained model nobody can say how much of a two-model attack's success is the "
            "fault of the unlearning, since retraining too changes forgotten examples"
        )
    if len(references) > 2:
        notes.append(f"of {len(references)} retrained models the first two were used")
    return notes
