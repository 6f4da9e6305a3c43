from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.gradients.single import drawn, examples
from tests.networks import Calls
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.gradients.energy import EnergyGradient, gradient_energy
from warp_unlearning.models.networks import SmallResNet

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


def scaled() -> nn.Module:
    """A network whose last factor stands in no layer, and with a layer that it does not use."""
    parts = {"layer": nn.Linear(4, 3), "idle": nn.Linear(2, 2), "factor": nn.Parameter(torch.tensor(2.0))}
    return Calls(lambda m, x: m.layer(x) * m.factor, **parts)


def assert_follows(found: tuple[Tensor, dict[str, Tensor]], model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The energies and slopes are those of the weights as they stand."""
    energies, gradient = found
    expected = gradient_energy(model, x, y)
    places = dict(model.named_parameters())
    wanted = torch.autograd.grad(expected.sum(), [places[name] for name in gradient], materialize_grads=True)
    assert not energies.requires_grad
    torch.testing.assert_close(energies, expected.detach(), rtol=1e-9, atol=0)
    for one, other in zip(gradient.values(), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("build", [lambda: SmallResNet(classes=3, width=4), scaled])
def test_it_follows_the_weights_and_the_batch(device: str, build: Any) -> None:
    model = drawn(build).to(device)
    shape = (4,) if isinstance(model, Calls) else (1, 8, 8)
    energy = EnergyGradient(model)
    before: list[tuple[tuple[Tensor, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]] = []
    for turn, count in enumerate((3, 3, 3, 3, 2, 2, 2)):
        x, y = (t.to(device) for t in examples(count, *shape, seed=turn))
        with torch.no_grad():
            for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
                tensor.mul_(1.05)
        found = energy(x, y)
        assert set(found[1]) == {name for name, _ in model.named_parameters()}
        assert_follows(found, model, x, y)
        before.append((found, (found[0].clone(), {n: g.clone() for n, g in found[1].items()})))
    # Later calls do not write over what earlier ones returned.
    for given, kept in before:
        torch.testing.assert_close(given, kept, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_new_tensors_frozen_parameters_and_names(device: str) -> None:
    model = drawn(lambda: SmallResNet(classes=3, width=4)).to(device)
    x, y = (t.to(device) for t in examples(3, 1, 8, 8))
    energy = EnergyGradient(model)
    for _ in range(3):
        assert_follows(energy(x, y), model, x, y)
    model.fc.weight = nn.Parameter(2 * model.fc.weight.detach())
    for _ in range(3):
        assert_follows(energy(x, y), model, x, y)
    for _ in range(3):
        found = energy(x, y, names=["fc.weight", "conv1.weight"])
        assert set(found[1]) == {"fc.weight", "conv1.weight"}
        assert_follows(found, model, x, y)
    model.conv1.requires_grad_(False)
    for _ in range(3):
        found = energy(x, y)
        assert "conv1.weight" not in found[1]
        assert_follows(found, model, x, y)


@pytest.mark.parametrize("device", DEVICES)
def test_energies_that_are_not_finite_are_refused(device: str) -> None:
    model = drawn(lambda: nn.Linear(4, 3)).to(device)
    x, y = (t.to(device) for t in examples(3, 4))
    energy = EnergyGradient(model)
    for _ in range(3):
        energy(x, y)
        with pytest.raises(InputError, match="example 1"):
            energy(x.index_fill(0, torch.tensor([1], device=device), float("nan")), y)
