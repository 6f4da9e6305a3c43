"""Forgotten examples that score like examples never seen: what can be afforded, variant by variant.

A model is moved until its logits on every forgotten example are those of a *reference*, a model that never saw the
example, while its logits on retained examples stay. The reference is a member of a bank of K cross-fitted models,
trained beside the original, or a short training on the retained examples at the request. The rival is partial
retraining of equal cost, from scratch and from the original. Every variant is a row of the table: U-LiRA's area with
its interval over shadows and points, on all forgotten points and on the most memorised, test accuracy, and cost.

    python benchmarks/counterfactual.py --data digits --out DIR
    python benchmarks/counterfactual.py --data CIFAR --device cuda --at-once 8 --seconds 600 --out DIR [--scores-only]

The scores of each variant are written to DIR as soon as it is done; the table is made from them, also later
(`--table-only`). Audited points are 40 % of the pool: no shadow that settings are chosen on has one in its forget set.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from warp_unlearning.attacks.membership.audit import Audit
from warp_unlearning.attacks.membership.shadow_audit import audit_against_originals, shadow_audit
from warp_unlearning.attacks.membership.shadow_design import ShadowDesign, memorisation, most_memorised, shadow_design
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.data.sampling import crop_flip
from warp_unlearning.gpu.graphs import Compute
from warp_unlearning.gpu.lanes import Lane as DeviceLane
from warp_unlearning.gpu.precision import lay_out, lay_out_batch
from warp_unlearning.models.networks import build_model
from warp_unlearning.stats.intervals import Estimate, mean
from warp_unlearning.training.scoring import logits
from warp_unlearning.training.stepper import Number, Stepper
from warp_unlearning.training.training import RECIPES, Recipe
from warp_unlearning.training.update import cosine

FORGET_SETS = 4
AUDITED = 0.4
"""Share of the pool: four forget sets of 10 % of what a shadow trains on."""
STAGES = ("bank-5", "partial-10", "bank-2", "partial-5", "partial-20", "bank-10", "partial-40")
"""In order of worth: banks of K members, partial retraining of so many per cent with the references that it gives.
There are also crops-K, a bank whose moves see crops of what is forgotten; warm-P-R, partial retraining of P per cent
from the original at R times the recipe's rate; retrain-N, a full retraining without each of N forget sets.
"""
GRAIN, COARSE = 256, 32
"""Scores are kept as multiples of 1/256, other statistics as multiples of 1/32."""
COPIES = ((0, 0, 1), (2, 2, 0), (-2, -2, 0), (3, -3, 1), (-3, 3, 1))
"""Near-copies that an attacker asks for: pixels down and right, mirrored; for digits by at most one pixel."""
STATISTICS = ("near", "mirror", "right", "entropy", "energy", "features")
"""What else an attacker asks for: mean margin of the near-copies, that of the mirror image, how many labels are right
of the example and its near-copies, logarithm of the entropy, log-sum of the centred logits, length of the features.
"""
VIEWS = 4, 2
"""Of each forgotten and each retained example, what a move with crops sees: the example itself, the others crops."""
CALIBRATIONS = ("alone", "scaled", "regression", "residual", "quantile")
SOME_CALIBRATIONS = ("alone", "residual", "quantile")
MOVES = (0.03, 0.08)
"""Cost of a move, as a share of a full retraining."""
MOVE_RATES, MOVE_BATCHES = (0.02, 0.05, 0.1, 0.2), (1.0, 0.25)
SCRATCH_RATES, WARM_RATES = (0.125, 0.25, 0.5, 1.0), (0.5, 1.0, 2.0)
"""Times the recipe's learning rate; batches of a move are times the recipe's too."""

State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """Images on the device, a network for them, and the recipe that trains it."""

    train: TensorExamples
    test: TensorExamples
    network: Callable[[], nn.Module]
    recipe: Recipe
    fill: tuple[float, ...]

    def copies(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Examples shifted and mirrored; those that are no images are squares of one channel."""
        side = math.isqrt(x[0].numel())
        images = x if x.dim() == 4 else x.reshape(-1, 1, side, side)
        reach = 4 if x.dim() == 4 else 1
        fill = torch.tensor(self.fill, device=x.device, dtype=x.dtype)
        return crop_flip(images, drawn.clamp(-reach, reach), fill).reshape(x.shape)

    @property
    def device(self) -> torch.device:
        """Where everything lies."""
        return self.train.x.device

    def updates(self, count: int, share: float = 1.0) -> int:
        """Updates of so large a share of a training on `count` examples."""
        return max(1, round(share * self.recipe.epochs * (count // self.recipe.batch_size)))


def load(data: str, device: torch.device) -> Problem:
    """Noisy digits and a small network, or CIFAR-10 and ResNet-18 with the ImageNet stem."""
    if data == "digits":
        found = load_data()
        noise = torch.Generator().manual_seed(0)
        train, test = (
            TensorExamples(part.x + 1.5 * torch.randn(part.x.shape, generator=noise), part.y)
            for part in (found.train, found.test)
        )
        network: Callable[[], nn.Module] = partial(build_model, "mlp", inputs=64, classes=10, hidden=(64,))
        return Problem(train.to(device), test.to(device), network, Recipe(epochs=20, batch_size=16, lr=0.05), (0.0,))
    found = load_data("cifar10", path=Path(data))
    network = partial(build_model, "resnet18", stem="imagenet")
    return Problem(found.train.to(device), found.test.to(device), network, RECIPES["paper"], found.fill)


@dataclass(frozen=True, eq=False)
class Plan:
    """Indices into the training images. `held_out`: nobody trains on them. `audited`: the points of the design."""

    held_out: Tensor
    audited: Tensor
    design: ShadowDesign
    halves: list[Tensor]
    """What each audited shadow trains on, audited points first."""
    tuning: list[tuple[Tensor, Tensor]]
    """What the two complementary shadows that settings are chosen on train on and forget."""

    def forgotten(self, shadow: int, part: int) -> NDArray[np.int64]:
        """Positions among the audited points."""
        return np.flatnonzero(self.design.part[shadow] == part)


def draw_plan(count: int, shadows: int, seed: int) -> Plan:
    """Complementary shadows of half the pool each; audited points are forgotten by each shadow that trained on them."""
    rng = np.random.default_rng(seed)
    held_out, pool = np.split(rng.permutation(count), [count // 20])
    audited, others = np.split(pool, [2 * int(AUDITED * len(pool) / 2)])
    design = shadow_design(len(audited), shadows=shadows, forget_sets=FORGET_SETS, generator=rng)
    rest = shadow_design(len(others), shadows=shadows, forget_sets=1, generator=rng)
    halves = [
        np.concatenate([rng.permutation(audited[design.trained[s]]), rng.permutation(others[rest.trained[s]])])
        for s in range(shadows)
    ]
    apart = shadow_design(len(pool), shadows=2, forget_sets=1, generator=rng)
    tuning = []
    for trained in apart.trained:
        half = pool[trained]
        asked = rng.permutation(np.intersect1d(half, others))[: len(half) // 10]
        tuning.append((torch.from_numpy(half), torch.from_numpy(asked)))
    tensors = [torch.from_numpy(half) for half in halves]
    return Plan(torch.from_numpy(held_out), torch.from_numpy(audited), design, tensors, tuning)


class Lane:
    """A network whose weights are drawn, trained and moved in place, in a stream of its own."""

    def __init__(self, problem: Problem) -> None:
        recipe, device = problem.recipe, problem.device
        self.problem, self.stream = problem, DeviceLane(device)
        self.model = lay_out(problem.network().to(device))
        with torch.no_grad():
            classes = self.model.eval()(problem.train.x[:2]).shape[1]
        self.wanted = torch.zeros(len(problem.train), classes, device=device)
        self._descent = Stepper(self.model, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
        self._approach = Stepper(self.model, momentum=0.9, max_norm=1.0)
        self._augments = bool(recipe.crop_padding or recipe.flip)
        self._fill = torch.tensor(problem.fill, device=device)
        compute = Compute(device, "auto", capture=True)
        # What is captured is captured for one size of batch.
        self.train = compute.update(self._train)
        self.moves = {round(part * recipe.batch_size): compute.update(self._move) for part in MOVE_BATCHES}

    def begin(self, start: State | int, *, training: bool) -> None:
        """Take up given weights, or draw them by a seed, and forget momentum."""
        self.model.train(training)
        if isinstance(start, int):
            # On the device itself: layers draw from its own generator, which is put back.
            with torch.random.fork_rng(), torch.no_grad():
                torch.manual_seed(start)
                for module in reversed(list(self.model.modules())):
                    if callable(reset := getattr(module, "reset_parameters", None)):
                        reset()
        else:
            self.model.load_state_dict(start)
        for stepper in (self._descent, self._approach):
            for state in stepper.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()

    def _train(self, x: Tensor, y: Tensor, drawn: Tensor, lr: Number) -> dict[str, Tensor]:
        if self._augments:
            x = crop_flip(x, drawn, self._fill.to(x.dtype))
        loss = F.cross_entropy(self.model(lay_out_batch(x)).float(), y)
        self._descent.step(loss, lr=lr)
        return {"loss": loss}

    def _move(self, x: Tensor, wanted: Tensor, lr: Number) -> dict[str, Tensor]:
        found, half = centred(self.model(lay_out_batch(x)).float()), len(x) // 2
        # Forgotten examples in the first half, retained ones in the second.
        loss = F.smooth_l1_loss(found[:half], wanted[:half]) + F.smooth_l1_loss(found[half:], wanted[half:])
        self._approach.step(loss, lr=lr)
        return {"loss": loss}


class Answer(NamedTuple):
    """What a model says of the examples that are asked, of near-copies of some, and, if it is kept, of all training
    images. `size`: how long the features before the last layer are.
    """

    asked: Tensor
    everything: Tensor
    state: State
    near: Tensor
    size: Tensor


class Job(NamedTuple):
    """Work for a lane, and how many passes over a training batch it takes."""

    cost: float
    run: Callable[[Lane], Generator[None, None, Answer]]


def training(
    index: Tensor, *, asked: TensorExamples, updates: int, lr: float, seed: int, start: State | None = None,
    keep: bool = False, near: Tensor | None = None,
) -> Job:  # fmt: skip
    """Train on the examples at `index` under a cosine schedule, from weights drawn by `seed` or from `start`."""

    def run(lane: Lane) -> Generator[None, None, Answer]:
        problem, recipe = lane.problem, lane.problem.recipe
        device, size, padding = problem.device, recipe.batch_size, recipe.crop_padding
        lane.begin(seed if start is None else start, training=True)
        draws = torch.Generator(device).manual_seed(seed)
        mine = index.to(device)
        batches = len(mine) // size
        for update in range(updates):
            first = update % batches * size
            if first == 0:
                order = mine[torch.randperm(len(mine), generator=draws, device=device)]
                shift = torch.randint(-padding, padding + 1, (len(mine), 2), generator=draws, device=device)
                mirrored = torch.randint(0, 1 + recipe.flip, (len(mine), 1), generator=draws, device=device)
                drawn = torch.cat([shift, mirrored], 1)
            batch = order[first : first + size]
            lane.train(
                problem.train.x[batch],
                problem.train.y[batch],
                drawn[first : first + size],
                lr * cosine(update / updates),
            )
            yield
        return answer(lane, asked, keep=keep, near=near)

    return Job(updates, run)


def moving(
    original: Answer, forget: Tensor, retain: Tensor, *, asked: TensorExamples, wanted: Tensor,
    full: int, share: float, batch: float, lr: float, seed: int, near: Tensor | None = None,
    reference: Reference | None = None,
) -> Job:  # fmt: skip
    """Move the original until its logits at `forget` are as `wanted`, and those at `retain` as they were, at the cost
    of `share` of the `full` updates of a retraining. With a `reference`, it sees crops too, as that says of them.
    """

    def run(lane: Lane) -> Generator[None, None, Answer]:
        problem, size = lane.problem, round(batch * lane.problem.recipe.batch_size)
        updates = max(1, round(share * full / (2 * batch)))
        draws = torch.Generator(problem.device).manual_seed(seed)
        parts = [part.to(problem.device) for part in (forget, retain)]
        if reference is None:
            lane.begin(original.state, training=False)
            lane.wanted.copy_(centred(original.everything))
            lane.wanted[parts[0]] = centred(wanted)
            x, y = problem.train.x, lane.wanted
        else:
            x, y = views(lane, original, reference, parts, wanted, draws)
            sizes = [count * len(part) for count, part in zip(VIEWS, parts, strict=True)]
            parts = list(torch.arange(sum(sizes), device=problem.device).split(sizes))
        rows = [
            part[torch.randint(len(part), (updates, size), generator=draws, device=problem.device)] for part in parts
        ]
        for update, row in enumerate(torch.cat(rows, 1)):
            lane.moves[size](x[row], y[row], lr * cosine(update / updates))
            yield
        return answer(lane, asked, keep=False, near=near)

    return Job(share * full, run)


def views(
    lane: Lane, original: Answer, reference: Reference, parts: Sequence[Tensor], wanted: Tensor, draws: torch.Generator
) -> tuple[Tensor, ...]:
    """Forgotten examples, crops of them, retained examples, crops of them; and the logits that are wanted: of crops
    those of the member that never saw the example, and of retained ones the original's.
    """
    problem, found = lane.problem, []
    for part, count in zip(parts, VIEWS, strict=True):
        x = problem.train.x[part.repeat(count - 1)]
        shift = torch.randint(-4, 5, (len(x), 2), generator=draws, device=x.device)
        flip = torch.randint(0, 1 + problem.recipe.flip, (len(x), 1), generator=draws, device=x.device)
        found += [problem.train.x[part], problem.copies(x, torch.cat([shift, flip], 1))]
    said = torch.empty(len(found[1]), wanted.shape[1], device=wanted.device)
    member = reference.member.repeat(VIEWS[0] - 1)
    for number, state in enumerate(reference.states):
        if (mine := member == number).any():
            lane.begin(state, training=False)
            said[mine] = ask(lane, found[1][mine])
    lane.begin(original.state, training=False)
    said_of = [wanted, said, original.everything[parts[1]], ask(lane, found[3])]
    return torch.cat(found), centred(torch.cat(said_of))


def ask(lane: Lane, x: Tensor) -> Tensor:
    """What the lane's model says of these examples."""
    return logits(lane.model, TensorExamples(x, torch.zeros(len(x), dtype=torch.int64, device=x.device))).float()


def answer(lane: Lane, asked: TensorExamples, *, keep: bool, near: Tensor | None = None) -> Answer:
    """What the lane's model says, once the device has said it. `near`: which of the examples are also asked as
    near-copies.
    """
    everything, state = torch.empty(0), State()
    if keep:
        everything = logits(lane.model, lane.problem.train).float()
        state = {name: value.clone() for name, value in lane.model.state_dict().items()}
    copies, length = torch.empty(0), list[Tensor]()
    last = [module for module in lane.model.modules() if isinstance(module, nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda _, given: length.append(given[0].float().norm(dim=1)))
    said = ask(lane, asked.x)
    hook.remove()
    if near is not None:
        index = near.to(asked.x.device)
        drawn = [torch.tensor(shift, device=index.device).expand(len(index), 3) for shift in COPIES]
        copies = torch.stack([ask(lane, lane.problem.copies(asked.x[index], each)) for each in drawn])
    found = Answer(said, everything, state, copies, torch.cat(length))
    if found.asked.is_cuda:
        torch.cuda.current_stream().synchronize()
    return found


class Fleet:
    """Lanes that work side by side, a step of each in turn, and the time they take."""

    def __init__(self, problem: Problem, at_once: int) -> None:
        self.lanes = [Lane(problem) for _ in range(at_once)]
        self.cost, self.seconds, self.latest = 0.0, 0.0, 0.0

    def __call__(self, jobs: Sequence[Job]) -> list[Answer]:
        """The answers of the jobs, in their order."""
        if torch.cuda.is_available():
            # What the lanes are given was made in another stream.
            torch.cuda.synchronize()
        began = perf_counter()
        waiting, found = deque(enumerate(jobs)), dict[int, Answer]()
        running: dict[Lane, tuple[int, Iterator[None]]] = {}
        while waiting or running:
            for lane in self.lanes:
                if lane not in running and waiting:
                    number, job = waiting.popleft()
                    running[lane] = number, job.run(lane)
                if lane in running:
                    number, steps = running[lane]
                    try:
                        with lane.stream.turn():
                            next(steps)
                    except StopIteration as end:
                        found[number] = end.value
                        del running[lane]
        self.latest = perf_counter() - began
        self.seconds += self.latest
        self.cost += sum(job.cost for job in jobs)
        return [found[number] for number in range(len(jobs))]

    def expected(self, jobs: Sequence[Job]) -> float:
        """Seconds that jobs will take at the pace so far."""
        return sum(job.cost for job in jobs) * self.seconds / self.cost if self.cost else 0.0


def centred(z: Tensor) -> Tensor:
    return z - z.mean(1, keepdim=True)


def margin(z: Tensor, y: Tensor) -> Tensor:
    """The score of U-LiRA, z_y − log Σ e^z of the others."""
    own = z.gather(1, y[:, None])
    found: Tensor = own - z.scatter(1, y[:, None], -math.inf).logsumexp(1, keepdim=True)
    return found[:, 0]


class Reference(NamedTuple):
    """Logits of models that never saw the forgotten examples: of each example by its `member`, and of held-out ones by
    every member. `states`: the members themselves, if they are kept.
    """

    forgotten: Tensor
    member: Tensor
    held_out: list[Tensor]
    states: Sequence[State] = ()


def targets(kind: str, reference: Reference, y: Tensor, original: Tensor, y_held: Tensor, seed: int) -> Tensor:
    """Logits for the forgotten examples; `original`: the original's on the held-out ones, by which it is calibrated."""
    draws = torch.Generator(y.device).manual_seed(seed)
    found = torch.empty_like(reference.forgotten)
    for number, held in enumerate(reference.held_out):
        mine = reference.member == number
        if mine.any():
            z = centred(reference.forgotten[mine])
            found[mine] = _calibrated(kind, z, y[mine], centred(held), centred(original), y_held, draws)
    return found


def _calibrated(
    kind: str, z: Tensor, y: Tensor, held: Tensor, original: Tensor, y_held: Tensor, draws: torch.Generator
) -> Tensor:
    if kind == "alone":
        return z
    own, theirs, wanted = margin(z, y), margin(held, y_held), margin(original, y_held)
    if kind == "scaled":
        return z * (wanted.std() / theirs.std())
    if kind == "quantile":
        # The margin takes its rank among held-out margins of the reference; the original's of that rank is the target.
        rank = torch.searchsorted(theirs.sort().values, own).clamp_max(len(theirs) - 1)
        return z.scatter_add(1, y[:, None], (wanted.sort().values[rank] - own)[:, None])
    with_one = torch.cat([held, torch.ones_like(held[:, :1])], 1)
    ridge = 10 * torch.eye(with_one.shape[1], device=z.device)
    slope = torch.linalg.solve(with_one.T @ with_one + ridge, with_one.T @ original)
    fitted: Tensor = torch.cat([z, torch.ones_like(z[:, :1])], 1) @ slope
    if kind == "regression":
        return fitted
    # The residual of a held-out example of the same class that the reference is about as sure of.
    far = (own[:, None] - theirs).abs().masked_fill(y[:, None] != y_held, math.inf)
    alike = far.topk(min(15, int((y[:, None] == y_held).sum(1).min())), largest=False).indices
    picked = alike.gather(1, torch.randint(alike.shape[1], (len(z), 1), generator=draws, device=z.device))[:, 0]
    fitted += (original - with_one @ slope)[picked]
    return fitted


class Experiment:
    """The stages, in order of worth; each writes the scores of its variants."""

    def __init__(
        self, problem: Problem, plan: Plan, fleet: Fleet, out: Path, seconds: float, shadows: Sequence[int]
    ) -> None:
        self.problem, self.plan, self.fleet, self.out, self.shadows = problem, plan, fleet, out, shadows
        self.until = perf_counter() + seconds
        self.models = [(s, j) for s in shadows for j in range(FORGET_SETS)]
        where = torch.cat([plan.audited, plan.held_out]).to(problem.device)
        parts = problem.train.select(where), problem.test
        self.asked = TensorExamples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))
        self.sizes = [len(plan.audited), len(plan.held_out), len(problem.test)]
        self.y = torch.split(self.asked.y, self.sizes)
        self.full = problem.updates(len(self.retained(0, 0)))
        self.train = partial(training, asked=self.asked)
        self.chosen: dict[str, Any] = {"tuning": []}
        self.kinds: Sequence[str] = CALIBRATIONS

    def retained(self, shadow: int, part: int) -> Tensor:
        """Indices of what a shadow trained on, without one forget set."""
        gone = self.plan.audited[self.plan.forgotten(shadow, part)]
        return self.plan.halves[shadow][~torch.isin(self.plan.halves[shadow], gone)]

    def seen(self, shadow: int, part: int) -> Tensor:
        """Positions among the audited points that this model forgot or never saw."""
        own = shadow * FORGET_SETS + part
        return torch.from_numpy(np.flatnonzero(self.plan.design.forgotten[own] | self.plan.design.never[own]))

    def fits(self, what: str, jobs: Sequence[Job]) -> bool:
        """Whether there is time for jobs, said if not."""
        left, needed = self.until - perf_counter(), self.fleet.expected(jobs)
        if needed > left:
            print(f"left out: {what}, about {needed:.0f} s with {left:.0f} s left", flush=True)
        return needed <= left

    def run(self, stages: Sequence[str], moves: dict[str, Any] | None = None) -> None:
        """The originals, and all stages that there is time for; with `moves`, settings that were chosen before."""
        tuning = [] if moves else list(enumerate((half for half, _ in self.plan.tuning), len(self.plan.halves)))
        lr, folds = self.problem.recipe.lr, stages[0].split("-")[1]
        jobs = [
            self.train(
                half, updates=self.problem.updates(len(half)), lr=lr, seed=seed, keep=True,
                near=torch.arange(len(self.plan.audited)),
            )
            for seed, half in [*((s, self.plan.halves[s]) for s in self.shadows), *tuning]
        ]  # fmt: skip
        # What can be trained beside the originals.
        members = self.bank_jobs(int(folds)) if stages[0].startswith("bank") else []
        found = self.fleet([*jobs, *members])
        self.originals = dict(zip(self.shadows, found, strict=False))
        self.tuners = found[len(self.shadows) : len(jobs)]
        self.banks = {int(folds): self.bank(int(folds), found[len(jobs) :])} if members else {}
        self.seconds_of_full = self.full * self.fleet.seconds / self.fleet.cost
        print(f"a full retraining: {self.full} updates, {self.seconds_of_full:.1f} s", flush=True)
        self.write("original", "none", [self.originals[s] for s, _ in self.models])
        if moves:
            self.chosen["moves"] = moves
        else:
            self.choose_move()
        for stage in stages:
            self.stage(*stage.split("-"))

    def stage(self, kind: str, size: str, rate: str = "1") -> None:
        """One of `STAGES`."""
        if kind in ("bank", "crops"):
            self.banked(int(size), crops=kind == "crops")
        elif kind == "retrain":
            self.partial(1.0, 1.0, warm=False, sets=int(size))
        elif kind == "warm":
            self.partial(int(size) / 100, float(rate), warm=True)
        else:
            self.short_and_warm(int(size) / 100)

    def folds(self, shadow: int, folds: int) -> Tensor:
        """The fold of each example of a shadow's half. Audited points come first, so that members that no audited
        point asks need not be trained.
        """
        count = len(self.plan.halves[shadow])
        return torch.arange(count) * folds // count

    def asked_folds(self, folds: int) -> int:
        """How many of the folds hold audited points."""
        return 1 + int(self.folds(0, folds)[int(self.plan.design.trained[0].sum()) - 1])

    def bank_jobs(self, folds: int) -> list[Job]:
        """Members of every shadow's bank, each trained without one fold."""
        jobs, number = list[Job](), self.asked_folds(folds)
        for shadow in self.shadows:
            half = self.plan.halves[shadow]
            for fold in range(number):
                index, seed = half[self.folds(shadow, folds) != fold], 10_000 * folds + shadow * number + fold
                updates = self.problem.updates(len(index))
                jobs.append(self.train(index, updates=updates, lr=self.problem.recipe.lr, seed=seed, keep=True))
        return jobs

    def bank(self, folds: int, members: list[Answer]) -> list[Reference]:
        """For every unlearned model, what the member without its fold says of each forgotten example."""
        number = self.asked_folds(folds)
        found = []
        for shadow, part in self.models:
            first = self.shadows.index(shadow) * number
            own = members[first : first + number]
            mine = [torch.split(member.asked, self.sizes) for member in own]
            positions = self.plan.forgotten(shadow, part)
            fold_of = torch.full((len(self.problem.train),), -1)
            fold_of[self.plan.halves[shadow]] = self.folds(shadow, folds)
            fold = fold_of[self.plan.audited[positions]].to(self.problem.device)
            said = torch.stack([audited[positions] for audited, _, _ in mine])
            own_logits = said[fold, torch.arange(len(fold), device=fold.device)]
            held_out = [held for _, held, _ in mine]
            found.append(Reference(own_logits, fold, held_out, [member.state for member in own]))
        return found

    def banked(self, folds: int, *, crops: bool) -> None:
        """Targets from a bank, calibrated in every way, or, with crops of the forgotten examples, as they are."""
        label = f"bank K={folds}"
        if folds not in self.banks:
            jobs = self.bank_jobs(folds)
            if not self.fits(label, jobs):
                return
            self.banks[folds] = self.bank(folds, self.fleet(jobs))
        for move, kinds in zip(MOVES, (SOME_CALIBRATIONS, CALIBRATIONS), strict=True):
            if crops:
                self.moved(f"{label} with crops, alone, move {move:.0%}", self.banks[folds], "alone", move, folds - 1.0,
                           0.0, crops=True)  # fmt: skip
            else:
                self.moves(label, self.banks[folds], kinds, move, prepare=folds - 1.0)

    def short_and_warm(self, share: float) -> None:
        """Partial retraining: from scratch, as a rival and as a reference, and from the original."""
        if references := self.partial(share, self.choose_scratch(share), warm=False):
            self.moves(f"reference of {share:.0%}", references, SOME_CALIBRATIONS, MOVES[0], request=share)
            self.moves(f"reference of {share:.0%}", references, ("quantile",), MOVES[1], request=share)
        for rate in WARM_RATES:
            self.partial(share, rate, warm=True)

    def partial(self, share: float, rate: float, *, warm: bool, sets: int = FORGET_SETS) -> list[Reference]:
        """Partial retraining of the models of so many sets; the references that they are, unless they started from
        the original.
        """
        jobs: list[Job] = []
        lr = rate * self.problem.recipe.lr
        for shadow, part in self.models:
            if part < sets:
                start, index = self.originals[shadow].state if warm else None, self.retained(shadow, part)
                updates = self.problem.updates(len(index), share)
                seed = 200_000 + round(10_000 * share) + shadow * FORGET_SETS + part + 100_000 * warm
                near = self.seen(shadow, part)
                jobs.append(self.train(index, updates=updates, lr=lr, seed=seed, start=start, near=near))
        label = f"partial retraining, {share:.0%}, {'from the original' if warm else 'from scratch'}, rate {lr:g}"
        if share == 1:
            label = f"full retraining, {sets} of {FORGET_SETS} sets"
        if not self.fits(label, jobs):
            return []
        found = self.fleet(jobs)
        family = "partial, from the original" if warm else "partial, from scratch"
        self.write(label, family, found, request=share, settings={"lr": lr}, sets=sets)
        if sets < FORGET_SETS:
            return []
        zeros = torch.zeros(1, dtype=torch.int64, device=self.problem.device)
        references = []
        for (shadow, part), said in zip(self.models, found, strict=True):
            audited, held, _ = torch.split(said.asked, self.sizes)
            positions = self.plan.forgotten(shadow, part)
            references.append(Reference(audited[positions], zeros.expand(len(positions)), [held]))
        return references

    def moves(
        self, label: str, bank: list[Reference], kinds: Sequence[str], move: float, *, prepare: float = 0.0,
        request: float = 0.0,
    ) -> None:  # fmt: skip
        """Move every model to what its reference says, calibrated in each of several ways."""
        for kind in (kind for kind in kinds if kind in self.kinds):
            self.moved(f"{label}, {kind}, move {move:.0%}", bank, kind, move, prepare, request)

    def moved(
        self, label: str, bank: list[Reference], kind: str, move: float, prepare: float, request: float, *,
        crops: bool = False,
    ) -> None:  # fmt: skip
        """One way."""
        jobs, wanted = list[Job](), list[Tensor]()
        how = self.chosen["moves"][f"{move:g}"]
        for (shadow, part), reference in zip(self.models, bank, strict=True):
            number = shadow * FORGET_SETS + part
            original, positions = self.originals[shadow], self.plan.forgotten(shadow, part)
            held = torch.split(original.asked, self.sizes)[1]
            labels = self.y[0][positions]
            wanted.append(targets(kind, reference, labels, held, self.y[1], seed=number))
            jobs.append(
                moving(
                    original, self.plan.audited[positions], self.retained(shadow, part), asked=self.asked,
                    wanted=wanted[-1], full=self.full, seed=400_000 + number, near=self.seen(shadow, part),
                    reference=reference if crops else None, **how,
                )
            )  # fmt: skip
        if self.fits(label, jobs):
            about = {"calibration": kind, "move": how}
            family = "bank" if prepare else "short reference"
            found = self.fleet(jobs)
            self.write(label, family, found, prepare=prepare, request=request + move, settings=about, wanted=wanted)

    def choose_move(self) -> None:
        """The rate of the move: of those that cost at most 0.3 points of held-out accuracy, the one that comes closest
        to its targets. Two complementary shadows are references for each other: neither saw what the other forgets.
        """
        self.chosen["moves"] = {}
        for share in MOVES:
            tried = [{"share": share, "batch": batch, "lr": lr} for batch in MOVE_BATCHES for lr in MOVE_RATES]
            rows = [how | self.try_move(how) for how in tried]
            kept = [row for row in rows if row["held_out_change"] >= -0.003]
            best = min(kept, key=lambda r: r["distance"]) if kept else max(rows, key=lambda r: r["held_out_change"])
            self.chosen["moves"][f"{share:g}"] = {name: best[name] for name in tried[0]}
            self.chosen["tuning"] += [{"what": "move"} | row for row in rows]
            print(f"move of {share:.0%}: {best}", flush=True)

    def try_move(self, how: dict[str, Any]) -> dict[str, float]:
        """How close one setting comes to its targets, and what it costs in accuracy on held-out examples."""
        jobs, wanted = [], []
        y = self.problem.train.y
        for (half, forget), own, other in zip(self.plan.tuning, self.tuners, reversed(self.tuners), strict=True):
            retain = half[~torch.isin(half, forget)]
            wanted.append(other.everything[forget.to(self.problem.device)])
            # Held-out examples to see what is lost, and the forgotten ones themselves.
            examples = self.problem.train.select(torch.cat([self.plan.held_out, forget]))
            jobs.append(moving(own, forget, retain, asked=examples, wanted=wanted[-1], full=self.full, seed=1, **how))
        distance, change = [], []
        for (_, forget), own, target, said in zip(self.plan.tuning, self.tuners, wanted, self.fleet(jobs), strict=True):
            held, forgotten = torch.split(said.asked, [len(self.plan.held_out), len(forget)])
            labels = y[forget.to(self.problem.device)]
            distance.append(float((margin(forgotten, labels) - margin(target, labels)).abs().mean()))
            before = own.everything[self.plan.held_out.to(self.problem.device)]
            change.append(correct(held, self.y[1]) - correct(before, self.y[1]))
        return {"distance": float(np.mean(distance)), "held_out_change": float(np.mean(change))}

    def choose_scratch(self, share: float) -> float:
        """The rate, as a multiple of the recipe's, whose short trainings know most held-out examples."""
        jobs = [
            self.train(
                retain, updates=self.problem.updates(len(retain), share), lr=rate * self.problem.recipe.lr, seed=i
            )
            for rate in SCRATCH_RATES
            for i, retain in enumerate(half[~torch.isin(half, forget)] for half, forget in self.plan.tuning)
        ]
        if not self.fits(f"rates of {share:.0%} from scratch", jobs):
            return 1.0
        right = [correct(torch.split(said.asked, self.sizes)[1], self.y[1]) for said in self.fleet(jobs)]
        means = np.array(right).reshape(len(SCRATCH_RATES), -1).mean(1)
        for rate, value in zip(SCRATCH_RATES, means, strict=True):
            row = {"what": "from scratch", "share": share, "lr": rate * self.problem.recipe.lr}
            self.chosen["tuning"].append(row | {"held_out": float(value)})
        return SCRATCH_RATES[int(means.argmax())]

    def write(
        self, label: str, family: str, found: list[Answer], *, prepare: float = 0.0, request: float = 0.0,
        settings: dict[str, Any] | None = None, wanted: list[Tensor] | None = None, sets: int = FORGET_SETS,
    ) -> None:  # fmt: skip
        """Scores of audited points, accuracies, distance to the targets, and what else an attacker can ask for, one
        file a variant.
        """
        y_audited, y_held, y_test = self.y
        names = "scores", "test", "held_out", "forgotten", "distance", *STATISTICS
        rows: dict[str, list[Any]] = {name: [] for name in names}
        models = [(shadow, part) for shadow, part in self.models if part < sets]
        for number, ((shadow, part), said) in enumerate(zip(models, found, strict=True)):
            audited, held, test = torch.split(said.asked, self.sizes)
            score, positions = margin(audited, y_audited), self.plan.forgotten(shadow, part)
            for name, value in statistics(said, self.seen(shadow, part), audited, y_audited).items():
                rows[name].append(value)
            rows["scores"].append(score.mul(GRAIN).round().clamp(-(2**15), 2**15 - 1).short().cpu().numpy())
            rows["test"].append(correct(test, y_test))
            rows["held_out"].append(correct(held, y_held))
            rows["forgotten"].append(float((score[positions] > 0).double().mean()))
            if wanted is not None:
                rows["distance"].append(
                    float((score[positions] - margin(wanted[number], y_audited[positions])).abs().mean())
                )
        about = {"label": label, "family": family, "prepare": prepare, "request": request, "settings": settings or {}}
        # Of one model, of those trained or moved side by side.
        about["seconds"] = self.fleet.latest / len(found) if request else 0.0
        about |= {"sets": sets, "shadows": list(self.shadows)}
        self.out.mkdir(parents=True, exist_ok=True)
        number = len(list(self.out.glob("*.npz")))
        arrays: dict[str, Any] = {name: np.array(values) for name, values in rows.items()}
        np.savez_compressed(self.out / f"{number:03d}.npz", about=json.dumps(about), **arrays)
        state = {
            "chosen": self.chosen,
            "full": self.full,
            "seconds_of_full": self.seconds_of_full,
            "processes": len(self.plan.halves) // len(self.shadows),
        }
        (self.out / "chosen.json").write_text(json.dumps(state, indent=1))
        print(f"{label}: test {np.mean(rows['test']):.4f}, left {self.until - perf_counter():.0f} s", flush=True)


def correct(z: Tensor, y: Tensor) -> float:
    return float((z.argmax(1) == y).double().mean())


def statistics(said: Answer, seen: Tensor, audited: Tensor, y: Tensor) -> dict[str, NDArray[np.int16]]:
    """`STATISTICS` of the audited points at `seen`, nought elsewhere; none if no near-copies were asked."""
    if not len(said.near):
        return {}
    where = seen.to(y.device)
    near = said.near if said.near.shape[1] == len(seen) else said.near[:, where]
    labels, z = y[where], centred(audited[where])
    margins = torch.stack([margin(each, labels) for each in near])
    found = {
        "near": margins.mean(0),
        "mirror": margins[0],
        "right": ((margins > 0).sum(0) + (margin(z, labels) > 0)).float(),
        "entropy": torch.special.entr(z.softmax(1)).sum(1).clamp_min(1e-6).log(),
        "energy": z.logsumexp(1),
        "features": said.size[where],
    }
    arrays = {}
    for name in STATISTICS:
        whole = torch.zeros(len(y), device=y.device)
        whole[where] = found[name]
        arrays[name] = whole.mul(COARSE).round().clamp(-(2**15), 2**15 - 1).short().cpu().numpy()
    return arrays


Arrays = dict[str, NDArray[Any]]


def gather(out: Path) -> list[tuple[dict[str, Any], Arrays]]:
    """What was written of every variant, by one process or by one process a shadow."""
    by_label: dict[str, list[tuple[dict[str, Any], Arrays]]] = {}
    for path in sorted([*out.glob("*.npz"), *out.glob("*/*.npz")]):
        with np.load(path) as file:
            about = json.loads(str(file["about"]))
            kept = {name: file[name] for name in file.files if name != "about"}
        by_label.setdefault(about["label"], []).append((about, kept))
    most = max(sum(len(about["shadows"]) for about, _ in parts) for parts in by_label.values())
    found = []
    for label, parts in by_label.items():
        parts.sort(key=lambda part: part[0]["shadows"])
        about = dict(parts[0][0])
        about["shadows"] = [shadow for part, _ in parts for shadow in part["shadows"]]
        if len(about["shadows"]) < most:
            print(f"left out: {label}, only shadows {about['shadows']}")
            continue
        # Processes share the device.
        about["seconds"] = sum(part["seconds"] for part, _ in parts) / len(parts) ** 2
        found.append((about, {name: np.concatenate([kept[name] for _, kept in parts]) for name in parts[0][1]}))
    return found


def attacks(kept: Arrays, margins: NDArray[Any], original: NDArray[Any], about: dict[str, Any]) -> dict[str, Audit]:
    """U-LiRA by each statistic; by the fall of the margin from the original, which two models show; and by all but
    that together: log ratios of all statistics, weighed by a logistic regression on the other pairs of shadows.
    """
    found = {"margin": shadow_audit(margins, **about)}
    if (original != margins).any():
        found["two models"] = shadow_audit(original - margins, **about)
    if not len(kept["near"]):
        return found
    drawn = np.random.default_rng(0)
    for name in STATISTICS:
        # Spread evenly over what rounding made equal; numbers of right labels, over a tenth.
        spread = drawn.uniform(-0.5, 0.5, kept[name].shape) * (0.1 * COARSE if name == "right" else 1.0)
        found[name] = shadow_audit((kept[name] + spread) / COARSE, **about)
    found["margin less near"] = shadow_audit(margins - kept["near"] / COARSE, **about)
    own = [audit for name, audit in found.items() if name != "two models"]
    found["all together"] = together(own)
    return found


def together(audits: Sequence[Audit]) -> Audit:
    """The audit of what several say together."""
    kinds = []
    for kind in ("positive", "negative"):
        parts = [getattr(audit, kind) for audit in audits]
        x = np.stack([part.scores for part in parts], 1)
        kinds.append((np.sign(x) * np.log1p(np.abs(x)), parts[0]))
    found = [np.empty(len(part)) for _, part in kinds]
    for pair in range(len(audits[0].shadows) // 2):
        apart = [part.shadows // 2 == pair for _, part in kinds]
        x = np.concatenate([x[~out] for (x, _), out in zip(kinds, apart, strict=True)])
        y = np.concatenate([np.full((~out).sum(), 1.0 - n) for n, out in enumerate(apart)])
        weight = np.where(y > 0, 0.5 / y.mean(), 0.5 / (1 - y.mean()))
        x = np.concatenate([x, np.ones_like(x[:, :1])], 1)
        w = np.zeros(x.shape[1])
        for _ in range(20):
            p = 1 / (1 + np.exp(-(x @ w).clip(-30, 30)))
            curved = x.T @ (x * (weight * p * (1 - p))[:, None]) + 1e-3 * np.eye(len(w))
            w += np.linalg.solve(curved, x.T @ (weight * (y - p)) - 1e-3 * w)
        for (x, _), out, scores in zip(kinds, apart, found, strict=True):
            scores[out] = x[out] @ w[:-1] + w[-1]
    positive, negative = (replace(part, scores=s) for (_, part), s in zip(kinds, found, strict=True))
    return replace(audits[0], positive=positive, negative=negative)


def table(plan: Plan, out: Path, data: str) -> None:
    """Audit the scores of every variant, and write the table as JSON and Markdown."""
    design = plan.design
    rows: list[dict[str, Any]] = []
    everything = gather(out)
    first = next(kept for about, kept in everything if about["label"] == "original")
    originals = first["scores"][::FORGET_SETS].astype(np.float32) / GRAIN
    memorised = most_memorised(memorisation(originals, trained=design.trained), 0.05)
    for about, kept in everything:
        # Some rows have models of the first forget sets only.
        sets = about.pop("sets")
        chosen = np.arange(len(design.groups)) % FORGET_SETS < sets
        about["shadows"] = len(about["shadows"])
        scores = kept["scores"].astype(np.float32) / GRAIN
        masks = {"forgotten": design.forgotten[chosen], "never": design.never[chosen], "groups": design.groups[chosen]}
        audits = attacks(kept, scores, originals[masks["groups"]], masks)
        audit = audits["margin"]
        top = audit.restricted(memorised)
        other = audit_against_originals(
            scores, forgotten=masks["forgotten"], groups=masks["groups"], original_scores=originals,
            original_never=~design.trained,
        )  # fmt: skip
        kept = {name: value for name, value in kept.items() if name not in STATISTICS}
        kept["test_change"] = kept["test"] - first["test"][chosen]
        kept["never_seen"] = np.array([np.mean(s[n] > 0) for s, n in zip(scores, masks["never"], strict=True)])
        by_shadow = {k: mean(v.reshape(-1, sets).mean(1)) for k, v in kept.items() if k != "scores" and len(v)}
        estimates = {"auc": audit.interval(), "auc_memorised": top.interval(), "tpr_1": audit.interval(fpr=0.01)}
        estimates["auc_originals"] = other.interval()
        row = about | {name: vars(value) for name, value in (estimates | by_shadow).items()}
        row["attacks"] = {
            name: {"auc": vars(each.interval()), "auc_memorised": vars(each.restricted(memorised).interval())}
            for name, each in audits.items()
        }
        rows.append(row)
    state = json.loads(min([*out.glob("chosen.json"), *out.glob("*/chosen.json")]).read_text())
    result = {"data": data, "shadows": len(plan.halves), "audited_points": len(plan.audited), **state, "rows": rows}
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "table.md").write_text(markdown(rows))
    (out / "attackers.md").write_text(attackers(rows))
    print(markdown(rows), attackers(rows), sep="\n")


def attackers(rows: Sequence[dict[str, Any]]) -> str:
    """Areas by what the attacker asks for, on all forgotten points and then on the most memorised 5 %."""
    names = max((list(row["attacks"]) for row in rows), key=len)
    lines = ["| variant | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for slice_of in ("auc", "auc_memorised"):
        for row in rows:
            cells = [str(Estimate(**row["attacks"][n][slice_of])) if n in row["attacks"] else "" for n in names]
            label = row["label"] + (", most memorised" if slice_of == "auc_memorised" else "")
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table; cost in shares of a full retraining, prepared once beside the original and at every request. Seconds
    are those of one training or move among those side by side.
    """
    columns = {"auc": "AUC", "auc_memorised": "AUC, most memorised 5 %", "tpr_1": "TPR at 1 %", "test": "test accuracy"}
    columns |= {"test_change": "its change", "forgotten": "accuracy, forgotten", "never_seen": "accuracy, never seen"}
    columns |= {"distance": "margin to target", "auc_originals": "AUC against unseen points of the originals"}
    lines = ["| variant | cost before | cost at the request | seconds | " + " | ".join(columns.values()) + " |"]
    lines.append("|---" * (len(columns) + 4) + "|")
    for row in rows:
        cells = [f"{row['prepare']:g}", f"{row['request']:.0%}", f"{row['seconds']:.2f}"]
        cells += [str(Estimate(**row[name])) if name in row else "" for name in columns]
        lines.append(f"| {row['label']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, audit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="digits, or where CIFAR-10 lies")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shadows", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no stage is begun that would end later")
    parser.add_argument("--seed", type=int, default=34)
    parser.add_argument("--stages", nargs="+", default=STAGES, help=f"of {', '.join(STAGES)}, and the like")
    parser.add_argument("--calibrations", nargs="+", choices=CALIBRATIONS, default=CALIBRATIONS)
    parser.add_argument("--only", type=int, help="this shadow alone, in a folder of its own, beside other processes")
    parser.add_argument("--chosen", type=Path, help="results whose settings of the move are taken over")
    parser.add_argument("--scores-only", action="store_true")
    parser.add_argument("--table-only", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    problem = load(options.data, device)
    plan = draw_plan(len(problem.train), options.shadows, options.seed)
    if not options.table_only:
        only = options.only
        out, shadows = (options.out, range(options.shadows)) if only is None else (options.out / str(only), [only])
        if any(out.glob("*.npz")):
            parser.error(f"{out} has scores already; give another folder or --table-only")
        fleet = Fleet(problem, options.at_once)
        experiment = Experiment(problem, plan, fleet, out, options.seconds, shadows)
        experiment.kinds = options.calibrations
        experiment.run(
            options.stages, json.loads(options.chosen.read_text())["chosen"]["moves"] if options.chosen else None
        )
    if not options.scores_only and options.only is None:
        table(plan, options.out, Path(options.data).name)


if __name__ == "__main__":
    main()
