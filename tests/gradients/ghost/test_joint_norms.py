from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from warp_unlearning.gradients.ghost import batch_norm
from warp_unlearning.gradients.ghost.batch_norm import BatchNormRule
from warp_unlearning.gradients.ghost.joint_norms import can_join, join, place_of
from warp_unlearning.gradients.ghost.rule import Passing


def scale_and_shift(layer: Any, axes: int, passing: Passing) -> tuple[Tensor, Tensor]:
    joint, place = place_of(layer) or pytest.fail("the layer was not joined")
    return joint.scale_and_shift(place, axes, passing)


@pytest.mark.parametrize("eps", [(0.1, 0.1, 0.1), (0.1, 0.2, 0.3)])
@pytest.mark.parametrize("axes", [0, 1, 2])
def test_every_layer_has_its_own_scale_and_shift(drawn: Any, eps: tuple[float, ...], axes: int) -> None:
    layers = [drawn(lambda i=i, e=e: nn.BatchNorm2d(2 + i, eps=e), seed=i) for i, e in enumerate(eps)]
    join(layers)
    passing = Passing()
    for layer in layers:
        scale, shift = scale_and_shift(layer, axes, passing)
        images = torch.randn(4, layer.num_features, *[3] * axes, dtype=torch.float64)
        expected = torch.nn.functional.batch_norm(
            images, layer.running_mean, layer.running_var, layer.weight, layer.bias, eps=layer.eps
        )
        torch.testing.assert_close(images * scale + shift, expected, rtol=1e-11, atol=1e-11)
        slopes = [
            torch.autograd.grad(output.sin().sum(), (layer.weight, layer.bias), retain_graph=True)
            for output in (images * scale + shift, expected)
        ]
        for one, other in zip(*slopes, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    leaves = {child.variable for node in passing.handing for child, _ in node.next_functions}
    assert leaves == {p for layer in layers for p in layer.parameters()}


def test_inputs_alone_need_no_graph_to_the_parameters(drawn: Any) -> None:
    layer = drawn(lambda: nn.BatchNorm1d(3))
    join([layer])
    passing = Passing(inputs_only=True)
    assert not any(part.requires_grad for part in scale_and_shift(layer, 1, passing))
    assert not passing.handing


def test_a_layer_without_shift(drawn: Any) -> None:
    layer, other = (drawn(lambda: nn.BatchNorm2d(3), seed=seed) for seed in (0, 1))
    layer.bias = None
    join([layer, other])
    scale, shift = scale_and_shift(layer, 0, Passing())
    torch.testing.assert_close(shift, -layer.running_mean * scale)


def test_layers_of_other_types_are_taken_apart(drawn: Any) -> None:
    layers = [drawn(lambda: nn.BatchNorm2d(3)), drawn(lambda: nn.BatchNorm2d(3)).float()]
    join(layers)
    assert [scale_and_shift(layer, 0, Passing())[0].dtype for layer in layers] == [torch.float64, torch.float32]


def test_a_layer_whose_scale_a_hook_may_change_is_taken_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_norm, "few_steps", lambda device: True)
    plain, hooked = nn.BatchNorm2d(3).eval(), nn.BatchNorm2d(3).eval()
    hooked.register_forward_pre_hook(lambda layer, args: None)
    assert can_join(plain)
    assert not can_join(hooked)
    rule, a = BatchNormRule(), torch.randn(2, 3, 4, 4)
    rule.prepare([plain, hooked])
    assert [rule.hands_over(layer, a) for layer in (plain, hooked)] == [True, False]
    torch.testing.assert_close(rule.output(hooked, hooked, a, Passing()), hooked(a))


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_layer_whose_parameters_are_computed_is_taken_alone(name: str) -> None:
    layer = nn.BatchNorm2d(3).eval()
    parametrize.register_parametrization(layer, name, Exponential())
    assert not can_join(layer)


def test_layers_on_other_devices_are_taken_apart() -> None:
    layers = [nn.BatchNorm2d(3), nn.BatchNorm2d(3, device="meta"), nn.BatchNorm2d(3)]
    join(layers)
    first, second, third = (place_of(layer) or pytest.fail("the layer was not joined") for layer in layers)
    assert first[0] is third[0] is not second[0]


def test_a_layer_on_inputs_with_and_without_positions(drawn: Any) -> None:
    layer, passing = drawn(lambda: nn.BatchNorm1d(3)), Passing()
    join([layer])
    of_rows, of_sequences = (scale_and_shift(layer, axes, passing) for axes in (0, 1))
    for one, other in zip(of_rows, of_sequences, strict=True):
        assert (one.shape, other.shape) == ((1, 3), (1, 3, 1))
        torch.testing.assert_close(one, other[..., 0], rtol=0, atol=0)
    assert len(passing.handing) == 2
