"""Requests and per-example gradient norms beside plain code, opacus and another version: `python benchmarks/peers.py`.

- `digits METHOD`, `resnet18 METHOD`: a whole `unlearn` beside a plain loop of the same mathematics on the same batches
  (`hand_written.py`), on digits and on random 32x32 images for a ResNet-18 with the CIFAR stem;
- `energy NETWORK`: squared gradient norms of a batch, beside `vmap(grad)` over all parameters, and beside opacus' ghost
  norms where opacus is installed (it refuses batch norm, whose parameters are frozen for both then).

`--beside OTHER/src` times another version of this package too. Prints how far the weights, or the norms, of this
version are from those of the plain code.
"""

from __future__ import annotations

import argparse
import json
from copy import deepcopy
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from hand_written import LOOPS
from interleaved import HERE, Work, add_arguments, known, measure, show, workers
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Pair = tuple[Tensor, Tensor]
NETWORKS = ("small_resnet", "transformer", "resnet18")
WORKS = (
    *(f"{data} {method}" for data in ("digits", "resnet18") for method in LOOPS),
    *(f"energy {n}" for n in NETWORKS),
)

# The plain loops of the others take minutes on a ResNet-18.
USUAL = tuple(work for work in WORKS if work.split()[0] != "resnet18" or work.split()[1] in ("ngp", "scrub", "salun"))


