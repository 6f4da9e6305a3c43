"""Who rebuilds forgotten images from which defence? `python benchmarks/reconstruction.py --model small_conv`.

One example is forgotten at a time, drawn at random, by one step of NegGrad+ (batch norm in eval mode) beside a retain
batch of 5. Each pair of models is attacked by attackers who know of no defence and by those who undo one, all targets
at once. Every row has the attack's PSNR and SSIM, the same of attacks that saw nothing, and how often an image
resembles its own target more than others of its class. With --large-loss targets are those with the largest loss of 500
instead; then other images of the class are no fair comparison.

An attack may be given another reading of the difference, as in "generative@canonical". `--show FILE` prints the table
of a file of results.

`--data FILE.npz` has uint8 images `train_x`, `test_x` (n, height, width, channels) and labels `train_y`, `test_y`;
without it digits are used. The model learns from the first `--learned` training images; probes, decoys and the images
of the generator are others. `--untrained` leaves the model as it was drawn. Rows are written to --out as they come.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from warp_unlearning.data.preprocess import Pixels, load_data
from warp_unlearning.studies.reconstruction_images import Part, Pictures, divided, pictures_of
from warp_unlearning.studies.reconstruction_models import (
    ImageArm,
    chosen_targets,
    threats_of,
    trained_model,
    trained_prior,
)
from warp_unlearning.studies.reconstruction_rows import attack_row
from warp_unlearning.studies.reconstruction_settings import ReconstructionSettings
from warp_unlearning.studies.reconstruction_study import ARMS, ATTACKS, image_attack

SAME = ("learned", "retained", "epochs", "batch", "lr", "seed", "targets", "large_loss", "decoys", "probes", "rate")
SAME += ("ascent", "restarts", "iterations", "dear", "prior_epochs", "prior_batch", "prior_width", "device")


def settings_of(options: argparse.Namespace) -> ReconstructionSettings:
    return ReconstructionSettings(
        {"name": "digits" if options.data is None else str(options.data)},
        network=options.model,
        network_options={"stem": options.stem} if options.stem else {},
        trained=not options.untrained,
        **{name: getattr(options, name) for name in SAME},
    )


def load(options: argparse.Namespace, settings: ReconstructionSettings) -> Pictures:
    """The images by what they are for, and how a model sees them."""
    if options.data is None:
        return pictures_of(load_data(), settings)
    with np.load(options.data) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in ("train_x", "train_y", "test_x", "test_y")}
    train, test = (
        Part(arrays[f"{s}_x"].permute(0, 3, 1, 2).float() / 255, arrays[f"{s}_y"].long()) for s in ("train", "test")
    )
    shape = tuple(train.images.shape[1:])
    mean, std = train.images.mean((0, 2, 3)), train.images.std((0, 2, 3))
    pixels = Pixels((shape[0], shape[1], shape[2]), tuple(mean.tolist()), tuple(std.tolist()))
    return divided(train, test, pixels, settings)


def run(options: argparse.Namespace) -> None:
    settings = settings_of(options)
    pictures = load(options, settings)
    model = trained_model(pictures, settings)
    began = perf_counter()
    targets = chosen_targets(model, pictures, settings)
    truth = pictures.learned.images[targets]
    attacks = [image_attack(name) for name in options.attacks]
    generator = trained_prior(pictures, settings) if any(attack.generative for attack in attacks) else None
    print(f"prepared in {perf_counter() - began:.0f} s", flush=True)
    rows: list[dict[str, Any]] = []
    for arm in options.arms:
        began = perf_counter()
        threats = threats_of(model, pictures, targets, ImageArm(arm), settings, generator=generator)
        print(f"{arm}: forgot {len(threats)} in {perf_counter() - began:.0f} s", flush=True)
        for attack in attacks:
            rows.append(attack_row(threats, attack, truth, pictures, settings) | {"arm": arm})
            print(line(rows[-1]), flush=True)
            options.out.write_text(json.dumps({"settings": vars_of(options), "rows": rows}))
    print(table(rows, options))


def vars_of(options: argparse.Namespace) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['arm']} {row['attack']}: {row['failed'][:200]}"
    share = row["beyond"]["identification"]
    named = "" if share is None else f", own target {share['share']['value']:.2f}"
    return (
        f"{row['arm']} {row['attack']}: PSNR {np.mean(row['psnr']):.2f}{named}, matching {np.mean(row['losses']):.3f}, "
        f"{row['beyond']['outcome']}, {row['seconds']:.0f} s"
    )


def table(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """PSNR with its interval and the share of decoys, one row an attack, one column an arm."""
    from warp_unlearning.stats.intervals import mean

    found = {(row["arm"], row["attack"]): row for row in rows}
    lines = ["| attack | " + " | ".join(options.arms) + " |", "|---" * (len(options.arms) + 1) + "|"]
    for attack in options.attacks:
        cells = []
        for arm in options.arms:
            row = found.get((arm, attack))
            if row is None or "failed" in row:
                cells.append("not applicable" if row else "")
                continue
            estimate, share = mean(row["psnr"]), row["beyond"]["identification"]
            text = f"{estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]"
            if share is not None:
                s = share["share"]
                text += f"; {s['value']:.2f} [{s['low']:.2f}, {s['high']:.2f}]"
            cells.append(text + (" *" if row["beyond"]["outcome"] == "does not hold" else ""))
        lines.append(f"| {attack} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def show(file: Path) -> None:
    found = json.loads(file.read_text())
    rows = found["rows"]
    print(table(rows, argparse.Namespace(**found["settings"])))
    measured = [row for row in rows if "failed" not in row]
    for name in ("class mean", "prior alone"):
        scores = [row["blind"][name]["summary"]["psnr"]["value"] for row in measured[:1]]
        print(f"{name}: PSNR {scores[0]:.1f}")
    for row in rows:
        if "failed" in row:
            print(f"{row['arm']}, {row['attack']}: {row['failed']}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="small_conv")
    parser.add_argument("--stem")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--untrained", action="store_true")
    parser.add_argument("--learned", type=int, default=1000)
    parser.add_argument("--retained", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--targets", type=int, default=32)
    parser.add_argument("--large-loss", action="store_true")
    parser.add_argument("--decoys", type=int, default=200)
    parser.add_argument("--probes", type=int, default=512)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--ascent", type=float, default=0.5)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--dear", type=float, default=1.0, help="share of the iterations for attacks that cost more")
    parser.add_argument("--prior-epochs", type=int, default=60)
    parser.add_argument("--prior-batch", type=int, default=64)
    parser.add_argument("--prior-width", type=int, default=64)
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS))
    parser.add_argument("--out", type=Path, default=Path("reconstruction.json"))
    parser.add_argument("--show", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = arguments()
    if given.show is None:
        run(given)
    else:
        show(given.show)
