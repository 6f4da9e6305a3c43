from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import MLP


def test_forward_is_matrix_products_with_relu_between() -> None:
    model = MLP(inputs=12, classes=3, hidden=(5, 4)).double()
    x = torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    (w1, b1), (w2, b2), (w3, b3) = (
        (layer.weight, layer.bias) for layer in model.layers if isinstance(layer, nn.Linear)
    )
    h = (x.reshape(6, 12) @ w1.T + b1).clamp(min=0)
    h = (h @ w2.T + b2).clamp(min=0)
    torch.testing.assert_close(model(x), h @ w3.T + b3)
    assert (model(x) < 0).any()


def test_layer_sizes_are_those_given() -> None:
    shapes = [tuple(parameter.shape) for parameter in MLP(inputs=3, classes=2, hidden=[7]).parameters()]
    assert shapes == [(7, 3), (7,), (2, 7), (2,)]


def test_the_default_has_two_layers_of_256() -> None:
    shapes = [tuple(p.shape) for p in MLP(inputs=3, classes=2).parameters() if p.ndim == 2]
    assert shapes == [(256, 3), (256, 256), (2, 256)]


def test_no_hidden_layer_makes_it_linear() -> None:
    model = MLP(inputs=3, classes=2, hidden=()).double()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    weight, bias = model.parameters()
    torch.testing.assert_close(model(x), x @ weight.T + bias)


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ("256", "list of layer sizes"),
        (256, "list of layer sizes"),
        ((8, 0), r"hidden\[1\] is 0"),
        ((2.0,), r"2\.0"),
    ],
)
def test_unusable_hidden_layers_are_refused(hidden: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MLP(inputs=3, classes=2, hidden=hidden)  # type: ignore[arg-type]


def test_unusable_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="inputs is 0"):
        MLP(inputs=0, classes=2)
