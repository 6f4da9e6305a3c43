from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import SmallResNet


def test_parameter_count_follows_from_the_layers() -> None:
    stem = 9 * 16 + 2 * 16
    first = 2 * (9 * 16 * 16 + 2 * 16)
    second = 9 * 16 * 32 + 9 * 32 * 32 + 16 * 32 + 3 * 2 * 32
    third = 9 * 32 * 64 + 9 * 64 * 64 + 32 * 64 + 3 * 2 * 64
    expected = stem + first + second + third + 64 * 10 + 10
    assert sum(parameter.numel() for parameter in SmallResNet().parameters()) == expected
    assert 76_000 < expected < 79_000


@pytest.mark.parametrize(("side", "sizes"), [(8, [8, 4, 2]), (28, [28, 14, 7]), (32, [32, 16, 8])])
def test_stages_two_and_three_halve_the_image(side: int, sizes: list[int]) -> None:
    model = SmallResNet(width=4, in_channels=3, classes=7)
    seen: list[int] = []
    for stage in (model.layer1, model.layer2, model.layer3):
        stage.register_forward_hook(lambda _, __, output: seen.append(output.shape[-1]))
    assert model(torch.zeros(2, 3, side, side)).shape == (2, 7)
    assert seen == sizes


def test_forward_is_stem_blocks_mean_and_classifier() -> None:
    model = SmallResNet(width=4).eval().double()
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    h = (F.conv2d(x, model.conv1.weight, padding=1) / (1 + 1e-5) ** 0.5).clamp(min=0)
    h = model.layer3(model.layer2(model.layer1(h)))
    torch.testing.assert_close(model(x), h.flatten(2).sum(-1) / 4 @ model.fc.weight.T + model.fc.bias)


def test_convolutions_start_at_the_deviation_of_fan_out() -> None:
    weight = SmallResNet().layer3.conv2.weight
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)


def test_unusable_options_are_refused() -> None:
    with pytest.raises(InputError, match="width is '16'"):
        SmallResNet(width="16")  # type: ignore[arg-type]
