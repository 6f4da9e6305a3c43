"""Time and memory of defended requests and of single teleports, beside another version and beside plain torch:
`python benchmarks/teleports.py --network resnet18-cifar --retain 512 --forget 200 --beside OTHER_CHECKOUT/src`.

- `request NAME`: the whole of `unlearn` by NGP with that defence (none, warp, fastwarp), at its default settings;
- `move NAME`: one move of its null space, on all retain and forget examples (`warp` decomposes, `fastwarp` follows);
- `fleet NAME`, with `--fleet LANES`: twice as many requests, so many side by side; seconds a model.

Each version works in a process of its own, in turn; who goes first alternates. Plain torch (`plain_teleport.py`) takes
part in moves, on a GPU in the process of this version. Prints medians, and the median of ratios of neighbouring runs
(smallest to largest). On one thread of a CPU, time is the processor's. Memory is the peak of the process on a CPU and
of what is allocated on a GPU.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
import torch.nn.functional as F
from plain_teleport import ENERGY, STEP, Examples, plain_bases, plain_shifts
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent.parent / "src"
WORKS = ("request none", "request warp", "request fastwarp", "move warp", "move fastwarp")
Work = Callable[[], object]


@dataclass
class Problem:
    """A network, and examples to retain and to forget."""

    options: argparse.Namespace
    model: nn.Module
    retain: Examples
    forget: Examples
    batches: tuple[Tensor, ...]


def problem(options: argparse.Namespace) -> Problem:
    """Digits, or smooth random images where only time counts."""
    from warp_unlearning.models.networks import build_model

    draw = torch.Generator().manual_seed(0)
    count, digits = options.retain + options.forget, options.network == "digits"
    if digits:
        from sklearn.datasets import load_digits

        x, y = (torch.from_numpy(part[:count]) for part in load_digits(return_X_y=True))
        x = (x.float() / 8 - 1).reshape(-1, 1, 8, 8)
        model = build_model("small_resnet", generator=draw, in_channels=1)
    else:
        x = 3 * F.avg_pool2d(torch.randn(count, 3, 32, 32, generator=draw), 5, stride=1, padding=2)
        y = torch.randint(10, (count,), generator=draw)
        stem = "cifar" if options.network.endswith("cifar") else "imagenet"
        model = build_model("resnet18", generator=draw, stem=stem)
    x, y, model = x.to(options.device), y.long().to(options.device), model.to(options.device)
    # Of images that say nothing batch norm learns the scale alone.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if digits else 0.0, momentum=0.9)
    for _ in range(60 if digits else 4):
        index = torch.randperm(count, generator=draw)[:128].to(x.device)
        optimizer.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    forget, retain = zip(
        x.split([options.forget, options.retain]), y.split([options.forget, options.retain]), strict=True
    )
    return Problem(options, model.eval(), retain, forget, retain[0].split(2048 if x.is_cuda else 256))


def request(given: Problem, name: str) -> Work:
    from warp_unlearning import unlearn
    from warp_unlearning.methods import make_method

    method, defense = make_method("ngp", epochs=given.options.epochs), None if name == "none" else name
    sets = {"forget": given.forget, "retain": given.retain}
    return lambda: unlearn(given.model, **sets, method=method, defense=defense, defense_seed=0)


def move(given: Problem, name: str) -> Work:
    from warp_unlearning import NullSpace, TrackedNullSpace
    from warp_unlearning.symmetry.base import Probe

    sizes = {"batch_size": given.options.retain, "forget_size": given.options.forget}
    symmetry = (NullSpace if name == "warp" else TrackedNullSpace)(energy=ENERGY, step_size=STEP, **sizes)
    draw, start = torch.Generator(), {name: p.detach().clone() for name, p in given.model.named_parameters()}
    probe, model = Probe(given.batches, given.forget, start), deepcopy(given.model)
    return moving(name, model, lambda: symmetry.move(model, generator=draw.manual_seed(0), probe=probe).shifts)


def plain(given: Problem, name: str) -> Work:
    model, bases = deepcopy(given.model), dict[str, Tensor]()

    def shifts() -> dict[str, Tensor]:
        bases.update(plain_bases(model, given.batches, bases if name == "fastwarp" else {}))
        return plain_shifts(model, given.forget, bases)

    return moving(name, model, shifts)


def moving(name: str, model: nn.Module, shifts: Callable[[], dict[str, Tensor]]) -> Work:
    def once() -> None:
        found = shifts()
        with torch.no_grad():  # A tenth, so that each begins elsewhere and many of them lead nowhere.
            for name, p in model.named_parameters():
                if name in found:
                    p.add_(found[name], alpha=0.1)

    if name == "fastwarp":
        once()  # The first one decomposes.
    return once


def fleet(given: Problem, name: str) -> Work:
    from warp_unlearning.data.examples import TensorExamples
    from warp_unlearning.defense.registry import make_defense
    from warp_unlearning.methods import make_method
    from warp_unlearning.methods.protocol import Task
    from warp_unlearning.randomness import Streams
    from warp_unlearning.training.precision import lay_out
    from warp_unlearning.training.repeated import Repeater
    from warp_unlearning.training.side_by_side import side_by_side
    from warp_unlearning.unlearning.driver import drive, working_copy

    device, lanes = given.retain[0].device, given.options.fleet
    repeater = Repeater(device, "auto", capture=device.type == "cuda")
    sets = [TensorExamples(*part) for part in (given.forget, given.retain)]
    method = make_method("ngp", epochs=given.options.epochs)

    def one(seed: int) -> Iterator[object]:
        original, model = (lay_out(working_copy(given.model, device)) for _ in range(2))
        task = Task(*sets, None, original.requires_grad_(False).eval(), 10, Streams(seed, "fleet"), repeater)
        # 7ddca7e hands the defence a generator, later versions streams.
        old = "entropy" in signature(drive).parameters
        secret = {"entropy": torch.Generator().manual_seed(seed)} if old else {"secret": Streams.secret(seed)}
        defense = None if name == "none" else make_defense(name)
        return drive(model, task, method, defense=defense, interval=100, **secret)

    makers = [partial(one, seed) for seed in range(2 * lanes)]
    return lambda: len(list(side_by_side(makers, at_once=lanes, device=device)))


def timed(work: Work, device: torch.device) -> dict[str, float]:
    on_gpu = device.type == "cuda"
    clock = perf_counter if on_gpu or torch.get_num_threads() > 1 else process_time
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = clock()
    models = work()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = (clock() - began) / (models if isinstance(models, int) else 1)
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "GiB": peak / 2**30}


def serve(source: str, options: argparse.Namespace, pipe: Connection) -> None:
    """Do works with the package in the folder `source`, in a process of its own."""
    sys.path.insert(0, source)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    given, known = problem(options), dict[str, Work]()
    pipe.send("ready")
    while work := pipe.recv():
        if work not in known:
            kind, name = work.split()
            known[work] = {"request": request, "move": move, "plain": plain, "fleet": fleet}[kind](given, name)
        pipe.send(timed(known[work], given.retain[0].device))


def begin(source: Path, options: argparse.Namespace) -> Connection:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(str(source.resolve()), options, theirs), daemon=True).start()
    theirs.close()
    return ours


def measure(work: str, options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """By version, what it took each time."""
    workers = {"new": begin(HERE, options)} | ({"other": begin(options.beside, options)} if options.beside else {})
    if work.startswith("move") and not options.without_plain:
        workers["plain"] = begin(HERE, options) if options.device == "cpu" else workers["new"]
    for worker in set(workers.values()):
        worker.recv()
    taken: dict[str, list[dict[str, float]]] = {version: [] for version in workers}
    for i in range(-options.warm_up, options.runs):
        for version in list(workers)[:: 1 if i % 2 == 0 else -1]:
            workers[version].send(work.replace("move", "plain") if version == "plain" else work)
            outcome = workers[version].recv()
            taken[version] += [outcome] if i >= 0 else []
    for worker in set(workers.values()):
        worker.send(None)
    return taken


def show(work: str, taken: dict[str, list[dict[str, float]]]) -> None:
    seconds = {version: [one["seconds"] for one in each] for version, each in taken.items()}
    peak = {version: max(one["GiB"] for one in each) for version, each in taken.items()}
    for version in taken:
        line = f"{work}, {version}: {median(seconds[version]):.4g} s, {peak[version]:.2f} GiB"
        if version != "new":
            ratios = [a / b for a, b in zip(seconds["new"], seconds[version], strict=True)]
            line += f"; new takes {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of the time"
            line += f", {peak['new'] / peak[version]:.2f} of the memory"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="the folder `src` of another checkout")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", choices=["digits", "resnet18", "resnet18-cifar"], default="digits")
    parser.add_argument("--retain", type=int, default=1138)
    parser.add_argument("--forget", type=int, default=122)
    parser.add_argument("--epochs", type=int, default=5, help="of a request")
    parser.add_argument("--works", nargs="*", default=WORKS)
    parser.add_argument("--fleet", type=int, default=0, metavar="LANES")
    parser.add_argument("--without-plain", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON with all runs")
    options = parser.parse_args()
    results = {}
    for work in (*options.works, *(("fleet none", "fleet warp") if options.fleet else ())):
        results[work] = measure(work, options)
        show(work, results[work])
        if options.out:
            options.out.write_text(json.dumps({"options": vars(options), "results": results}, default=str, indent=1))


if __name__ == "__main__":
    main()
