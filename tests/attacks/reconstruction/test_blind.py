from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.attacks.reconstruction.blind import class_means, overall_mean, prior_alone
from warp_unlearning.attacks.reconstruction.search import Search, total_variation
from warp_unlearning.errors import InputError
from warp_unlearning.models.generator import generate


@given(
    st.lists(st.sampled_from([0, 2, 7]), min_size=1, max_size=12),
    st.lists(st.integers(0, 8), min_size=1, max_size=6),
    st.integers(0, 999),
)
def test_each_target_has_the_mean_of_its_class_or_of_all(probe, wanted, seed) -> None:
    x = torch.rand(len(probe), 2, 3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    guess = class_means(x, torch.tensor(probe), torch.tensor(wanted))
    for image, label in zip(guess.images, wanted, strict=True):
        own = [v for v, y in zip(x, probe, strict=True) if y == label] or list(x)
        torch.testing.assert_close(image, sum(own) / len(own))
    missing = sorted(set(wanted) - set(probe))
    assert bool(guess.note) == bool(missing)
    if missing:
        targets = sum(label in missing for label in wanted)
        assert f"class {', '.join(map(str, missing))}:" in guess.note
        assert f"({targets} targets)" in guess.note


def test_bad_input_is_refused() -> None:
    x, y = torch.rand(4, 1, 3, 3), torch.tensor([0, 1, 1, 0])
    with pytest.raises(InputError, match="4 probe images have labels of shape"):
        class_means(x, y[:3], y)
    with pytest.raises(InputError, match="labels of the targets"):
        class_means(x, y, y.float())
    with pytest.raises(InputError, match="labels of the targets"):
        class_means(x, y, y[:0])
    with pytest.raises(InputError, match="labels of the probe images"):
        class_means(x, y.float(), y)
    with pytest.raises(InputError, match="0 targets"):
        overall_mean(x, count=0)
    with pytest.raises(InputError, match="not finite"):
        overall_mean(x / 0, count=1)


def test_through_a_generator_it_is_what_the_first_latents_give(kit: Any) -> None:
    generator = kit.generator()
    threats, _ = kit.threats(kit.net(dtype=torch.float32), [0, 1], generator=generator)
    found = prior_alone(threats, attack="generative", search=Search(), seed=3)
    expected = generate(generator, kit.problem(threats, seed=3).draws("latent", 1, 5).flatten(0, 1))
    torch.testing.assert_close(found[:, 0], expected)
    pixels = prior_alone(threats, attack="inversion", search=Search(tv=0.0), seed=3)
    assert not torch.allclose(pixels, found)


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


def test_without_a_prior_it_is_where_the_first_restart_starts(kit: Any) -> None:
    model = kit.net()
    threats, _ = kit.threats(model, [0, 1])
    found = prior_alone(threats, attack="inversion", search=Search(tv=0.0), seed=3)
    starts = kit.problem(threats, search=Search(restarts=2), seed=3).image_variable().start
    assert torch.equal(found, starts.reshape(2, 2, 1, 1, 8, 8)[:, 0])
    # Nothing of the unlearned model is used.
    others, _ = kit.threats(model, [5, 6])
    assert torch.equal(found, prior_alone(others, attack="inversion", search=Search(tv=0.0), seed=3))
    assert not torch.equal(found, prior_alone(threats, attack="inversion", search=Search(tv=0.0), seed=4))


@pytest.mark.parametrize("known", [True, False])
def test_a_conditional_generator_draws_the_labels_that_are_known(kit: Any, known: bool) -> None:
    model = kit.net()
    x, y = kit.digits(4)
    threats = [
        kit.threat(
            model,
            kit.stepped(model, x[i : i + 2], y[i : i + 2]),
            labels=y[i : i + 2] if known else None,
            count=2,
            generator=kit.ByClass(),
        )
        for i in (0, 2)
    ]
    found = prior_alone(threats, attack="generative", search=Search())
    expected = (y if known else torch.arange(4)).reshape(2, 2).double() / 10
    torch.testing.assert_close(found, expected[..., None, None, None].expand(2, 2, 1, 8, 8))
