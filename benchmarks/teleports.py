"""Time and memory of defended requests and of single teleports, beside another version and beside plain torch:
`python benchmarks/teleports.py --network resnet18-cifar --retain 512 --forget 200 --beside OTHER_CHECKOUT/src`.

- `request NAME`: the whole of `unlearn` by NGP with that defence (none, warp, fastwarp), at its default settings;
- `move NAME`: one move of its null space, on all retain and forget examples (`warp` decomposes, `fastwarp` follows).

Each version works in a process of its own (`interleaved.py`); plain torch is `plain_teleport.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from interleaved import HERE, Work, add_arguments, known, measure, show, sources, workers
from plain_teleport import ENERGY, STEP, Examples, plain_bases, plain_shifts
from torch import Tensor, nn

WORKS = ("request none", "request warp", "request fastwarp", "move warp", "move fastwarp")


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

    make_probe = known("symmetry.base:Probe", "symmetry.symmetry:Probe")
    sizes = {"batch_size": given.options.retain, "forget_size": given.options.forget}
    symmetry = (NullSpace if name == "warp" else TrackedNullSpace)(energy=ENERGY, step_size=STEP, **sizes)
    draw, start = torch.Generator(), {name: p.detach().clone() for name, p in given.model.named_parameters()}
    probe, model = make_probe(given.batches, given.forget, start), deepcopy(given.model)
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


WORKS_OF = {"request": request, "move": move, "plain": plain}


def prepare(options: argparse.Namespace, work: str) -> Work:
    kind, name = work.split()
    return WORKS_OF[kind](problem(options), name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--network", choices=["digits", "resnet18", "resnet18-cifar"], default="digits")
    parser.add_argument("--retain", type=int, default=1138)
    parser.add_argument("--forget", type=int, default=122)
    parser.add_argument("--epochs", type=int, default=5, help="of a request")
    parser.add_argument("--works", nargs="*", default=WORKS)
    parser.add_argument("--without-plain", action="store_true")
    options = parser.parse_args()
    results = {}
    for work in options.works:
        versions, works = sources(options), dict.fromkeys(sources(options), work)
        if work.startswith("move") and not options.without_plain:
            versions["plain"], works["plain"] = HERE, work.replace("move", "plain")
        with workers(versions, prepare, options) as pipes:
            results[work] = measure(pipes, works, options)
        show(work, results[work])
        if options.out:
            options.out.write_text(json.dumps({"options": vars(options), "results": results}, default=str, indent=1))


if __name__ == "__main__":
    main()
