from __future__ import annotations

import gc
from copy import deepcopy
from math import ceil, cos, pi
from typing import Any
from weakref import ref

import pytest
import torch
from tests.training.small import network, points
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.sampling import random_crop_flip
from warp_unlearning.errors import DivergedError, InputError, WeightsError
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.randomness import Streams
from warp_unlearning.training.training import RECIPES, Recipe, Training, run_training


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def test_training_is_sgd_on_shuffled_batches_under_a_cosine() -> None:
    model, data, streams = network(), points(23), Streams(4, "train")
    expected = deepcopy(model).train()
    recipe = Recipe(epochs=3, batch_size=8, lr=0.2, momentum=0.9, weight_decay=0.01)
    updates = list(Training(model, data, recipe=recipe, streams=streams).updates())

    parameters, losses = list(expected.parameters()), []
    buffers = [torch.zeros_like(p) for p in parameters]
    for e in range(3):
        order = torch.randperm(23, generator=streams.generator("batches", e))
        for k in range(ceil(23 / 8)):
            index = order[7 * k : 7 * (k + 1)]
            loss = F.cross_entropy(expected(data.x[index]), data.y[index])
            losses.append(float(loss.detach()))
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, b, g in zip(parameters, buffers, gradients, strict=True):
                    b.mul_(0.9).add_(g + 0.01 * p)
                    p.sub_(0.2 * 0.5 * (1 + cos(pi * e / 3)) * b)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=1e-9, atol=1e-12)
    assert [float(u.losses["train"]) for u in updates] == pytest.approx(losses, rel=1e-9)
    assert [(u.step, u.total, u.epoch, u.ends_epoch) for u in updates] == [
        (i + 1, 9, i // 3, i % 3 == 2) for i in range(9)
    ]


@pytest.fixture
def images() -> TensorExamples:
    generator = torch.Generator().manual_seed(2)
    return TensorExamples(torch.randn(20, 1, 8, 8, generator=generator), torch.arange(20) % 4)


def small(seed: int, dropout: float = 0.3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(SmallResNet(classes=4, width=4), nn.Dropout(dropout))


AUGMENTED = Recipe(epochs=3, batch_size=8, crop_padding=1, flip=True)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_resumed_training_ends_with_the_same_bits(images: TensorExamples, at: int) -> None:
    whole = small(0)
    run_training(Training(whole, images, recipe=AUGMENTED, streams=Streams(5)))

    first = Training(small(0), images, recipe=AUGMENTED, streams=Streams(5))
    updates = first.updates()
    for _ in range(3 * at):
        update = next(updates)
        assert first.epoch == update.epoch + update.ends_epoch <= at
    saved = {n: t.clone() for n, t in first.state().items()}
    assert int(saved["epoch"]) == at

    other = small(99)
    resumed = Training(other, images, recipe=AUGMENTED, streams=Streams(5))
    resumed.load_state(saved)
    assert len(list(resumed.updates())) == 9 - 3 * at
    assert same(state_of(other), state_of(whole))


def test_the_streams_alone_decide(images: TensorExamples) -> None:
    results = []
    for seed, noise in ((5, 0), (5, 1), (6, 0)):
        model = small(0)
        with torch.random.fork_rng():
            torch.manual_seed(noise)
            run_training(Training(model, images, recipe=AUGMENTED, streams=Streams(seed)))
        results.append(state_of(model))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


def test_crops_are_padded_with_the_fill_value(images: TensorExamples) -> None:
    """One step on augmented images, which are drawn again here."""
    model, streams = small(0, 0.0), Streams(5)
    expected = deepcopy(model).train()
    recipe = Recipe(epochs=1, batch_size=20, crop_padding=2, flip=True)
    losses = [u.losses["train"] for u in Training(model, images, recipe=recipe, streams=streams, fill=(3.0,)).updates()]
    order = torch.randperm(20, generator=streams.generator("batches", 0))
    x = random_crop_flip(
        images.x[order], padding=2, flip=True, fill=(3.0,), generator=streams.generator("augmentation", 0)
    )
    with torch.no_grad():
        wanted = F.cross_entropy(expected(x), images.y[order])
    torch.testing.assert_close(losses, [wanted])


def test_bf16_computes_in_bf16_and_keeps_weights_and_losses_in_float32(images: TensorExamples) -> None:
    losses = {}
    for precision in ("float32", "bf16"):
        model = small(0, 0.0)
        recipe = Recipe(epochs=1, batch_size=20, precision=precision)  # type: ignore[arg-type]
        (update,) = Training(model, images, recipe=recipe, streams=Streams(5)).updates()
        losses[precision] = update.losses["train"]
        assert all(p.dtype == torch.float32 for p in model.parameters())
    assert losses["bf16"].dtype == torch.float32
    assert losses["bf16"] != losses["float32"]
    torch.testing.assert_close(losses["bf16"], losses["float32"], rtol=0.02, atol=0.02)


def test_a_loss_that_is_not_finite_stops_the_run_at_the_end_of_its_epoch() -> None:
    data = points()
    data.x[11, 0] = torch.nan
    training = Training(network(), data, recipe=Recipe(epochs=5, batch_size=4), streams=Streams(1))
    with pytest.raises(DivergedError, match="lower the learning rate") as caught:
        run_training(training)
    assert caught.value.update == 5
    assert caught.value.exit_code == 1


def test_a_state_without_an_epoch_is_refused() -> None:
    training = Training(network(), points(), recipe=Recipe(), streams=Streams(1))
    with pytest.raises(WeightsError, match="no epoch"):
        training.load_state({})


def test_the_paper_recipe_is_the_papers() -> None:
    paper = RECIPES["paper"]
    assert (paper.epochs, paper.batch_size, paper.lr, paper.momentum, paper.weight_decay) == (91, 256, 0.1, 0.9, 5e-4)
    assert (paper.crop_padding, paper.flip) == (4, True)
    assert RECIPES["small"] == Recipe()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"momentum": -0.1}, "momentum=-0.1"),
        ({"weight_decay": -1e-4}, "weight_decay=-0.0001"),
        ({"crop_padding": -1}, "crop_padding=-1"),
    ],
)
def test_settings_that_cannot_train_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe(**settings)


def test_a_training_that_is_done_is_let_go_of(images: TensorExamples) -> None:
    """A cycle would keep its memory, and on a GPU its graph, until garbage is collected."""
    training = Training(small(0), images, recipe=Recipe(epochs=1), streams=Streams(1))
    for _ in training.updates():
        pass
    gone = ref(training)
    gc.disable()
    try:
        del training
        assert gone() is None
    finally:
        gc.enable()
