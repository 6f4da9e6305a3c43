from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.errors import InputError, WeightsError
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.generator import (
    ConvEncoder,
    ConvGenerator,
    Staged,
    StageList,
    check_generator,
    condition_of,
    generate,
    generate_from,
    load_prior,
    save_prior,
    saw,
    seen_header,
)
from warp_unlearning.models.weights import model_digest, save_weights

SHAPE = (1, 2, 3)
OPTIONS = {"shape": [1, 8, 8], "latent": 5, "width": 2, "classes": None}
IMAGES = torch.rand(50, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def norm(x: Tensor, groups: int) -> Tensor:
    """Each group of channels of each image with mean 0 and variance 1."""
    parts = x.unflatten(1, (groups, -1))
    mean = parts.mean((2, 3, 4), keepdim=True)
    variance = (parts - mean).square().mean((2, 3, 4), keepdim=True)
    return ((parts - mean) / (variance + 1e-5).sqrt()).flatten(1, 2)


def plain(*, last: nn.Module | None = None, image_shape: tuple[int, int, int] = SHAPE) -> StageList:
    stages = [nn.Linear(4, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 6)), nn.Unflatten(1, SHAPE), last or nn.Sigmoid()]
    for stage in stages:
        reinitialise(stage, generator=torch.Generator().manual_seed(0))
    return StageList(stages, latent=(4,), image_shape=image_shape)


class Shifted(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, features: Tensor, condition: Tensor) -> Tensor:
        return self.factor * features + condition


class ByClass:
    """Pixels between 0 and 1 that depend on latents and labels by hand-checked arithmetic."""

    latent, image_shape, classes = (1, 1, 1), (1, 1, 1), 3
    stages: Sequence[nn.Module] = (Shifted(0.01), Shifted(0.1))

    def condition(self, latents: Tensor, labels: Tensor) -> Tensor:
        return labels[:, None, None, None] * 0.1 + 0.2


def test_images_are_the_composed_stages_from_any_of_them_on() -> None:
    generator = plain()
    z = random(7, 4).float()
    first, second = generator.stages[0], generator.stages[1][1]
    hidden = z @ first.weight.T + first.bias
    expected = torch.sigmoid(torch.tanh(hidden) @ second.weight.T + second.bias).reshape(7, *SHAPE)
    torch.testing.assert_close(generate(generator, z), expected)
    torch.testing.assert_close(generate_from(generator, hidden, 1), expected)
    assert torch.equal(generate(generator, z, torch.arange(7)), generate(generator, z))
    latents, labels = torch.tensor([1.0, -1.0])[:, None, None, None], torch.tensor([0, 2])
    by_hand = [(0.01 * z + c) * 0.1 + c for z, c in ((1.0, 0.2), (-1.0, 0.4))]
    assert generate(ByClass(), latents, labels).flatten().tolist() == pytest.approx(by_hand)
    before = torch.random.get_rng_state()
    check_generator(generator, shape=SHAPE)
    check_generator(ByClass(), shape=(1, 1, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert isinstance(generator, Staged)


def test_labels_and_conditions_that_are_missing() -> None:
    with pytest.raises(InputError, match=r"ByClass has 3 classes and got no labels; give one for each"):
        generate(ByClass(), torch.zeros(1, 1, 1, 1))
    with pytest.raises(InputError, match=r"StageList has 2 classes and no method condition"):
        generate(StageList(plain().stages, (4,), SHAPE, 2), torch.zeros(1, 4), torch.zeros(1).long())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="built without classes"):
        ConvGenerator(shape=(1, 8, 8)).condition(torch.zeros(1, 128), torch.zeros(1).long())


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        (plain(image_shape=(3, 2, 2)), r"draws images 3×2×2 and those looked for are 1×2×3; train one on such images"),
        (plain(last=nn.Flatten()), r"two images of 1×2×3 came out as \(2, 6\); mend the last stage"),
        (plain(last=nn.Hardtanh(2.0, 3.0)), r"values from 2 to [23.0-9]+ and images lie in \[0, 1\]; end its last"),
        (plain(last=nn.Hardtanh(-3.0, -2.0)), r"values from [-0-9.]+ to -2 and images lie in \[0, 1\]"),
        (
            plain(last=nn.Threshold(99.0, float("nan"))),
            r"values from nan to nan and images lie in \[0, 1\].*load other weights",
        ),
        (StageList(plain().stages, (5,), SHAPE), r"cannot take latents 5 on cpu: .*shapes.*; its stages must fit"),
        (StageList([], (4,), SHAPE), r"has no stages; give at least one"),
    ],
)
def test_a_generator_that_does_not_fit_is_refused(generator: StageList, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_generator(generator, shape=SHAPE)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((1, 8, 8), [4, 8]), ((3, 32, 32), [4, 8, 16, 32]), ((1, 28, 28), [7, 14, 28]), ((2, 5, 5), [5])],
)
def test_there_is_a_stage_for_each_resolution_and_one_for_the_image(
    shape: tuple[int, int, int], sizes: list[int]
) -> None:
    generator = ConvGenerator(shape=shape, latent=6, width=2).double()
    features = z = random(3, 6)
    for i, (stage, side) in enumerate(zip(generator.stages, sizes, strict=False)):
        features = stage(features)
        assert features.shape == (3, 2 * min(4, 2 ** (len(sizes) - 1 - i)), side, side)
    assert len(generator.stages) == len(sizes) + 1
    images = generator(z)
    assert bool(((images > 0) & (images < 1)).all())
    torch.testing.assert_close(images, torch.cat([generator(row[None]) for row in z]))
    torch.testing.assert_close(torch.func.vmap(lambda row: generator(row[None])[0])(z), images)
    check_generator(generator, shape=shape)
    encoder = ConvEncoder(shape=shape, latent=7, width=2).double()
    mean, log_variance = encoder(images)
    assert mean.shape == log_variance.shape == (3, 7)
    alone = [encoder(row[None]) for row in images]
    torch.testing.assert_close((mean, log_variance), tuple(torch.cat(part) for part in zip(*alone, strict=True)))


