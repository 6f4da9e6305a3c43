"""How fast and how large is `gradient_energy`? `python benchmarks/gradient_energy.py [--stem imagenet]`.

ResNet-18 on random 32x32 images, value and parameter gradient of the summed energy, against unchunked vmap(grad) with a
backward pass through it, and against a loop of double backwards over single examples. Times are ratios of medians,
interleaved in one process on one thread; memory is the growth of each variant's own fresh process, or what the GPU
reports as its peak. "captured" and "captured-vmap", on a GPU alone, replay the same work as one graph. With --exact
neither convolutions nor products on a GPU may round to TF32; else torch's defaults hold.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from warp_unlearning.gpu.graphs import CudaGraph, capturable_stream
from warp_unlearning.gradients.energy import EnergyGradient, gradient_energy
from warp_unlearning.models.networks import ResNet18

Gradient = tuple[Tensor, ...]


def ghost(model: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    return torch.autograd.grad(gradient_energy(model, x, y).sum(), list(model.parameters()))


def materialised(model: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    parameters: dict[str, Tensor] = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (one_x[None],)), one_y[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    energy = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
    return torch.autograd.grad(energy.sum(), list(parameters.values()))


def looped(model: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for i in range(len(x)):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        energy = torch.stack([g.square().sum() for g in gradients]).sum()
        torch._foreach_add_(total, torch.autograd.grad(energy, parameters))
    return tuple(total)


@lru_cache(maxsize=1)
def graph_of(model: nn.Module, x: Tensor, y: Tensor) -> EnergyGradient:
    energy = EnergyGradient(model)
    for _ in range(2):
        energy(x, y)
    return energy


def captured(model: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    """A replay; the first call, which is not timed, captures."""
    return tuple(graph_of(model, x, y)(x, y)[1].values())


@lru_cache(maxsize=1)
def graph_of_vmap(model: nn.Module, x: Tensor, y: Tensor) -> CudaGraph[Gradient]:
    with capturable_stream(x.device):
        for _ in range(2):
            materialised(model, x, y)
        return CudaGraph(lambda: materialised(model, x, y))


def captured_vmap(model: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    """The rival with the same advantage."""
    return graph_of_vmap(model, x, y).replay()


VARIANTS: dict[str, Callable[[nn.Module, Tensor, Tensor], Gradient]] = {
    "ghost": ghost,
    "captured": captured,
    "vmap": materialised,
    "captured-vmap": captured_vmap,
    "loop": looped,
}


def problem(options: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = ResNet18(stem=options.stem).to(options.device).eval()
    x = torch.randn(options.batch, 3, 32, 32, generator=generator).to(options.device)
    return model, x, torch.randint(0, 10, (options.batch,), generator=generator).to(options.device)


def seconds(variant: str, setting: tuple[nn.Module, Tensor, Tensor]) -> float:
    cuda = setting[1].is_cuda
    if cuda:
        torch.cuda.synchronize()
    began = perf_counter()
    VARIANTS[variant](*setting)
    if cuda:
        torch.cuda.synchronize()
    return perf_counter() - began


def extra_mebibytes(options: argparse.Namespace, variant: str) -> float:
    """Growth of this process, or peak of the GPU, while one variant runs once."""
    model, x, y = problem(options)
    # What torch loads and keeps at the first use is nobody's.
    with torch.no_grad():
        model(x[:1])
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        VARIANTS[variant](model, x, y)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    VARIANTS[variant](model, x, y)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10


def in_fresh_process(variant: str) -> float:
    command = [sys.executable, __file__, *sys.argv[1:], "--only", variant]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stem", choices=["cifar", "imagenet"], default="cifar")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--variants", nargs="+", default=["ghost", "vmap", "loop"], choices=list(VARIANTS))
    parser.add_argument("--only", choices=list(VARIANTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if options.exact:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if options.only:
        print(json.dumps(extra_mebibytes(options, options.only)))
        return
    # First, for a process inherits the largest size its parent has had. A GPU can be asked for its peak each time.
    gpu = options.device == "cuda"
    memory = {v: extra_mebibytes(options, v) if gpu else in_fresh_process(v) for v in options.variants}
    setting = problem(options)
    gradients = {v: torch.cat([g.flatten() for g in VARIANTS[v](*setting)]) for v in options.variants}
    times: dict[str, list[float]] = {v: [] for v in options.variants}
    for _ in range(options.repetitions):
        for variant in options.variants:
            times[variant].append(seconds(variant, setting))
    print(f"{options.stem} stem, batch {options.batch}, {options.device}, torch {torch.__version__}", end="")
    print(f"{', exact' if options.exact else ''}; ghost is 1")
    for variant in options.variants:
        ratio = median(times[variant]) / median(times["ghost"])
        pairs = sorted(a / b for a, b in zip(times[variant], times["ghost"], strict=True))
        error = float((gradients[variant] - gradients["ghost"]).norm() / gradients["ghost"].norm())
        print(f"{variant}: time {ratio:.2f} (pairs {pairs[0]:.2f} to {pairs[-1]:.2f}), {median(times[variant]):.3f} s,")
        print(
            f"  extra memory {memory[variant] / memory['ghost']:.2f}, {memory[variant]:.0f} MiB, differs by {error:.1e}"
        )


if __name__ == "__main__":
    main()
