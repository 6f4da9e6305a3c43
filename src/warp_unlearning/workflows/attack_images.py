"""The images of a reconstruction: those attacked, the attacker's probes, and decoys to tell a target from its class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..cli.subject import Subject
from ..data.examples import TensorExamples
from ..data.preprocess import Pixels, image_digests, pixels_of
from ..data.sampling import draw, draw_per_class
from ..data.table import Index
from ..errors import DataError, InputError
from ..randomness import Streams

# More decoys of a class cost memory and narrow no interval.
_DECOYS = 100
# Fewer retained ones cannot decide about one image, and test images can, though they are not drawn as the targets were.
_ENOUGH = 39
_ROUNDING = 1e-3

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
    original: Subject,
    forgotten: Sequence[Index],
    kept: Sequence[Index],
    *,
    probes: int,
    seed: int,
    seen: Seen | None = None,
) -> AttackImages:
    """Probes and decoys for requests that forgot `forgotten` and left models that know `kept`.

    Both are drawn from what every model still knows, without exact copies of what was forgotten, and no image is both.
    Decoys are never among those that a prior has learned from, by `seen`; where too few are left they are test images.
    """
    pixels, train, streams = pixels_of(original.data), original.data.train, Streams(seed, "attack images")
    targets = np.unique(np.concatenate(list(forgotten)))
    pool = _pool(original, targets, kept)
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
    rest = np.setdiff1d(pool, drawn)
    draw_decoys = partial(_decoys, pixels, wanted=wanted, streams=streams, seen=seen)
    decoys = draw_decoys(train, rest, least=_ENOUGH)
    if decoys is None:
        test = original.data.test
        away = _not_copies(pixels, test.x, train.x[targets])
        decoys = draw_decoys(test, away, least=2)
        notes.append(
            "too few images of the classes for decoys: whether a target is told from its class is not measured"
            if decoys is None
            else "decoys are test images: too few retained ones are left that the attacker does not hold"
        )
    return AttackImages(pixels, train, np.sort(drawn), train.select(torch.from_numpy(drawn)), decoys, tuple(notes))


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


def _pool(original: Subject, targets: Index, kept: Sequence[Index]) -> Index:
    known = original.known
    for after in kept:
        known = np.intersect1d(known, after)
    return np.setdiff1d(known, targets)


def _not_copies(pixels: Pixels, inputs: Tensor, targets: Tensor) -> Index:
    """Rows of `inputs` that show none of the targets."""
    if not len(inputs):
        return np.empty(0, dtype=np.int64)
    known = set(image_digests(unit_images(pixels, targets)))
    rows = [row for row, digest in enumerate(image_digests(unit_images(pixels, inputs))) if digest not in known]
    return np.array(rows, dtype=np.int64)


def _decoys(
    pixels: Pixels,
    examples: TensorExamples,
    pool: Index,
    *,
    wanted: dict[int, int],
    least: int,
    streams: Streams,
    seen: Seen | None,
) -> tuple[Tensor, Tensor] | None:
    """For each class as many images as there are, `_DECOYS` or its targets at most; None where one has fewer than its
    targets, or than `least`.
    """
    labels = examples.y.cpu().numpy()
    chosen = []
    for label, targets in wanted.items():
        own = pool[labels[pool] == label]
        if seen is not None and len(own):
            own = np.delete(own, seen(unit_images(pixels, examples.x[own])))
        if len(own) < max(least, targets):
            return None
        chosen.append(draw(own, count=max(_DECOYS, targets), generator=streams.generator("decoys", label)))
    index = torch.from_numpy(np.concatenate(chosen))
    return unit_images(pixels, examples.x[index]), examples.y[index]
