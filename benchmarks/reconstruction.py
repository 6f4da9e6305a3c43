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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning import NullSpace, Warp, unlearn
from warp_unlearning.attacks.reconstruction.assessment import Assessment, assess
from warp_unlearning.attacks.reconstruction.blind import BlindGuess, class_means
from warp_unlearning.attacks.reconstruction.prior_alone import prior_alone
from warp_unlearning.attacks.reconstruction.problem import Search
from warp_unlearning.attacks.reconstruction.reconstruct import reconstruct
from warp_unlearning.attacks.reconstruction.threat import Schedule, Threat
from warp_unlearning.data.digits import load_digits
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.pixels import Pixels, pixels_of
from warp_unlearning.methods.protocol import NormMode, Task
from warp_unlearning.models.conv_generator import ConvGenerator
from warp_unlearning.models.registry import build_model, suggest_options
from warp_unlearning.models.staged import Staged
from warp_unlearning.randomness import Streams
from warp_unlearning.training.prior import PriorRecipe, PriorTraining
from warp_unlearning.training.recipe import Recipe
from warp_unlearning.training.training import Training
from warp_unlearning.training.update import Update, Updates

ATTACKS = (
    "differencing",
    "inversion",
    "filtered",
    "generative",
    "adaptive",
    "canonical",
    "span",
    "filter",
    "conservation",
    "scale-free",
    "input-layer",
    "joint",
    "generative@canonical",
    "generative@filter",
    "generative@scale-free",
)
ARMS = ("none", "cob", "warp", "conjugate")
POOL, RETAIN = 500, 5


@dataclass(frozen=True, eq=False)
class Part:
    """Images in [0, 1] and labels."""

    images: Tensor
    y: Tensor

    def __getitem__(self, index: Any) -> Part:
        return Part(self.images[index], self.y[index])


@dataclass(frozen=True, eq=False)
class OneStep:
    """θ ← θ + rate · (ascent · g_forget − (1 − ascent) · g_retain), once, on a retain batch of its own: the unlearning
    that attacks are judged on, with the whole retain set left to the defence.
    """

    retain: tuple[Tensor, Tensor]
    rate: float
    ascent: float
    name: ClassVar[str] = "one step of ngp"
    norm_mode: NormMode = "eval"

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """The step."""
        forget = task.forget.take(torch.tensor([0], device=self.retain[0].device))
        terms = {
            "forget": F.cross_entropy(model(forget.x), forget.y),
            "retain": F.cross_entropy(model(self.retain[0]), self.retain[1]),
        }
        loss = self.ascent * terms["forget"] - (1 - self.ascent) * terms["retain"]
        parameters = list(model.parameters())
        with torch.no_grad():
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.add_(g, alpha=self.rate)
        yield Update(1, 1, 0, True, {name: value.detach() for name, value in terms.items()})


@dataclass(frozen=True, eq=False)
class Setting:
    """The model, the images by what they are for, and how to see them."""

    model: nn.Module
    pixels: Pixels
    learned: Part
    others: Part

    def examples(self, part: Part) -> TensorExamples:
        """What the model sees of it."""
        return TensorExamples(self.pixels.inputs(part.images), part.y)


def load(options: argparse.Namespace) -> tuple[Part, Part, Pixels]:
    """Images to learn from, others, and how a model sees them."""
    if options.data is None:
        data = load_digits()
        pixels = pixels_of(data)
        # The digits come writer by writer: in that order decoys would be other people's than the targets.
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(options.seed))
        train, test = (Part(pixels.images(s.x), s.y) for s in (data.train.select(order), data.test))
    else:
        with np.load(options.data) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in ("train_x", "train_y", "test_x", "test_y")}
        train, test = (
            Part(arrays[f"{s}_x"].permute(0, 3, 1, 2).float() / 255, arrays[f"{s}_y"].long()) for s in ("train", "test")
        )
        shape = tuple(train.images.shape[1:])
        mean, std = train.images.mean((0, 2, 3)), train.images.std((0, 2, 3))
        pixels = Pixels((shape[0], shape[1], shape[2]), tuple(mean.tolist()), tuple(std.tolist()))
    device, n = options.device, options.learned
    rest = Part(torch.cat([train.images[n:], test.images]), torch.cat([train.y[n:], test.y]))
    return (
        Part(train.images[:n].to(device), train.y[:n].to(device)),
        Part(rest.images.to(device), rest.y.to(device)),
        pixels,
    )


