"""The models of a study of reconstruction: what is attacked, the attacker's generator, and the models that forgot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attacks.reconstruction.threat import Schedule, Threat
from ..data.examples import TensorExamples
from ..defense.base import Defense
from ..defense.registry import make_defense
from ..models.generator import ConvGenerator, Staged
from ..models.networks import build_model, suggest_options
from ..randomness import Streams
from ..training.prior import PriorRecipe, PriorTraining
from ..training.training import Recipe, Training
from ..unlearning.driver import updated
from .one_step import OneStep
from .reconstruction_images import Pictures
from .reconstruction_settings import POOL, RETAIN, ReconstructionSettings
from .shadow_settings import ALGORITHM
from .study import NULL_SPACE, VARIANTS

_BATCH = 2048


@dataclass(frozen=True)
class ImageArm:
    """A defence by name, or "none", with its options; "kick" is the control of WARP."""

    defense: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A wrong name or option is an error where it is given, not in every job.
        self.made(_BATCH)

    def made(self, retained: int) -> Defense | None:
        """The defence, its retain batch no larger than what is retained."""
        if self.defense == "none":
            return None
        fits = {"batch_size": min(_BATCH, retained)} if self.defense in NULL_SPACE else {}
        name = "warp" if self.defense in VARIANTS else self.defense
        return make_defense(name, **{**fits, **VARIANTS.get(self.defense, {}), **self.options})

    @property
    def ingredients(self) -> dict[str, Any]:
        """What of the arm decides a result, for keys."""
        return asdict(self) | ({} if self.defense == "none" else {"algorithm": ALGORITHM})


def new_model(pictures: Pictures, settings: ReconstructionSettings) -> nn.Module:
    """The network as it is drawn, on the device."""
    options = suggest_options(settings.network, pictures.pixels.shape, pictures.classes) | dict(
        settings.network_options
    )
    model = build_model(settings.network, generator=torch.Generator().manual_seed(settings.seed), **options)
    return model.to(pictures.learned.y.device).eval()


def model_training(model: nn.Module, pictures: Pictures, settings: ReconstructionSettings) -> Training:
    """Its training on what it learns from."""
    recipe = Recipe(epochs=settings.epochs, batch_size=settings.batch, lr=settings.lr)
    return Training(
        model, pictures.examples(pictures.learned), recipe=recipe, streams=Streams(settings.seed, "training")
    )


def trained_model(pictures: Pictures, settings: ReconstructionSettings) -> nn.Module:
    """The model that is attacked, in eval mode."""
    model = new_model(pictures, settings)
    if not settings.trained:
        return model
    training = model_training(model, pictures, settings)
    _exhaust(training.updates())
    return training.model.eval()


def new_prior(pictures: Pictures, settings: ReconstructionSettings) -> ConvGenerator:
    """The attacker's generator before it is trained, on the device."""
    return ConvGenerator(shape=pictures.pixels.shape, width=settings.prior_width).to(pictures.learned.y.device)


def prior_training(generator: ConvGenerator, pictures: Pictures, settings: ReconstructionSettings) -> PriorTraining:
    """Its training on images that neither the model learned from nor the attack is about."""
    return PriorTraining(
        generator,
        TensorExamples(pictures.rest.images, pictures.rest.y),
        recipe=PriorRecipe(epochs=settings.prior_epochs, batch_size=settings.prior_batch, lr=1e-3),
        streams=Streams(settings.seed, "prior"),
    )


def trained_prior(pictures: Pictures, settings: ReconstructionSettings) -> ConvGenerator:
    """The generator, in eval mode."""
    generator = new_prior(pictures, settings)
    _exhaust(prior_training(generator, pictures, settings).updates())
    return generator.eval()


def chosen_targets(model: nn.Module, pictures: Pictures, settings: ReconstructionSettings) -> Tensor:
    """Positions among the learned images: at random, or with the largest loss of POOL."""
    order = torch.randperm(len(pictures.learned), generator=torch.Generator().manual_seed(settings.seed))
    pool = order[:POOL].to(pictures.learned.y.device)
    if not settings.large_loss:
        return pool[: settings.targets]
    part = pictures.examples(pictures.learned[pool])
    with torch.no_grad():
        batches = zip(torch.split(part.x, 100), torch.split(part.y, 100), strict=True)
        losses = torch.cat([F.cross_entropy(model(x), y, reduction="none") for x, y in batches])
    return pool[losses.topk(settings.targets).indices]


def threats_of(
    model: nn.Module,
    pictures: Pictures,
    targets: Tensor,
    arm: ImageArm,
    settings: ReconstructionSettings,
    *,
    generator: Staged | None = None,
) -> list[Threat]:
    """For every target the model before and after it was forgotten, with what the attacker knows of that."""
    probes = pictures.examples(pictures.probes)
    return [
        Threat(
            model,
            after,
            pictures.pixels,
            pictures.learned.y[target : target + 1],
            probes=(probes.x, probes.y),
            generator=generator,
            method="ngp",
            schedule=Schedule(1, settings.rate, settings.ascent),
            defense=arm.defense,
        )
        for target, after in zip(
            targets.tolist(), forgotten_models(model, pictures, targets, arm, settings), strict=True
        )
    ]


def forgotten_models(
    model: nn.Module, pictures: Pictures, targets: Tensor, arm: ImageArm, settings: ReconstructionSettings
) -> list[nn.Module]:
    """For every target the model that forgot it, in eval mode. No target is retained when another is forgotten."""
    kept = torch.ones(len(pictures.learned), dtype=torch.bool, device=targets.device)
    kept[targets] = False
    count = max(settings.retained, RETAIN * len(targets))
    retain = pictures.examples(pictures.learned[kept.nonzero().flatten()[:count]])
    defense = arm.made(len(retain))
    found = []
    for i, target in enumerate(targets.tolist()):
        some = slice(RETAIN * i, RETAIN * (i + 1))
        after = updated(
            model,
            forget=pictures.examples(pictures.learned[target : target + 1]),
            retain=retain,
            method=OneStep((retain.x[some], retain.y[some]), settings.rate, settings.ascent),
            defense=defense,
            seed=i,
            defense_seed=settings.seed * 1000 + i,
        )
        found.append(after)
    return found


def _exhaust(updates: Iterable[object]) -> None:
    for _ in updates:
        pass