class Transformer(nn.Module):
    """Two blocks of attention over 49 tokens, of linear layers and layer norm alone."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Linear(16, width)
        self.joined = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(width) for _ in range(2)), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for norm, joined, out, mlp in zip(self.norms, self.joined, self.out, self.mlp, strict=True):
            q, k, v = joined(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + out((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).matmul(v).transpose(1, 2).flatten(2))
            x = x + mlp(x)
        return self.head(x.mean(1))


def method_of(options: argparse.Namespace, data: str, name: str) -> object:
    """Settings for small data on digits; elsewhere published ones, for `--epochs`."""
    from warp_unlearning.methods import make_method
    from warp_unlearning.methods.registry import method_classes

    if data == "digits":
        small_data = known("methods.registry:SMALL_DATA", "methods.recipes:SMALL_DATA")
        return make_method(name, **small_data[name])
    fields = method_classes()[name].__dataclass_fields__
    length = {"epochs": options.epochs} if "epochs" in fields else {"iterations": 5 * options.epochs}
    return make_method(name, **length, **({"max_epochs": options.epochs} if "max_epochs" in fields else {}))


def request_problem(options: argparse.Namespace, data: str) -> tuple[nn.Module, Pair, Pair]:
    """A model, and examples to forget and to retain."""
    if data == "digits":
        from warp_unlearning.conformance.problem import digits_problem

        problem = digits_problem(0)
        return problem.original, (problem.forget.x, problem.forget.y), (problem.retain.x, problem.retain.y)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(options.images, 3, 32, 32, generator=draw), torch.randint(10, (options.images,), generator=draw)
    forget = options.images // 6
    return network("resnet18", stem="cifar"), (x[:forget], y[:forget]), (x[forget:], y[forget:])


def network(name: str, *, stem: str = "imagenet") -> nn.Module:
    from warp_unlearning.models.networks import build_model

    draw = torch.Generator().manual_seed(0)
    if name == "transformer":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return Transformer().eval()
    options = {"stem": stem} if name == "resnet18" else {"in_channels": 3}
    return build_model(name, generator=draw, **options).eval()


def request(options: argparse.Namespace, data: str, name: str, *, plain: bool) -> Work:
    from warp_unlearning import unlearn
    from warp_unlearning.randomness import Streams

    model, forget, retain = request_problem(options, data)
    method = method_of(options, data, name)
    if not plain:
        return lambda: keep(unlearn(model, forget=forget, retain=retain, method=method, seed=0).model)

    def by_hand() -> None:
        changed, original = deepcopy(model), deepcopy(model).requires_grad_(False).eval()
        LOOPS[name](method, changed, original, forget, retain, Streams(0, "unlearn"))
        keep(changed)

    return by_hand


def energy(options: argparse.Namespace, name: str, how: str, beside_opacus: bool) -> Work:
    draw = torch.Generator().manual_seed(1)
    model, shape = network(name), (49, 16) if name == "transformer" else (3, 32, 32)
    x, y = torch.randn(options.batch, *shape, generator=draw), torch.randint(10, (options.batch,), generator=draw)
    if beside_opacus:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.requires_grad_(False)
    if how == "opacus":
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        # It looks at modules in train mode alone.
        for module in model.modules():
            module.training = not isinstance(module, nn.BatchNorm2d)
        wrapped = GradSampleModuleFastGradientClipping(model, use_ghost_clipping=True, strict=False, max_grad_norm=1.0)

        def ghost() -> None:
            F.cross_entropy(wrapped(x), y).backward()
            keep(wrapped.get_norm_sample().square())
            wrapped.zero_grad()

        return ghost
    if how == "vmap":

        def loss(values: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model, values, (one[None],)), label[None])

        def materialised() -> None:
            gradients = vmap(grad(loss), in_dims=(None, 0, 0))(dict(model.named_parameters()), x, y)
            keep(torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).detach())

        return materialised
    from warp_unlearning import gradient_energy

    return lambda: keep(gradient_energy(model, x, y).detach())


LAST: dict[str, Tensor] = {}


def keep(result: nn.Module | Tensor) -> None:
    """Remember the last result of this process, to be compared."""
    flat = result if isinstance(result, Tensor) else torch.cat([p.detach().flatten() for p in result.parameters()])
    LAST["result"] = flat


def prepare(options: argparse.Namespace, work: str) -> Work:
    kind, name, how = work.split()
    if kind == "energy":
        return energy(options, name, how.removesuffix("-frozen"), how.endswith("-frozen"))
    return request(options, kind, name, plain=how == "plain")


def versions(options: argparse.Namespace, work: str) -> list[dict[str, str]]:
    """What is timed in one run: by version, the work as `prepare` takes it. The first is this package."""
    beside = {"other": f"{work} ours"} if options.beside else {}
    if not work.startswith("energy"):
        return [{"new": f"{work} ours", **beside, "plain": f"{work} plain"}]
    found = [{"new": f"{work} ours", **beside, "vmap": f"{work} vmap"}]
    if find_spec("opacus"):
        found.append({"new": f"{work} ours-frozen", "opacus": f"{work} opacus-frozen"})
    return found


def difference(options: argparse.Namespace, ours: str, theirs: str) -> float:
    """The largest difference of two results as a share of the largest value, or of the largest change of a weight; of
    requests on at most 120 images.
    """
    options, results = argparse.Namespace(**vars(options) | {"images": min(options.images, 120)}), []
    for work in (ours, theirs):
        prepare(options, work)()
        results.append(LAST["result"])
    start = 0.0
    if not ours.startswith("energy"):
        keep(request_problem(options, ours.split()[0])[0])
        start = LAST["result"]
    return float((results[0] - results[1]).abs().max() / (results[1] - start).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--works", nargs="*", default=USUAL, choices=WORKS, metavar="WORK")
    parser.add_argument("--images", type=int, default=1200, help="of requests on resnet18; a sixth is forgotten")
    parser.add_argument("--epochs", type=int, default=1, help="of requests on resnet18")
    parser.add_argument("--batch", type=int, default=64, help="examples of an energy")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {}
    for work in options.works:
        for each in versions(options, work):
            folders = {version: options.beside if version == "other" else HERE for version in each}
            with workers(folders, prepare, options) as pipes:
                taken = measure(pipes, each, options)
            label = work + (", batch norm frozen" if "opacus" in each else "")
            show(label, taken)
            plain = next(v for v in reversed(each) if v not in ("new", "other"))
            differs = difference(options, each["new"], each[plain])
            print(f"{label}: new differs from {plain} by {differs:.1e}", flush=True)
            results[label] = {"runs": taken, "differs": differs}
            if options.out:
                saved = {"options": vars(options), "torch": torch.__version__, "results": results}
                options.out.write_text(json.dumps(saved, default=str, indent=1))


if __name__ == "__main__":
    main()
