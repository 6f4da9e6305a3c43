"""Axes that are not the batch are found at the first pass, and what is known is not asked for again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.gradients import batch_axes, energy
from warp_unlearning.gradients.energy import gradient_energy
from warp_unlearning.gradients.traced_pass import traced_pass


class Counted(nn.Module):
    """A linear layer along the features, with or without the first two axes exchanged; it tells how long passes are."""

    def __init__(self, passes: list[int], *, turned: bool) -> None:
        super().__init__()
        self.layer, self.head, self.turned = nn.Linear(4, 4), nn.Linear(4, 3), turned

        # A function is shared by copies, where a list would be copied.
        def tell(count: int) -> None:
            passes.append(count)

        self.tell = tell

    def forward(self, x: Tensor) -> Tensor:
        self.tell(len(x))
        hidden = self.layer(x.transpose(0, 1)).transpose(0, 1) if self.turned else self.layer(x)
        return torch.as_tensor(self.head(hidden.mean(1)))


def energies(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """By one backward pass for each example."""
    parameters = list(model.parameters())
    losses = [F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))]
    return torch.stack([sum_of_squares(torch.autograd.grad(loss, parameters)) for loss in losses])


def sum_of_squares(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([t.square().sum() for t in tensors]).sum()


def test_one_example_is_passed_once_for_a_shape() -> None:
    passes: list[int] = []
    model, y = Counted(passes, turned=False).double(), torch.tensor([0, 1, 2])
    x = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient_energy(model, x, y)
    assert passes == [3, 1]
    gradient_energy(model, x + 1, y)
    assert passes == [3, 1, 3]
    gradient_energy(model, x[:2], y[:2])
    assert passes == [3, 1, 3, 2, 1]


def test_what_was_unclear_stays_so() -> None:
    # Three examples of three rows: the turned axes have one length, and shapes alone tell nothing.
    model, y = Counted([], turned=True).double(), torch.tensor([0, 1, 2])
    for seed in (1, 2):
        x = torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        torch.testing.assert_close(gradient_energy(model, x, y), energies(model, x, y), rtol=1e-10, atol=0)


def test_norms_are_found_once_where_it_is_known_what_is_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[set[int]] = []
    squared_norms = energy.squared_norms

    def noted(uses: Any, gradients: Any, elsewhere: set[int]) -> Iterator[Tensor]:
        found.append(elsewhere)
        return squared_norms(uses, gradients, elsewhere)

    monkeypatch.setattr(energy, "squared_norms", noted)
    model, x, y = Counted([], turned=True), torch.ones(3, 3, 4), torch.tensor([0, 1, 2])
    unclear = {id(model.layer.weight), id(model.layer.bias)}
    gradient_energy(model, x, y)
    assert found == [set(), unclear]
    gradient_energy(model, x, y)
    assert found == [set(), unclear, unclear]


def test_nothing_is_known_before_a_pass() -> None:
    model, x = Counted([], turned=True), torch.ones(3, 3, 4)
    traced = traced_pass(model, x)
    try:
        assert batch_axes.known_unclear_uses(traced, x) is None
        unclear = batch_axes.unclear_uses(traced, x)
        assert [use.path for use in unclear] == ["layer"]
        assert batch_axes.known_unclear_uses(traced, x) == unclear
        assert batch_axes.known_unclear_uses(traced, x[:, :2]) is None
    finally:
        traced.trace.close()


def test_a_model_is_not_kept_alive() -> None:
    model = Counted([], turned=False)
    gradient_energy(model, torch.ones(2, 4, 4), torch.tensor([0, 1]))
    assert model in batch_axes._FOUND
    gone = ref(model)
    del model
    gc.collect()
    assert gone() is None
