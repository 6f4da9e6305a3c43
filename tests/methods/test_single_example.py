"""The most natural request: one example to forget, from a network with batch norm."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning import unlearn
from warp_unlearning.methods import make_method, method_classes
from warp_unlearning.models.modes import predict


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.filterwarnings("ignore:the unlearning by pgu")  # outputs move by less than the verdict asks for
@pytest.mark.parametrize("name", list(method_classes()))
def test_every_method_forgets_a_single_example(name: str) -> None:
    x, y = torch.randn(31, 6, generator=torch.Generator().manual_seed(1)), torch.arange(31) % 3
    fast = {"srf_on": {"iterations": 10}, "retrain": {"epochs": 2}}.get(name, {})
    result = unlearn(network(), forget=(x[:1], y[:1]), retain=(x[1:], y[1:]), method=make_method(name, **fast))
    assert result.record.deletions[0].requested == 1
    assert len(result.history) > 0


def test_a_batch_of_one_passes_batch_norm_by_the_running_statistics() -> None:
    model, x = network().train(), torch.randn(4, 6)
    before = {n: b.clone() for n, b in model.named_buffers()}
    one = predict(model, x[:1])
    assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())
    assert all(m.training for m in model.modules())
    assert torch.equal(one, network().eval()(x[:1]))
    assert torch.equal(predict(model, x), network().train()(x))


def test_modes_are_put_back_where_the_model_fails() -> None:
    model = network().train()
    with pytest.raises(RuntimeError):
        predict(model, torch.randn(1, 5))
    assert all(m.training for m in model.modules())
