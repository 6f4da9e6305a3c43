from __future__ import annotations

from collections.abc import Generator

import pytest
import torch
from torch import nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.randomness import Streams
from warp_unlearning.training.recipe import Recipe
from warp_unlearning.training.repeated import Repeater
from warp_unlearning.training.side_by_side import side_by_side
from warp_unlearning.training.training import Training, run_training

CPU = torch.device("cpu")


def counting(log: list[tuple[str, int]], name: str, steps: int) -> Generator[object, None, str]:
    for i in range(steps):
        log.append((name, i))
        yield i
    return name.upper()


def test_a_step_of_each_in_turn_and_the_next_where_one_ends() -> None:
    log: list[tuple[str, int]] = []
    makers = [lambda n=n, s=s: counting(log, n, s) for n, s in (("a", 1), ("b", 3), ("c", 2))]
    found = list(side_by_side(makers, at_once=2, device=CPU))
    assert found == [(0, "A"), (1, "B"), (2, "C")]
    assert log == [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]


def test_an_error_ends_all() -> None:
    def broken() -> Generator[object, None, None]:
        yield None
        raise ZeroDivisionError

    log: list[tuple[str, int]] = []
    with pytest.raises(ZeroDivisionError):
        list(side_by_side([broken, lambda: counting(log, "a", 9)], at_once=2, device=CPU))
    assert len(log) == 1


def test_none_at_once_is_refused() -> None:
    with pytest.raises(InputError, match="0 at once"):
        list(side_by_side([], at_once=0, device=CPU))


def test_models_trained_side_by_side_are_those_trained_alone() -> None:
    generator = torch.Generator().manual_seed(4)
    examples = TensorExamples(torch.randn(40, 1, 8, 8, generator=generator), torch.arange(40) % 3)
    recipe = Recipe(epochs=2, batch_size=16, crop_padding=1, flip=True)

    def training(seed: int) -> Training:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = SmallResNet(classes=3, width=2, in_channels=1)
        return Training(model, examples, recipe=recipe, streams=Streams(seed), repeater=Repeater(CPU, capture=True))

    def steps(seed: int) -> Generator[object, None, nn.Module]:
        one = training(seed)
        yield from one.updates()
        return one.model

    together = dict(side_by_side([lambda s=s: steps(s) for s in range(3)], at_once=2, device=CPU))
    for seed in range(3):
        alone = training(seed)
        run_training(alone)
        for a, b in zip(alone.model.state_dict().values(), together[seed].state_dict().values(), strict=True):
            assert torch.equal(a, b)
