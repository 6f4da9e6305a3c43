from __future__ import annotations

from math import log10

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.preprocess import load_data, pixels_of
from warp_unlearning.errors import InputError, WeightsError
from warp_unlearning.models.generator import ConvGenerator, check_generator
from warp_unlearning.randomness import Streams
from warp_unlearning.training.prior import (
    PriorRecipe,
    PriorTraining,
    laplacian_pyramid,
    prior_loss,
    pyramid_distance,
)
from warp_unlearning.training.update import Update

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def blobs(count: int = 40, side: int = 8, seed: int = 0) -> TensorExamples:
    """A bright spot at a place of its own on dark ground; the label says how bright."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.rand(count, 2, 1, 1, generator=generator) * side
    y = torch.randint(0, 2, (count,), generator=generator)
    axis = torch.arange(side) + 0.5
    distance = (axis[:, None] - place[:, 0]).square() + (axis[None, :] - place[:, 1]).square()
    return TensorExamples(((0.5 + 0.5 * y)[:, None, None] * torch.exp(-distance / 6))[:, None], y)


def training(
    images: TensorExamples | None = None, *, classes: int | None = None, seed: int = 0, **recipe: object
) -> PriorTraining:
    settings = {"epochs": 3, "batch_size": 10, **recipe}
    return PriorTraining(
        ConvGenerator(shape=(1, 8, 8), latent=4, width=4, classes=classes),
        images or blobs(),
        recipe=PriorRecipe(**settings),  # type: ignore[arg-type]
        streams=Streams(seed),
    )


def finished(run: PriorTraining) -> list[Update]:
    return list(run.updates())


def same(a: PriorTraining, b: PriorTraining) -> bool:
    return all(
        torch.equal(x, y) for x, y in zip(a.pair.state_dict().values(), b.pair.state_dict().values(), strict=True)
    )


def error(run: PriorTraining, images: TensorExamples) -> float:
    return float((run.reconstruct(images) - images.x).square().mean())


def test_the_loss_term_by_term() -> None:
    generator = torch.Generator().manual_seed(0)
    x, drawn = (torch.rand(3, 2, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    mean, log_variance = (torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    terms = prior_loss(x, drawn, mean, log_variance, recipe=PriorRecipe(noise=0.2, edges=0.7))
    squares = sum((a - b) ** 2 for a, b in zip(x.flatten().tolist(), drawn.flatten().tolist(), strict=True)) / 96
    normal = torch.distributions.Normal
    given = normal(mean, (log_variance / 2).exp())
    divergence = torch.distributions.kl_divergence(given, normal(torch.zeros_like(mean), 1.0)).sum() / 3
    d = x - drawn
    coarse = (d[..., ::2, ::2] + d[..., 1::2, ::2] + d[..., ::2, 1::2] + d[..., 1::2, 1::2]) / 4
    bands = (d - coarse.repeat_interleave(2, 2).repeat_interleave(2, 3)).abs().mean() + coarse.abs().mean()
    assert float(terms["squares"]) == pytest.approx(squares)
    assert float(terms["divergence"]) == pytest.approx(float(divergence))
    assert float(terms["bands"]) == pytest.approx(float(bands))
    expected = squares / (2 * 0.2**2) + 0.7 * float(bands) / 0.2 + float(divergence) / 32
    assert float(terms["prior"]) == pytest.approx(expected)


def test_an_update_draws_latents_around_their_means_from_streams_of_its_epoch() -> None:
    run, untouched = training(noise=0.3, epochs=2), training(noise=0.3, epochs=2)
    losses = [update.losses for update in run.updates()]
    streams = Streams(0)
    for number in (0, 1):
        order = torch.randperm(40, generator=streams.generator("batches", number))[:10]
        drawn = torch.randn(10, 4, generator=streams.generator("latents", number))
        x = untouched.images.x[order]
        mean, log_variance = untouched.encoder(x)
        images = untouched.generator(mean + torch.sqrt(torch.exp(log_variance)) * drawn)
        expected = prior_loss(x, images, mean, log_variance, recipe=run.recipe)
        for name, value in expected.items():
            torch.testing.assert_close(losses[4 * number][name], value.detach())
        for update in untouched.updates():
            if update.ends_epoch:
                break


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_half_precision_is_close_and_keeps_whole_weights(device: str) -> None:
    images = blobs().to(device)
    first = {}
    for precision in ("float32", "bf16"):
        run = training(images, precision=precision)
        updates = finished(run)
        first[precision] = float(updates[0].losses["squares"])
        assert {p.dtype for p in run.pair.parameters()} == {torch.float32}
        assert updates[-1].losses["prior"].dtype == torch.float32
        assert run.reconstruct(images).dtype == torch.float32
    assert 0 < abs(first["bf16"] / first["float32"] - 1) < 0.02


@pytest.mark.gpu
@needs_gpu
def test_a_run_on_a_gpu_can_be_taken_up_from_a_checkpoint_that_was_on_the_cpu() -> None:
    images = blobs().to("cuda")
    whole, rest = training(images, precision="float32"), training(images, seed=9, precision="float32")
    for update in whole.updates():
        if update.ends_epoch and update.epoch == 0:
            kept = {name: tensor.cpu() for name, tensor in whole.state().items()}
    rest.streams = whole.streams
    rest.load_state(kept)
    finished(rest)
    for a, b in zip(whole.pair.state_dict().values(), rest.pair.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)


def test_updates_are_numbered_and_name_their_losses() -> None:
    updates = finished(training())
    assert [(u.step, u.total, u.epoch, u.ends_epoch) for u in updates] == [
        (i, 12, (i - 1) // 4, i % 4 == 0) for i in range(1, 13)
    ]
    for update in updates:
        assert set(update.losses) == {"prior", "squares", "bands", "divergence"}
        assert not any(loss.requires_grad for loss in update.losses.values())


def test_the_seed_decides_and_the_global_state_plays_no_part() -> None:
    runs = []
    for state, seed in ((1, 0), (2, 0), (1, 1)):
        with torch.random.fork_rng():
            torch.manual_seed(state)
            run = training(seed=seed)
            before = torch.random.get_rng_state()
            finished(run)
            assert torch.equal(torch.random.get_rng_state(), before)
        runs.append(run)
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_taken_up_again_ends_with_the_same_weights(epochs: int) -> None:
    whole, part, rest = training(), training(), training(seed=9)
    finished(whole)
    for update in part.updates():
        if update.ends_epoch and update.epoch + 1 == epochs:
            break
    rest.streams = part.streams
    rest.load_state({name: tensor.clone() for name, tensor in part.state().items()})
    finished(rest)
    assert same(whole, rest)


def test_a_checkpoint_of_something_else_is_refused() -> None:
    run = training()
    with pytest.raises(WeightsError, match="no epoch"):
        run.load_state({"weights/x": torch.zeros(1)})


def test_held_out_digits_are_drawn_far_better_than_by_their_mean() -> None:
    data = load_data()
    pixels = pixels_of(data)
    known, held = (TensorExamples(pixels.images(part.x).clamp(0, 1), part.y) for part in (data.train, data.test))
    generator = ConvGenerator(shape=(1, 8, 8), latent=32, width=16)
    run = PriorTraining(generator, known, recipe=PriorRecipe(epochs=5), streams=Streams(20))
    assert -10 * log10(error(run, held)) < 10
    finished(run)
    blind = float((known.x.mean(0) - held.x).square().mean())
    assert -10 * log10(error(run, held) / blind) > 8
    check_generator(generator, shape=(1, 8, 8))


def test_a_generator_with_classes_learns_from_the_labels() -> None:
    """Latents that tell nothing leave the label alone to say how bright an image is."""
    images = blobs(60)
    flat = TensorExamples(images.y[:, None, None, None] * 0.6 + 0.2 + torch.zeros(60, 1, 8, 8), images.y)
    run = training(flat, classes=2, noise=1.0, epochs=15, lr=1e-2)
    finished(run)
    with torch.no_grad():
        drawn = run.generator(torch.zeros(2, 4), torch.tensor([0, 1])).mean((1, 2, 3))
    assert drawn.tolist() == pytest.approx([0.2, 0.8], abs=0.1)
    assert error(run, flat) < 0.02


def test_mirror_images_are_learned_where_asked_for() -> None:
    seen: list[Tensor] = []
    half = TensorExamples(torch.cat([torch.ones(20, 1, 8, 4), torch.zeros(20, 1, 8, 4)], 3), torch.zeros(20).long())
    for flip in (False, True):
        run = training(half, flip=flip, epochs=2)
        run.encoder.register_forward_pre_hook(lambda _, x: seen.append(x[0].clone()))
        seen.clear()
        finished(run)
        mirrored = [bool(row[0, 0, 0] == 0) for batch in seen for row in batch]
        assert (0 < sum(mirrored) < len(mirrored)) if flip else not any(mirrored)


def test_the_rate_rises_and_then_falls_to_nothing() -> None:
    """Adam's first step moves weights by the rate itself, and later ones by about as much."""
    run, steps = training(epochs=50), []
    before = torch.nn.utils.parameters_to_vector(run.pair.parameters()).detach()
    for _ in run.updates():
        after = torch.nn.utils.parameters_to_vector(run.pair.parameters()).detach()
        steps.append(float((after - before).abs().max()) / run.recipe.lr)
        before = after
    assert steps[0] == pytest.approx(0.1, rel=1e-3)
    assert steps[:5] == sorted(steps[:5])
    assert max(steps) > 0.9
    assert steps[-1] < 1e-3


