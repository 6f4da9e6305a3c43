from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning import ChangeOfBasis, Conjugate, unlearn
from warp_unlearning.attacks.reconstruction.closed_form_input import closed_form_image


@pytest.mark.parametrize("steps", [1, 4])
def test_rows_over_biases_are_the_image(kit: Any, steps: int) -> None:
    model = kit.mlp()
    for i in range(3):
        x, y = kit.digits(1, first=i)
        threat = kit.threat(model, kit.stepped(model, x, y, rate=0.05, steps=steps), probes=kit.digits(5, first=90))
        found = closed_form_image(threat)
        assert found is not None
        assert found.shape == (1, 8, 8)
        torch.testing.assert_close(found, kit.pixels().images(x)[0], atol=1e-8, rtol=0)


def test_a_loss_that_was_lowered_gives_it_as_well(kit: Any) -> None:
    model = kit.mlp()
    x, y = kit.digits(1)
    threat = kit.threat(model, kit.stepped(model, x, y, rate=-0.05), ascent=False, probes=kit.digits(5))
    torch.testing.assert_close(closed_form_image(threat), kit.pixels().images(x)[0], atol=1e-8, rtol=0)


@pytest.mark.parametrize("spread", [0.5, 1.5])
def test_a_conjugated_step_does_not_hide_it(kit: Any, spread: float) -> None:
    model = kit.mlp()
    x, y = kit.digits(1)
    done = unlearn(
        model,
        forget=(x, y),
        retain=kit.digits(20, first=50),
        method=kit.Ascent(rate=0.05),
        defense=Conjugate(ChangeOfBasis(law="lognormal", spread=spread)),
        defense_seed=3,
    )
    threat = kit.threat(model, done.model, probes=kit.digits(5, first=90))
    torch.testing.assert_close(closed_form_image(threat), kit.pixels().images(x)[0], atol=1e-4, rtol=0)


def test_values_beyond_an_image_are_clamped(kit: Any) -> None:
    model = kit.mlp()
    x, y = kit.digits(1)
    threat = kit.threat(model, kit.stepped(model, 10 * x, y, rate=0.05), probes=kit.digits(5))
    found = closed_form_image(threat)
    torch.testing.assert_close(found, kit.pixels().images(10 * x)[0].clamp(0, 1), atol=1e-8, rtol=0)


@pytest.mark.parametrize("build", ["net", "no bias", "pooled"])
def test_networks_whose_first_layer_does_not_hold_the_image_give_none(kit: Any, build: str) -> None:
    model = {
        "net": kit.net,
        "no bias": lambda: kit.mlp(bias=False),
        "pooled": lambda: kit.drawn(lambda: nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 10))),
    }[build]()
    x, y = kit.digits(1)
    assert closed_form_image(kit.threat(model, kit.stepped(model, x, y), probes=kit.digits(5))) is None


class Fixed(nn.Module):
    """Something without weights before the first layer, as the normalisation inside of many networks."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.head = how, nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = {"normalised": (x - 0.3) / 0.7, "mirrored": x.flip(-1)}[self.how]
        return self.head(x.flatten(1))


@pytest.mark.parametrize("how", ["normalised", "mirrored"])
def test_what_enters_the_first_layer_is_not_taken_for_the_image(kit: Any, how: str) -> None:
    model = kit.drawn(lambda: Fixed(how))
    x, y = kit.digits(1)
    found = closed_form_image(kit.threat(model, kit.stepped(model, x, y, rate=0.05), probes=kit.digits(5)))
    if found is not None:
        torch.testing.assert_close(found, kit.pixels().images(x)[0], atol=1e-6, rtol=0)
