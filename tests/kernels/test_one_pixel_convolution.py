"""Convolutions of single pixels are those of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.kernels import one_pixel_convolution
from warp_unlearning.kernels.one_pixel_convolution import VectorLayers, convolved_vectors


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


OPTIONS: list[dict[str, Any]] = [
    {"padding": 1},
    {"padding": (1, 1), "stride": 2},
    {"padding": [1, 1], "stride": [1, 2]},
    {"padding": 2, "dilation": 2},
    {"padding": (1,), "stride": (2,)},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_one_tap_is_the_whole_convolution(options: dict[str, Any], bias: bool) -> None:
    x, weight = drawn(5, 4, 1, 1), drawn(6, 4, 3, 3)
    given = drawn(6) if bias else None
    found = convolved_vectors(x, weight, given, **options)
    assert found is not None
    torch.testing.assert_close(found, F.conv2d(x, weight, given, **options))


def test_kernels_of_one_tap() -> None:
    x, weight = drawn(5, 4, 1, 1), drawn(6, 4, 1, 1)
    found = convolved_vectors(x, weight)
    assert found is not None
    torch.testing.assert_close(found, F.conv2d(x, weight))


OTHERS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((5, 4, 2, 2), (6, 4, 3, 3), {"padding": 1}),
    ((5, 4, 1, 1), (6, 4, 3, 3), {"padding": 2}),
    ((5, 4, 1, 1), (6, 4, 2, 2), {"padding": 1, "stride": 2, "dilation": 2}),
    ((5, 4, 1, 1), (6, 2, 3, 3), {"padding": 1, "groups": 2}),
    ((5, 4, 1, 1), (6, 4, 3, 3), {"padding": "same"}),
    ((4, 4, 1), (6, 4, 3, 3), {"padding": 1}),
]


@pytest.mark.parametrize(("images", "kernels", "options"), OTHERS)
def test_others_are_left_to_torch(
    images: tuple[int, ...], kernels: tuple[int, ...], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = drawn(*images), drawn(*kernels)
    assert convolved_vectors(x, weight, **options) is None
    monkeypatch.setattr(VectorLayers, "suits", lambda layers, x: True)
    with torch.no_grad(), VectorLayers():
        found = F.conv2d(x, weight, **options)
    torch.testing.assert_close(found, F.conv2d(x, weight, **options))


def test_what_is_called_by_names_is_left_to_torch() -> None:
    x, weight, norm = drawn(5, 4, 1, 1), drawn(6, 4, 3, 3), torch.ones(6)
    with torch.no_grad(), VectorLayers():
        found = F.batch_norm(
            input=F.conv2d(input=x, weight=weight, padding=1), running_mean=norm, running_var=norm, training=False
        )
    expected = F.batch_norm(F.conv2d(x, weight, padding=1), norm, norm)
    torch.testing.assert_close(found, expected)


def test_layers_of_a_network_are_replaced_where_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorLayers, "suits", lambda layers, x: x.shape[2:] == (1, 1))
    calls: list[tuple[int, ...]] = []

    def noted(x: Tensor, *args: Any, **named: Any) -> Tensor | None:
        calls.append(tuple(x.shape))
        return convolved_vectors(x, *args, **named)

    monkeypatch.setattr(one_pixel_convolution, "convolved_vectors", noted)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.Conv2d(4, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.Conv2d(5, 2, 1, bias=False),
    ).eval()
    x = drawn(7, 3, 2, 2)
    expected = network(x)
    with VectorLayers():
        assert torch.equal(network(x), expected)
        assert calls == []
        with torch.no_grad():
            found = network(x)
    assert calls == [(7, 4, 1, 1), (7, 5, 1, 1)]
    torch.testing.assert_close(found, expected.detach())