def test_stages_are_blocks_of_two_convolutions_scaled_and_shifted_by_the_condition() -> None:
    generator = ConvGenerator(shape=(1, 16, 16), latent=3, width=4, classes=3).double()
    up, last = generator.stages[1], generator.stages[-1]
    x, condition = random(2, 16, 3, 3), random(2, 3, seed=1)

    def modulated(inner: Tensor, by: nn.Linear) -> Tensor:
        scale, shift = (condition @ by.weight.T + by.bias)[:, :, None, None].chunk(2, 1)
        return inner * (1 + scale) + shift

    large = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    inner = norm(large, 8)
    inner = norm(F.conv2d(inner * inner.sigmoid(), up.conv1.weight, up.conv1.bias, padding=1), 8)
    inner = modulated(inner, up.modulation)
    inner = F.conv2d(inner * inner.sigmoid(), up.conv2.weight, up.conv2.bias, padding=1)
    skipped = torch.einsum("oi,nihw->nohw", up.shortcut.weight[:, :, 0, 0], large)
    torch.testing.assert_close(up(x, condition), inner + skipped + up.shortcut.bias[:, None, None])
    inner = modulated(norm(x[:, :4], 4), last.modulation)
    expected = F.conv2d(inner * inner.sigmoid(), last.conv.weight, last.conv.bias, padding=1).sigmoid()
    torch.testing.assert_close(last(x[:, :4], condition), expected)
    plain_block = ConvGenerator(shape=(1, 8, 8), width=4).double().stages[0].block
    y = random(2, 8, 4, 4)
    inner = norm(y, 8)
    inner = norm(F.conv2d(inner * inner.sigmoid(), plain_block.conv1.weight, plain_block.conv1.bias, padding=1), 8)
    inner = F.conv2d(inner * inner.sigmoid(), plain_block.conv2.weight, plain_block.conv2.bias, padding=1)
    torch.testing.assert_close(plain_block(y), y + inner)


