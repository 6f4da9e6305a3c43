import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from warp_unlearning.bounds.coordinates import choose_coordinates
from warp_unlearning.bounds.gradient_rows import gradient_rows
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import DataError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    return layers.double().eval()


def test_rows_are_the_gradients_of_single_examples() -> None:
    model, generator = network(), torch.Generator().manual_seed(1)
    x, y = torch.randn(70, 1, 4, 4, generator=generator, dtype=torch.float64), torch.arange(70) % 4
    chosen = choose_coordinates(model, parameters="all", count=30, generator=generator)
    rows = gradient_rows(model, TensorExamples(x, y), chosen, what="data")
    assert rows.shape == (70, 30)
    for i in (0, 37, 69):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        parts = [model.get_parameter(n).grad.flatten()[p] for n, p in chosen.positions.items()]  # type: ignore[union-attr]
        assert rows[i] == pytest.approx(torch.cat(parts).numpy(), rel=1e-9, abs=1e-14)
    assert rows.dtype == np.float64


def test_a_gradient_that_is_not_finite_is_named() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(3e38)
    x = torch.zeros(3, 2)
    x[2] = 3e38
    chosen = choose_coordinates(model, parameters="all", count=6, generator=torch.Generator())
    with pytest.raises(DataError, match="row 2 of the data set is not finite"):
        gradient_rows(model, TensorExamples(x, torch.zeros(3, dtype=torch.long)), chosen, what="data")
