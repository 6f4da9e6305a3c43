"""The image prior of reconstruction: generators in stages, ours, its encoder, and its weight file.

Stage 0 maps latents (n, *latent), which are standard normal a priori, to features; each other stage maps the features
of the one before; the last gives images (n, channels, height, width) with values in [0, 1]. So a search over images may
start from latents and go on from the features of any stage. A generator with `classes` has a `condition`, which makes
one tensor of latents and labels that every stage takes as a second argument; features mean something only beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.preprocess import image_digests
from ..data.table import Index
from ..errors import InputError, WeightsError, reason
from .networks import require_positive
from .own import built, load_function
from .weights import load_weights, read_weights, save_weights

PRIOR = "prior.safetensors"
_DIGITS = 16  # Characters of the digest of one image.


@runtime_checkable
class Staged(Protocol):
    """A generator of images in one or more stages: the shape of one latent, of one image (channels, height, width), and
    the number of labels; where that is not None it also has `condition(latents, labels)`, of shape (n, ...).
    """

    @property
    def latent(self) -> tuple[int, ...]: ...
    @property
    def image_shape(self) -> tuple[int, int, int]: ...
    @property
    def classes(self) -> int | None: ...
    @property
    def stages(self) -> Sequence[nn.Module]: ...


class StageList(nn.Module):
    """Any modules as a generator without labels.

    >>> pixels = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Unflatten(1, (1, 2, 2)))
    >>> mine = StageList([nn.Linear(3, 2), pixels], latent=3, image_shape=(1, 2, 2))
    >>> tuple(generate(mine, torch.zeros(5, 3)).shape)
    (5, 1, 2, 2)
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        latent: int | tuple[int, ...],
        image_shape: tuple[int, int, int],
        classes: None = None,
    ) -> None:
        super().__init__()
        self._listed = nn.ModuleList(stages)
        self.latent = (latent,) if isinstance(latent, int) else latent
        self.image_shape, self.classes = image_shape, classes

    @property
    def stages(self) -> Sequence[nn.Module]:
        """The modules in the order that they are applied."""
        return list(self._listed)


def condition_of(generator: Staged, latents: Tensor, labels: Tensor | None) -> Tensor | None:
    """The second argument of every stage, or None for a generator without labels, which ignores those given."""
    if generator.classes is None:
        return None
    condition = getattr(generator, "condition", None)
    about = f"{type(generator).__name__} has {generator.classes} classes"
    if condition is None:
        raise InputError(f"{about} and no method condition(latents, labels); define it, or set classes to None")
    if labels is None:
        raise InputError(f"{about} and got no labels; give one for each latent, or use a generator without classes")
    return cast(Tensor, condition(latents, labels))


def generate(generator: Staged, latents: Tensor, labels: Tensor | None = None) -> Tensor:
    """The images (n, channels, height, width) of latents (n, *latent), and labels (n,) for a conditional generator."""
    return generate_from(generator, latents, 0, condition=condition_of(generator, latents, labels))


def generate_from(generator: Staged, features: Tensor, stage: int, *, condition: Tensor | None = None) -> Tensor:
    """The images of what goes into stage number `stage`: latents for stage 0, else the features of the one before."""
    for module in generator.stages[stage:]:
        features = module(features) if condition is None else module(features, condition)
    return features


def frozen_copy(generator: Staged) -> Staged:
    """The generator in eval mode with weights that ask for no gradient; the one given stays as it is."""
    copy = deepcopy(generator)
    for stage in copy.stages:
        stage.eval().requires_grad_(False)
    return copy


def dtype_of(generator: Staged) -> torch.dtype:
    """The precision of a generator's weights, float32 where it has none."""
    weights = (p for stage in generator.stages for p in stage.parameters() if p.is_floating_point())
    return next((p.dtype for p in weights), torch.float32)


