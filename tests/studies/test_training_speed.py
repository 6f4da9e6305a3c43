from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.studies.gradient_test_speed import gradient_test_speed
from warp_unlearning.studies.training_speed import Workload, train_fleet, training_speeds, update_operations
from warp_unlearning.training.recipe import Recipe
from warp_unlearning.training.scoring import accuracy
from warp_unlearning.training.training import run_training


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SmallResNet(classes=3, width=2, in_channels=1)


@pytest.fixture
def work() -> Workload:
    generator = torch.Generator().manual_seed(4)
    examples = TensorExamples(torch.randn(60, 1, 8, 8, generator=generator), torch.arange(60) % 3)
    return Workload(network, examples, Recipe(epochs=3, batch_size=16, crop_padding=1, flip=True), (0.0,))


def test_every_way_is_timed_beside_the_plain_loop(work: Workload) -> None:
    speeds = training_speeds(work, at_once=[1, 2], workers=0, plain_updates=3)
    assert [speed.name for speed in speeds] == ["plain", "eager", "fleet 1", "fleet 2"]
    for speed in speeds:
        assert speed.seconds_an_update > 0
        assert speed.seconds_a_model == pytest.approx(speed.seconds_an_update * 3 * 4)
    faster = [speeds[0].seconds_an_update / speed.seconds_an_update for speed in speeds]
    assert [s.utilisation / speeds[0].utilisation for s in speeds] == pytest.approx(faster)


def test_the_products_of_an_update_are_counted() -> None:
    x = torch.randn(16, 8)
    layer = Workload(lambda seed: nn.Linear(8, 4), TensorExamples(x, torch.zeros(16).long()), Recipe(batch_size=16), ())
    # Forward, and the gradient of the weights; inputs need none.
    assert update_operations(layer) == 2 * (2 * 16 * 8 * 4)


def test_a_fleet_trains_the_models_that_are_trained_alone(work: Workload) -> None:
    found = train_fleet(work, work.examples, count=3, at_once=2, first_seed=5)
    for seed, value in zip((5, 6, 7), found.accuracies, strict=True):
        alone = work.training(seed, work.recipe, capture=False)
        run_training(alone)
        assert accuracy(alone.model, work.examples) == value
    assert found.seconds > 0


def test_the_gradient_test_is_timed_beside_a_loop(work: Workload) -> None:
    found = gradient_test_speed(network(0), work.examples, count=20, generator=torch.Generator().manual_seed(1))
    assert found.examples == 40
    assert found.faster == pytest.approx(found.loop_seconds / found.seconds)
    assert found.loop_seconds > 0 < found.seconds
