"""How often the judge is right on real networks: retrained models, and models that must not pass.

    python benchmarks/verdicts.py [--fashion FOLDER] --out results_verdicts [--models 100] [--attacks]

Ten originals of each size are trained, and three models without the rows of each request: rows drawn at random,
neighbours of one row (clustered), or those the original is surest of (easy). Every retrained model is an honest result;
it is judged as an unknown checkpoint (not drawn), with the rows called drawn, beside two of the others, and as our own.
With --attacks digits alone are judged, by `audit_pair`: all attacks after all pre-steps, random requests. Writes
OUT.json and OUT.txt after each step; one thread, half an hour.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from warp_unlearning import audit_pair
from warp_unlearning.stats.evidence import Outputs, judge_outputs
from warp_unlearning.stats.verdict import Verdict


@dataclass(frozen=True)
class Task:
    """Train and test rows, and how a network is trained on them; `size` rows are forgotten."""

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    width: int
    epochs: int
    batch: int
    lr: float
    size: int

    def fresh(self, seed: int) -> nn.Module:
        """The network before training."""
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(self.x.shape[1], self.width), nn.ReLU(), nn.Linear(self.width, 10))

    def train(self, keep: Tensor, seed: int) -> nn.Module:
        """The network trained on the rows `keep`."""
        model = self.fresh(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9)
        steps = self.epochs * (len(keep) // self.batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=steps + 1)
        for _ in range(self.epochs):
            order = keep[torch.randperm(len(keep))]
            for rows in order[: len(keep) // self.batch * self.batch].split(self.batch):
                optimizer.zero_grad()
                F.cross_entropy(model(self.x[rows]), self.y[rows]).backward()
                optimizer.step()
                schedule.step()
        return model.eval()

    @torch.no_grad()
    def outputs(self, model: nn.Module, forget: Tensor) -> Outputs:
        """On the rows to forget, then on the test rows."""
        x, y = torch.cat([self.x[forget], self.test_x]), torch.cat([self.y[forget], self.test_y])
        logits = model(x).double()
        own = logits.gather(1, y[:, None])[:, 0]
        others = logits.scatter(1, y[:, None], -torch.inf).logsumexp(1)
        return Outputs((own - others).numpy(), (logits.argmax(1) == y).numpy(), logits.softmax(1).numpy())

    def request(self, kind: str, original: nn.Module, rng: np.random.Generator) -> Tensor:
        """The rows to forget."""
        if kind == "random":
            return torch.from_numpy(np.sort(rng.choice(len(self.x), self.size, replace=False)))
        if kind == "clustered":
            return torch.cdist(self.x[[int(rng.integers(len(self.x)))]], self.x)[0].topk(self.size, largest=False)[1]
        with torch.no_grad():
            sure = F.cross_entropy(original(self.x), self.y, reduction="none")
        return sure.topk(self.size, largest=False)[1]

    def without(self, forget: Tensor) -> Tensor:
        """The other training rows."""
        keep = torch.ones(len(self.x), dtype=torch.bool)
        keep[forget] = False
        return keep.nonzero()[:, 0]

    def judge(self, original: Outputs, new: Outputs, forget: Tensor, **how: Any) -> Verdict:
        """The verdict beside all test rows."""
        classes = torch.cat([self.y[forget], self.test_y]).numpy()
        forgot = np.arange(len(classes)) < len(forget)
        return judge_outputs(
            original, new, forgot=forgot, classes=classes, generator=np.random.default_rng(0), draws=1999, **how
        )


def tasks(fashion: Path | None) -> dict[str, Task]:
    """80 of 1,000 digits beside 797; of Fashion-MNIST 200 or 1,500 of 6,000 rows beside 3,000."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = torch.from_numpy(digits.data[order] / 16).float()
    y = torch.from_numpy(digits.target[order]).long()
    small = Task("digits", x[:1000], y[:1000], x[1000:], y[1000:], 64, 40, 32, 0.1, 80)
    if fashion is None:
        return {small.name: small}

    def read(name: str, header: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((fashion / f"{name}.gz").read_bytes()), np.uint8, offset=header)

    part = []
    for name, count in (("train", 6_000), ("t10k", 3_000)):
        pixels = read(f"{name}-images-idx3-ubyte", 16).reshape(-1, 784)[:count]
        part += [(torch.from_numpy(pixels.copy()).float() / 255 - 0.286) / 0.353]
        part += [torch.from_numpy(read(f"{name}-labels-idx1-ubyte", 8)[:count].copy()).long()]
    many = Task("fashion 1500", *part, 128, 30, 64, 0.05, 1500)
    return {task.name: task for task in (small, many, replace(many, name="fashion 200", size=200))}


