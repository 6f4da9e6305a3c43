"""What a pair audit finds with and without each defence: `python benchmarks/pair_audits.py [--method ngp]`.

Small residual networks with batch norm on digits, a random tenth forgotten, ten seeds. Every pair is audited by all
attacks that need no shadow model, after all pre-steps that may undo a defence; so is the original beside a retrained
model, and a retrained model beside another, where nothing was forgotten. Numbers are means over seeds of max(AUC, 1 −
AUC) for the strongest attack of each seed, and of the AUC of single attacks, with Student's 95 % intervals over seeds.
The strongest of 24 attacks is above ½ by selection alone: compare it with the last row, not with ½.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from warp_unlearning import NullSpace, Warp, unlearn
from warp_unlearning.attacks.membership.pair_audit import PairAudit, audit_pair
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import load_data
from warp_unlearning.defense.base import Defense
from warp_unlearning.methods.registry import SMALL_DATA, make_method
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.randomness import Streams
from warp_unlearning.runs.local import run_all
from warp_unlearning.stats.intervals import mean
from warp_unlearning.training.training import Recipe, Training, run_training

FORGOTTEN = 140
RECIPE = Recipe(epochs=20, batch_size=64, lr=0.05)
ARMS: dict[str, Callable[[], Defense | str | None]] = {
    "none": lambda: None,
    "warp": lambda: "warp",
    "fastwarp": lambda: "fastwarp",
    "random kick": lambda: Warp(NullSpace(aim="random")),
    "cob": lambda: "cob",
    "conjugate": lambda: "conjugate",
}
COLUMNS = ("confidence", "confidence drop", "gradient norm", "gradient difference", "update alignment")


def trained(examples: TensorExamples, fill: tuple[float, ...], seed: int) -> nn.Module:
    model = SmallResNet(classes=10)
    reinitialise(model, generator=Streams(seed).generator("weights"))
    run_training(Training(model, examples, recipe=RECIPE, streams=Streams(seed, "training"), fill=fill))
    return model.eval()


def numbers(audit: PairAudit) -> dict[str, float]:
    """The strongest attack's strength, the strongest after a pre-step and without one, and areas by name."""
    naive = [row.strength.value for row in audit.rows if row.step == "naive"]
    return {
        "strongest": audit.strongest_strength().value,
        "strongest, naive": max(naive),
        **{row.name: row.auc.value for row in audit.rows},
    }


def one_seed(job: tuple[int, str]) -> dict[str, dict[str, float]]:
    """The numbers of every arm of one seed."""
    seed, method = job
    data = load_data()
    order = torch.randperm(len(data.train), generator=Streams(seed).generator("order"))
    forget, retain = (data.train.select(part) for part in (order[:FORGOTTEN], order[FORGOTTEN:]))
    original = trained(data.train, data.fill, seed)
    again = [trained(retain, data.fill, 1000 * (i + 1) + seed) for i in range(2)]

    def audited(before: nn.Module, after: nn.Module) -> dict[str, float]:
        return numbers(audit_pair(before, after, forget=forget, test=data.test, retain=retain, seed=seed))

    found = {}
    for name, defense in ARMS.items():
        made = make_method(method, **SMALL_DATA.get(method, {}))
        result = unlearn(
            original, forget=forget, retain=retain, method=made, defense=defense(), seed=seed, defense_seed=seed
        )
        found[name] = audited(original, result.model)
    return found | {"retrained": audited(original, again[0]), "retrained twice": audited(*again)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="ngp")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(20, 30)))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    results = run_all(one_seed, [(seed, options.method) for seed in options.seeds], workers=options.workers)
    if options.out:
        options.out.write_text(json.dumps(dict(zip(map(str, options.seeds), results, strict=True)), indent=1))
    columns = ("strongest", "strongest, naive", *COLUMNS)
    print(f"| {options.method} and | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for arm in results[0]:
        cells = [str(mean([found[arm][column] for found in results])) for column in columns]
        print(f"| {arm} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
