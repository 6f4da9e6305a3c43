"""What `gradient_energy` does on a GPU, as far as a CPU can do it too, and on the GPU itself."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.gradients import energy, traced_pass
from warp_unlearning.gradients.ghost.grouped_last import GroupedLast
from warp_unlearning.gradients.ghost.patches import Patches
from warp_unlearning.gradients.ghost.windowed_gram import WindowedGram
from warp_unlearning.models.networks import SmallResNet

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


class Together(nn.Module):
    """Batch norms of several shapes: one idle, one used twice, and one whose scale and shift have other uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, bias=False)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4, eps=eps) for eps in (0.1, 0.1, 0.2))
        self.idle = nn.BatchNorm2d(2)
        self.of_rows = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](self.first(x)).sin()
        h = self.norms[1](self.second(h)).tanh()
        h = self.norms[1](self.second(h) + h).sin()
        rows = self.of_rows(self.norms[2](h).mean((2, 3)))
        return self.last(rows + self.norms[2].weight * rows.sin() + self.norms[2].bias)


def test_batch_norms_taken_together(assert_exact: Any, drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    with as_on_a_gpu():
        assert_exact(drawn(Together), *examples(3, 1, 6, 6))


@pytest.mark.parametrize("frozen", ["norms.0.weight", "norms.1.bias", "of_rows.weight", "second.weight"])
def test_frozen_parameters(assert_exact: Any, drawn: Any, examples: Any, as_on_a_gpu: Any, frozen: str) -> None:
    model = drawn(Together)
    model.get_parameter(frozen).requires_grad_(False)
    with as_on_a_gpu():
        assert_exact(model, *examples(3, 1, 6, 6))


class Prompted(nn.Module):
    """Convolved images times a parameter that is convolved by the same layer, expanded to the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.zeros(1, 1, 4, 4))
        self.conv = nn.Conv2d(1, 1, 4, padding="same", bias=False)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.conv(x).sin() * self.conv(self.prompt.expand(len(x), 1, 4, 4))).flatten(1))


class Entering(Prompted):
    """The same where the parameter enters the layer as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.conv(x) * self.conv(self.prompt).sin()).flatten(1))


class EnteringAlone(Entering):
    """The same where nothing is padded before, so that the convolution itself points to the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("build", [Prompted, Entering, EnteringAlone])
def test_parameters_that_enter_a_layer(
    assert_exact: Any, drawn: Any, examples: Any, as_on_a_gpu: Any, build: Any
) -> None:
    model, (x, y) = drawn(build), examples(3, 1, 4, 4)
    assert_exact(model, x, y)
    with as_on_a_gpu():
        assert_exact(model, x, y)


def test_memory_is_free_once_the_energies_are(drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    outputs: list[weakref.ref[Tensor]] = []
    model, (x, y) = drawn(Together), examples(2, 1, 6, 6)
    for layer in model.modules():
        layer.register_forward_hook(lambda layer, args, output: outputs.append(weakref.ref(output)))
    with as_on_a_gpu():
        energy.gradient_energy(model, x, y)
        gc.collect()
        gc.disable()
        try:
            outputs.clear()
            found = energy.gradient_energy(model, x, y)
            kept = any(output() is not None for output in outputs)
            del found
            assert kept
            assert all(output() is None for output in outputs)
        finally:
            gc.enable()


class Volumes(nn.Module):
    """One batch norm on rows and on sequences, and one on volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.along = nn.Conv1d(4, 4, 3, padding=1)
        self.of_volumes = nn.BatchNorm3d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.first(x)).tanh()
        sequences = self.norm(self.along(rows[:, :, None].expand(-1, -1, 5).clone())).sin()
        return self.last(self.of_volumes(sequences[:, :, None, :, None]).sin().mean((2, 3, 4)))


def test_batch_norms_on_inputs_of_several_axes(assert_exact: Any, drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    with as_on_a_gpu():
        assert_exact(drawn(Volumes), *examples(3, 6))


class Turned(nn.Module):
    """A convolution along one axis whose channels run fastest."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, bias=False)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.conv(x.mT).sin().mean(2))


class EnteringRows(nn.Module):
    """Rows times a parameter that enters the same linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.zeros(1, 6))
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) * self.last(self.prompt).sin()


def test_a_parameter_that_enters_a_linear_layer(assert_exact: Any, drawn: Any, examples: Any) -> None:
    assert_exact(drawn(EnteringRows), *examples(3, 6))


def test_layers_taken_together_have_rules(drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    model, (x, y) = drawn(NETWORKS[0]), examples(3, 1, 8, 8)
    with as_on_a_gpu():
        assert energy.parameters_without_rules(model, x, y, loss=energy.cross_entropy) == []


def test_sequences_whose_channels_run_fastest(assert_exact: Any, drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    with as_on_a_gpu():
        assert_exact(drawn(Turned), *examples(3, 6, 4))


def test_layers_that_are_replaced_between_calls(assert_exact: Any, drawn: Any, examples: Any, as_on_a_gpu: Any) -> None:
    model, (x, y) = drawn(Together), examples(3, 1, 6, 6)
    with as_on_a_gpu():
        energy.gradient_energy(model, x, y)
        model.norms[0] = drawn(lambda: nn.BatchNorm2d(4, eps=0.3), seed=1)
        model.second = drawn(lambda: nn.Conv2d(4, 4, 1, bias=False), seed=2)
        with torch.no_grad():
            model.norms[1].weight.mul_(3)
        assert_exact(model, x, y)


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
