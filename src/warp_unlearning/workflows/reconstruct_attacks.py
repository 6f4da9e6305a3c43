"""Attacks on models after a request, one after another: which are tried, what they find, and how good that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..attacks.reconstruction.attacks import ATTACKS
from ..attacks.reconstruction.blind import BlindGuess, class_means, overall_mean, prior_alone
from ..attacks.reconstruction.judge import Assessment, assess, in_order, ordered_by_labels
from ..attacks.reconstruction.reconstruct import Reconstruction, reconstruct
from ..attacks.reconstruction.search import Search
from ..attacks.reconstruction.targets import readings
from ..attacks.reconstruction.threat import Threat
from ..attacks.undo import default_steps
from ..errors import InputError, nearest
from ..models.generator import Staged
from .attack_images import AttackImages
from .attacked_models import Attacked, Column
from .known_unlearning import KnownUnlearning
from .reconstruction_files import Grid

Labels = Literal["known", "inferred"]
Say = Callable[[str], None]

_MATCHED = (
    "labels do not say which image is which of those forgotten together, so each is compared with the one it fits "
    "best: PSNR is a little too high, and decoys are not compared"
)

# What undoes a defence by a search of its own, beside the pre-steps.
_BESIDE: Mapping[str | None, tuple[str, ...]] = {"cob": ("adaptive",), "conjugate": ("joint",), None: ("joint",)}


def named_attack(name: str) -> tuple[str, str | None]:
    """An attack by its name, or inversion by the name of a way to read the difference, with that way; or both by "@".

    >>> named_attack("joint"), named_attack("canonical+span"), named_attack("generative@filtered")
    (('joint', None), ('inversion', 'canonical+span'), ('generative', 'filtered'))
    """
    if name in ATTACKS:
        return name, None
    base, _, reading = name.partition("@")
    if base in ATTACKS and reading in readings():
        return base, reading
    if name in readings():
        return "inversion", name
    raise InputError(f"there is no attack {name!r}; {nearest(name, dict.fromkeys([*ATTACKS, *readings()]))}")


def default_attacks(known: KnownUnlearning, *, prior: bool) -> tuple[str, ...]:
    """Inversion, those that know the defence, all where nobody says what that was, and with a prior the generative."""
    chosen = ["inversion" if step == "naive" else step for step in default_steps(known.defense)]
    chosen += [name for name in _BESIDE.get(known.defense, ()) if name != "adaptive" or known.schedule is not None]
    return (*chosen, *(("generative",) if prior else ()))


@dataclass(frozen=True, eq=False)
class Attacker:
    """What all attacks on one original share. With `asked` every attack was named by the user, and one that finds no
    hold is an error; else it is left out, and the results say why.
    """

    original: nn.Module
    images: AttackImages
    classes: Sequence[str]
    labels: Labels
    restarts: int
    iterations: int
    seed: int
    asked: bool
    generator: nn.Module | None = None
    say: Say = lambda text: None

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return next(self.original.parameters()).device

    def grid(self, columns: Sequence[Column]) -> Grid:
        """The images attacked, in the order of the models, with nothing found yet."""
        positions = np.array(list(dict.fromkeys(i for column in columns for i in column.positions)), dtype=np.int64)
        labels = [int(self.images.train.y[i]) for i in positions]
        return Grid(positions, labels, [self.classes[i] for i in labels], self.images.truth(positions))

    def attack(self, column: Column, names: Sequence[str], grid: Grid) -> dict[str, Any]:
        """Every attack on the models of a column as plain data; the images found go into the grid."""
        threats = [self._threat(member) for member in column.members]
        rows = grid.rows(column.positions)
        done: list[dict[str, Any]] = []
        not_tried: dict[str, str] = {}
        for name in names:
            try:
                found = self._reconstruct(name, threats)
            except InputError as error:
                # A prior was given to be used.
                if self.asked or name in ("inversion", "generative"):
                    raise
                not_tried[name] = str(error)
                continue
            done.append(self._result(name, found, column, threats, grid))
            self.say(f"{name} on {column.name}: {found.seconds:.1f} s")
        known = column.known
        return {
            "name": column.name,
            "paths": [str(member.path) for member in column.members],
            "method": known.method,
            "method_settings": dict(known.settings),
            "defense": known.defense,
            "rows": rows,
            "threat": list(threats[0].lines()),
            "attacks": done,
            "not_tried": not_tried,
            "notes": list(known.notes),
        }

    def _threat(self, member: Attacked) -> Threat:
        known = member.known
        return Threat(
            self.original,
            member.source.model.to(self.device).eval(),
            self.images.pixels,
            labels=self.images.train.y[member.forget] if self._labelled(known) else None,
            count=len(member.forget),
            ascent=known.ascent,
            probes=self._probes,
            generator=None if self.generator is None else cast(Staged, self.generator.to(self.device)),
            method=known.method,
            settings=known.settings,
            schedule=known.schedule,
            defense=known.defense,
        )

    @cached_property
    def _probes(self) -> tuple[Tensor, Tensor]:
        """One object for all threats, since those that are attacked together share it."""
        probes = self.images.probes.to(self.device)
        return probes.x, probes.y

    def _labelled(self, known: KnownUnlearning) -> bool:
        return self.labels == "known" and known.own_labels

    def _search(self, attack: str) -> Search:
        if attack == "differencing":
            return Search(restarts=self.restarts, iterations=self.iterations, tv=0.0, signed=False)
        return Search(restarts=self.restarts, iterations=self.iterations)

    def _reconstruct(self, name: str, threats: Sequence[Threat]) -> Reconstruction:
        attack, after = named_attack(name)
        return reconstruct(threats, attack=attack, after=after, search=self._search(attack), seed=self.seed)

    def _result(
        self, name: str, found: Reconstruction, column: Column, threats: Sequence[Threat], grid: Grid
    ) -> dict[str, Any]:
        truth = torch.stack([self.images.truth(m.forget) for m in column.members]).to(self.device)
        labels = torch.stack([self.images.train.y[m.forget] for m in column.members]).to(self.device)
        blind = self._blind(found, column, threats, truth, labels)
        assessed = self._assessed(found, blind, truth, labels)
        rows = grid.rows(column.positions)
        if "class mean" in blind:
            grid.add_blind(rows, blind["class mean"].images)
        matched = () if ordered_by_labels(found.labels, labels) else (_MATCHED,)
        about = {key: value for key, value in found.as_json().items() if key not in ("threat", "notes")}
        return {
            "name": name,
            **about,
            **assessed.as_json(),
            "notes": [*found.notes, *(guess.note for guess in blind.values() if guess.note), *matched],
            "array": grid.add(column.name, name, rows, assessed.images),
        }

    def _blind(
        self, found: Reconstruction, column: Column, threats: Sequence[Threat], truth: Tensor, labels: Tensor
    ) -> dict[str, BlindGuess]:
        """Attackers who saw nothing: the mean of the class where labels are known, and the prior of this attack."""
        probes, labelled = self.images.probes.to(self.device), self._labelled(column.known)
        images = self.images.pixels.images(probes.x).clamp(0, 1)
        mean = (
            class_means(images, probes.y, labels.flatten()) if labelled else overall_mean(images, count=labels.numel())
        )
        drawn = prior_alone(threats, attack=found.attack, search=self._search(found.attack), seed=self.seed)
        alone = in_order(drawn, labels if labelled else None, truth, labels)
        return {mean.name: mean, "prior alone": BlindGuess("prior alone", alone)}

    def _assessed(
        self, found: Reconstruction, blind: Mapping[str, BlindGuess], truth: Tensor, labels: Tensor
    ) -> Assessment:
        decoys = self.images.decoys
        return assess(
            found.images,
            truth,
            blind=blind,
            labels=labels,
            found_labels=found.labels,
            decoys=None if decoys is None else (decoys[0].to(self.device), decoys[1].to(self.device)),
            model=self.original,
            pixels=self.images.pixels,
        )
