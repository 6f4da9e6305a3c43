"""A multilayer perceptron: linear layers with ReLU between them, on the flattened input."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from ..errors import InputError
from .option_checks import require_positive


class MLP(nn.Module):
    """`inputs` numbers to `classes` logits through layers of the sizes in `hidden`; none makes it linear."""

    def __init__(self, *, inputs: int, classes: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        sizes: object = hidden
        if isinstance(sizes, str) or not isinstance(sizes, Sequence):
            raise InputError(f"hidden is {hidden!r}; give a list of layer sizes, such as [256, 256]")
        require_positive({"inputs": inputs, "classes": classes})
        require_positive({f"hidden[{i}]": size for i, size in enumerate(hidden)})
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *hidden)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        last = hidden[-1] if hidden else inputs
        self.layers = nn.Sequential(*layers, nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of inputs (batch, ...) that hold `inputs` numbers each."""
        return cast(Tensor, self.layers(x.flatten(start_dim=1)))
