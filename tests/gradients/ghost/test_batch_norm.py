from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.gradients.ghost import affine_norms, batch_norm
from warp_unlearning.gradients.ghost.batch_norm import BatchNormRule
from warp_unlearning.gradients.ghost.rule import Part, Passing


def parts(count: int, *, eps: float, drawn: Any) -> list[Part]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for index in range(count):
        layer = drawn(lambda: nn.BatchNorm2d(3, eps=eps), seed=index)
        a, g = (torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
        a, g = a.requires_grad_(), g.contiguous(memory_format=torch.channels_last).requires_grad_()
        found.append(Part(layer, a, g))
    return found


def by_definition(part: Part, name: str) -> Tensor:
    layer: Any = part.layer
    each = []
    for a, g in zip(part.a, part.g, strict=True):
        mean, variance = layer.running_mean[:, None, None], layer.running_var[:, None, None]
        normal = (a - mean) / (variance + layer.eps).sqrt()
        each.append((g * normal if name == "weight" else g).sum((1, 2)).square().sum())
    return torch.stack(each)


@pytest.mark.parametrize("names", [["weight"], ["bias"], ["weight", "bias"]])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("stacked", [0, 10**9])
def test_norms_of_several_layers(
    drawn: Any, monkeypatch: pytest.MonkeyPatch, names: list[str], count: int, stacked: int
) -> None:
    monkeypatch.setattr(affine_norms, "STACKED", stacked)
    uses = parts(count, eps=0.1, drawn=drawn)
    found = BatchNormRule().squared_norms(names, uses)
    expected = torch.stack([by_definition(part, name) for part in uses for name in names]).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    weights = torch.tensor([0.5, 1.5], dtype=torch.float64)
    inputs = [tensor for part in uses for tensor in (part.a, part.g)]
    pairs = [
        torch.autograd.grad(n @ weights, inputs, allow_unused=True, materialize_grads=True) for n in (found, expected)
    ]
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 5, 2)])
@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("few", [True, False])
def test_first_and_second_derivatives(
    drawn: Any, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], prepared: bool, few: bool
) -> None:
    monkeypatch.setattr(batch_norm, "few_steps", lambda device: few)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    layer = drawn(lambda: kind(4, eps=0.1))
    a = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    passing, rule = Passing(), BatchNormRule()
    if prepared:
        rule.prepare([drawn(lambda: nn.BatchNorm1d(2), seed=1), layer])
    assert rule.hands_over(layer, a) == (prepared and few)

    def derivatives(output: Tensor) -> tuple[Tensor, ...]:
        passing.outputs_only = True
        (b,) = torch.autograd.grad(output.sin().sum(), a, create_graph=True)
        passing.outputs_only = False
        return output.detach(), b.detach(), *torch.autograd.grad(b.square().sum(), (a, layer.weight, layer.bias))

    found, expected = derivatives(rule.output(layer, layer, a, passing)), derivatives(layer(a))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_inputs_the_layer_refuses_are_refused() -> None:
    layer = nn.BatchNorm2d(3).eval()
    with pytest.raises(ValueError, match="expected 4D input"):
        BatchNormRule().output(layer, layer, torch.ones(2, 3), Passing())


def test_layers_are_kin_by_batch_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, layer, a = BatchNormRule(), nn.BatchNorm2d(3), torch.ones(2, 3, 4, 4)
    assert rule.kinship(layer, a, a) is None
    assert batch_norm.few_steps(torch.device("cuda"))
    monkeypatch.setattr(batch_norm, "few_steps", lambda device: True)
    assert rule.kinship(layer, a, a) != rule.kinship(layer, a.double(), a.double())
    assert (
        rule.kinship(layer, a, a) == rule.kinship(nn.BatchNorm2d(2), a[:, :2], a) != rule.kinship(layer, a[:1], a[:1])
    )


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(3),
        nn.BatchNorm2d(3, affine=False).eval(),
        nn.BatchNorm2d(3, track_running_stats=False).eval(),
    ],
)
def test_layers_without_running_statistics_or_scale_compute_as_they_do(layer: nn.Module) -> None:
    rule, a = BatchNormRule(), torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    rule.prepare([layer])
    torch.testing.assert_close(rule.output(layer, layer, a, Passing()), layer(a))
