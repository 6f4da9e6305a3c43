"""`audit_pair`: all that two checkpoints alone tell about which examples were forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import nn

from ...data.examples import Examples, TensorExamples, as_examples, as_tensors
from ...errors import DataError, InputError
from ...models.own import check_examples
from ...models.weights import model_digest
from ...randomness import Streams
from ...stats.reading import MARGIN, require_margin
from ...unlearning.checks import copies_of
from ...unlearning.record import examples_digest
from ..undo import default_steps
from .held_out import HeldOut, divide
from .model_pair import check_pair, device_of
from .pair_attacks import Attack, Floats, PairAttacker, PairScores
from .pair_report import PairAudit, overall, overall_beyond, rows_of, strongest_of

# The share of a test set that may have copies in a retain set, as natural data do.
_BY_CHANCE = 0.01
_Scores = dict[Attack, Floats] | None
_Others = tuple[_Scores, _Scores]


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
    auditor = PairAuditor(
        original,
        forget=forget,
        test=test,
        retain=retain,
        retrained=retrained,
        background=background,
        probes=probes,
        ridge=ridge,
        relative_ridge=relative_ridge,
        level=level,
        margin=margin,
        seed=seed,
    )
    return auditor.audit(unlearned, defense=defense, steps=steps)


class PairAuditor:
    """`audit_pair` for several unlearned models of one original, of which the same examples were forgotten.

    What depends on the original and the sets alone is computed once: checks, draws and digests, the original's traced
    channels, the spectra of its layers' inputs, and probe gradients. As long as an auditor lives it holds those on the
    original's device, some 200 bytes for each parameter of a ResNet-18. Arguments are those of `audit_pair`. The models
    given here must not be changed while it is used.
    """

    def __init__(
        self,
        original: nn.Module,
        *,
        forget: object,
        test: object,
        retain: object | None = None,
        retrained: nn.Module | Sequence[nn.Module] = (),
        background: int = 1000,
        probes: int = 512,
        ridge: float = 1e-3,
        relative_ridge: bool = True,
        level: float = 0.95,
        margin: float = MARGIN,
        seed: int = 0,
    ) -> None:
        if background < 2:
            raise InputError(f"background is {background}; attacks need at least 2 examples to fit")
        require_margin(margin)
        self._references = [retrained] if isinstance(retrained, nn.Module) else list(retrained)
        self._models = {"original": original}
        self._models |= {f"retrained {i + 1}": model for i, model in enumerate(self._references)}
        device = device_of(original, what="original")
        self._sets = _sets(original, {"forget": forget, "test": test, "retain": retain}, device)
        for model in self._models.values():
            check_pair(original, model)
        _require_apart(self._known_digests)
        streams, sets = Streams(seed, "pair audit"), self._sets
        held_out = streams.generator("held out")
        self._parts = divide(sets["forget"].y, sets["test"].y, background=background, generator=held_out)
        self._kept_notes = _require_unkept(sets["test"], sets.get("retain"))
        self._fitted = sets["test"].select(self._parts.background)
        self._probes = _probes(sets.get("retain", self._fitted), probes, streams.generator("probes"))
        self._ridge, self._relative = ridge, relative_ridge
        self._level, self._margin, self._seed = level, margin, seed
        self._others: dict[tuple[str, ...], _Others] = {}

    def audit(
        self, unlearned: nn.Module, *, defense: str | None = None, steps: Sequence[str] | str | None = None
    ) -> PairAudit:
        """Attack the original and this model."""
        check_pair(self._models["original"], unlearned)
        tried = tuple(default_steps(defense) if steps is None else [steps] if isinstance(steps, str) else steps)
        if not tried:
            raise InputError('no pre-step was given; give at least "naive"')
        first, *others = self._models.items()
        models = dict([first, ("unlearned", unlearned), *others])
        found, positives = self._attacker.attack(unlearned, steps=tried), len(self._parts.forget)
        reference, apart = self._on_references(tried)
        level, margin = self._level, self._margin
        rows = rows_of(found.scores, positives, retrained=reference, null=apart, level=level, margin=margin)
        return PairAudit(
            rows=rows,
            strongest=max(rows, key=lambda row: row.strength.value).name,
            strongest_strength=strongest_of(rows, found.scores, positives, level=level),
            verdict=overall(rows),
            beyond_retrained=overall_beyond(rows, margin=margin),
            not_tried=found.not_tried,
            counts={"forgotten": positives, "never seen": len(self._parts.non_members)}
            | {"background": len(self._fitted), "probes": len(self._probes)},
            digests={name: self._digest(name, model) for name, model in models.items()} | self._set_digests,
            settings={"defense": defense, "steps": list(tried), "ridge": self._ridge}
            | {"relative_ridge": self._relative, "seed": self._seed},
            threat=threat_of(len(self._probes), len(self._fitted), from_retain="retain" in self._sets),
            notes=(*self._parts.notes, *self._kept_notes, *_notes(models, found, self._references)),
            level=level,
            margin=margin,
            scores=found.scores,
            forget_index=self._parts.forget.numpy(),
            test_index=self._parts.non_members.numpy(),
        )

    @cached_property
    def _attacker(self) -> PairAttacker:
        return self._attacking(self._models["original"])

    @cached_property
    def _apart(self) -> PairAttacker:
        return self._attacking(self._references[0])

    @cached_property
    def _set_digests(self) -> dict[str, str]:
        return {f"{what} set": examples_digest(self._sets[what]) for what in ("forget", "test")}

    @cached_property
    def _known_digests(self) -> dict[str, str]:
        return {name: model_digest(model) for name, model in self._models.items()}

    def _digest(self, name: str, model: nn.Module) -> str:
        return self._known_digests[name] if name in self._models else model_digest(model)

    def _attacking(self, original: nn.Module) -> PairAttacker:
        candidates = _candidates(self._sets, self._parts)
        return PairAttacker(
            original,
            candidates=candidates,
            background=self._fitted,
            probes=self._probes,
            steps=(),
            ridge=self._ridge,
            relative_ridge=self._relative,
        )

    def _on_references(self, tried: tuple[str, ...]) -> _Others:
        """The scores of the first retrained model, and of the first two apart, where there are so many."""
        if tried not in self._others:
            count = len(self._references)
            reference = self._attacker.attack(self._references[0], steps=tried).scores if count else None
            apart = self._apart.attack(self._references[1], steps=tried).scores if count > 1 else None
            self._others[tried] = (reference, apart)
        return self._others[tried]


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


def _require_unkept(test: TensorExamples, retain: TensorExamples | None) -> list[str]:
    """An error where examples that both models were trained on stand for those never seen, and a note of a few that may
    be there by chance.
    """
    copies = torch.empty(0) if retain is None else copies_of(retain, test)
    if len(copies) > _BY_CHANCE * len(test):
        raise DataError(
            f"{len(copies)} of {len(test)} test examples are also in the retain set (first: test row "
            f"{int(copies[0])}); what was trained on cannot stand for what was never seen: give others as test set"
        )
    return [f"{len(copies)} of {len(test)} test examples are also in the retain set"] if len(copies) else []


def _require_apart(digests: Mapping[str, str]) -> None:
    """Refuse a reference that is the original, or another reference, under another name."""
    known: dict[str, str] = {}
    for name, digest in digests.items():
        if digest in known:
            raise InputError(
                f"the model {name} has the very weights of {known[digest]}; a reference is trained from scratch "
                "without the forget set: give such a model, or none"
            )
        known[digest] = name


def _candidates(sets: Mapping[str, TensorExamples], parts: HeldOut) -> TensorExamples:
    forgotten, never = sets["forget"].select(parts.forget), sets["test"].select(parts.non_members)
    return TensorExamples(torch.cat([forgotten.x, never.x]), torch.cat([forgotten.y, never.y]))


def _probes(source: TensorExamples, count: int, generator: torch.Generator) -> TensorExamples:
    if count < 1:
        raise InputError(f"probes is {count}; give the attacker at least one example")
    return source.select(torch.randperm(len(source), generator=generator)[:count].sort().values)


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
