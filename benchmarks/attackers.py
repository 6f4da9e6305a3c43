"""What an attacker with both models extracts of one forgotten example: `python benchmarks/attackers.py`.

Small residual networks with batch norm, trained on digits; one example, of large loss, is forgotten by one step of
ascent on it beside descent on five others, just long enough that it is misclassified; batch norm in eval mode, float64.
The numbers are cosines between what each attacker extracts from the original and the unlearned weights and the gradient
of the forgotten example's loss at the original: medians, with 95 % intervals by a bootstrap that draws trained models,
and means. Defences are run by `unlearn()`, all at the learning rate found for none.

Attackers are the pre-steps of `warp_unlearning.attacks.undo`, told nothing of the defence, with 512 probe points;
*strongest* is the largest median. *input-layer* knows the first layer alone: its cosine over all parameters is small by
construction, and over rows of that layer it is in the last table. What was chosen in them was chosen on the seeds 100
and 101.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fresh_basis import FreshBasis
from numpy.typing import NDArray
from one_sample import Steps, Target, Trained, targets, trained
from torch import Tensor, nn

from warp_unlearning import unlearn
from warp_unlearning.attacks.undo import make_pre_step, pre_steps
from warp_unlearning.attacks.undo.base import Held, Undo, Weights, difference
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.defense import Conjugate, Defense, Warp
from warp_unlearning.errors import DivergedError
from warp_unlearning.runs.local import run_all
from warp_unlearning.symmetry.base import Compose
from warp_unlearning.symmetry.layer_inputs import linear_weights
from warp_unlearning.symmetry.null_space import Aim, NullSpace, TrackedNullSpace
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis
from warp_unlearning.training.scoring import accuracy, losses

RESAMPLES = 2000


@dataclass(frozen=True)
class Row:
    """A defence, made for an update of a length relative to that of the weights, and how many steps the update has."""

    name: str
    defense: Callable[[float], Defense | None]
    steps: int = 1


def _after(*symmetries: ChangeOfBasis | Permutation | NullSpace) -> Callable[[float], Defense]:
    """Moves once, after the update, whatever that does."""
    return lambda length: Warp(Compose(*symmetries), every="end", tolerance=1e9)


def _ten_times(aim: Aim) -> Callable[[float], Defense]:
    """A null-space move ten times as long as the update, whatever it does."""

    def made(length: float) -> Defense:
        return Warp(NullSpace(aim=aim, step_size=10 * length), tolerance=1e9)

    return made


def _conjugate(spread: float) -> Callable[[float], Defense]:
    return lambda length: Conjugate(ChangeOfBasis(law="lognormal", spread=spread))


def rows() -> Iterator[Row]:
    yield Row("none", lambda length: None)
    yield Row("change of basis after, 1 ± 0.8", _after(ChangeOfBasis()))
    yield Row("permutation after", _after(Permutation()))
    yield Row("change of basis and permutation after", _after(ChangeOfBasis(), Permutation()))
    yield Row("warp", lambda length: Warp(NullSpace()))
    yield Row("fastwarp", lambda length: Warp(TrackedNullSpace()))
    yield Row("null space, random, 10 × the update", _ten_times("random"))
    yield Row("null space, descent, 10 × the update", _ten_times("descent"))
    yield Row("null space and change of basis after", _after(NullSpace(), ChangeOfBasis()))
    for spread in (0.25, 0.5, 1.0, 1.5):
        yield Row(f"conjugate, {spread}", _conjugate(spread))
    yield Row("none, 20 steps", lambda length: None, steps=20)
    yield Row("conjugate, 0.5, 20 steps", _conjugate(0.5), steps=20)
    fresh = FreshBasis(ChangeOfBasis(law="lognormal", spread=0.5))
    yield Row("conjugate, 0.5, a fresh basis for each of 20 steps", lambda length: fresh, steps=20)


@dataclass(frozen=True, eq=False)
class Attacker:
    """Every pre-step, prepared for one original, and the names of the original's linear weights."""

    original: nn.Module
    undos: Mapping[str, Undo]
    linear: tuple[str, ...]

    @classmethod
    def of(cls, subject: Trained) -> Attacker:
        """From a trained network and its probe points."""
        held = Held(subject.model, (subject.probes.x, subject.probes.y))
        linear = tuple(weight.name for weight in linear_weights(subject.model))
        return cls(subject.model, {name: make_pre_step(name).prepared(held) for name in pre_steps()}, linear)

    def extractions(self, unlearned: Weights) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """What each attacker takes for the forgotten example's gradient."""
        for name, undo in self.undos.items():
            yield name, difference(self.original, undo(unlearned))


def cosine(one: Weights, other: Weights, names: Sequence[str]) -> float:
    a, b = (torch.cat([weights[name].flatten() for name in names]) for weights in (one, other))
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def row_directions(one: Weights, other: Weights, name: str) -> float:
    """The median over output channels of the cosine between rows of one weight."""
    return float(torch.nn.functional.cosine_similarity(one[name].flatten(1), other[name].flatten(1)).median())


