"""Attacks on forgotten images beside what they are compared with: the attacker's probes, decoys, and blind guesses.

Probes and decoys come from what every model still knows, without exact copies of what was forgotten, and no image is
both. Decoys are never among the images that a prior has learned from; where too few are left they are test images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...data.examples import TensorExamples
from ...data.preprocess import ImageData, Pixels, image_digests, pixels_of
from ...data.sampling import draw, draw_per_class
from ...data.table import Index
from ...errors import DataError, InputError
from ...models.generator import Staged
from ...randomness import Streams
from .attacks import find_attack
from .blind import BlindGuess, class_means, overall_mean, prior_alone
from .judge import Assessment, BeyondPrior, adjusted_p, assess, in_order, ordered_by_labels
from .reconstruct import Reconstruction, reconstruct
from .search import Search
from .threat import KnownUnlearning, Threat

# Decoys of a class: more narrow no interval, and fewer cannot decide about one image after a correction for the
# attacks. Test images can, though they are not drawn as the targets were.
_DECOYS, _ENOUGH = 300, 39
_ROUNDING = 1e-3
_MATCHED = (
    "labels do not say which image is which of those forgotten together, so each is compared with the one it fits "
    "best: PSNR is a little too high, and decoys are not compared"
)

Seen = Callable[[Tensor], Index]


@dataclass(frozen=True, eq=False)
class AttackImages:
    """`probes` are examples as the model takes them, in random order; `decoys` images in [0, 1] and their labels, None
    where the data have too few.
    """

    pixels: Pixels
    train: TensorExamples
    probe_index: Index
    probes: TensorExamples
    decoys: tuple[Tensor, Tensor] | None
    notes: tuple[str, ...]

    def truth(self, index: Index) -> Tensor:
        """The images at these positions of the training part, with values in [0, 1]."""
        return unit_images(self.pixels, self.train.x[index])


def gather_images(
    data: ImageData, *, targets: Index, known: Index, probes: int, seed: int, seen: Seen | None = None
) -> AttackImages:
    """Probes and decoys for attacks on `targets`, from the training rows that every model knows; `seen` finds those of
    some images that a prior has learned from.
    """
    pixels, train, streams = pixels_of(data), data.train, Streams(seed, "attack images")
    pool = np.setdiff1d(known, targets)
    pool = pool[_not_copies(pixels, train.x[pool], train.x[targets])]
    count = min(probes, len(pool) // 2)
    if count < 1:
        raise InputError(f"{len(pool)} retained examples leave none to probe with; give models that retained more")
    labels = train.y.cpu().numpy()
    drawn = pool[draw_per_class(labels[pool], count=count, generator=streams.generator("probes"))]
    # Some attacks use the first probes alone, and data sets may be sorted by class.
    drawn = drawn[torch.randperm(len(drawn), generator=streams.generator("order")).numpy()]
    notes = [] if count == probes else [f"{count} probes instead of {probes}: {len(pool)} examples were retained"]
    wanted = {int(label): int(n) for label, n in zip(*np.unique(labels[targets], return_counts=True), strict=True)}

    def draw_decoys(examples: TensorExamples, rows: Index, *, least: int) -> tuple[Tensor, Tensor] | None:
        """Images of each class, `_DECOYS` or as many as its targets; None where one has fewer than these or `least`."""
        every, chosen = examples.y.cpu().numpy(), []
        for label, targets in wanted.items():
            own = rows[every[rows] == label]
            if seen is not None and len(own):
                own = np.delete(own, seen(unit_images(pixels, examples.x[own])))
            if len(own) < max(least, targets):
                return None
            chosen.append(draw(own, count=max(_DECOYS, targets), generator=streams.generator("decoys", label)))
        index = torch.from_numpy(np.concatenate(chosen))
        return unit_images(pixels, examples.x[index]), examples.y[index]

    decoys = draw_decoys(train, np.setdiff1d(pool, drawn), least=_ENOUGH)
    if decoys is None:
        decoys = draw_decoys(data.test, _not_copies(pixels, data.test.x, train.x[targets]), least=2)
        notes.append(
            "too few images of the classes for decoys: whether a target is told from its class is not measured"
            if decoys is None
            else "decoys are test images: too few retained ones are left that the attacker does not hold"
        )
    return AttackImages(pixels, train, np.sort(drawn), train.select(torch.from_numpy(drawn)), decoys, tuple(notes))


def _not_copies(pixels: Pixels, inputs: Tensor, targets: Tensor) -> Index:
    """Rows of `inputs` that show none of the targets."""
    if not len(inputs):
        return np.empty(0, dtype=np.int64)
    known = set(image_digests(unit_images(pixels, targets)))
    rows = [row for row, digest in enumerate(image_digests(unit_images(pixels, inputs))) if digest not in known]
    return np.array(rows, dtype=np.int64)


def unit_images(pixels: Pixels, inputs: Tensor) -> Tensor:
    """The images of model inputs, if their values lie in [0, 1]."""
    images = pixels.images(inputs)
    low, high = float(images.min()), float(images.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise DataError(
            f"the examples have values from {low:.3g} to {high:.3g} and images lie in [0, 1]; save them as 8-bit "
            "images or scale them there"
        )
    return images.clamp(0, 1)


@dataclass(frozen=True, eq=False)
class Attacked:
    """A model after a request, where it is, the rows that it forgot, and what an attacker knows of that. `way` tells
    apart all that decided how it was made.
    """

    path: Path
    model: nn.Module
    forget: Index
    known: KnownUnlearning
    way: str = ""


def in_columns(models: Sequence[Attacked]) -> dict[str, list[Attacked]]:
    """Models of one method, defence and settings by a name for them, where they forgot different examples; one of which
    nothing is known by itself, under the name of its file.
    """
    groups: dict[tuple[str, str, int], list[Attacked]] = {}
    for one in models:
        known, repeat = one.known, 1
        defense = "" if known.defense == "none" else f" + {known.defense or 'a defence'}"
        way = (one.path.name, str(one.path.resolve())) if known.method is None else (known.method + defense, one.way)
        while any(np.intersect1d(one.forget, other.forget).size for other in groups.get((*way, repeat), [])):
            repeat += 1
        groups.setdefault((*way, repeat), []).append(one)
    seen: Counter[str] = Counter()
    columns = {}
    for (name, _, _), members in groups.items():
        seen[name] += 1
        columns[name if seen[name] == 1 else f"{name} ({seen[name]})"] = members
    return columns


class AuditedAttack(NamedTuple):
    """What an attack found, how good that is, and notes on both."""

    found: Reconstruction
    assessed: Assessment
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class AuditedModel:
    """The attacks by name on models made in one way, what the attacker holds, and attacks that cannot be made with the
    reason.
    """

    members: Sequence[Attacked]
    threat: tuple[str, ...]
    attacks: Mapping[str, AuditedAttack]
    not_tried: Mapping[str, str]

    @property
    def positions(self) -> list[int]:
        """The rows that were forgotten, one request after another."""
        return [int(i) for member in self.members for i in member.forget]

    @property
    def evidence(self) -> dict[str, BeyondPrior]:
        """The attacks as evidence of the claim *beyond prior*."""
        return {name: attack.assessed.beyond for name, attack in self.attacks.items()}

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the images."""
        known, adjusted, attacks = self.members[0].known, adjusted_p(self.evidence), []
        for name, (found, assessed, notes) in self.attacks.items():
            plain = found.as_json()
            about = {key: plain[key] for key in ("after", "labels", "losses", "restarts", "settings", "seconds")}
            about |= {**assessed.as_json(), "beyond": assessed.beyond.as_json(), "adjusted_p": adjusted[name]}
            attacks.append({"name": name, "notes": notes, **about})
        return {
            "paths": [str(member.path) for member in self.members],
            "method": known.method,
            "method_settings": dict(known.settings),
            "defense": known.defense,
            "threat": self.threat,
            "attacks": attacks,
            "not_tried": dict(self.not_tried),
            "notes": known.notes,
        }


