"""What does following input bases cost and lose against computing them anew? `python benchmarks/tracked_null_space.py
--weights FOLDER --images FILE.npy`; without these, a small network is trained on digits first.

FOLDER holds base, after10 and after40.safetensors of a ResNet-18 with the CIFAR stem: a trained network, and the same
after 10 and 40 updates of unlearning. FILE.npy holds its training images, uint8 (n, h, w, 3). "Exact" is a forward pass
over one batch, second moments of all inputs, and an eigendecomposition; "given the covariance" follows that same second
moment from state to state; "end to end" draws its sample from another batch at each state, as a defence does. All these
are from `--report`; what a basis misses is measured on `--fresh`, which nothing else looks at; `--tune-only` compares
sampling settings on images that are in neither. Rivals are timed in turn, in one process, on one thread, in float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.linalg.co_subspace import AnySubspace, CoSubspace
from warp_unlearning.linalg.tracked import TrackedSubspace
from warp_unlearning.models.resnet18 import ResNet18
from warp_unlearning.models.weights import load_weights, read_weights
from warp_unlearning.symmetry.input_bases import InputBasis, exact_bases, input_rows, observed_rows
from warp_unlearning.symmetry.layer_inputs import observe_inputs
from warp_unlearning.symmetry.sampled_inputs import sampled_rows
from warp_unlearning.symmetry.tracked_bases import TrackedBases

ENERGIES = (0.99, 0.95)
FRESH_PATCHES = 8
GRID = ((64, 128, 256), (16, 32, 64), (0.05, 0.1, 0.2, 1.0))
T = TypeVar("T")


@dataclass
class Problem:
    """A network after 0 (base), 10 and 40 updates, and images by their number."""

    model: Callable[[str], nn.Module]
    images: Callable[[int, int], Tensor]


@dataclass
class Layer:
    """What was measured of one layer; lists have one entry a repetition of a state after `base`."""

    d: int
    eigh: list[float] = field(default_factory=list)
    refresh: dict[float, list[float]] = field(default_factory=lambda: {e: [] for e in ENERGIES})


def cifar(options: argparse.Namespace) -> Problem:
    stored = np.load(options.images, mmap_mode="r")
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1)
    deviation = torch.tensor([0.2023, 0.1994, 0.2010]).reshape(3, 1, 1)

    def images(begin: int, end: int) -> Tensor:
        pixels = torch.from_numpy(np.ascontiguousarray(stored[begin:end].transpose(0, 3, 1, 2)))
        return ((pixels.float() / 255 - mean) / deviation).to(options.device)

    def model(state: str) -> nn.Module:
        network = ResNet18(stem="cifar")
        load_weights(network, read_weights(Path(options.weights) / f"{state}.safetensors"))
        return network.to(options.device).eval()

    return Problem(model, images)


def digits(options: argparse.Namespace) -> Problem:
    """A narrow ResNet-18 on 1,797 digits: the first tenth is forgotten by ascent, the rest descended on."""
    # It comes with scikit-learn, which the other data does not need.
    from warp_unlearning.data.digits import load_digits

    options.tune, options.report, options.fresh, options.batch = (180, 500), (500, 1300), (1300, 1797), 256
    data = load_digits()
    parts = [part.take(torch.arange(len(part))) for part in (data.train, data.test)]
    x, y = (torch.cat(tensors).to(options.device) for tensors in zip(*((p.x, p.y) for p in parts), strict=True))
    torch.manual_seed(0)
    network = ResNet18(stem="cifar", width=16, in_channels=1).to(options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(8):
        for index in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(x[index]), y[index]).backward()
            optimizer.step()
    states = {"base": deepcopy(network.eval())}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for step in range(1, 41):
        kept, forgotten = torch.randint(180, len(x), (64,)), torch.randint(0, 180, (64,))
        optimizer.zero_grad()
        retain = F.cross_entropy(network(x[kept]), y[kept])
        (retain - 0.05 * F.cross_entropy(network(x[forgotten]), y[forgotten])).backward()
        optimizer.step()
        states[f"after{step}"] = deepcopy(network)
    return Problem(lambda state: states[state], lambda begin, end: x[begin:end])


def timed(work: Callable[[], T], times: list[float]) -> T:
    wait = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)
    wait()
    began = perf_counter()
    result = work()
    wait()
    times.append(perf_counter() - began)
    return result


def in_batches(x: Tensor) -> list[Tensor]:
    return list(x.split(512 if x.is_cuda else 64))


@contextmanager
def recorded_eigh() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """What is decomposed meanwhile, so that it need not be decomposed twice."""
    found: list[tuple[Tensor, Tensor]] = []
    eigh = torch.linalg.eigh

    def record(matrix: Tensor) -> tuple[Tensor, Tensor]:
        found.append(eigh(matrix))
        return found[-1]

    torch.linalg.eigh = record
    try:
        yield found
    finally:
        torch.linalg.eigh = eigh


def fresh_rows(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Inputs (n, d) of every layer, some patches of each image."""
    rows: dict[str, list[Tensor]] = {}
    draw = torch.Generator().manual_seed(1)
    observe_inputs(
        model,
        in_batches(x),
        lambda weight, layer, a: rows.setdefault(weight.name, []).append(
            input_rows(weight, sampled_rows(layer, a, FRESH_PATCHES, generator=draw))[0]
        ),
    )
    return {name: torch.cat(parts) for name, parts in rows.items()}


