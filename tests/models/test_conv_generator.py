from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from warp_unlearning.errors import InputError
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.generator import (
    Conditional,
    ConvEncoder,
    ConvGenerator,
    LastStage,
    UpBlock,
    check_generator,
    condition_of,
    features_at,
    generate,
    generate_from,
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm(x: Tensor, groups: int) -> Tensor:
    """Each group of channels of each image with mean 0 and variance 1."""
    parts = x.unflatten(1, (groups, -1))
    mean = parts.mean((2, 3, 4), keepdim=True)
    variance = (parts - mean).square().mean((2, 3, 4), keepdim=True)
    return ((parts - mean) / (variance + 1e-5).sqrt()).flatten(1, 2)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((1, 8, 8), [4, 8]),
        ((3, 32, 32), [4, 8, 16, 32]),
        ((3, 64, 64), [4, 8, 16, 32, 64]),
        ((1, 28, 28), [7, 14, 28]),
        ((2, 5, 5), [5]),
    ],
)
def test_there_is_a_stage_for_each_resolution_and_one_for_the_image(
    shape: tuple[int, int, int], sizes: list[int]
) -> None:
    generator = ConvGenerator(shape=shape, latent=6, width=2)
    assert len(generator.stages) == len(sizes) + 1
    z = random(3, 6)
    found = [features_at(generator, z, i + 1).shape for i in range(len(sizes))]
    channels = [2 * min(4, 2**k) for k in reversed(range(len(sizes)))]
    assert [tuple(s) for s in found] == [(3, c, side, side) for c, side in zip(channels, sizes, strict=True)]
    images = generator(z)
    assert images.shape == (3, *shape)
    assert torch.equal(images, generate(generator, z))
    assert bool(((images > 0) & (images < 1)).all())
    check_generator(generator, shape=shape)


@pytest.mark.parametrize("conditions", [None, 3])
def test_a_block_is_a_shortcut_and_two_convolutions(conditions: int | None) -> None:
    block = UpBlock(4, 2, up=True, conditions=conditions).double()
    x, condition = random(2, 4, 3, 3).double(), random(2, 3, seed=1).double()
    large = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    inner = norm(large, 4)
    inner = F.conv2d(inner * inner.sigmoid(), block.conv1.weight, block.conv1.bias, padding=1)
    inner = norm(inner, 2)
    if block.modulation is not None:
        both = (condition @ block.modulation.weight.T + block.modulation.bias)[:, :, None, None]
        inner = inner * (1 + both[:, :2]) + both[:, 2:]
    inner = F.conv2d(inner * inner.sigmoid(), block.conv2.weight, block.conv2.bias, padding=1)
    skipped = torch.einsum("oi,nihw->nohw", block.shortcut.weight[:, :, 0, 0], large)
    expected = inner + skipped + block.shortcut.bias[:, None, None]
    torch.testing.assert_close(block(x, condition), expected)


def test_the_condition_scales_and_shifts() -> None:
    last = LastStage(8, 1, conditions=3).double()
    x, condition = random(2, 8, 4, 4).double(), random(2, 3, seed=1).double()
    both = condition @ last.modulation.weight.T + last.modulation.bias
    inner = norm(x, 8) * (1 + both[:, :8, None, None]) + both[:, 8:, None, None]
    expected = F.conv2d(inner * inner.sigmoid(), last.conv.weight, last.conv.bias, padding=1).sigmoid()
    torch.testing.assert_close(last(x, condition), expected)


def test_labels_matter_to_every_stage() -> None:
    generator = ConvGenerator(shape=(1, 16, 16), latent=6, width=4, classes=3)
    assert isinstance(generator, Conditional)
    z = random(2, 6)
    conditions = [condition_of(generator, z, torch.full((2,), k)) for k in (0, 2)]
    assert torch.equal(conditions[1], generator.embedding.weight[[2, 2]])
    for stage in range(len(generator.stages)):
        features = features_at(generator, z, stage, condition=conditions[0])
        alone = [generator.stages[stage](features, condition) for condition in conditions]
        assert not torch.allclose(*alone)
        again = generate_from(generator, features, stage, condition=conditions[0])
        assert torch.equal(again, generate(generator, z, torch.zeros(2, dtype=torch.int64)))


def test_no_image_depends_on_another_of_the_batch() -> None:
    generator = ConvGenerator(shape=(3, 16, 16), latent=6, width=4).double()
    z = random(4, 6).double()
    alone = torch.cat([generator(row[None]) for row in z])
    torch.testing.assert_close(generator(z), alone)
    torch.testing.assert_close(torch.func.vmap(lambda row: generator(row[None])[0])(z), alone)


def test_options_build_one_alike_and_a_seed_decides_its_weights() -> None:
    generator = ConvGenerator(shape=(1, 8, 8), latent=3, width=2, classes=4)
    options = {**generator.options, "shape": (1, 8, 8)}
    again = ConvGenerator(**options)
    for model in (generator, again):
        reinitialise(model, generator=torch.Generator().manual_seed(5))
    same = zip(generator.state_dict().items(), again.state_dict().items(), strict=True)
    assert all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in same)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (8, 8)}, r"images have shape \(8, 8\); give \(channels, height, width\)"),
        ({"shape": (1, 0, 8)}, r"height is 0; give a whole number of at least 1"),
        ({"shape": (1, 8, 8), "latent": 0}, "latent is 0"),
        ({"shape": (1, 8, 8), "width": 2.5}, "width is 2.5"),
        ({"shape": (1, 8, 8), "classes": 0}, "classes is 0"),
    ],
)
def test_sizes_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ConvGenerator(**options)  # type: ignore[arg-type]


def test_a_generator_without_classes_has_no_condition() -> None:
    with pytest.raises(InputError, match="built without classes"):
        ConvGenerator(shape=(1, 8, 8)).condition(torch.zeros(1, 128), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 16), (2, 5, 5)])
def test_the_encoder_gives_a_mean_and_a_log_variance_for_each_image_alone(shape: tuple[int, int, int]) -> None:
    encoder = ConvEncoder(shape=shape, latent=7, width=2).double()
    x = random(3, *shape).sigmoid().double()
    mean, log_variance = encoder(x)
    assert mean.shape == log_variance.shape == (3, 7)
    alone = [encoder(row[None]) for row in x]
    torch.testing.assert_close(mean, torch.cat([m for m, _ in alone]))
    torch.testing.assert_close(log_variance, torch.cat([v for _, v in alone]))
    assert not torch.allclose(mean, log_variance)
    halves = [m.shape[-1] for m in _features(encoder, x)]
    assert all(a == 2 * b for a, b in pairwise(halves))


def _features(encoder: ConvEncoder, x: Tensor) -> list[Tensor]:
    found = [encoder.first(x)]
    for block in encoder.blocks:
        found.append(block(found[-1]))
    return found