@dataclass(frozen=True, eq=False)
class ImageAudit:
    """What all attacks on models that start from one original share. `told` says whether attackers know the labels."""

    original: nn.Module
    images: AttackImages
    told: bool = True
    generator: nn.Module | None = None
    restarts: int = Search.restarts
    iterations: int = Search.iterations
    seed: int = 0

    def audit(
        self, models: Sequence[Attacked], attacks: Sequence[str], *, strict: bool, watch: Callable[[str, float], None]
    ) -> AuditedModel:
        """Carry out attacks on models made in one way. One that cannot be made is an error where `strict`, else left
        out; plain inversion and an attack through the generator that was given never are. `watch` gets the name and
        the seconds of each.
        """
        threats = [self._threat(one) for one in models]
        found: dict[str, AuditedAttack] = {}
        not_tried: dict[str, str] = {}
        for attack in attacks:
            try:
                found[attack] = self._attack(threats, [one.forget for one in models], attack)
            except InputError as error:
                if strict or attack in ("inversion", "generative"):
                    raise
                not_tried[attack] = str(error)
            else:
                watch(attack, found[attack].found.seconds)
        return AuditedModel(models, threats[0].lines(), found, not_tried)

    @cached_property
    def _probes(self) -> tuple[Tensor, Tensor]:
        """One object for all threats, since those that are attacked together share it."""
        probes = self.images.probes.to(next(self.original.parameters()).device)
        return probes.x, probes.y

    def _threat(self, one: Attacked) -> Threat:
        known, device = one.known, next(self.original.parameters()).device
        return Threat(
            self.original,
            one.model.to(device).eval(),
            self.images.pixels,
            labels=self.images.train.y[one.forget] if self.told and known.own_labels else None,
            count=len(one.forget),
            ascent=known.ascent,
            probes=self._probes,
            generator=None if self.generator is None else cast(Staged, self.generator.to(device)),
            method=known.method,
            settings=known.settings,
            schedule=known.schedule,
            defense=known.defense,
        )

    def _attack(self, threats: Sequence[Threat], forgotten: Sequence[Index], attack: str) -> AuditedAttack:
        search = find_attack(attack).search(restarts=self.restarts, iterations=self.iterations)
        images = self.images
        found = reconstruct(threats, attack=attack, search=search, seed=self.seed)
        device, told = threats[0].device, threats[0].labels is not None
        truth = torch.stack([images.truth(rows) for rows in forgotten]).to(device)
        labels = torch.stack([images.train.y[torch.from_numpy(rows)] for rows in forgotten]).to(device)
        shown, theirs = images.pixels.images(self._probes[0]).clamp(0, 1), labels.flatten()
        mean = class_means(shown, self._probes[1], theirs) if told else overall_mean(shown, count=len(theirs))
        alone = prior_alone(threats, attack=attack, search=search, seed=self.seed)
        alone = in_order(alone, labels if told else None, truth, labels)
        assessed = assess(
            found.images,
            truth,
            blind={mean.name: mean, "prior alone": BlindGuess("prior alone", alone)},
            labels=labels,
            found_labels=found.labels,
            decoys=None if images.decoys is None else (images.decoys[0].to(device), images.decoys[1].to(device)),
            model=self.original,
            pixels=images.pixels,
        )
        matched = () if ordered_by_labels(found.labels, labels) else (_MATCHED,)
        notes = (*found.notes, *([mean.note] if mean.note else []), *matched)
        return AuditedAttack(found, assessed, notes)