def test_images_are_drawn_in_batches_without_a_trace() -> None:
    run = training()
    run.pair.train()
    images = blobs(7, seed=3)
    torch.testing.assert_close(run.reconstruct(images, batch_size=3), run.reconstruct(images))
    assert run.pair.training
    assert not run.reconstruct(images).requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"noise": 0.0}, "noise=0.0.*must be above 0"),
        ({"edges": -1.0}, "edges=-1.0"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PriorRecipe(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (TensorExamples(torch.zeros(1, 1, 8, 8), torch.zeros(1)), "there are 1 images"),
        (TensorExamples(torch.zeros(4, 1, 9, 8), torch.zeros(4)), r"\(1, 9, 8\); build it with shape=\(1, 9, 8\)"),
        (TensorExamples(torch.full((4, 1, 8, 8), 2.0), torch.zeros(4)), r"from 2 to 2; scale them to \[0, 1\]"),
        (TensorExamples(torch.full((4, 1, 8, 8), -1.0), torch.zeros(4)), r"from -1 to -1"),
        (TensorExamples(torch.full((4, 1, 8, 8), float("nan")), torch.zeros(4)), "from nan to nan"),
    ],
)
def test_images_that_cannot_be_learned_from(images: TensorExamples, message: str) -> None:
    with pytest.raises(InputError, match=message):
        training(images)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("size", "sizes"),
    [((8, 8), [(8, 8), (4, 4), (2, 2)]), ((12, 4), [(12, 4), (6, 2)]), ((5, 8), [(5, 8)]), ((2, 2), [(2, 2)])],
)
def test_levels_halve_until_a_side_is_odd_or_small(size: tuple[int, int], sizes: list[tuple[int, int]]) -> None:
    assert [tuple(band.shape[2:]) for band in laplacian_pyramid(random(1, 2, *size))] == sizes


