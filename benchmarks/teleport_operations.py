"""Operations and host reads of one teleport: `python benchmarks/teleport_operations.py [--certify brief] [--small]`.

Counts, on a CPU and for the later of several teleports of a ResNet-18 (ImageNet stem, images of 32x32), every operation
that torch dispatches, by part. On a GPU each one launched from Python costs the host about 8 to 10 microseconds, and
each read of a value waits for all that was launched before. Views launch nothing and are counted apart. Energies on a
GPU are one captured graph from the second teleport on; here they are counted apart, as what the graph replaces.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from traceback import format_stack
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.defense import certifying, probing, teleporter, warp
from warp_unlearning.gradients import energy
from warp_unlearning.linalg import gram, iteration
from warp_unlearning.methods.protocol import Task
from warp_unlearning.models.reinitialise import reinitialise
from warp_unlearning.models.resnet18 import ResNet18
from warp_unlearning.randomness import Streams
from warp_unlearning.symmetry import (
    forget_energy,
    input_bases,
    null_space,
    null_walk,
    remembered,
    sampled_inputs,
    tracked_bases,
)
from warp_unlearning.symmetry.null_space import NullSpace
from warp_unlearning.symmetry.tracked_null_space import TrackedNullSpace

# What waits for the queue of a GPU; a decomposition looks at its own outcome.
READS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_linalg_check_errors"}
# Products, by where in the arguments their two factors are, and what takes a matrix apart or solves with it.
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1}
DECOMPOSITIONS = {"linalg_eigh", "linalg_cholesky_ex", "linalg_qr", "linalg_svd", "_linalg_eigh", "_linalg_svd"}
SOLVES = {"linalg_solve_triangular", "cholesky_solve"}
# What writes whole tensors anew; `im2col` is launched once an image on a GPU.
COPIES = {"im2col", "clone", "copy_", "_to_copy", "index_select", "embedding", "cat", "constant_pad_nd"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}

# Functions that make up a part, by module and name. What one part calls of another counts for the other.
PARTS: tuple[tuple[ModuleType | type, str, str], ...] = (
    (warp, "draw_view", "examples"),
    (sampled_inputs, "_smallest", "on the host"),
    (iteration.Span, "_chosen", "on the host"),
    (null_walk, "_on_device", "on the host"),
    (input_bases, "observed_rows", "forward and moments"),
    (tracked_bases, "observed_rows", "forward and moments"),
    (tracked_bases, "sampled_moments", "forward and moments"),
    (NullSpace, "input_bases", "bases"),
    (TrackedNullSpace, "input_bases", "bases"),
    (null_space, "scope_of", "scope"),
    (remembered.Remembered, "meet", "scope"),
    (forget_energy.EagerEnergy, "slopes", "energies"),
    (forget_energy.EagerEnergy, "value", "energies"),
    (null_space, "walk", "walk"),
    (teleporter.Teleporter, "_energies", "energies"),
    (teleporter._Judged, "by", "safeguard"),
    (teleporter.Teleporter, "_settle", "safeguard"),
    (teleporter, "known_distances", "certificate"),
    (certifying.Others, "by", "certificate"),
    (certifying.Teleported, "fully", "certificate"),
    (certifying.Teleported, "briefly", "certificate"),
)


class Operations(TorchDispatchMode):
    """Counts of (part, kind) while it is entered; `part` names the innermost part that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.names: Counter[tuple[str, str]] = Counter()
        self.flops: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[str] = Counter()
        self.decomposed: Counter[tuple[str, str]] = Counter()
        self.told = 0
        self._running = ["other"]
        self._host: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        found = func(*args, **(kwargs or {}))
        if tensors and all(self.is_on_host(each) for each in tensors):
            for each in tree_leaves(found):
                if isinstance(each, Tensor):
                    self.bring(each)
            return found
        reads = name in READS or (name in INDEXING and _by_mask(args))
        kind = "reads" if reads else "views" if func.is_view or name in ("detach", "alias") else "operations"
        self.counts[self._running[-1], kind] += 1
        self.names[self._running[-1], name] += kind != "views"
        self._weigh(name, args, found)
        if reads and self.told:
            print("".join(format_stack(limit=self.told)))
        return found

    def _weigh(self, name: str, args: Any, found: Any) -> None:
        """Note what a large operation multiplies, takes apart or copies."""
        part = self._running[-1]
        if name in PRODUCTS:
            left, right = args[PRODUCTS[name] : PRODUCTS[name] + 2]
            self.flops[part, str(left.dtype)] += 2 * left.numel() * right.shape[-1]
        elif name == "convolution":
            self.flops[part, f"{args[0].dtype} convolved"] += 2 * found.numel() * args[1][0].numel()
        elif name in DECOMPOSITIONS | SOLVES:
            matrix = args[0]
            self.decomposed[part, f"{name} {tuple(matrix.shape)} {matrix.dtype}"] += 1
        if name in COPIES and isinstance(found, Tensor):
            self.bytes[part] += found.numel() * found.element_size()
            self.names[part, "im2col images"] += len(found) if name == "im2col" else 0

    def bring(self, tensor: Tensor) -> None:
        """Note that a tensor lies on the host: what is done with such alone launches nothing and waits for nothing."""
        storage = tensor.untyped_storage()
        self._host[storage.data_ptr()] = storage

    def is_on_host(self, tensor: Tensor) -> bool:
        """Whether it was brought there."""
        return tensor.untyped_storage().data_ptr() in self._host

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Count for this part within the block."""
        self._running.append(part)
        try:
            yield
        finally:
            self._running.pop()

    def read(self) -> None:
        """Count a read that torch does not dispatch."""
        self.counts[self._running[-1], "reads"] += 1


def _by_mask(args: tuple[Any, ...]) -> bool:
    return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1])


@contextmanager
def sizes_of_a_gpu() -> Iterator[None]:
    """Batches, pieces and blocks as large as they are on a GPU."""
    with (
        patch.object(probing, "BATCH", 2048),
        patch.object(energy, "CPU_EXAMPLES", 2048),
        patch.object(gram, "_NARROWEST", gram._NARROWEST_ELSEWHERE),
        patch.object(input_bases, "_PIECE", input_bases._PIECE_ELSEWHERE),
    ):
        yield


@contextmanager
def counted(operations: Operations) -> Iterator[None]:
    """Tell `operations` which part runs, and of reads that torch does not dispatch on a CPU."""
    with ExitStack() as stack:
        for owner, name, part in PARTS:
            if hasattr(owner, name):
                given = vars(owner)[name]
                inner = given.__func__ if isinstance(given, classmethod) else given
                wrapped = _wrapped(inner, operations, part)
                made = classmethod(wrapped) if isinstance(given, classmethod) else wrapped
                stack.enter_context(patch.object(owner, name, made))
        for name in ("tolist", "cpu", "numpy"):
            stack.enter_context(patch.object(Tensor, name, _noted(getattr(Tensor, name), operations)))
        stack.enter_context(operations)
        yield


def _wrapped(function: Callable[..., Any], operations: Operations, part: str) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        with operations.within(part):
            return function(*args, **named)

    return call


def _noted(method: Callable[..., Any], operations: Operations) -> Callable[..., Any]:
    def call(self: Tensor, *args: Any) -> Any:
        if operations.is_on_host(self):
            return method(self, *args)
        operations.read()
        found = method(self, *args)
        if isinstance(found, Tensor):
            # On a CPU it is the tensor itself.
            found = found.clone()
            operations.bring(found)
        return found

    return call


def problem(*, small: bool) -> tuple[nn.Module, Task]:
    """A network with fresh weights, and a task of smooth random images."""
    draw = torch.Generator().manual_seed(20)
    model = ResNet18(stem="imagenet", width=16 if small else 64)
    reinitialise(model, generator=draw)
    sizes = (
        {"forget": 64, "retain": 320, "validation": 64} if small else {"forget": 256, "retain": 2560, "validation": 512}
    )
    sets = {}
    for name, count in sizes.items():
        x = nn.functional.avg_pool2d(torch.randn(count, 3, 32, 32, generator=draw), 5, stride=1, padding=2)
        sets[name] = TensorExamples(x * 3, torch.randint(10, (count,), generator=draw))
    original = ResNet18(stem="imagenet", width=16 if small else 64)
    original.load_state_dict(model.state_dict())
    original.requires_grad_(False).eval()
    task = Task(sets["forget"], sets["retain"], sets["validation"], original, 10, Streams(20, "unlearn"))
    return model, task


def later_teleport(
    symmetry: NullSpace, *, small: bool, teleports: int = 3, told: int = 0, **options: Any
) -> Operations:
    """The counts of the last of `teleports`."""
    model, task = problem(small=small)
    session = warp.Warp(symmetry, **options).start(model, task, streams=Streams.secret(20))
    for _ in range(teleports - 1):
        session._teleport()
    operations = Operations()
    operations.told = told
    with sizes_of_a_gpu(), counted(operations):
        session._teleport()
    print([(c.scale, c.moved) for c in session.certificates])
    return operations


def table(operations: Operations) -> str:
    """Operations, views and reads by part, and the most frequent ones."""
    parts = dict.fromkeys(part for part, _ in operations.counts)
    rows = [(p, *(operations.counts[p, kind] for kind in ("operations", "views", "reads"))) for p in parts]
    outside = [row for row in rows if row[0] not in ("energies", "on the host")]
    total = ("all but energies", *(sum(int(row[i]) for row in outside) for i in (1, 2, 3)))
    lines = [f"{'part':24}{'operations':>12}{'views':>8}{'reads':>8}"]
    lines += [f"{name:24}{ops:12}{views:8}{reads:8}" for name, ops, views, reads in [*rows, total]]
    return "\n".join(lines)


def weights_of(operations: Operations) -> str:
    """Floating-point operations by part and type, bytes copied, and what was decomposed."""
    lines = [f"    {part}: {count / 1e9:.1f} Gflop {kind}" for (part, kind), count in operations.flops.items()]
    lines += [f"    {part}: {count / 1e6:.0f} MB copied" for part, count in operations.bytes.items()]
    lines += [f"    {part}: {what}, {count} times" for (part, what), count in operations.decomposed.items()]
    launched = {part: count for (part, name), count in operations.names.items() if name == "im2col images" and count}
    lines += [f"    {part}: {count} launches of im2col on a GPU, one an image" for part, count in launched.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--certify", choices=["full", "brief"])
    parser.add_argument("--small", action="store_true", help="an eighth of the examples and a quarter of the channels")
    parser.add_argument("--names", type=int, default=0, help="how many of the most frequent operations to list")
    parser.add_argument("--reads", type=int, default=0, help="how many frames to show of each place that reads")
    parser.add_argument("--weights", action="store_true", help="flops and types of products, decompositions, copies")
    parser.add_argument("--symmetry", nargs="+", default=["exact", "tracked"])
    options = parser.parse_args()
    chosen: dict[str, Any] = {} if options.certify is None else {"certify": options.certify}
    for name in options.symmetry:
        made = NullSpace() if name == "exact" else TrackedNullSpace()
        operations = later_teleport(made, small=options.small, told=options.reads, **chosen)
        print(f"\n{name}, certificate {options.certify or 'full'}\n{table(operations)}", flush=True)
        if options.weights:
            print(weights_of(operations))
        for (part, operation), count in operations.names.most_common(options.names):
            print(f"    {part}: {operation} {count}")


if __name__ == "__main__":
    main()