def one_target(attacker: Attacker, subject: Trained, target: Target, seed: int) -> dict[str, dict[str, float]]:
    """The numbers of every row; none but "diverged" for a defence under which the update diverged."""
    found: dict[str, dict[str, float]] = {}
    linear, original = attacker.linear, _state(attacker.original)
    plain = 0.0
    for row in rows():
        method = Steps(target.rates[row.steps], row.steps)
        defense = row.defense(plain / _length(original, linear))
        try:
            model = unlearn(
                subject.model,
                forget=target.forget,
                retain=target.retain,
                method=method,
                defense=defense,
                seed=seed,
                defense_seed=seed,
            ).model
        except DivergedError:
            found[row.name] = {"diverged": 1.0}
            continue
        state = _state(model)
        length = _length({name: state[name] - original[name] for name in linear}, linear)
        plain = plain or length
        found[row.name] = {
            **_cosines(attacker, target, state),
            "length": length / plain,
            "forget loss": float(losses(model, target.forget)),
            "retain accuracy": accuracy(model.float(), TensorExamples(target.retain.x.float(), target.retain.y)),
            "diverged": 0.0,
        }
    return found


def _cosines(attacker: Attacker, target: Target, state: Weights) -> dict[str, float]:
    """By attacker, over all parameters ("naive") and over linear weights ("naive, linear"), and the median cosine of
    the rows of the first layer.
    """
    truth, linear = target.gradient, attacker.linear
    found: dict[str, float] = {}
    for name, extracted in attacker.extractions(state):
        found[name] = cosine(extracted, truth, list(truth))
        found[f"{name}, linear"] = cosine(extracted, truth, linear)
        if name in ("canonical", "input-layer"):
            found[f"first layer's rows, {name}"] = row_directions(extracted, truth, linear[0])
    return found


def one_model(job: tuple[int, int]) -> list[dict[str, dict[str, float]]]:
    """The numbers of every target of one trained network; a job is (seed, targets)."""
    seed, count = job
    subject = trained(seed)
    attacker = Attacker.of(subject)
    return [one_target(attacker, subject, t, seed) for t in targets(subject, count, seed=seed)]


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items() if value.is_floating_point()}


def _length(weights: Weights, names: Sequence[str]) -> float:
    return float(torch.stack([weights[name].square().sum() for name in names]).sum().sqrt())


COSINES = tuple(pre_steps())
ROWS = ("first layer's rows, canonical", "first layer's rows, input-layer")
EFFECTS = (*ROWS, "length", "forget loss", "retain accuracy", "diverged")

Results = Sequence[Sequence[Mapping[str, Mapping[str, float]]]]


def table(results: Results, columns: Sequence[str], *, strongest: bool = False) -> Iterator[str]:
    """Markdown: a row for each defence, a column for each number, and one for the largest median of them."""
    yield "| defence | " + " | ".join([*columns, *["strongest"] * strongest]) + " |"
    yield "|---" * (len(columns) + 1 + strongest) + "|"
    for row in results[0][0]:
        values = [np.array([[t[row].get(c, np.nan) for t in model] for model in results]) for c in columns]
        cells = [_cell(v) for v in values]
        if strongest:
            medians = [np.nanmedian(v) if not np.isnan(v).all() else -np.inf for v in values]
            best = int(np.argmax(medians))
            cells.append(f"{medians[best]:.3f}, {columns[best]}")
        yield f"| {row} | " + " | ".join(cells) + " |"


def _cell(values: NDArray[np.float64]) -> str:
    """Of an array (models, targets), the median with its 95 % bootstrap interval over models, and the mean; nan is
    left out.
    """
    if np.isnan(values).all():
        return ""
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.nanquantile(np.nanmedian(values[drawn].reshape(RESAMPLES, -1), axis=1), [0.025, 0.975])
    return f"{np.nanmedian(values):.3f} [{low:.3f}, {high:.3f}], {np.nanmean(values):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="trained networks")
    parser.add_argument("--first", type=int, default=20, help="the first seed")
    parser.add_argument("--targets", type=int, default=2, help="forgotten examples a network")
    parser.add_argument("--workers", type=int, help="processes; all cores unless given")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    jobs = [(seed, options.targets) for seed in range(options.first, options.first + options.seeds)]
    results = run_all(one_model, jobs, workers=options.workers)
    print(
        f"{options.seeds} networks, {options.targets} forgotten examples each: median [95 %], mean. "
        "Cosines over all parameters:\n"
    )
    print("\n".join(table(results, COSINES, strongest=True)))
    print("\nOver the weights of Linear and Conv layers alone:\n")
    print("\n".join(table(results, [f"{name}, linear" for name in COSINES], strongest=True)))
    print("\nThe first layer's rows by direction, and what the updates did:\n")
    print("\n".join(table(results, EFFECTS)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
