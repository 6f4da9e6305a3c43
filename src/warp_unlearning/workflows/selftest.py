"""Do the audits see what is there, and only that? They must find planted leaks and none in retrained models.

Real networks are trained on digits with random labels (`planted_leak`), a pair of them audited by `audit_pair` and
sixteen shadows by `shadow_audit`. A planted leak must be found with an AUC, or 1 − AUC, above 0.9 and an interval that
excludes ½, as an audit that calls it a leak must have. Where nothing leaks the interval must contain ½: one of level
0.999, since a sound audit must not fail one time in twenty, and widened to hold for all attacks that were tried at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..attacks.membership.pair_audit import audit_pair
from ..attacks.membership.shadow_audit import shadow_audit
from ..attacks.membership.shadow_design import ShadowDesign, shadow_design
from ..data.examples import TensorExamples
from ..defense.teleporter import teleport
from ..randomness import Streams
from ..stats.area import strength_of
from ..stats.intervals import Estimate
from ..symmetry.rescaling import ChangeOfBasis
from ..training.scoring import logit_confidence, logits
from .planted_leak import (
    PlantedProblem,
    forgotten_too_well,
    planted_problem,
    random_labels,
    stepped_up,
    train_network,
)

Expected = Literal["a leak", "no leak"]
FOUND = 0.9
SURE = 0.999
FEW = 8
SHADOWS, FORGET_SETS, POINTS = 16, 2, 200
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """What was audited by which attack, what must come out, max(AUC, 1 − AUC) with its interval, and whether it did."""

    what: str
    attack: str
    expected: Expected
    strength: Estimate
    holds: bool


def selftest(seed: int = 0, *, watch: Callable[[Check], None] = lambda check: None) -> tuple[Check, ...]:
    """Run every check; `watch` sees each as it is done."""
    checks = []
    for check in _checks(seed):
        watch(check)
        checks.append(check)
    return tuple(checks)


def _checks(seed: int) -> Iterator[Check]:
    problem = planted_problem(seed)
    yield from _pairs(problem, seed)
    yield from _shadows(seed)


def _pairs(problem: PlantedProblem, seed: int) -> Iterator[Check]:
    audit = partial(audit_pair, test=problem.test, retain=problem.retain, seed=seed)
    nothing = stepped_up(problem.original, problem.retain, length=0.01)
    found = audit(problem.original, nothing, forget=problem.forget, steps=("naive",))
    for attack in ("confidence", "gradient norm", "gradient difference"):
        yield _found("a model that forgot nothing", attack, found.row(attack).strength)
    found = audit(problem.original, forgotten_too_well(problem), forget=problem.forget, steps=("naive",))
    yield _found("a model taught other labels", "confidence drop", found.row("confidence drop").strength)
    few = problem.forget.select(torch.arange(FEW))
    start = problem.retrained[0]
    up = stepped_up(start, few)
    hidden, _ = teleport(up, ChangeOfBasis(), retain=problem.retain, seed=seed)
    for what, model, attack in (
        ("a step up the losses", up, "update alignment"),
        ("the same, hidden by a change of basis", hidden, "update alignment after canonical"),
    ):
        found = audit(start, model, forget=few, steps=("naive", "canonical"))
        yield _found(what, attack, found.row(attack).strength)
    found = audit(*problem.retrained, forget=problem.forget)
    attack = f"strongest of {len(found.rows)}: {found.strongest}"
    yield _clean("a retrained model against another", attack, found.strongest_strength(level=SURE))


def _shadows(seed: int) -> Iterator[Check]:
    """U-LiRA where unlearning does nothing, and where it is retraining."""
    streams = Streams(seed, "shadows")
    examples = random_labels(streams, POINTS)
    design = shadow_design(
        POINTS, shadows=SHADOWS, forget_sets=FORGET_SETS, generator=np.random.default_rng(streams.number("design"))
    )
    originals = [
        _confidence(_trained(examples, design.trained[s], streams, f"original {s}"), examples) for s in range(SHADOWS)
    ]
    kept = np.repeat(np.stack(originals), FORGET_SETS, axis=0)
    yield _found("shadows that forgot nothing", "U-LiRA", strength_of(_audited(design, kept)))
    retrained = [
        _confidence(_trained(examples, keep, streams, f"retrained {i}"), examples)
        for i, keep in enumerate(design.retained)
    ]
    yield _clean("shadows that were retrained", "U-LiRA", strength_of(_audited(design, np.stack(retrained))))


def _trained(examples: TensorExamples, mask: NDArray[np.bool_], streams: Streams, name: str) -> nn.Module:
    chosen = torch.from_numpy(np.flatnonzero(mask))
    return train_network(examples.select(chosen), Streams(streams.number(name), name))


def _audited(design: ShadowDesign, scores: Floats) -> Estimate:
    found = shadow_audit(scores, forgotten=design.forgotten, never=design.never, groups=design.groups)
    return found.interval(SURE)


def _confidence(model: nn.Module, examples: TensorExamples) -> Floats:
    return logit_confidence(logits(model, examples).double().numpy(), examples.y.numpy())


def _found(what: str, attack: str, strength: Estimate) -> Check:
    return Check(what, attack, "a leak", strength, strength.value > FOUND and strength.low > 0.5)


def _clean(what: str, attack: str, strength: Estimate) -> Check:
    return Check(what, attack, "no leak", strength, strength.low == 0.5)
