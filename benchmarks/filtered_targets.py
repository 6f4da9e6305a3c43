"""Does the subspace filter bring the difference nearer to the gradient of what was forgotten?

`python benchmarks/filtered_targets.py [--seeds 5 --first 20 --targets 8]`. For a small ResNet trained on digits, one
example is forgotten by NegGrad+ with a retain batch of 5 (batch norm in eval mode), by one step, by many that
are as long together, and by many that are five times as long. The cosine
of its true gradient at the original with the difference as it is, and with the filtered difference: examples drawn at
random, and those with the largest loss of 200. Paired differences with a t interval over all targets, and Wilcoxon's
signed-rank test.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from warp_unlearning import unlearn
from warp_unlearning.attacks.reconstruction.targets import distances, read_targets
from warp_unlearning.attacks.reconstruction.threat import Threat
from warp_unlearning.data.preprocess import load_data, pixels_of
from warp_unlearning.gradients.per_sample import example_gradients
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.models.networks import build_model
from warp_unlearning.randomness import Streams
from warp_unlearning.stats.intervals import mean
from warp_unlearning.training.training import Recipe, Training

PROBES, POOL = 512, 200
# How many steps, and how long each is.
STEPS = {"one step": (1, 0.02), "20 steps": (20, 0.001), "20 longer steps": (20, 0.005)}


def trained(seed: int) -> nn.Module:
    data = load_data()
    model = build_model("small_resnet", generator=torch.Generator().manual_seed(seed))
    training = Training(
        model, data.train, recipe=Recipe(epochs=15, batch_size=64, lr=0.1), streams=Streams(seed, "training")
    )
    for _ in training.updates():
        pass
    return training.model.eval()


def pair_cosines(
    model: nn.Module, target: int, retain: Tensor, probes: Tensor, steps: tuple[int, float]
) -> tuple[float, float]:
    """Of the true gradient with the difference, and with the filtered one."""
    data = load_data()
    forget = data.train.select(torch.tensor([target]))
    count, lr = steps
    # The ascent has no bound, so that long runs are clipped.
    method = NegGradPlus(
        alpha=0.5,
        lr=lr,
        epochs=count,
        batch_size=5,
        momentum=0.0,
        norm_mode="eval",
        max_norm=5.0 if count > 1 else None,
    )
    after = unlearn(model, forget=forget, retain=data.train.select(retain), method=method, seed=0).model.eval()
    held = data.train.select(probes)
    threat = Threat(model, after, pixels_of(data), forget.y, probes=(held.x, held.y))
    names = [name for name, _ in model.named_parameters()]
    true = {n: g.detach()[:, None] for n, g in example_gradients(model, forget.x, forget.y, names=names).items()}
    plain, filtered = (read_targets([threat], after=after).values for after in ("naive", "filtered"))
    return 1 - float(distances(true, plain, "cosine")), 1 - float(distances(true, filtered, "cosine"))


def of_seed(seed: int, targets: int) -> list[dict[str, object]]:
    data, model = load_data(), trained(seed)
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
    probes, pool, rest = order[:PROBES], order[PROBES : PROBES + POOL], order[PROBES + POOL :]
    with torch.no_grad():
        losses = nn.functional.cross_entropy(model(data.train.x[pool]), data.train.y[pool], reduction="none")
    chosen = {"random": pool[:targets], "large loss": pool[losses.topk(targets).indices]}
    rows: list[dict[str, object]] = []
    for kind, some in chosen.items():
        for i, target in enumerate(some.tolist()):
            retain = rest[5 * i : 5 * i + 5]
            for name, steps in STEPS.items():
                plain, filtered = pair_cosines(model, target, retain, probes, steps)
                rows.append({"seed": seed, "targets": kind, "steps": name, "plain": plain, "filtered": filtered})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=20)
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for s in range(options.first, options.first + options.seeds) for row in of_seed(s, options.targets)]
    if options.out:
        options.out.write_text(json.dumps(rows))
    print("| targets | steps | n | cosine, as it is | cosine, filtered | filtered − as it is | won | Wilcoxon p |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in ("random", "large loss"):
        for steps in STEPS:
            part = [row for row in rows if row["targets"] == kind and row["steps"] == steps]
            plain, filtered = (np.array([row[key] for row in part], dtype=float) for key in ("plain", "filtered"))
            p = stats.wilcoxon(filtered - plain).pvalue
            won = int((filtered > plain).sum())
            print(
                f"| {kind} | {steps} | {len(part)} | {mean(plain)} | {mean(filtered)} | {mean(filtered - plain)} "
                f"| {won} of {len(part)} | {p:.2g} |"
            )


if __name__ == "__main__":
    main()