def test_the_condition_matters_to_every_stage() -> None:
    generator = ConvGenerator(shape=(1, 16, 16), latent=6, width=4, classes=3).double()
    features = random(2, 6)
    conditions = [condition_of(generator, features, torch.full((2,), k)) for k in (0, 2)]
    assert torch.equal(conditions[1], generator.embedding.weight[[2, 2]])
    for stage in generator.stages:
        outputs = [stage(features, condition) for condition in conditions]
        assert not torch.allclose(*outputs)
        features = outputs[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (8, 8)}, r"images have shape \(8, 8\); give \(channels, height, width\)"),
        ({"shape": (1, 0, 8)}, r"height is 0; give a whole number of at least 1"),
        ({"shape": (1, 8, 8), "width": 2.5}, "width is 2.5"),
        ({"shape": (1, 8, 8), "classes": 0}, "classes is 0"),
    ],
)
def test_sizes_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ConvGenerator(**options)  # type: ignore[arg-type]


def header(positions: list[int]) -> dict[str, object]:
    index = np.array(positions, dtype=np.int64)
    return seen_header(IMAGES[index], data="mine", data_digest="d")


@pytest.mark.parametrize("classes", [None, 3])
def test_a_prior_comes_back_as_it_was(tmp_path: Path, classes: int | None) -> None:
    generator = ConvGenerator(shape=(1, 8, 8), latent=5, width=2, classes=classes)
    save_prior(tmp_path / "prior.safetensors", generator, header={**header([1, 2]), "seed": 3})
    for path in (tmp_path, tmp_path / "prior.safetensors"):
        again, about = load_prior(path)
        assert model_digest(again) == model_digest(generator)
        assert not again.training
        assert not any(p.requires_grad for p in again.parameters())
        assert about is not None
        assert (about["kind"], about["seed"]) == ("prior", 3)
        assert saw(about, IMAGES).tolist() == [1, 2]


OWN = """
from torch import nn
from warp_unlearning.models.generator import ConvGenerator

def build():
    return ConvGenerator(shape=(1, 8, 8), latent=3, width=2)

def other():
    return nn.Linear(2, 2)
"""


def test_a_generator_of_the_users_own_says_nothing_of_what_it_has_seen(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    generator, about = load_prior(tmp_path / "own.py:build")
    assert isinstance(generator, Staged)
    assert (about, generator.training) == (None, False)
    check_generator(generator, shape=(1, 8, 8))
    with pytest.raises(InputError, match=r"other returned a Linear; make it return an nn\.Module with latent"):
        load_prior(tmp_path / "own.py:other")


@given(st.sets(st.integers(0, 49)), st.lists(st.integers(0, 49), unique=True))
def test_what_was_seen_is_told_image_by_image(known: set[int], asked: list[int]) -> None:
    expected = [row for row, position in enumerate(asked) if position in known]
    assert saw(header(sorted(known)), IMAGES[np.array(asked, dtype=np.int64)]).tolist() == expected
    for damage in ({}, {"digests": None}, {"digests": "abc"}):
        with pytest.raises(WeightsError, match="does not say which images it has seen; train it again"):
            saw(damage, IMAGES)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({}, "holds no generator of `warp train-prior`"),
        ({"kind": "prior"}, "holds no generator"),
        ({"kind": "model", "options": OPTIONS}, "holds no generator"),
        ({"kind": "prior", "options": {"shape": [1, 8, 8], "latent": 5}}, "holds no generator"),
        ({"kind": "prior", "options": {**OPTIONS, "shape": 3}}, "holds no generator"),
        ({"kind": "prior", "options": {**OPTIONS, "latent": 6}}, "of another shape"),
    ],
)
def test_a_file_that_is_no_prior(tmp_path: Path, about: dict[str, object], message: str) -> None:
    save_weights(tmp_path / "w.safetensors", ConvGenerator(shape=(1, 8, 8), latent=5, width=2), header=about)
    with pytest.raises(WeightsError, match=message):
        load_prior(tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"no weight file .*prior\.safetensors"):
        load_prior(tmp_path)