@given(st.sampled_from([(8, 8), (16, 8), (4, 12), (6, 6)]), st.integers(0, 10**6))
def test_bands_sum_to_the_image_and_have_no_mean_of_four(size: tuple[int, int], seed: int) -> None:
    images = random(2, 3, *size, seed=seed)
    *bands, rest = laplacian_pyramid(images)
    total = rest
    for band in reversed(bands):
        total = band + total.repeat_interleave(2, 2).repeat_interleave(2, 3)
        four = band[:, :, ::2, ::2] + band[:, :, 1::2, ::2] + band[:, :, ::2, 1::2] + band[:, :, 1::2, 1::2]
        assert float(four.abs().max()) < 1e-12
    torch.testing.assert_close(total, images)


def test_a_distance_by_hand() -> None:
    other = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    image = other.clone()
    image[0, 0, 0, 0] = 1.0
    # Fine band: 3/4 once and −1/4 three times over 16 pixels; below: 1/4 once over 4.
    assert float(pyramid_distance(image, other)) == pytest.approx((0.75 + 3 * 0.25) / 16 + 0.25 / 4)
    assert float(pyramid_distance(other, image)) == pytest.approx(float(pyramid_distance(image, other)))
    assert float(pyramid_distance(image, image)) == 0.0
    # A shift of everything is seen by the lowest band alone.
    assert float(pyramid_distance(image + 0.5, image)) == pytest.approx(0.5)
