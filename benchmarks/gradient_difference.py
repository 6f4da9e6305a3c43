"""How long does the gradient-difference test take? `python benchmarks/gradient_difference.py [--model resnet18]`.

Random images and weights; the unlearned models are the original with noise on every weight. Seconds of a call with the
two models; of one pass for several unlearned models; and seconds a gradient in batches against a plain loop of single
backward passes, and against vmap(grad), over `--looped` examples in the same run. Memory is the peak of this process,
and of the GPU where there is one. The same statistic is computed from float64 gradients of a loop for some candidates
against as many background examples, to show what float32 costs.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.attacks.membership.gradient_difference import GradientDifference, gradient_difference
from warp_unlearning.attacks.membership.gradient_rows import gradient_rows
from warp_unlearning.attacks.membership.pair_scores import PairScorer
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.gpu.precision import full_precision
from warp_unlearning.gradients.per_sample import per_sample_gradients
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import ResNet18, SmallResNet

Result = TypeVar("Result")
Pair = tuple[Tensor, Tensor]


def network(options: argparse.Namespace) -> nn.Module:
    model = SmallResNet() if options.model == "small" else ResNet18(stem=options.stem)
    reinitialise(model, generator=torch.Generator().manual_seed(options.seed))
    return model.to(options.device).eval()


def moved(model: nn.Module, seed: int) -> nn.Module:
    """The model with noise of a hundredth of its size on every weight."""
    generator = torch.Generator().manual_seed(seed)
    other = deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.01 * p.abs().mean() * torch.randn(p.shape, generator=generator).to(p.device))
    return other


def images(options: argparse.Namespace, count: int, seed: int) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    shape = (1, 8, 8) if options.model == "small" else (3, 32, 32)
    x = torch.randn(count, *shape, generator=generator)
    return x.to(options.device), torch.randint(0, 10, (count,), generator=generator).to(options.device)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, perf_counter() - began


def looped(model: nn.Module, examples: Pair) -> Tensor:
    parameters = list(model.parameters())
    rows = []
    for x, y in zip(*examples, strict=True):
        loss = F.cross_entropy(model(x[None]), y[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    return torch.stack(rows)


def compare_gradients(model: nn.Module, examples: Pair) -> None:
    """Seconds a gradient: the loop, vmap(grad) and the rules, warm, medians of three turns."""
    ways: dict[str, Callable[[], Tensor]] = {
        "rules": lambda: gradient_rows(model, *examples),
        "vmap": lambda: torch.cat([g.flatten(1) for g in per_sample_gradients(model, *examples)[0].values()], 1),
        "loop": lambda: looped(model, examples),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Tensor] = {}
    for turn in range(4):
        for name, way in ways.items():
            found[name], seconds = timed(way)
            if turn:
                times[name].append(seconds / len(examples[1]))
    base = median(times["rules"])
    for name, each in times.items():
        apart = float((found[name] - found["loop"]).norm() / found["loop"].norm())
        print(
            f"  {name}: {1e3 * median(each):.3f} ms a gradient, {median(each) / base:.2f} times the rules', "
            f"differs from the loop by {apart:.1e}"
        )


def compare_precision(original: nn.Module, unlearned: nn.Module, background: Pair, candidates: Pair) -> None:
    """The statistic in float32 gradients against float64 gradients of a loop."""
    found = gradient_difference(original, unlearned, candidates=candidates, background=background, relative_ridge=True)
    exact = [deepcopy(m).double() for m in (original, unlearned)]
    rows = [looped(exact[1], (x.double(), y)) - looped(exact[0], (x.double(), y)) for x, y in (background, candidates)]
    centred, v = rows[0] - rows[0].mean(0), rows[1] - rows[0].mean(0)
    variance = centred.square().mean(0)
    chosen = variance.topk(round(0.1 * len(variance))).indices
    centred, v = centred[:, chosen], v[:, chosen]
    ridge = 1e-3 * centred.square().sum() / (len(centred) - 1) / len(chosen)
    gram = centred @ centred.T + ridge * (len(centred) - 1) * torch.eye(len(centred), device=v.device).double()
    z = centred @ v.T
    truth = ((v.square().sum(1) - (z * torch.linalg.solve(gram, z)).sum(0)) / ridge).cpu().numpy()
    print(f"  largest relative error of the statistic: {np.abs(found.statistic / truth - 1).max():.1e}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=["small", "resnet18"], default="small")
    parser.add_argument("--stem", choices=["cifar", "imagenet"], default="cifar")
    parser.add_argument("--background", type=int, default=1000)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--unlearned", type=int, default=3, help="models that share the original")
    parser.add_argument("--looped", type=int, default=64)
    parser.add_argument("--seed", type=int, default=20)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    original = network(options)
    models = [moved(original, options.seed + i) for i in range(options.unlearned)]
    background, candidates = (
        images(options, count, options.seed + 100 + i)
        for i, count in enumerate((options.background, options.candidates))
    )
    width = sum(p.numel() for p in original.parameters())
    print(f"{options.model}, {width} parameters, {options.background} background and {options.candidates} candidates")
    print(f"on {options.device}, torch {torch.__version__}")
    for turn in ("first", "second"):
        scores, seconds = timed(
            lambda: gradient_difference(original, models[0], background=background, candidates=candidates)
        )
        print(f"{turn} call: {seconds:.2f} s, {scores.coordinates[0]} coordinates", flush=True)
    sets = {"candidates": TensorExamples(*candidates), "background": TensorExamples(*background)}
    scorer = PairScorer(original, **sets, probes=sets["background"])
    named = {str(i): model for i, model in enumerate(models)}
    (found, _), seconds = timed(partial(scorer.score, named, [GradientDifference(relative=False)]))
    apart = np.abs(found[0].scores["0"] / scores.statistic - 1).max()
    print(f"{len(models)} models in one pass: {seconds:.2f} s; the first differs by {apart:.1e}", flush=True)
    print(f"peak of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB", end="")
    if options.device == "cuda":
        print(f", of the GPU: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", end="")
    print()
    some = (background[0][: options.looped], background[1][: options.looped])
    with full_precision():
        compare_gradients(original, some)
        few = tuple(t[: options.looped] for t in candidates)
        compare_precision(original, models[0], some, (few[0], few[1]))


if __name__ == "__main__":
    main()
