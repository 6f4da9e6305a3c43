"""Seconds, operations and host reads of one pair audit: `python benchmarks/pair_audit_operations.py [--width 16]`.

On a CPU, for a ResNet-18 (ImageNet stem, images of 32x32) and an unlearned copy of it. Counts every operation that
torch dispatches, by part: on a GPU each one launched from Python costs the host some 10 microseconds, and each read of
a value waits for all that was launched before. Views launch nothing and are not counted. `--batch` is the size of the
batches that a GPU would take; sizes and seconds of products mean nothing here, those of statistics and checks do. With
`--device cuda` the seconds are those of a GPU, each part waited for; `--audits` is how many models one auditor audits,
of which the last is measured.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warp_unlearning.attacks.membership import (
    original_gradients,
    pair_attacks,
    pair_audit,
    spare_memory,
    state_scores,
    update_alignment,
)
from warp_unlearning.attacks.undo import base, canonical, conservation, inputs, pre_steps, probes
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import ResNet18

# What waits for the queue of a GPU.
READS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_linalg_check_errors"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}

# Functions that make up a part, by owner and name. What one part calls of another counts for the other.
PARTS: tuple[tuple[Any, str, str], ...] = (
    (pair_audit, "_sets", "sets and checks"),
    (pair_audit, "divide", "sets and checks"),
    (original_gradients, "_check_disjoint", "sets and checks"),
    (pair_audit, "model_digest", "digests"),
    (pair_audit, "examples_digest", "digests"),
    (pair_audit, "rows_of", "statistics"),
    (pair_audit, "strongest_of", "statistics"),
    (pair_attacks, "_confidence", "confidence"),
    (pair_attacks, "_energies", "gradient norm"),
    (pair_attacks, "original_side", "gradient difference"),
    (pair_attacks, "state_scores", "gradient difference"),
    (update_alignment.Alignment, "__init__", "update alignment"),
    (update_alignment.Alignment, "add", "update alignment"),
    (pair_attacks, "single_gradients", "update alignment"),
    (canonical, "ChannelOrder", "order of channels"),
    (canonical.ChannelOrder, "undone", "order of channels"),
    (canonical, "_Scales", "scales of channels"),
    (canonical._Scales, "undone", "scales of channels"),
    (inputs, "input_spectra", "input spectra"),
    (inputs, "gradient_energies", "filter"),
    (inputs, "_filtered", "filter"),
    (conservation, "ConservationLaw", "tracing"),
    (conservation, "_fitted_factors", "conservation"),
    (conservation, "_approach", "conservation"),
    (probes.ProbeGradients, "__init__", "probe gradients"),
    (probes.ProbeGradients, "lengths_near", "probe gradients"),
    (probes, "single_gradients", "probe gradients"),
    (base, "checked_state", "states"),
    (canonical, "checked_state", "states"),
    (pair_attacks, "checked_difference", "states"),
    (state_scores, "undone_model", "states"),
)


class Timed(TorchDispatchMode):
    """Seconds by part, those of parts within it left out, and, while it is entered, counts of (part, kind)."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._running = ["other"]
        self._host: dict[int, Any] = {}
        self._since = perf_counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        found = func(*args, **(kwargs or {}))
        if tensors and all(self.is_on_host(each) for each in tensors):
            for each in tree_leaves(found):
                if isinstance(each, Tensor):
                    self.bring(each)
            return found
        masked = name in INDEXING and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1])
        if name in READS or masked:
            self.counts[self._running[-1], "reads"] += 1
        elif not (func.is_view or name in ("detach", "alias")):
            self.counts[self._running[-1], "operations"] += 1
        return found

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

    def switch(self) -> None:
        """Book the time until here."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now


def noted(method: Callable[..., Any], timed: Timed) -> Callable[..., Any]:
    """A method of tensors that reads, counted."""

    def call(self: Tensor, *args: Any) -> Any:
        if timed.is_on_host(self):
            return method(self, *args)
        timed.read()
        found = method(self, *args)
        if isinstance(found, Tensor):
            # On a CPU it is the tensor itself.
            found = found.clone()
            timed.bring(found)
        return found

    return call


def wrapped(function: Callable[..., Any], timed: Timed, part: str) -> Callable[..., Any]:
    """The function, counted for a part."""

    def call(*args: Any, **named: Any) -> Any:
        timed.switch()
        timed.calls[part] += 1
        with timed.within(part):
            try:
                return function(*args, **named)
            finally:
                timed.switch()

    return call


def problem(width: int, forget: int, seed: int = 20) -> tuple[nn.Module, nn.Module, dict[str, TensorExamples]]:
    """A network with fresh weights, a copy a gradient step away, and sets of smooth random images."""
    draw = torch.Generator().manual_seed(seed)
    model = ResNet18(stem="imagenet", width=width)
    reinitialise(model, generator=draw)
    sets = {}
    for name, count in {"forget": forget, "test": 2 * forget, "retain": 2 * forget}.items():
        x = nn.functional.avg_pool2d(torch.randn(count, 3, 32, 32, generator=draw), 5, stride=1, padding=2)
        sets[name] = TensorExamples(x * 3, torch.randint(10, (count,), generator=draw))
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(sets["retain"].x[:64])
    model.eval()
    other = deepcopy(model)
    loss = nn.functional.cross_entropy(other(sets["forget"].x[:64]), sets["forget"].y[:64])
    with torch.no_grad():
        for p, g in zip(other.parameters(), torch.autograd.grad(loss, list(other.parameters())), strict=True):
            p += 1e-3 * g
    return model, other, sets


def rescaled(model: nn.Module, sets: dict[str, TensorExamples]) -> nn.Module:
    """The same function after a change of basis."""
    from warp_unlearning import ChangeOfBasis, teleport

    return teleport(model, ChangeOfBasis(), retain=sets["retain"], seed=20)[0]


def measured(options: argparse.Namespace, *, count: bool) -> Timed:
    """The last of some audits; seconds are those of a run that counts nothing."""
    original, unlearned, sets = problem(options.width, options.forget)
    if options.rescaled:
        unlearned = rescaled(unlearned, sets)
    sets = {name: examples.to(options.device) for name, examples in sets.items()}
    original, unlearned = original.to(options.device), unlearned.to(options.device)
    timed = Timed()
    steps = ("naive",) if options.naive else tuple(options.steps or pre_steps())
    with ExitStack() as stack:
        if options.batch:
            stack.enter_context(patch.object(spare_memory, "CPU_BATCH", 2**40))
            stack.enter_context(patch.object(spare_memory, "LARGEST_BATCH", options.batch))
        for owner, name, part in PARTS:
            given = getattr(owner, name)
            stack.enter_context(patch.object(owner, name, wrapped(given, timed, part)))
        auditor: Any = None
        for left in reversed(range(options.audits)):
            timed.seconds.clear()
            timed.calls.clear()
            if count and not left:
                for name in ("tolist", "cpu", "numpy"):
                    stack.enter_context(patch.object(Tensor, name, noted(getattr(Tensor, name), timed)))
                stack.enter_context(timed)
            timed.switch()
            timed.seconds.clear()
            if auditor is None:
                auditor = pair_audit.PairAuditor(
                    original, **sets, background=options.forget, probes=options.probes, seed=20
                )
            audit = auditor.audit(unlearned, steps=steps)
            timed.switch()
    print(f"{len(audit.rows)} rows, {audit.strongest} {audit.strongest_strength}, not tried: {audit.not_tried}")
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--forget", type=int, default=96)
    parser.add_argument("--probes", type=int, default=64)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--naive", action="store_true")
    parser.add_argument("--rescaled", action="store_true", help="audit a copy after a change of basis")
    parser.add_argument("--steps", nargs="*")
    parser.add_argument("--audits", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured(options, count=False)
    timed = measured(options, count=False)
    counted = Timed() if options.device == "cuda" else measured(options, count=True)
    print(f"{'part':24}{'calls':>8}{'seconds':>10}{'operations':>12}{'reads':>8}")
    for part in sorted(timed.seconds, key=lambda p: -timed.seconds[p]):
        row = (counted.counts[part, "operations"], counted.counts[part, "reads"])
        print(f"{part:24}{timed.calls[part]:8}{timed.seconds[part]:10.3f}{row[0]:12}{row[1]:8}")
    whole = [sum(counted.counts[p, kind] for p in timed.seconds) for kind in ("operations", "reads")]
    print(f"{'whole':24}{'':8}{sum(timed.seconds.values()):10.3f}{whole[0]:12}{whole[1]:8}")


if __name__ == "__main__":
    main()
