"""One attack on every target of one arm, judged: a row of a study of reconstruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..attacks.reconstruction.attacks import find_attack
from ..attacks.reconstruction.blind import BlindGuess, class_means, prior_alone
from ..attacks.reconstruction.judge import assess
from ..attacks.reconstruction.reconstruct import reconstruct
from ..attacks.reconstruction.search import Search
from ..attacks.reconstruction.targets import readings
from ..attacks.reconstruction.threat import Threat
from ..errors import InputError, WarpError, nearest
from .reconstruction_images import Pictures
from .reconstruction_settings import ReconstructionSettings

_BLIND_ITERATIONS = 200


@dataclass(frozen=True)
class ImageAttack:
    """An attack by name, or "name@reading" with another reading of the difference, with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What fails in the making of a row is a result, a wrong name is none.
        name, _, reading = self.name.partition("@")
        find_attack(name)
        if reading and reading not in readings():
            raise InputError(f"{self.name!r}: there is no reading {reading!r}; {nearest(reading, readings())}")

    @property
    def generative(self) -> bool:
        """Whether it searches through a generator."""
        return self.name.partition("@")[0] == "generative"


def attack_row(
    threats: Sequence[Threat], attack: ImageAttack, truth: Tensor, pictures: Pictures, settings: ReconstructionSettings
) -> dict[str, Any]:
    """What the attack found of the images `truth` (n, channels, height, width), one a threat, as plain data; or why it
    cannot be made, which is a result too.
    """
    name, _, after = attack.name.partition("@")
    search = settings.search(attack.name)
    try:
        found = reconstruct(
            threats, attack=name, after=after or None, search=search, seed=settings.seed, **attack.options
        )
    except WarpError as error:
        return {"attack": attack.name, **attack.options, "failed": f"{type(error).__name__}: {error}"}
    labels = torch.stack([t.labels for t in threats if t.labels is not None])
    others, kinds = _compared(pictures, labels)
    judged = assess(
        found.images,
        truth[:, None],
        blind=_blind_guesses(threats, name, search, pictures, labels, settings.seed),
        labels=kinds,
        # Targets of the largest loss are not drawn as decoys are.
        decoys=None if settings.large_loss else others,
        model=threats[0].original,
        pixels=pictures.pixels,
    )
    return {
        "attack": attack.name,
        **attack.options,
        **judged.as_json(),
        "psnr": judged.scores.psnr.tolist(),
        "ssim": judged.scores.ssim.tolist(),
        "losses": found.losses.tolist(),
        "seconds": found.seconds,
    }


def _compared(pictures: Pictures, labels: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Decoys with their labels, and the labels of the targets; all the same where a class has too few decoys, so that
    images of any class are compared with.
    """
    decoys = pictures.decoys
    if any(int((decoys.y == label).sum()) < 2 for label in set(labels.flatten().tolist())):
        return (decoys.images, torch.zeros_like(decoys.y)), torch.zeros_like(labels)
    return (decoys.images, decoys.y), labels


def _blind_guesses(
    threats: Sequence[Threat], attack: str, search: Search, pictures: Pictures, labels: Tensor, seed: int
) -> dict[str, BlindGuess]:
    """Those of attackers who saw nothing, which no defence changes."""
    short = replace(search, iterations=_BLIND_ITERATIONS)
    alone = prior_alone(threats, attack=attack, search=short, seed=seed).flatten(0, 1)
    mean = class_means(pictures.probes.images, pictures.probes.y, labels.flatten())
    return {"class mean": mean, "prior alone": BlindGuess("prior alone", alone)}
