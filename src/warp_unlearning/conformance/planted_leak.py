"""The self-test of audits, on problems in which what they must find, and must not find, is known beforehand.

Digits with labels drawn at random can only be learned by heart. Some of them a network learns and is then asked to
forget; others it never sees; nothing else tells the two apart. So a network that still knows the first has leaked, and
one trained without them has not. `audit_pair` sees pairs of such networks and `shadow_audit` sixteen shadows.

A planted leak must be found with an AUC, or 1 − AUC, above 0.9 and an interval that excludes ½. Where nothing leaks
every interval must contain ½: intervals of level 0.999 after a correction for the attacks, since a sound audit must not
fail one time in twenty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..attacks.membership.pair_audit import PairAudit, audit_pair
from ..attacks.membership.shadow_audit import shadow_audit
from ..attacks.membership.shadow_design import ShadowDesign, shadow_design
from ..data.examples import TensorExamples
from ..data.preprocess import load_data
from ..defense.teleporter import teleport
from ..gradients.per_sample import per_sample_gradients
from ..models.fresh import reinitialise
from ..models.networks import MLP
from ..randomness import Streams
from ..stats.area import strength_of
from ..stats.intervals import Estimate
from ..symmetry.rescaling import ChangeOfBasis
from ..training.scoring import logit_confidence, logits
from ..training.training import Recipe, Training, run_training

CLASSES = 10
RECIPE = Recipe(epochs=100, batch_size=64, lr=0.2, weight_decay=0.0)
FOUND, SURE = 0.9, 0.999
FEW = 8
SHADOWS, FORGET_SETS, POINTS = 16, 2, 200

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlantedProblem:
    """Examples with random labels to forget (`forget`) and never to be seen (`test`), others to keep (`retain`), a
    network that learned the first and the last, and two that learned `retain` alone.
    """

    forget: TensorExamples
    retain: TensorExamples
    test: TensorExamples
    original: nn.Module
    retrained: tuple[nn.Module, nn.Module]


def planted_problem(seed: int, *, forget: int = 100, retain: int = 400) -> PlantedProblem:
    """Draw the examples and train the three networks; a few seconds."""
    everything = random_labels(Streams(seed, "planted leak"))
    count = len(everything)
    indices = torch.split(torch.arange(count), [forget, retain, count - forget - retain])
    forgotten, retained, test = (everything.select(index) for index in indices)
    both = everything.select(torch.cat(indices[:2]))
    return PlantedProblem(
        forgotten,
        retained,
        test,
        train_network(both, Streams(seed, "original")),
        (train_network(retained, Streams(seed, "first")), train_network(retained, Streams(seed, "second"))),
    )


def random_labels(streams: Streams, count: int | None = None) -> TensorExamples:
    """So many digits (all of them, if None) in a random order, with random labels."""
    data = load_data()
    x = torch.cat([part.take(torch.arange(len(part))).x for part in (data.train, data.test)])
    order = torch.randperm(len(x), generator=streams.generator("order"))[:count]
    return TensorExamples(x[order], torch.randint(0, CLASSES, (len(order),), generator=streams.generator("labels")))


def train_network(examples: TensorExamples, streams: Streams) -> nn.Module:
    """A perceptron with one hidden layer that learns the examples by heart."""
    model = MLP(inputs=examples.x[0].numel(), classes=CLASSES, hidden=(256,))
    reinitialise(model, generator=streams.generator("weights"))
    run_training(Training(model, examples, recipe=RECIPE, streams=streams, fill=(0.0,)))
    return model.eval()


def forgotten_too_well(problem: PlantedProblem, *, epochs: int = 10) -> nn.Module:
    """An unlearning that gives itself away: the original taught other labels for what it is to forget, beside what it
    is to keep, so that it is surer of those labels being wrong than of any example it never saw.
    """
    forget, retain = problem.forget, problem.retain
    taught = TensorExamples(torch.cat([forget.x, retain.x]), torch.cat([(forget.y + 1) % CLASSES, retain.y]))
    model = deepcopy(problem.original)
    recipe = replace(RECIPE, epochs=epochs)
    run_training(Training(model, taught, recipe=recipe, streams=Streams(0, "taught"), fill=(0.0,)))
    return model.eval()


def stepped_up(model: nn.Module, examples: TensorExamples, *, length: float = 0.1) -> nn.Module:
    """The model after one step of this length up the losses of the examples, each of which pulls equally: along the sum
    of their gradients' directions.
    """
    moved = deepcopy(model)
    gradients, _ = per_sample_gradients(moved, examples.x, examples.y)
    sizes = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt().clamp(min=1e-30)
    summed = {name: torch.tensordot(1 / sizes, g, dims=1) for name, g in gradients.items()}
    whole = torch.stack([g.square().sum() for g in summed.values()]).sum().sqrt()
    with torch.no_grad():
        for name, p in moved.named_parameters():
            p.add_(summed[name] * (length / whole))
    return moved


@dataclass(frozen=True)
class Check:
    """What was audited by which attack, what must come out, max(AUC, 1 − AUC) with its interval, and whether it did."""

    what: str
    attack: str
    expected: Literal["a leak", "no leak"]
    strength: Estimate
    holds: bool


def selftest(seed: int = 0, *, watch: Callable[[Check], None] = lambda check: None) -> tuple[Check, ...]:
    """Run every check; `watch` sees each as it is done."""
    checks = []
    for part in (pair_checks(planted_problem(seed), seed), _shadow_checks(seed)):
        for check in part:
            watch(check)
            checks.append(check)
    return tuple(checks)


def pair_checks(problem: PlantedProblem, seed: int = 0, *, audit: Callable[..., Any] = audit_pair) -> Iterator[Check]:
    """Check an audit of pairs of models."""

    def run(original: nn.Module, unlearned: nn.Module, **given: Any) -> PairAudit:
        about = {"forget": problem.forget, "test": problem.test, "retain": problem.retain, "steps": ("naive",)}
        found: PairAudit = audit(original, unlearned, **(about | {"seed": seed} | given))
        return found

    nothing = run(problem.original, stepped_up(problem.original, problem.retain, length=0.01))
    for attack in ("confidence", "gradient norm", "gradient difference"):
        yield _found("a model that forgot nothing", attack, nothing.row(attack).strength)
    drop = run(problem.original, forgotten_too_well(problem)).row("confidence drop")
    yield _found("a model taught other labels", "confidence drop", drop.strength)
    few, start = problem.forget.select(torch.arange(FEW)), problem.retrained[0]
    up = stepped_up(start, few)
    hidden, _ = teleport(up, ChangeOfBasis(), retain=problem.retain, seed=seed)
    for what, model, attack in (
        ("a step up the losses", up, "update alignment"),
        ("the same, hidden by a change of basis", hidden, "update alignment after canonical"),
    ):
        strength = run(start, model, forget=few, steps=("naive", "canonical")).row(attack).strength
        yield _found(what, attack, strength)
    # Without `steps` every way to undo a defence is tried, as against an unknown one.
    clean = run(*problem.retrained, steps=None)
    attack = f"strongest of {len(clean.rows)}: {clean.strongest}"
    yield _clean("a retrained model against another", attack, clean.strongest_strength(level=SURE))


def _shadow_checks(seed: int) -> Iterator[Check]:
    """U-LiRA where unlearning does nothing, and where it is retraining."""
    streams = Streams(seed, "shadows")
    examples = random_labels(streams, POINTS)
    design = shadow_design(
        POINTS, shadows=SHADOWS, forget_sets=FORGET_SETS, generator=np.random.default_rng(streams.number("design"))
    )
    kept = [_confidence(design.trained[i], examples, streams, f"original {i}") for i in range(SHADOWS)]
    strength = _shadow_strength(design, np.repeat(np.stack(kept), FORGET_SETS, axis=0))
    yield _found("shadows that forgot nothing", "U-LiRA", strength)
    retrained = [_confidence(mask, examples, streams, f"retrained {i}") for i, mask in enumerate(design.retained)]
    yield _clean("shadows that were retrained", "U-LiRA", _shadow_strength(design, np.stack(retrained)))


def _confidence(mask: NDArray[np.bool_], examples: TensorExamples, streams: Streams, name: str) -> Floats:
    """The confidence in all examples of a network trained on those in the mask."""
    known = examples.select(torch.from_numpy(np.flatnonzero(mask)))
    model = train_network(known, Streams(streams.number(name), name))
    return logit_confidence(logits(model, examples).double().numpy(), examples.y.numpy())


def _shadow_strength(design: ShadowDesign, scores: Floats) -> Estimate:
    found = shadow_audit(scores, forgotten=design.forgotten, never=design.never, groups=design.groups)
    return strength_of(found.interval(SURE))


def _found(what: str, attack: str, strength: Estimate) -> Check:
    return Check(what, attack, "a leak", strength, strength.value > FOUND and strength.low > 0.5)


def _clean(what: str, attack: str, strength: Estimate) -> Check:
    return Check(what, attack, "no leak", strength, strength.low == 0.5)
