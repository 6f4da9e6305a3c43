"""What `gradient_energy` does on a GPU, as far as a CPU can do it too, and on the GPU itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.gradients import energy, traced_pass
from warp_unlearning.gradients.ghost.grouped_last import GroupedLast
from warp_unlearning.gradients.ghost.patches import Patches
from warp_unlearning.gradients.ghost.windowed_gram import WindowedGram
from warp_unlearning.models.small_resnet import SmallResNet

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Viewed(nn.Module):
    """A network that asks for a view which images with channels fastest do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.second = nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2, bias=False)
        self.last = nn.Linear(8 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).sin()).view(len(x), -1))


class Sequence(nn.Module):
    """Convolutions along one axis, over rows of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(8, 8, 3, stride=2, groups=4, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Conv1d(8, 4, 2, padding="same", padding_mode="circular")
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.norm(self.first(x[:, 0])).tanh()).mean(2))


NETWORKS = [lambda: SmallResNet(classes=3, width=4), Viewed, Sequence]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (NETWORKS[0], {WindowedGram, Patches, GroupedLast}),
        (NETWORKS[1], {Patches}),
        (NETWORKS[2], {WindowedGram, Patches}),
    ],
)
def test_the_choices_for_a_gpu(
    assert_exact: Any, drawn: Any, examples: Any, as_on_a_gpu: Any, build: Any, expected: set[type]
) -> None:
    with as_on_a_gpu() as chosen:
        assert_exact(drawn(build), *examples(3, 1, 8, 8))
    assert {type(way) for way in chosen} == expected


def test_values_without_grad_mode(drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    model, (x, y) = drawn(NETWORKS[0]), examples(3, 1, 8, 8)
    with as_on_a_gpu(), torch.no_grad():
        found = energy.gradient_energy(model, x, y)
    torch.testing.assert_close(found, energy.gradient_energy(model, x, y).detach(), rtol=1e-11, atol=0)


@pytest.mark.parametrize(("suits", "contiguous"), [(True, False), (False, True)])
def test_channels_run_fastest_where_the_model_lets_them(
    drawn: Any, examples: Any, monkeypatch: pytest.MonkeyPatch, suits: bool, contiguous: bool
) -> None:
    monkeypatch.setattr(traced_pass, "suits_channels_last", lambda x: suits)
    seen: list[bool] = []
    model = drawn(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    model[1].register_forward_hook(lambda layer, args, output: seen.append(output.is_contiguous()))
    energy.gradient_energy(model, *examples(2, 2, 5, 5))
    assert seen[0] is contiguous


def test_what_suits_a_cpu() -> None:
    assert not traced_pass.suits_channels_last(torch.empty(2, 3, 4, 4))


def test_an_error_of_the_model_is_the_models(drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    with as_on_a_gpu(), pytest.raises(RuntimeError, match="channels"):
        energy.gradient_energy(drawn(lambda: nn.Conv2d(5, 3, 3)), *examples(2, 2, 5, 5))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("build", NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-9)])
def test_on_a_gpu(
    assert_exact: Any,
    drawn: Any,
    examples: Any,
    monkeypatch: pytest.MonkeyPatch,
    build: Any,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert_exact(drawn(build), *examples(3, 1, 8, 8), device="cuda", dtype=dtype, tolerance=tolerance)
