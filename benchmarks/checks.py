"""How often `check_model` refuses honest models, and how often it finds a wrong reading or a wrong order of classes.

    python benchmarks/checks.py --fashion FOLDER --out results_checks [--cifar10 FILE.npz] [--models 200]

Networks of this package are trained on 20 to 2,000 rows as `warp train` reads them. Each is checked as what it is, and
those of 500 rows and more also read as x/255 in place of moments, with its outputs in another order, and, where images
have colours, with the channels in the order BGR. Writes OUT.json; one thread, half an hour.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import Preprocess, readings
from warp_unlearning.data.sources import load_table
from warp_unlearning.data.table import Table
from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import build_model, suggest_options
from warp_unlearning.unlearning.checks import check_model

SIZES = (20, 50, 100, 200, 500, 1000, 2000)
NETWORKS = ("mlp", "small_conv", "small_resnet")


class Turned(nn.Module):
    """A network whose outputs are in another order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs, each a place further on."""
        return self.model(x).roll(1, dims=1)


def part(table: Table, size: int, generator: np.random.Generator) -> Table:
    """`size` training rows of a table, drawn at random, and 500 unseen rows behind them."""
    rows = np.concatenate([generator.permutation(table.train)[:size], table.unseen[:500]])
    x, y = table.x[rows], table.y[rows]
    return Table(x, y, min(size, table.train), table.classes, layout=table.layout, name=table.name)


def trained(table: Table, network: str, preprocess: Preprocess, seed: int) -> nn.Module:
    """A network trained on the training rows until it fits most of them."""
    rows = np.arange(table.train)
    x, y = preprocess.inputs(table.x[rows]), torch.from_numpy(table.y[rows])
    options = suggest_options(network, tuple(x.shape[1:]), len(table.classes))
    if network in ("small_conv", "small_resnet"):
        options["width"] = 8
    generator = torch.Generator().manual_seed(seed)
    model = build_model(network, generator=generator, **options).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    epochs = max(4 if network == "resnet18" else 12, min(60, 6000 // len(rows)))
    for _ in range(epochs):
        for batch in torch.randperm(len(rows), generator=generator).split(64):
            if len(batch) > 1:
                optimizer.zero_grad()
                F.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
    return model.eval()


def refused(model: nn.Module, table: Table, preprocess: Preprocess) -> str:
    """The sentence of the refusal; empty where the model is taken."""
    known, test = np.arange(table.train), table.unseen
    raw = {
        what: TensorExamples(torch.from_numpy(table.x[rows]), torch.from_numpy(table.y[rows]))
        for what, rows in (("known", known), ("test", test))
    }
    others = readings(table, preprocess)
    try:
        check_model(model, known=raw["known"], test=raw["test"], preprocess=preprocess, readings=others)
    except InputError as error:
        return str(error)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", type=Path, required=True, help="folder of the four idx files")
    parser.add_argument("--cifar10", type=Path, help="CIFAR-10 in any of its forms")
    parser.add_argument("--out", type=Path, required=True, help="path of the results, without .json")
    parser.add_argument("--models", type=int, default=200, help="honest models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables = {"digits": load_table("digits"), "fashion": load_table("fashion_mnist", arguments.fashion)}
    plan = [(name, network, size) for size in SIZES for name in tables for network in NETWORKS]
    plan = [("digits", "resnet18", 500)] * 10 + (plan * (arguments.models // len(plan) + 1))[: arguments.models - 10]
    if arguments.cifar10 is not None:
        tables["cifar10"] = load_table("cifar10", arguments.cifar10)
        plan += [("cifar10", "small_resnet", size) for size in (500, 2000) for _ in range(20)]
    tallies: dict[str, Counter[str]] = {}
    sentences: list[str] = []
    for seed, (name, network, size) in enumerate(plan):
        table = part(tables[name], size, np.random.default_rng(seed))
        right = Preprocess.standard(table)
        model = trained(table, network, right, seed)
        cases = {f"honest, {name}": (model, right, "")}
        if table.train >= 500:
            rows = f"{table.train:,} rows"
            cases[f"x/255 in place of moments, {rows}"] = (model, Preprocess(255.0, layout=table.layout), "Say --")
            cases[f"order of classes, {rows}"] = (Turned(model), right, "--classes")
            if name == "cifar10":
                turned = Preprocess(function=lambda raw, read=right: read.inputs(raw).flip(1), spec="BGR")
                cases[f"BGR, {rows}"] = (model, turned, "Say ")
        for case, (tried, reading, expected) in cases.items():
            sentence = refused(tried, table, reading)
            named = "named" if expected and expected in sentence else "for another reason"
            tally = tallies.setdefault(case, Counter())
            tally["taken" if not sentence else f"refused, {named}"] += 1
            if (sentence and not expected) or (expected and named != "named"):
                sentences.append(f"{case}, {network}, {size} rows, seed {seed}: {sentence or 'taken'}")
        results = {case: dict(tally) for case, tally in tallies.items()}
        arguments.out.with_suffix(".json").write_text(json.dumps({"cases": results, "odd": sentences}, indent=2) + "\n")


if __name__ == "__main__":
    main()
