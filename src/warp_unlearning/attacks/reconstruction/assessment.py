"""How good reconstructions are, beside attacks that saw nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ...data.preprocess import Pixels
from ...errors import InputError
from .beyond_prior import BeyondPrior, beyond_prior
from .blind import BlindGuess
from .identification import Identification, identification
from .image_order import in_order, ordered_by_labels
from .image_scores import ImageScores, score_images
from .lpips import Lpips


@dataclass(frozen=True, eq=False)
class Assessment:
    """Scores of the attack and of blind attacks on the same images, and what the comparison says. `images` are the
    reconstructions in the order of the truth.
    """

    images: Tensor
    scores: ImageScores
    blind: Mapping[str, ImageScores]
    beyond: BeyondPrior
    identification: Identification | None

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the images."""
        return {
            "scores": self.scores.as_json(),
            "blind": {name: scores.as_json() for name, scores in self.blind.items()},
            "beyond": self.beyond.as_json(),
        }


def assess(
    images: Tensor,
    truth: Tensor,
    *,
    blind: Mapping[str, BlindGuess] | None = None,
    labels: Tensor | None = None,
    found_labels: Tensor | None = None,
    decoys: tuple[Tensor, Tensor] | None = None,
    model: nn.Module | None = None,
    pixels: Pixels | None = None,
    lpips: Lpips | None = None,
) -> Assessment:
    """Compare images (n, count, channels, height, width) with the truth of the same shape.

    Images found for examples that were forgotten together have no order: they are matched to the truth one to one, by
    `found_labels` and `labels`, both (n, count), and within a label for the least error. `decoys`, images and labels
    drawn as the targets were, are for identification, which is left out where labels do not decide the order: images
    matched to what they fit best resemble it by that alone. `blind` has guesses for the n·count images in their order.
    """
    if images.shape != truth.shape:
        raise InputError(f"images have shape {tuple(images.shape)} and the truth {tuple(truth.shape)}; give as many")
    true, one_each = truth.flatten(0, 1), images.shape[1] == 1
    if labels is None and not one_each:
        raise InputError("images forgotten together are told apart by their labels; give labels, and those found")
    found = images.flatten(0, 1) if labels is None else in_order(images, found_labels, truth, labels)
    ordered = one_each or (labels is not None and found_labels is not None and ordered_by_labels(found_labels, labels))
    scores = score_images(found, true, model=model, pixels=pixels, lpips=lpips)
    others = {
        name: score_images(guess.images.to(true), true, model=model, pixels=pixels, lpips=lpips)
        for name, guess in (blind or {}).items()
    }
    named = None
    if decoys is not None and labels is not None and ordered:
        named = identification(found, true, labels.flatten(), decoys=decoys[0], decoy_labels=decoys[1])
    return Assessment(found, scores, others, beyond_prior(scores, others, identification=named), named)
