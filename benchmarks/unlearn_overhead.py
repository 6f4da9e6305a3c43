"""What `unlearn()` costs over hand-written loops of the same mathematics: `python benchmarks/unlearn_overhead.py`.

For each method the two are run in turn, many times, on one thread; the medians' ratio is printed with the range of the
ratios of neighbouring pairs' middle half, and whether the final weights agree. Exits with 1 where a ratio exceeds 1.05.
"""

from __future__ import annotations

import argparse
import json
import sys
from copy import deepcopy
from statistics import median, quantiles
from time import perf_counter

import torch
from hand_written import LOOPS
from torch import nn

from warp_unlearning import unlearn
from warp_unlearning.conformance.problem import Problem, digits_problem
from warp_unlearning.methods.registry import small_data_method
from warp_unlearning.randomness import Streams

LIMIT = 1.05


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def by_hand(name: str, problem: Problem) -> tuple[nn.Module, float]:
    began = perf_counter()
    model = deepcopy(problem.original)
    original = deepcopy(problem.original).requires_grad_(False).eval()
    pairs = [(part.x, part.y) for part in (problem.forget, problem.retain)]
    LOOPS[name](model, original, *pairs, Streams(0, "unlearn"))
    wait()
    return model, perf_counter() - began


def by_package(name: str, problem: Problem) -> tuple[nn.Module, float]:
    began = perf_counter()
    result = unlearn(
        problem.original, forget=problem.forget, retain=problem.retain, method=small_data_method(name), seed=0
    )
    wait()
    return result.model, perf_counter() - began


def on_device(problem: Problem, device: str) -> Problem:
    models = (problem.original.to(device), problem.retrained.to(device))
    return Problem(*models, *(part.to(device) for part in (problem.forget, problem.retain, problem.validation)))


def difference(a: nn.Module, b: nn.Module) -> float:
    """The largest relative difference of any parameter tensor, by norms."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float(((p - q).norm() / q.norm().clamp(min=1e-12)).detach()) for p, q in pairs)


def measure(name: str, problem: Problem, repetitions: int) -> dict[str, float]:
    (hand_model, _), (package_model, _) = by_hand(name, problem), by_package(name, problem)
    times = []
    for i in range(repetitions):
        # Who goes first alternates, so that neither always finds the warmer machine.
        order = (by_hand, by_package) if i % 2 == 0 else (by_package, by_hand)
        taken = {run: run(name, problem)[1] for run in order}
        times.append((taken[by_hand], taken[by_package]))
    ratios = [package / hand for hand, package in times]
    low, _, high = quantiles(ratios, n=4)
    return {
        "ratio": median(p for _, p in times) / median(h for h, _ in times),
        "pair_quartile_low": low,
        "pair_quartile_high": high,
        "weights_differ_by": difference(package_model, hand_model),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--methods", nargs="*", default=list(LOOPS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    problem = on_device(digits_problem(0), options.device)
    results = {name: measure(name, problem, options.repetitions) for name in options.methods}
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        print("method        time / hand-written   middle half of pairs   weights differ by")
        for name, r in results.items():
            span = f"{r['pair_quartile_low']:.3f} to {r['pair_quartile_high']:.3f}"
            print(f"{name:<14}{r['ratio']:>18.3f}   {span:>20}   {r['weights_differ_by']:>17.1e}")
    return 0 if all(r["ratio"] <= LIMIT for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
