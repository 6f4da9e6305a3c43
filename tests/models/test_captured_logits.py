"""Logits replayed from a graph are those of the model as it stands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.captured_logits import CapturedLogits, _places


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()


def test_only_a_gpu_has_graphs() -> None:
    with pytest.raises(InputError, match="CUDA"):
        CapturedLogits(network(), torch.randn(2, 3, 6, 6))


def one_in_train_mode(model: nn.Sequential) -> None:
    model[1].train()


def a_parameter_elsewhere(model: nn.Sequential) -> None:
    model[4].weight = nn.Parameter(model[4].weight.detach().clone())


def its_memory_elsewhere(model: nn.Sequential) -> None:
    model[4].weight.data = model[4].weight.data.clone()


def a_buffer_elsewhere(model: nn.Sequential) -> None:
    model[1].running_mean = model[1].running_mean.clone()


def no_bias(model: nn.Sequential) -> None:
    model[0].bias = None


def a_layer_more(model: nn.Sequential) -> None:
    model.append(nn.ReLU())


CHANGES = [one_in_train_mode, a_parameter_elsewhere, its_memory_elsewhere, a_buffer_elsewhere, no_bias, a_layer_more]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_lies_elsewhere_or_is_in_another_mode_is_told(change: Callable[[nn.Sequential], None]) -> None:
    model = network()
    before = _places(model)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    assert _places(model) == before
    change(model)
    assert _places(model) != before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU, and there is none")
def test_a_replay_sees_weights_buffers_and_inputs() -> None:
    model, x = network().cuda(), torch.randn(7, 3, 6, 6, device="cuda")
    graph = CapturedLogits(model, x)
    with torch.no_grad():
        for _ in range(3):
            first = graph(x)
            for tensor in model.state_dict().values():
                if tensor.is_floating_point():
                    tensor.mul_(1.1)
            x = torch.randn_like(x)
            assert graph.suits(x)
            torch.testing.assert_close(graph(x), model(x), rtol=1e-3, atol=1e-3)
            assert not torch.equal(first, graph(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU, and there is none")
def test_what_lies_elsewhere_does_not_suit() -> None:
    model, x = network().cuda(), torch.randn(7, 3, 6, 6, device="cuda")
    graph = CapturedLogits(model, x)
    assert graph.suits(x + 1)
    assert not graph.suits(x[:3])
    assert not graph.suits(x.double())
    model.train()
    assert not graph.suits(x)
    model.eval()
    model[4].weight = nn.Parameter(model[4].weight.detach().clone())
    assert not graph.suits(x)
