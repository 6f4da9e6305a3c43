"""What a study of reconstruction is asked to do, as plain data: images, model, unlearning, searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..attacks.reconstruction.search import Search
from ..errors import InputError, nearest
from .study import Asked

POOL, RETAIN = 500, 5
"""Targets are among so many images; so many retained examples are in the step that forgets one."""

_DEAR = ("scale-free", "joint", "adaptive")


@dataclass(frozen=True)
class ReconstructionSettings:
    """The model learns from `learned` images of the data set, drawn at random where `shuffled` is set, by SGD unless
    it is left as it was drawn (`trained` False). Of the others, `decoys` are for identification, `probes` are the
    attacker's, and a generator learns from the rest.

    `targets` images are forgotten, each by itself: at random, or those of the largest loss (`large_loss`), by one step
    of `rate` with the weight `ascent` on what is forgotten. A defence sees `retained` examples. Searches have
    `restarts` and `iterations`, of which attacks that cost more do the share `dear`, and every stage of a generator a
    fifth.
    """

    data: Mapping[str, Any]
    network: str = "small_conv"
    network_options: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = True
    shuffled: bool = True
    learned: int = 1000
    retained: int = 2048
    epochs: int = 15
    batch: int = 64
    lr: float = 0.05
    targets: int = 32
    large_loss: bool = False
    decoys: int = 200
    probes: int = 512
    rate: float = 0.01
    ascent: float = 0.5
    restarts: int = 1
    iterations: int = 1000
    dear: float = 1.0
    prior_epochs: int = 60
    prior_batch: int = 64
    prior_width: int = 64
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        most = min(POOL, self.learned // (1 + RETAIN))
        if not 1 <= self.targets <= most:
            raise InputError(f"{self.targets} targets of {self.learned} learned images; give 1 to {most}")
        if not 0 < self.ascent <= 1 or not self.rate > 0:
            raise InputError(
                f"ascent is {self.ascent} and rate {self.rate}; give an ascent in (0, 1] and a rate above 0"
            )

    def search(self, attack: str) -> Search:
        """The search of an attack, "name" or "name@reading"."""
        name, base = attack.partition("@")[0], Search(restarts=self.restarts, iterations=self.iterations)
        if name == "differencing":
            return replace(base, tv=0.0, signed=False)
        if name in _DEAR:
            return replace(base, iterations=max(1, int(self.iterations * self.dear)))
        return replace(base, iterations=max(1, self.iterations // 5)) if name == "generative" else base


SIZES: Mapping[str, ReconstructionSettings] = {
    "small": ReconstructionSettings({"name": "digits"}, iterations=150, prior_epochs=20, prior_width=32),
    "paper": ReconstructionSettings(
        {"name": "cifar10"},
        network="resnet18",
        network_options={"stem": "cifar"},
        learned=15000,
        epochs=15,
        batch=256,
        lr=0.1,
        decoys=1000,
        iterations=600,
        dear=0.3,
        prior_epochs=25,
        prior_batch=256,
    ),
}


def reconstruction_settings(asked: Asked, size_name: str) -> ReconstructionSettings:
    """The settings of a size, with the data, seed, device and epochs asked for."""
    if size_name not in SIZES:
        raise InputError(f"there is no size {size_name!r}; {nearest(size_name, SIZES)}")
    size = SIZES[size_name]
    return replace(
        size,
        data={**size.data, "path": asked.data_path},
        epochs=size.epochs if asked.epochs is None else asked.epochs,
        seed=asked.seed,
        device=asked.device,
    )