@torch.no_grad()
def check_generator(generator: Staged, *, shape: tuple[int, ...], device: torch.device | str = "cpu") -> None:
    """Raise where `generator` cannot stand for images of `shape`, as two drawn images show."""
    if not generator.stages:
        raise InputError("the generator has no stages; give at least one that maps latents to images")
    for name, sizes in (("latent", generator.latent), ("image_shape", generator.image_shape)):
        if not isinstance(sizes, Sequence) or not all(isinstance(size, int) for size in sizes):
            kind = f"{name} of the generator is {sizes!r}, of type {type(sizes).__name__}"
            raise InputError(f"{kind}; make it a tuple, such as {'(16,)' if name == 'latent' else '(1, 8, 8)'}")
    if tuple(generator.image_shape) != tuple(shape):
        drawn = f"the generator draws images {_text(generator.image_shape)} and those looked for are {_text(shape)}"
        raise InputError(f"{drawn}; train one on such images with `warp train-prior`, or resize in its last stage")
    latents = torch.randn(2, *generator.latent, generator=torch.Generator().manual_seed(0))
    labels = None if generator.classes is None else torch.arange(2, device=device) % generator.classes
    try:
        images = generate(generator, latents.to(device, dtype_of(generator)), labels)
    except (RuntimeError, ValueError, TypeError) as error:
        failed = f"cannot take latents {_text(generator.latent)} on {device}: {reason(error)}"
        raise InputError(f"the generator {failed}; its stages must fit each other and be on that device") from error
    if tuple(images.shape) != (2, *shape):
        raise InputError(f"two images of {_text(shape)} came out as {tuple(images.shape)}; mend the last stage")
    low, high = float(images.min()), float(images.max())
    # Rounding may carry a value a little beyond; NaN is in no range.
    if not (low >= -1e-4 and high <= 1 + 1e-4):
        drawn = f"the generator draws values from {low:.3g} to {high:.3g} and images lie in [0, 1]"
        raise InputError(f"{drawn}; end its last stage with a sigmoid, or load other weights")


def _text(shape: Sequence[int]) -> str:
    return "×".join(str(size) for size in shape)


