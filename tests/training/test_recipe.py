from __future__ import annotations

from typing import Any

import pytest

from warp_unlearning.errors import InputError
from warp_unlearning.training.recipe import RECIPES, Recipe


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