def honest(task: Task, originals: list[nn.Module], kind: str, count: int) -> Iterator[tuple[str, Verdict]]:
    """At least `count` retrained models, three for each request, judged four ways."""
    for number in range((count + 2) // 3):
        original = originals[number % 10]
        forget = task.request(kind, original, np.random.default_rng(number))
        keep, before = task.without(forget), task.outputs(original, forget)
        retrained = [task.outputs(task.train(keep, 1000 + 3 * number + i), forget) for i in range(3)]
        for i, new in enumerate(retrained):
            others = {f"reference {j}": retrained[(i + j) % 3] for j in (1, 2)}
            yield "not drawn", task.judge(before, new, forget)
            yield "called drawn", task.judge(before, new, forget, drawn=True)
            yield "beside two", task.judge(before, new, forget, references=others)
            yield "ours", task.judge(before, new, forget, ours=True)


def noised(model: nn.Module, size: float, seed: int) -> nn.Module:
    """The network with noise of `size` standard deviations of each weight tensor."""
    generator, copy = torch.Generator().manual_seed(seed), {}
    for name, value in model.state_dict().items():
        copy[name] = value + size * value.std() * torch.randn(value.shape, generator=generator)
    other = deepcopy(model)
    other.load_state_dict(copy)
    return other


def dishonest(task: Task, originals: list[nn.Module], count: int) -> Iterator[tuple[str, Verdict]]:
    """Models that must not pass, with a new random request each."""
    for i in range(count):
        rng, original = np.random.default_rng(i), originals[i % len(originals)]
        forget = task.request("random", original, rng)
        before = task.outputs(original, forget)
        noisy = task.outputs(noised(original, 0.1, i), forget)
        yield "untouched", task.judge(before, before, forget)
        yield "weights + 1e-4", task.judge(before, task.outputs(noised(original, 1e-4, i), forget), forget)
        yield "noised, not drawn", task.judge(before, noisy, forget)
        yield "noised, drawn", task.judge(before, noisy, forget, drawn=True)
        yield "collapsed", task.judge(before, task.outputs(task.fresh(i), forget), forget)


def leaking(task: Task, count: int) -> Iterator[tuple[str, Verdict]]:
    """Noised originals of 2,000 training rows whose area is above .6, the first `count` of three times as many."""
    task, found = replace(task, x=task.x[:2000], y=task.y[:2000]), 0
    originals = [task.train(torch.arange(2000), seed) for seed in range(10)]
    for i in range(3 * count):
        original = originals[i % 10]
        forget = task.request("random", original, np.random.default_rng(i))
        new = task.outputs(noised(original, 0.1, i), forget)
        verdict = task.judge(task.outputs(original, forget), new, forget, drawn=True)
        if found < count and verdict.evidence[0].area.value > 0.6:
            found += 1
            yield "noised, area above .6, drawn", verdict


def attacked(task: Task, originals: list[nn.Module], count: int) -> Iterator[tuple[str, Verdict]]:
    """At least `count` retrained models beside two others, and as many that must not pass, under all attacks."""
    for number in range((count + 2) // 3):
        original = originals[number % 10]
        forget = task.request("random", original, np.random.default_rng(number))
        keep = task.without(forget)
        sets = {"forget": (task.x[forget], task.y[forget]), "retain": (task.x[keep], task.y[keep])}
        sets |= {"test": (task.test_x, task.test_y)}
        retrained = [task.train(keep, 1000 + 3 * number + i) for i in range(3)]
        for i, new in enumerate(retrained):
            others = [retrained[(i + j) % 3] for j in (1, 2)]
            noisy, copies = noised(original, 0.1, 3 * number + i), [noised(original, 1e-5, j) for j in (1, 2)]
            yield "retrained, beside two", audit_pair(original, new, **sets, retrained=others).verdict
            yield (
                "retrained, beside copies of the original",
                audit_pair(original, new, **sets, retrained=copies).verdict,
            )
            yield "untouched", audit_pair(original, original, **sets).verdict
            yield "noised, not drawn", audit_pair(original, noisy, **sets).verdict
            yield "noised, drawn", audit_pair(original, noisy, **sets, drawn=True).verdict
            yield "noised, beside two", audit_pair(original, noisy, **sets, retrained=others).verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", type=Path, help="folder of the four idx files; digits alone without it")
    parser.add_argument("--attacks", action="store_true", help="judge digits by all attacks on pairs of models")
    parser.add_argument("--out", type=Path, required=True, help="path of the results, without .json and .txt")
    parser.add_argument("--models", type=int, default=100, help="models of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tallies: dict[str, Counter[tuple[int, str]]] = defaultdict(Counter)
    for name, task in tasks(None if arguments.attacks else arguments.fashion).items():
        originals = [task.train(torch.arange(len(task.x)), seed) for seed in range(10)]
        if arguments.attacks:
            for how, verdict in attacked(task, originals, arguments.models):
                tallies[f"{name}, all attacks: {how}"][verdict.exit, " + ".join(verdict.reasons)] += 1
                write(arguments.out, tallies)
            continue
        kinds = ("random",) if task.size == 1500 else ("random", "clustered", "easy")
        found = {f"{name}, retrained, {kind}": honest(task, originals, kind, arguments.models) for kind in kinds}
        found[f"{name}, must not pass"] = dishonest(task, originals, arguments.models)
        if name == "fashion 200":
            found[name] = leaking(task, arguments.models)
        for what, verdicts in found.items():
            for how, verdict in verdicts:
                tallies[f"{what}: {how}"][verdict.exit, " + ".join(verdict.reasons)] += 1
            write(arguments.out, tallies)


def write(out: Path, tallies: dict[str, Counter[tuple[int, str]]]) -> None:
    plain, lines = {}, [f"{'':50s}  exit 1  not accuracy  exit 0  exit 3   reasons"]
    for name, tally in tallies.items():
        one, zero, three = (sum(n for (code, _), n in tally.items() if code == want) for want in (1, 0, 3))
        other = sum(n for (code, why), n in tally.items() if code == 1 and why != "harmed")
        reasons = {f"{why} (exit {code})": n for (code, why), n in tally.most_common()}
        plain[name] = {"exit 1": one, "not accuracy": other, "exit 0": zero, "exit 3": three, "reasons": reasons}
        most = "; ".join(f"{why} {n}" for why, n in list(reasons.items())[:3])
        lines.append(f"{name:50s}  {one:6d}  {other:12d}  {zero:6d}  {three:6d}   {most}")
    out.with_suffix(".json").write_text(json.dumps(plain, indent=2) + "\n")
    out.with_suffix(".txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
