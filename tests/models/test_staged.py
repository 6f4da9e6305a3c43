from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.generator import (
    Conditional,
    Staged,
    StageList,
    check_generator,
    condition_of,
    draw_latents,
    features_at,
    generate,
    generate_from,
)

SHAPE = (1, 2, 3)


def plain(*, last: nn.Module | None = None, image_shape: tuple[int, int, int] = SHAPE) -> StageList:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stages = [nn.Linear(4, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 6)), nn.Unflatten(1, SHAPE)]
    return StageList([*stages, last or nn.Sigmoid()], latent=(4,), image_shape=image_shape)


class Shifted(nn.Module):
    """factor · features + condition."""

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


def test_images_are_the_composed_stages() -> None:
    generator = plain()
    z = draw_latents(generator, 7, random=torch.Generator().manual_seed(3))
    assert z.shape == (7, 4)
    first, second = generator.stages[0], generator.stages[1][1]
    by_hand = torch.sigmoid(torch.tanh(z @ first.weight.T + first.bias) @ second.weight.T + second.bias)
    torch.testing.assert_close(generate(generator, z), by_hand.reshape(7, *SHAPE))


@pytest.mark.parametrize("stage", range(5))
def test_any_stage_goes_on_from_its_own_features(stage: int) -> None:
    generator = plain()
    z = draw_latents(generator, 2, random=torch.Generator().manual_seed(0))
    features = features_at(generator, z, stage)
    assert torch.equal(features, z) == (stage == 0)
    assert torch.equal(generate_from(generator, features, stage), generate(generator, z))


def test_latents_are_standard_normal_and_drawn_from_the_generator_given() -> None:
    draws = [draw_latents(plain(), 5000, random=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert abs(float(draws[0].mean())) < 0.03
    assert abs(float(draws[0].std()) - 1) < 0.03


def test_every_stage_of_a_conditional_generator_gets_the_condition() -> None:
    generator = ByClass()
    assert isinstance(generator, Conditional)
    latents = torch.tensor([1.0, 2.0])[:, None, None, None]
    labels = torch.tensor([0, 2])
    # condition 0.2 and 0.4; (0.01 z + c) · 0.1 + c
    expected = [0.1 * 0.21 + 0.2, 0.1 * 0.42 + 0.4]
    assert generate(generator, latents, labels).flatten().tolist() == pytest.approx(expected)
    condition = condition_of(generator, latents, labels)
    features = features_at(generator, latents, 1, condition=condition)
    assert generate_from(generator, features, 1, condition=condition).flatten().tolist() == pytest.approx(expected)


def test_a_generator_without_classes_ignores_labels() -> None:
    generator = plain()
    z = draw_latents(generator, 2, random=torch.Generator().manual_seed(0))
    assert torch.equal(generate(generator, z, torch.tensor([1, 2])), generate(generator, z))


def test_labels_that_are_needed_and_missing() -> None:
    with pytest.raises(InputError, match=r"ByClass draws images of 3 classes and got no labels; give one for each"):
        generate(ByClass(), torch.zeros(1, 1, 1, 1))


def test_classes_without_a_condition() -> None:
    generator = StageList(plain().stages, (4,), SHAPE, 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"StageList has 2 classes and no method condition"):
        generate(generator, torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))


def test_gradients_reach_latents_and_features_and_batches_can_be_vectorised() -> None:
    generator = plain()
    z = draw_latents(generator, 3, random=torch.Generator().manual_seed(0)).requires_grad_()
    for stage in (0, 2):
        features = features_at(generator, z, stage)
        (gradient,) = torch.autograd.grad(generate_from(generator, features, stage).sum(), features)
        assert bool((gradient != 0).all())
    one_by_one = torch.func.vmap(lambda row: generate(generator, row[None])[0])(z.detach())
    torch.testing.assert_close(one_by_one, generate(generator, z.detach()))


def test_a_generator_that_fits_passes_and_the_global_state_is_left() -> None:
    before = torch.random.get_rng_state()
    check_generator(plain(), shape=SHAPE)
    check_generator(ByClass(), shape=(1, 1, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert isinstance(plain(), Staged)


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        (plain(image_shape=(3, 2, 2)), r"draws images 3×2×2 and those looked for are 1×2×3; train one on such images"),
        (plain(last=nn.Flatten()), r"images are 1×2×3 and two of them came out as \(2, 6\); mend its last stage"),
        (plain(last=nn.Hardtanh(2.0, 3.0)), r"values from 2 to [23.0-9]+ and images lie in \[0, 1\]; end its last"),
        (plain(last=nn.Hardtanh(-3.0, -2.0)), r"values from [-0-9.]+ to -2 and images lie in \[0, 1\]"),
        (plain(last=nn.Threshold(99.0, float("nan"))), r"values that are not finite; its weights are damaged"),
        (StageList(plain().stages, (5,), SHAPE), r"cannot take latents 5 on cpu: .*shapes.*; its stages must fit"),
        (StageList([], (4,), SHAPE), r"has no stages; give at least one"),
    ],
)
def test_a_generator_that_does_not_fit_is_refused(generator: StageList, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_generator(generator, shape=SHAPE)
