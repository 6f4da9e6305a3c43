"""A generator in a weight file, with the images that it has seen, so that it is never used to find one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..data.image_digests import image_digests
from ..data.table import Index
from ..errors import InputError, WeightsError
from .conv_generator import ConvGenerator
from .weights import load_weights, read_weights, save_weights

KIND = "prior"
PRIOR = "prior.safetensors"
"""Its name in a run directory."""
_DIGITS = 16


def save_prior(path: Path, generator: ConvGenerator, *, header: Mapping[str, object]) -> None:
    """Write the generator to `path` (.safetensors) with `header`, which holds what `seen_header` gave."""
    save_weights(path, generator, header={**header, "kind": KIND, "options": generator.options})


def load_prior(path: Path) -> tuple[ConvGenerator, dict[str, object]]:
    """The generator in `path`, a file or a run of `warp train-prior`, in eval mode and frozen, and its header."""
    path = path / PRIOR if path.is_dir() else path
    weights = read_weights(path)
    options = weights.header.get("options")
    if weights.header.get("kind") != KIND or not isinstance(options, Mapping):
        raise WeightsError(f"{path} holds no generator of `warp train-prior`; give the prior.safetensors of such a run")
    generator = _built(options, path)
    load_weights(generator, weights, source=str(path))
    return generator.eval().requires_grad_(False), weights.header


def _built(options: Mapping[str, object], path: Path) -> ConvGenerator:
    shape = options.get("shape")
    if not isinstance(shape, Sequence) or set(options) != {"shape", "latent", "width", "classes"}:
        raise WeightsError(
            f"the header of {path} has the options {dict(options)}; it is damaged: train the prior again"
        )
    return ConvGenerator(**{**options, "shape": tuple(shape)})  # type: ignore[arg-type]


def seen_header(images: Tensor, positions: Index, *, data: str, data_digest: str) -> dict[str, object]:
    """What a header says of the images learned from: their positions in the training part of the data set, as first and
    last of each run of neighbours, and their digests one after another.
    """
    if len(images) != len(positions):
        raise InputError(f"there are {len(images)} images and {len(positions)} positions; give one for each image")
    runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1) if len(positions) else []
    return {
        "data": data,
        "data_digest": data_digest,
        "positions": [[int(run[0]), int(run[-1])] for run in runs],
        "digests": "".join(image_digests(images)),
    }


def saw(
    header: Mapping[str, object],
    *,
    positions: Index | None = None,
    data_digest: str | None = None,
    images: Tensor | None = None,
) -> Index:
    """Which rows of what is given the prior has learned from, sorted: by `positions` in the training part of the data
    set with `data_digest`, by the `images` (n, c, h, w) in [0, 1] themselves, or by either.

    Positions in another data set than the prior's say nothing, so images are then needed.
    """
    if (positions is None) != (data_digest is None) or (positions is None and images is None):
        raise InputError("give images, or positions with the data_digest of the data set they are in, or all three")
    found: set[int] = set()
    if images is not None:
        known = _digests(header)
        found |= {row for row, digest in enumerate(image_digests(images)) if digest in known}
    if positions is not None and data_digest == header.get("data_digest"):
        found |= set(np.flatnonzero(np.isin(positions, _positions(header))).tolist())
    elif images is None:
        raise InputError(
            f"the prior was trained on other data ({header.get('data')}, digest {str(header.get('data_digest'))[:12]}) "
            f"than the positions are in (digest {str(data_digest)[:12]}); give the images themselves"
        )
    return np.array(sorted(found), dtype=np.int64)


def _digests(header: Mapping[str, object]) -> set[str]:
    text = header.get("digests")
    if not isinstance(text, str) or len(text) % _DIGITS:
        raise WeightsError("the prior's header does not say which images it has seen; train it again")
    return {text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)}


def _positions(header: Mapping[str, object]) -> Index:
    runs = header.get("positions")
    try:
        parts = [np.arange(first, last + 1, dtype=np.int64) for first, last in runs]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise WeightsError("the prior's header does not say which images it has seen; train it again") from error
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