def prepared(options: argparse.Namespace) -> Setting:
    learned, others, pixels = load(options)
    classes = int(max(learned.y.max(), others.y.max())) + 1
    shape = suggest_options(options.model, pixels.shape, classes)
    if options.stem:
        shape |= {"stem": options.stem}
    model = build_model(options.model, generator=torch.Generator().manual_seed(options.seed), **shape)
    setting = Setting(model.to(options.device), pixels, learned, others)
    if options.untrained:
        model.eval()
        return setting
    recipe = Recipe(epochs=options.epochs, batch_size=options.batch, lr=options.lr)
    training = Training(
        setting.model, setting.examples(learned), recipe=recipe, streams=Streams(options.seed, "training")
    )
    for _ in training.updates():
        pass
    return replace(setting, model=training.model.eval())


def chosen_targets(setting: Setting, options: argparse.Namespace) -> Tensor:
    """Positions among the learned images: at random, or with the largest loss of POOL."""
    order = torch.randperm(len(setting.learned.y), generator=torch.Generator().manual_seed(options.seed))
    pool = order[:POOL].to(setting.learned.y.device)
    if not options.large_loss:
        return pool[: options.targets]
    part = setting.examples(setting.learned[pool])
    with torch.no_grad():
        pairs = zip(part.x.split(100), part.y.split(100), strict=True)
        losses = torch.cat([F.cross_entropy(setting.model(x), y, reduction="none") for x, y in pairs])
    return pool[losses.topk(options.targets).indices]


def forgotten(setting: Setting, targets: Tensor, arm: str, options: argparse.Namespace) -> list[nn.Module]:
    """For every target the model that forgot it."""
    everything = torch.ones(len(setting.learned.y), dtype=torch.bool, device=targets.device)
    everything[targets] = False
    kept = everything.nonzero().flatten()
    retain = setting.examples(setting.learned[kept[: max(options.retained, RETAIN * len(targets))]])
    defense: Any = {"none": None, "warp": Warp(NullSpace(batch_size=min(2048, len(retain.y))))}.get(arm, arm)
    found = []
    for i, target in enumerate(targets.tolist()):
        forget = setting.examples(setting.learned[target : target + 1])
        some = slice(RETAIN * i, RETAIN * (i + 1))
        method = OneStep((retain.x[some], retain.y[some]), options.rate, options.ascent)
        seeds = {"seed": i, "defense_seed": options.seed * 1000 + i}
        after = unlearn(setting.model, forget=forget, retain=retain, method=method, defense=defense, **seeds)
        found.append(after.model.eval())
    return found


def trained_prior(setting: Setting, options: argparse.Namespace) -> Staged:
    """A generator of images that neither the model learned from nor the attack is about."""
    part = setting.others[options.decoys + options.probes :]
    generator = ConvGenerator(shape=setting.pixels.shape, width=options.prior_width)
    training = PriorTraining(
        generator.to(options.device),
        TensorExamples(part.images, part.y),
        recipe=PriorRecipe(epochs=options.prior_epochs, batch_size=options.prior_batch, lr=1e-3),
        streams=Streams(options.seed, "prior"),
    )
    for _ in training.updates():
        pass
    return generator.eval()


