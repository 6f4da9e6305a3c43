from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.reconstruction.prior_alone import prior_alone
from warp_unlearning.attacks.reconstruction.problem import Search, first_images
from warp_unlearning.attacks.reconstruction.total_variation import total_variation
from warp_unlearning.errors import InputError
from warp_unlearning.models.generator import generate


def test_without_a_prior_it_is_where_the_first_restart_starts(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    found = prior_alone(threats, attack="inversion", search=Search(tv=0.0), seed=3)
    start = kit.problem(threats, restarts=2, seed=3).image_variable(Search()).start.reshape(2, 2, 1, 1, 8, 8)
    assert torch.equal(found, start[:, 0])
    assert torch.equal(found, first_images(kit.problem(threats, seed=3).draws("image", 1, 1, 8, 8)))


def test_the_same_steps_without_a_target_lead_to_a_smooth_image(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    rough, smooth = (prior_alone(threats, attack="inversion", search=Search(tv=tv), seed=3) for tv in (0.0, 1e-3))
    assert smooth.shape == (2, 1, 1, 8, 8)
    assert bool((total_variation(smooth) < 0.2 * total_variation(rough)).all())
    assert 0 <= float(smooth.min()) <= float(smooth.max()) <= 1
    assert not torch.equal(smooth[0], smooth[1])


def test_nothing_of_the_unlearned_model_is_looked_at(kit: Any) -> None:
    model = kit.net()
    one, _ = kit.threats(model, [0])
    other, _ = kit.threats(model, [5])
    search = Search(iterations=20)
    found = [prior_alone(t, attack="inversion", search=search, seed=3) for t in (one, other)]
    assert torch.equal(*found)
    assert not torch.equal(found[0], prior_alone(one, attack="inversion", search=search, seed=4))


def test_through_a_generator_it_is_what_the_first_latents_give(kit: Any) -> None:
    generator = kit.generator()
    threats, _ = kit.threats(kit.net(dtype=torch.float32), [0, 1], generator=generator)
    found = prior_alone(threats, attack="generative", search=Search(), seed=3)
    expected = generate(generator, kit.problem(threats, seed=3).draws("latent", 1, 5).flatten(0, 1))
    torch.testing.assert_close(found[:, 0], expected)
    pixels = prior_alone(threats, attack="inversion", search=Search(tv=0.0), seed=3)
    assert not torch.allclose(pixels, found)


@pytest.mark.parametrize("known", [True, False])
def test_a_conditional_generator_draws_the_labels_the_attacker_is_told(kit: Any, known: bool) -> None:
    class ByClass:
        latent, image_shape, classes = (3,), (1, 8, 8), 10

        class Stage(nn.Module):
            def forward(self, features: Tensor, condition: Tensor) -> Tensor:
                return (condition[:, None, None, None] / 10 + 0 * features[:, :1, None, None]).expand(-1, 1, 8, 8)

        def __init__(self) -> None:
            self.stages = [self.Stage()]

        def condition(self, latents: Tensor, labels: Tensor) -> Tensor:
            return labels.to(latents.dtype)

    model = kit.net()
    x, y = kit.digits(4)
    threats = [
        kit.threat(
            model,
            kit.stepped(model, x[i : i + 2], y[i : i + 2]),
            labels=y[i : i + 2] if known else None,
            count=2,
            generator=ByClass(),
        )
        for i in (0, 2)
    ]
    found = prior_alone(threats, attack="generative", search=Search())
    assert found.shape == (2, 2, 1, 8, 8)
    expected = y.reshape(2, 2) if known else torch.arange(4).reshape(2, 2)
    torch.testing.assert_close(found[:, :, 0, 0, 0], expected.double() / 10)


def test_steps_are_those_of_torchs_adam_on_the_smoothness_alone(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    search = Search(iterations=16, tv=0.3)
    x = prior_alone(threats, attack="inversion", search=Search(tv=0.0), seed=5).requires_grad_()
    optimizer = torch.optim.Adam([x])
    best, least = x.detach().clone(), torch.full((2,), torch.inf).double()
    for i in range(17):
        heights = total_variation(x[:, 0])
        better = heights.detach() < least
        best[better], least[better] = x.detach()[better], heights.detach()[better]
        if i < 16:
            x.grad = torch.autograd.grad(heights.sum(), x)[0].sign()
            optimizer.param_groups[0]["lr"] = 0.05 * 0.1 ** sum(i * 8 >= k * 16 for k in (3, 5, 7))
            optimizer.step()
            x.data.clamp_(0, 1)
    found = prior_alone(threats, attack="inversion", search=search, seed=5)
    torch.testing.assert_close(found, best, rtol=1e-6, atol=1e-6)


def test_an_unknown_attack_is_refused(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0])
    with pytest.raises(InputError, match="did you mean 'inversion'"):
        prior_alone(threats, attack="inversio", search=Search())
