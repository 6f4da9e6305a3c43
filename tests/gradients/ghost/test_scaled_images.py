"""Images times a number of each channel and more, beside what autograd says of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.gradients.energy import gradient_energy
from warp_unlearning.gradients.ghost import scaled_images as room
from warp_unlearning.gradients.ghost.rule import Passing
from warp_unlearning.gradients.ghost.scaled_images import are_large, for_a_graph, least, scaled_images

# Triton's kernels run on a CPU where there is no GPU, and there alone.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def given(dtype: torch.dtype, *, last: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 3, 4, 2, generator=generator).to(DEVICE, dtype)
    a = a.contiguous(memory_format=torch.channels_last) if last else a
    numbers = [torch.randn(1, 3, 1, 1, generator=generator).to(DEVICE, dtype) for _ in range(2)]
    return [t.requires_grad_() for t in (a, *numbers)]


def derivatives(output: Tensor, tensors: list[Tensor], passing: Passing) -> list[Tensor]:
    """The output, the gradient at a, and what the length of that has as gradients, with the slope of the output."""
    a = tensors[0]
    passing.outputs_only = True
    (b,) = torch.autograd.grad(output.sin().sum(), a, create_graph=True)
    passing.outputs_only = False
    wanted = [t for t in tensors if t.requires_grad]
    first = torch.autograd.grad(output.square().sum(), wanted, retain_graph=True)
    return [output.detach(), b.detach(), *first, *torch.autograd.grad(b.square().sum(), wanted)]


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("frozen", [(), (1,), (2,), (1, 2)])
def test_first_and_second_derivatives(
    dtype: torch.dtype, tolerance: float, last: bool, frozen: tuple[int, ...]
) -> None:
    if dtype == torch.float32:
        pytest.importorskip("triton")
    ours, passing = given(dtype, last=last), Passing()
    theirs = given(torch.float64, last=last)
    for tensors in (ours, theirs):
        for place in frozen:
            tensors[place].requires_grad_(False)
    found = derivatives(scaled_images(*ours, passing), ours, passing)
    expected = derivatives(theirs[0] * theirs[1] + theirs[2], theirs, passing)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


def test_numbers_get_no_gradient_while_outputs_are_all_that_is_asked_for() -> None:
    tensors, passing = given(torch.float64, last=True), Passing(outputs_only=True)
    found = torch.autograd.grad(scaled_images(*tensors, passing).sum(), tensors, allow_unused=True)
    assert found[1] is None
    assert found[2] is None
    torch.testing.assert_close(found[0], tensors[1].detach().expand(5, 3, 4, 2))


def test_images_on_a_cpu_are_not_taken_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LARGE", 1)
    assert not are_large(torch.ones(1, 1, 2, 2))


def test_a_graph_takes_smaller_images_so() -> None:
    outside = least()
    with for_a_graph():
        assert least() < outside
    assert least() == outside


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_energies_on_a_gpu_are_those_of_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    model = nn.Sequential(*layers).cuda().eval()
    x, y = torch.randn(64, 3, 6, 6, device="cuda"), torch.randint(0, 4, (64,), device="cuda")
    found = []
    for large in (1, 2**40):
        monkeypatch.setattr(room, "LARGE", large)
        energy = gradient_energy(model, x, y)
        found.append([energy.detach(), *torch.autograd.grad(energy.sum(), list(model.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
