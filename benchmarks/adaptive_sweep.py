"""The attacker who fits image and change of basis together, by how far either side spreads its factors.

`python benchmarks/adaptive_sweep.py`. Digits, a small convolutional network, one example forgotten by one step beside a
retain batch of 5, then a change of basis with factors uniform on 1 ± spread: the defender's axis. The attacker's axis
is σ of its prior on the factors; σ = 0 holds them at 1. Beside it inversion of the difference as it is, and after the
factors are undone in closed form. Writes results and a figure.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reconstruction import RETAIN, OneStep, Setting, arguments, attacked, chosen_targets, prepared, searches

from warp_unlearning import unlearn
from warp_unlearning.attacks.reconstruction.threat import Schedule, Threat
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.stats.intervals import mean

SPREADS, SIGMAS = (0.1, 0.2, 0.4, 0.8), (0.0, 0.1, 0.2, 0.4, 0.8)


def pairs(setting: Setting, targets: torch.Tensor, spread: float, options: argparse.Namespace) -> list[Threat]:
    keep = torch.ones(len(setting.learned.y), dtype=torch.bool)
    keep[targets] = False
    retain = setting.examples(setting.learned[keep.nonzero().flatten()])
    probes = setting.examples(setting.others[options.decoys : options.decoys + options.probes])
    found = []
    for i, target in enumerate(targets.tolist()):
        forget = setting.examples(setting.learned[target : target + 1])
        some = slice(RETAIN * i, RETAIN * (i + 1))
        method = OneStep((retain.x[some], retain.y[some]), options.rate, options.ascent)
        after = unlearn(
            setting.model,
            forget=forget,
            retain=retain,
            method=method,
            defense=make_defense("cob", spread=spread),
            seed=i,
            defense_seed=options.seed * 1000 + i,
        )
        schedule = Schedule(1, options.rate, options.ascent, 1 - options.ascent)
        threat = Threat(setting.model, after.model.eval(), setting.pixels, forget.y, probes=(probes.x, probes.y))
        found.append(replace(threat, schedule=schedule, defense="cob", method="ngp"))
    return found


def main() -> None:
    options = arguments()
    setting = prepared(options)
    targets = chosen_targets(setting, options)
    truth = setting.learned.images[targets][:, None]
    parts = setting.others[: options.decoys], setting.others[options.decoys : options.decoys + options.probes]
    plan, rows = searches(options), []
    for spread in SPREADS:
        threats = pairs(setting, targets, spread, options)
        # As the paper's attacker has it, who moves first and steps then.
        priors: list[dict[str, Any]] = [{"sigma": sigma, "order": "before"} for sigma in SIGMAS]
        tries: list[tuple[str, dict[str, Any]]] = [("adaptive", prior) for prior in priors]
        for attack, extra in [*tries, ("inversion", {}), ("canonical", {})]:
            row = attacked(setting, threats, attack, plan[attack], truth, *parts, options, **extra) | {"spread": spread}
            rows.append(row)
            print(spread, attack, extra, f"PSNR {np.mean(row['psnr']):.2f}", flush=True)
            options.out.write_text(json.dumps(rows))
    print(markdown(rows))
    draw(rows, options.out.with_suffix(".svg"))


def columns() -> list[tuple[str, float | None]]:
    return [*(("adaptive", sigma) for sigma in SIGMAS), ("inversion", None), ("canonical", None)]


def markdown(rows: list[dict[str, Any]]) -> str:
    heads = [f"σ = {sigma:g}" for sigma in SIGMAS] + ["as it is", "undone in closed form"]
    lines = ["| spread | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for spread in SPREADS:
        cells = []
        for attack, sigma in columns():
            row = next(r for r in rows if r["spread"] == spread and r["attack"] == attack and r.get("sigma") == sigma)
            psnr, share = mean(row["psnr"]), row["beyond"]["identification"]["share"]
            cells.append(f"{psnr.value:.1f} [{psnr.low:.1f}, {psnr.high:.1f}]; {share['value']:.2f}")
        lines.append(f"| {spread:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Feature error and PSNR against the attacker's σ, a line for every spread of the defender."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for spread in SPREADS:
        some = [r for r in rows if r["spread"] == spread and r["attack"] == "adaptive"]
        for axis, key in zip(axes, ("feature_mse", "psnr"), strict=True):
            found = [mean(r["scores"]["per_image"][key]) for r in some]
            values = [e.value for e in found]
            ends = [[e.value - e.low for e in found], [e.high - e.value for e in found]]
            axis.errorbar(SIGMAS, values, yerr=ends, marker="o", capsize=2, label=f"spread {spread:g}")
    axes[0].set(xlabel="attacker's σ", ylabel="feature MSE (logits)")
    axes[1].set(xlabel="attacker's σ", ylabel="PSNR, dB")
    axes[1].legend()
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