def _plan(height: int, width: int, channels: int) -> list[tuple[int, tuple[int, int]]]:
    # Channels, height and width from the smallest resolution to the whole image: each size is half of the next, none is
    # below 4; `channels` at the end, and at most 4 times as many before.
    sizes = [(height, width)]
    while all(size % 2 == 0 and size >= 8 for size in sizes[0]):
        sizes.insert(0, (sizes[0][0] // 2, sizes[0][1] // 2))
    return [(channels * min(4, 2 ** (len(sizes) - 1 - i)), size) for i, size in enumerate(sizes)]


def _group_norm(channels: int) -> nn.GroupNorm:
    # By groups, so that no image of a batch sees another.
    return nn.GroupNorm(gcd(8, channels), channels)


def _modulated(x: Tensor, modulation: nn.Module | None, condition: Tensor | None) -> Tensor:
    # x · (1 + a) + b, with a and b linear in the condition (n, conditions).
    if modulation is None:
        return x
    scale, shift = modulation(condition)[:, :, None, None].chunk(2, dim=1)
    return cast(Tensor, x * (1 + scale) + shift)


class _Block(nn.Module):
    """shortcut(x) + conv(silu(norm(conv(silu(norm(x)))))) with 3x3 convolutions, the second norm modulated where there
    are `conditions`; x is first doubled in height and width if `up`, the sum halved by averages of four if `down`.
    """

    def __init__(
        self, before: int, after: int, *, up: bool = False, down: bool = False, conditions: int | None = None
    ) -> None:
        super().__init__()
        self.up, self.down = up, down
        self.norm1, self.norm2 = _group_norm(before), _group_norm(after)
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.modulation = nn.Linear(conditions, 2 * after) if conditions else None

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        if self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        inner = _modulated(self.norm2(self.conv1(F.silu(self.norm1(x)))), self.modulation, condition)
        found = self.shortcut(x) + self.conv2(F.silu(inner))
        return F.avg_pool2d(found, 2) if self.down else cast(Tensor, found)


class _FirstStage(nn.Module):
    """Latents (n, latent) to features (n, channels, height, width): a linear map and a residual block."""

    def __init__(self, latent: int, channels: int, size: tuple[int, int], *, conditions: int | None) -> None:
        super().__init__()
        self.shape = (channels, *size)
        self.linear = nn.Linear(latent, channels * size[0] * size[1])
        self.block = _Block(channels, channels, conditions=conditions)

    def forward(self, latents: Tensor, condition: Tensor | None = None) -> Tensor:
        return cast(Tensor, self.block(self.linear(latents).unflatten(1, self.shape), condition))


class _LastStage(nn.Module):
    """Features of the whole resolution to images, sigmoid(conv(silu(norm(x))))."""

    def __init__(self, channels_in: int, channels_out: int, *, conditions: int | None) -> None:
        super().__init__()
        self.norm = _group_norm(channels_in)
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.modulation = nn.Linear(conditions, 2 * channels_in) if conditions else None

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        return torch.sigmoid(self.conv(F.silu(_modulated(self.norm(x), self.modulation, condition))))


class ConvGenerator(nn.Module):
    """Images of `shape` (channels, height, width) from latents of `latent` numbers, in stages.

    Stage 0 gives features of the smallest resolution, each next stage doubles it, with `width` channels at the end and
    up to 4 times as many before, and the last makes the image. With `classes` each also sees an embedding of the label.
    """

    def __init__(
        self, *, shape: tuple[int, int, int], latent: int = 128, width: int = 64, classes: int | None = None
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise InputError(f"images have shape {tuple(shape)}; give (channels, height, width)")
        named = dict(zip(("channels", "height", "width of the image"), shape, strict=True))
        require_positive({**named, "latent": latent, "width": width, "classes": 1 if classes is None else classes})
        self.latent, self.image_shape, self.classes, self.width = (latent,), shape, classes, width
        conditions = None if classes is None else latent
        self.embedding = None if classes is None else nn.Embedding(classes, latent)
        plan = _plan(shape[1], shape[2], width)
        first = _FirstStage(latent, *plan[0], conditions=conditions)
        blocks = [_Block(a, b, up=True, conditions=conditions) for (a, _), (b, _) in pairwise(plan)]
        self.blocks = nn.ModuleList([first, *blocks, _LastStage(width, shape[0], conditions=conditions)])

    @property
    def stages(self) -> Sequence[nn.Module]:
        """One for each resolution, and one that makes the image."""
        return list(self.blocks)

    @property
    def options(self) -> dict[str, object]:
        """What builds one alike, as plain data."""
        return {"shape": list(self.image_shape), "latent": self.latent[0], "width": self.width, "classes": self.classes}

    def condition(self, latents: Tensor, labels: Tensor) -> Tensor:
        """The embeddings (n, latent) of labels (n,)."""
        if self.embedding is None:
            raise InputError("this generator was built without classes and takes no labels; leave them out")
        return cast(Tensor, self.embedding(labels))

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        """The images (n, channels, height, width) of latents (n, latent)."""
        return generate(self, latents, labels)


class ConvEncoder(nn.Module):
    """q(z | x) = N(mean, exp(log variance)), the mirror image of a generator of the same `shape`, `latent`, `width`."""

    def __init__(self, *, shape: tuple[int, int, int], latent: int, width: int) -> None:
        super().__init__()
        plan = _plan(shape[1], shape[2], width)[::-1]
        last, (high, wide) = plan[-1]
        self.first = nn.Conv2d(shape[0], width, 3, padding=1)
        self.blocks = nn.Sequential(*(_Block(a, b, down=True) for (a, _), (b, _) in pairwise(plan)))
        self.norm = _group_norm(last)
        self.last = nn.Linear(last * high * wide, 2 * latent)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance (n, latent) of the latents of images (n, channels, h, w) with values in [0, 1]."""
        features = F.silu(self.norm(self.blocks(self.first(2 * images - 1))))
        mean, log_variance = self.last(features.flatten(1)).chunk(2, dim=1)
        return mean, log_variance


def save_prior(path: Path, generator: ConvGenerator, *, header: Mapping[str, object]) -> None:
    """Write the generator to `path` (.safetensors) with `header`, which holds what `seen_header` gave."""
    save_weights(path, generator, header={**header, "kind": "prior", "options": generator.options})


def load_prior(path: Path) -> tuple[nn.Module, dict[str, object] | None]:
    """The generator in `path`, a file or a run of `warp train-prior`, in eval mode and frozen, and its header; or what
    the function in FILE.py:NAME returns, of which nothing says what it has seen: None.
    """
    if ".py:" in str(path):
        found = built(str(path), load_function(str(path), what="generator"))
        if not isinstance(found, Staged):
            way = "make it return an nn.Module with latent, image_shape, classes and stages, such as a StageList"
            raise InputError(f"{path} returned a {type(found).__name__}; {way}")
        return found.eval().requires_grad_(False), None
    path = path / PRIOR if path.is_dir() else path
    weights = read_weights(path)
    options: Any = weights.header.get("options")
    known = isinstance(options, Mapping) and set(options) == {"shape", "latent", "width", "classes"}
    if weights.header.get("kind") != "prior" or not known or not isinstance(options["shape"], list):
        raise WeightsError(f"{path} holds no generator of `warp train-prior`; give the prior.safetensors of such a run")
    generator = ConvGenerator(**{**options, "shape": tuple(options["shape"])})
    load_weights(generator, weights, source=str(path))
    return generator.eval().requires_grad_(False), weights.header


def seen_header(images: Tensor, *, data: str, data_digest: str) -> dict[str, object]:
    """The header of a prior that learned from these images (n, c, h, w) in [0, 1]: a digest of each."""
    return {"data": data, "data_digest": data_digest, "digests": "".join(image_digests(images))}


def saw(header: Mapping[str, object], images: Tensor) -> Index:
    """The rows of `images` (n, c, h, w) in [0, 1] that the prior has learned from, sorted."""
    text = header.get("digests")
    if not isinstance(text, str) or len(text) % _DIGITS:
        raise WeightsError("the prior's header does not say which images it has seen; train it again")
    known = {text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)}
    return np.array([row for row, one in enumerate(image_digests(images)) if one in known], dtype=np.int64)