def searches(options: argparse.Namespace) -> dict[str, Search]:
    base = Search(restarts=options.restarts, iterations=options.iterations)
    dear = replace(base, iterations=max(1, int(options.iterations * options.dear)))
    found = dict.fromkeys((name.partition("@")[0] for name in ATTACKS), base)
    found["differencing"] = replace(base, tv=0.0, signed=False)
    found |= dict.fromkeys(("scale-free", "joint", "adaptive"), dear)
    found["generative"] = replace(base, iterations=max(1, options.iterations // 5))
    return found


def described(assessment: Assessment) -> dict[str, Any]:
    return {**assessment.as_json(), "psnr": assessment.scores.psnr.tolist(), "ssim": assessment.scores.ssim.tolist()}


def run(options: argparse.Namespace) -> None:
    setting = prepared(options)
    began = perf_counter()
    targets = chosen_targets(setting, options)
    truth, labels = setting.learned.images[targets][:, None], setting.learned.y[targets][:, None]
    decoys, probes = setting.others[: options.decoys], setting.others[options.decoys : options.decoys + options.probes]
    generator = trained_prior(setting, options) if any(a.startswith("generative") for a in options.attacks) else None
    print(f"prepared in {perf_counter() - began:.0f} s", flush=True)
    held = setting.examples(probes)
    plan = searches(options)
    rows: list[dict[str, Any]] = []
    for arm in options.arms:
        began = perf_counter()
        models = forgotten(setting, targets, arm, options)
        print(f"{arm}: forgot {len(models)} in {perf_counter() - began:.0f} s", flush=True)
        threats = [
            Threat(
                setting.model,
                after,
                setting.pixels,
                labels[i],
                probes=(held.x, held.y),
                generator=generator,
                method="ngp",
                schedule=Schedule(1, options.rate, options.ascent, 1 - options.ascent),
                defense=arm,
            )
            for i, after in enumerate(models)
        ]
        for attack in options.attacks:
            # As the paper's attacker has it, who moves first and steps then.
            extra = {"order": "before"} if attack == "adaptive" else {}
            rows.append(
                attacked(
                    setting, threats, attack, plan[attack.partition("@")[0]], truth, decoys, probes, options, **extra
                )
                | {"arm": arm}
            )
            print(line(rows[-1]), flush=True)
            options.out.write_text(json.dumps({"settings": vars_of(options), "rows": rows}))
    print(table(rows, options))


def attacked(
    setting: Setting,
    threats: Sequence[Threat],
    attack: str,
    search: Search,
    truth: Tensor,
    decoys: Part,
    probes: Part,
    options: argparse.Namespace,
    **extra: Any,
) -> dict[str, Any]:
    labels = torch.stack([t.labels for t in threats if t.labels is not None])
    name, _, after = attack.partition("@")
    try:
        found = reconstruct(threats, attack=name, after=after or None, search=search, seed=options.seed, **extra)
    except Exception as error:  # a row that failed is a result
        return {"attack": attack, "failed": f"{type(error).__name__}: {error}"}
    blind = blind_guesses(threats, name, search, probes, labels, options.seed)
    others: tuple[Tensor, Tensor] | None = (decoys.images, decoys.y)
    kinds = labels
    if any(int((decoys.y == label).sum()) < 2 for label in labels.unique()):
        # With too few images of a class, images of any class are compared with.
        others, kinds = (decoys.images, torch.zeros_like(decoys.y)), torch.zeros_like(labels)
    judged = assess(
        found.images,
        truth,
        blind=blind,
        labels=kinds,
        decoys=None if options.large_loss else others,
        model=setting.model,
        pixels=setting.pixels,
    )
    return {"attack": attack, **extra, **described(judged), "losses": found.losses.tolist(), "seconds": found.seconds}


GUESSES: dict[str, dict[str, BlindGuess]] = {}


def blind_guesses(
    threats: Sequence[Threat], attack: str, search: Search, probes: Part, labels: Tensor, seed: int
) -> dict[str, BlindGuess]:
    """Those of attackers who saw nothing, which no defence changes: they are made once for a kind of search."""
    kind = "generator" if attack == "generative" else f"pixels, tv {search.tv}"
    if kind not in GUESSES:
        short = replace(search, iterations=200)
        alone = prior_alone(threats, attack=attack, search=short, seed=seed).flatten(0, 1)
        mean = class_means(probes.images, probes.y, labels.flatten())
        GUESSES[kind] = {"class mean": mean, "prior alone": BlindGuess("prior alone", alone)}
    return GUESSES[kind]


def vars_of(options: argparse.Namespace) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['arm']} {row['attack']}: {row['failed'][:200]}"
    share = row["beyond"]["identification"]
    named = "" if share is None else f", own target {share['share']['value']:.2f}"
    return (
        f"{row['arm']} {row['attack']}: PSNR {np.mean(row['psnr']):.2f}{named}, matching {np.mean(row['losses']):.3f}, "
        f"{row['beyond']['verdict']}, {row['seconds']:.0f} s"
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
            cells.append(text + (" *" if row["beyond"]["verdict"] == "beyond the prior" else ""))
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