def missed_by_rank(vectors: Tensor, rows: Tensor) -> Tensor:
    """The share of the rows' energy outside of the leading k eigenvectors (given ascending), for k = 0, 1, ..., d."""
    energy = (rows @ vectors).square().sum(0).double().flip(0)
    return 1 - torch.cat([energy.new_zeros(1), energy.cumsum(0)]) / energy.sum()


def over(missed: float, other: float) -> float:
    """Missed energy over that of another basis; 1 where neither misses more than rounding error."""
    return missed / other if max(missed, other) > 1e-6 else 1.0


def departure(subspace: AnySubspace) -> float:
    """‖QᵀQ − I‖ in float64 of the basis that the subspace is given by."""
    q = (subspace.normals if isinstance(subspace, CoSubspace) else subspace.basis).double()
    z = torch.randn(q.shape[1], 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(q)
    for _ in range(10):
        z = z / z.norm(dim=0)
        z = q.mT @ (q @ z) - z
    return float(z.norm(dim=0).max())


def plain_cholesky(moment: Tensor, rank: int) -> str:
    """What one Cholesky factor makes of the same product from a random start."""
    draw = torch.Generator().manual_seed(3)
    start = torch.linalg.qr(torch.randn(len(moment), rank, generator=draw).to(moment)).Q
    image = moment @ (moment @ start)
    factor, failed = torch.linalg.cholesky_ex(image.mT @ image)
    if bool(failed):
        return "fails: the Gram matrix is not positive definite"
    q = torch.linalg.solve_triangular(factor, image.mT, upper=False).mT
    claimed = float((q * (moment @ q)).sum() / moment.diagonal().sum())
    gram = (q.mT @ q).double() - torch.eye(rank, dtype=torch.float64, device=q.device)
    return f"largest entry of |QᵀQ − I| {float(gram.abs().max()):.1e}, claims to capture {claimed:.4f} of the energy"


class Comparison:
    """Exact and tracked bases of one network from state to state."""

    def __init__(self, options: argparse.Namespace, problem: Problem) -> None:
        self.options, self.problem = options, problem
        self.layers: dict[str, Layer] = {}
        self.trackers: dict[tuple[str, float], TrackedSubspace] = {}
        self.stale: dict[tuple[str, float], AnySubspace] = {}
        self.bases = TrackedBases(options.energy, **settings(options))
        self.slack = self.bases.slack if options.slack is None else options.slack
        self.rebuild: list[float] = []
        self.refresh: list[float] = []
        self.double: list[float] = []
        self.departures: list[float] = []
        self.batches = 0
        self.batch = self.next_batch()
        self.plain = ""

    def next_batch(self) -> list[Tensor]:
        """Images that no rebuild has looked at."""
        begin = self.options.report[0] + self.batches * self.options.batch
        self.batches += 1
        if begin + self.options.batch > self.options.report[1]:
            raise SystemExit(f"--report {self.options.report} has no room for {self.batches} batches of --batch")
        return in_batches(self.problem.images(begin, begin + self.options.batch))

    def start(self) -> None:
        """Exact bases of the network before any update."""
        seen = observed_rows(self.problem.model("base"), self.batch, dtype=torch.float32)
        moments = {name: observed.rows.second_moment()[0] for name, observed in seen.items()}
        with recorded_eigh() as decomposed:
            self.bases.start(seen)
        # On a GPU others are decomposed beside them, where products are tried first.
        recorded = decomposed if len(decomposed) == len(moments) else [None] * len(moments)
        for (name, moment), found in zip(moments.items(), recorded, strict=True):
            alive = moment.diagonal() > 0
            # Of fewer inputs than dimensions another matrix was decomposed.
            whole = found is not None and found[0].shape[-1] == int(alive.sum())
            values, vectors = (
                (part.reshape(part.shape[-d:]) for part, d in zip(found, (1, 2), strict=True))
                if whole
                else torch.linalg.eigh(moment[alive][:, alive])
            )
            self.layers[name] = Layer(int(alive.sum()))
            for energy in ENERGIES:
                tracker = self.trackers[name, energy] = TrackedSubspace(energy, slack=self.slack)
                self.stale[name, energy] = tracker.begin(values, vectors, alive)

    def after(self, state: str) -> None:
        """Rebuild and refresh the bases of a later state, and print what that took and what it missed."""
        model, batch, other = self.problem.model(state), self.batch, self.next_batch()
        begin, end = self.options.fresh
        fresh = fresh_rows(model, self.problem.images(begin, min(end, begin + self.options.fresh_images)))
        observing: list[float] = []
        tracked: dict[str, InputBasis] = {}
        for _ in range(self.options.repetitions):
            seen = timed(partial(observed_rows, model, batch, dtype=torch.float32), observing)
            bases = deepcopy(self.bases)
            draw = torch.Generator().manual_seed(4)
            tracked = timed(partial(bases.refresh, model, other, generator=draw), self.refresh)
        decomposing = [0.0] * self.options.repetitions
        rows, shares = [], []
        for name in list(seen):
            found = self.one_layer(name, seen.pop(name).rows.second_moment()[0], fresh[name], tracked[name])
            decomposing = [a + b for a, b in zip(decomposing, self.layers[name].eigh[-len(decomposing) :], strict=True)]
            rows.append(found[0])
            shares.append(found[1])
        self.bases = bases
        self.rebuild += [a + b for a, b in zip(observing, decomposing, strict=True)]
        if self.options.double:
            for _ in range(self.options.repetitions):
                timed(partial(exact_bases, model, batch, energy=self.options.energy), self.double)
        self.print(state, rows, np.array(shares))

    def widest(self) -> str:
        """The layer with the longest inputs."""
        return max(self.layers, key=lambda name: self.layers[name].d)

    def one_layer(self, name: str, moment: Tensor, fresh: Tensor, tracked: InputBasis) -> tuple[str, list[float]]:
        """A line of the table, and its numbers: two ratios for each energy, then those of the end-to-end columns."""
        layer, line, shares = self.layers[name], "", []
        alive = moment.diagonal() > 0
        within = moment if bool(alive.all()) else moment[alive][:, alive]
        refreshed: dict[float, AnySubspace] = {}
        for _ in range(self.options.repetitions):
            values, vectors = timed(partial(torch.linalg.eigh, within), layer.eigh)
            later = {energy: deepcopy(self.trackers[name, energy]) for energy in ENERGIES}
            for energy in ENERGIES:
                refreshed[energy] = timed(partial(later[energy].refresh, moment), layer.refresh[energy])
        self.trackers |= {(name, energy): tracker for energy, tracker in later.items()}
        if name == self.widest() and not self.plain:
            self.plain = plain_cholesky(within, refreshed[ENERGIES[1]].rank)
        missed = missed_by_rank(vectors, fresh[:, alive])
        for energy in ENERGIES:
            ratios = [
                over(s.missed(fresh), float(missed[s.rank])) for s in (refreshed[energy], self.stale[name, energy])
            ]
            speed = layer.eigh[-1] / layer.refresh[energy][-1]
            line += f" {refreshed[energy].rank:5d} {speed:6.1f} {ratios[0]:7.4f} {ratios[1]:7.4f} |"
            shares += ratios
            self.departures.append(departure(refreshed[energy]))
        total = values.double().clamp(min=0).flip(0).cumsum(0)
        rank = int((total / total[-1] < self.options.energy).sum()) + 1
        block = tracked.blocks[0]
        self.departures.append(departure(block))
        exact, followed, stale = (
            float(missed[rank]),
            block.missed(fresh),
            self.stale[name, self.options.energy].missed(fresh),
        )
        held = (1 - followed) / (1 - exact)
        line += f" {rank:5d} {block.rank:5d} {exact:.5f} {followed:.5f} {stale:.5f} {held:.4f}"
        return f"{name:28s} {layer.d:5d} |{line}", [*shares, exact, followed, stale, held]

    def print(self, state: str, rows: list[str], shares: np.ndarray) -> None:
        """The table of one state and what it comes to."""
        count = self.options.repetitions
        given = "given the covariance: rank, eigh / refresh time, missed / exact, left as it was / exact"
        print(f"\n{state}; {given} at {ENERGIES[0]:.0%} | the same at {ENERGIES[1]:.0%} |")
        print("  end to end: rank exact, tracked, missed by exact, tracked, left as it was, captured tracked / exact")
        print(*rows, sep="\n")
        for position, energy in enumerate(ENERGIES):
            eigh = [sum(layer.eigh[-count:][r] for layer in self.layers.values()) for r in range(count)]
            took = [sum(layer.refresh[energy][-count:][r] for layer in self.layers.values()) for r in range(count)]
            ratio = sorted(a / b for a, b in zip(eigh, took, strict=True))
            print(
                f"(1) {energy:.0%}: all layers, eigh {median(eigh):.3f} s, refresh {median(took):.3f} s, "
                f"ratio {median(ratio):.1f} ({ratio[0]:.1f} to {ratio[-1]:.1f}); worst layer misses "
                f"{shares[:, 2 * position].max():.4f} of exact, left as it was {shares[:, 2 * position + 1].max():.4f}"
            )
        ratio = sorted(a / b for a, b in zip(self.rebuild[-count:], self.refresh[-count:], strict=True))
        exact, followed, stale = shares[:, 4].mean(), shares[:, 5].mean(), shares[:, 6].mean()
        print(
            f"(2) {self.options.energy:.0%}: rebuild {median(self.rebuild[-count:]):.3f} s, tracked "
            f"{median(self.refresh[-count:]):.3f} s, ratio {median(ratio):.1f} ({ratio[0]:.1f} to {ratio[-1]:.1f}); "
            f"worst layer captures {shares[:, 7].min():.5f} of exact; mean missed: exact {exact:.5f}, "
            f"tracked {followed:.5f}, left as it was {stale:.5f}"
        )
        if self.options.double:
            ratio = sorted(a / b for a, b in zip(self.double[-count:], self.refresh[-count:], strict=True))
            print(
                f"    rebuild by exact_bases in float64 {median(self.double[-count:]):.3f} s, "
                f"ratio {median(ratio):.1f} ({ratio[0]:.1f} to {ratio[-1]:.1f})"
            )
        print(f"(3) largest ‖QᵀQ − I‖ so far: {max(self.departures):.1e}", flush=True)


def settings(options: argparse.Namespace) -> dict[str, float]:
    given = {name: getattr(options, name) for name in ("examples", "patches", "blend")}
    return {name: value for name, value in given.items() if value is not None}


def tune(options: argparse.Namespace, problem: Problem) -> None:
    """Mean missed energy on tuning images, over that of the basis left as it was, for each setting."""
    begin, end = options.tune
    middle = begin + (end - begin) * 2 // 3
    half = begin + (middle - begin) // 2
    size = min(options.batch, middle - half)
    kept = TrackedBases(options.energy)
    seen = in_batches(problem.images(half - size, half))
    first = kept.refresh(problem.model("base"), seen, generator=torch.Generator())
    for state in ("after10", "after40"):
        model = problem.model(state)
        fresh = fresh_rows(model, problem.images(middle, min(end, middle + options.fresh_images)))
        stale = {name: basis.blocks[0].missed(fresh[name]) for name, basis in first.items()}
        for examples, patches, blend in product(*GRID):
            bases = deepcopy(kept)
            bases.examples, bases.patches, bases.blend = int(examples), int(patches), blend
            draw = torch.Generator().manual_seed(5)
            times: list[float] = []
            batch = in_batches(problem.images(half, half + size))
            found = timed(partial(bases.refresh, model, batch, generator=draw), times)
            ratio = [over(found[n].blocks[0].missed(fresh[n]), stale[n]) for n in found]
            print(
                f"{state} examples {examples:g} patches {patches:g} blend {blend:g}: missed / left as it was, mean "
                f"{np.mean(ratio):.4f}, worst {max(ratio):.4f}; {times[0]:.2f} s",
                flush=True,
            )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="folder of base, after10 and after40.safetensors")
    parser.add_argument("--images", help=".npy of training images")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--energy", type=float, default=0.99, choices=ENERGIES, help="of the end-to-end comparison")
    parser.add_argument("--batch", type=int, default=896, help="images of a rebuild")
    parser.add_argument("--repetitions", type=int, default=1, help="of every timing after 10 and after 40 updates")
    parser.add_argument("--double", action="store_true", help="also time the rebuild in float64, as NullSpace does it")
    parser.add_argument("--fresh-images", type=int, default=448)
    parser.add_argument("--tune-only", action="store_true", help="compare sampling settings on the tuning images")
    parser.add_argument("--examples", type=int, help="of a tracked refresh")
    parser.add_argument("--patches", type=int, help="of an example")
    parser.add_argument("--blend", type=float, help="least weight of what a refresh sees")
    parser.add_argument("--slack", type=float, help="growth of missed energy, given the covariance, before a new rank")
    for name, begin, end in (("tune", 2500, 10000), ("report", 10000, 20000), ("fresh", 20000, 25000)):
        parser.add_argument(f"--{name}", type=int, nargs=2, default=(begin, end), metavar=("FROM", "TO"))
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    problem = cifar(options) if options.weights and options.images else digits(options)
    print(f"{options.device}, torch {torch.__version__}, float32, batches of {options.batch}", flush=True)
    if options.tune_only:
        tune(options, problem)
        return
    comparison = Comparison(options, problem)
    comparison.start()
    for state in ("after10", "after40"):
        comparison.after(state)
    print(f"    one plain Cholesky factor instead, from a random start: {comparison.plain}")


if __name__ == "__main__":
    main()
