"""The attacker who fits image and change of basis together, by how far either side spreads its factors.

`python benchmarks/adaptive_sweep.py`. Digits, a small convolutional network, one example forgotten by one step beside a
retain batch of 5, then a change of basis with factors uniform on 1 ± spread: the defender's axis. The attacker's axis
is σ of its prior on the factors; σ = 0 holds them at 1. Beside it inversion of the difference as it is, and after the
factors are undone in closed form. Writes results and a figure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reconstruction import arguments, load, settings_of

from warp_unlearning.stats.intervals import mean
from warp_unlearning.studies.reconstruction_models import ImageArm, chosen_targets, threats_of, trained_model
from warp_unlearning.studies.reconstruction_rows import attack_row
from warp_unlearning.studies.reconstruction_study import SIGMAS, SPREADS, adaptive_attacks


def main() -> None:
    options = arguments()
    settings = settings_of(options)
    pictures = load(options, settings)
    model = trained_model(pictures, settings)
    targets = chosen_targets(model, pictures, settings)
    truth, rows = pictures.learned.images[targets], []
    for spread in SPREADS:
        threats = threats_of(model, pictures, targets, ImageArm("cob", {"spread": spread}), settings)
        for attack in adaptive_attacks(SIGMAS):
            row = attack_row(threats, attack, truth, pictures, settings) | {"spread": spread}
            rows.append(row)
            print(spread, attack.name, dict(attack.options), f"PSNR {np.mean(row['psnr']):.2f}", flush=True)
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
