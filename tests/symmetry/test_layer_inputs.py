from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from warp_unlearning.symmetry import layer_inputs
from warp_unlearning.symmetry.kernel_window import Taps, Window
from warp_unlearning.symmetry.layer_inputs import (
    has_linear_inputs,
    input_second_moments,
    layer_columns,
    layer_rows,
    observe_inputs,
    reached_inputs,
    run_watched,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def patches_by_loop(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Every patch read out entry by entry, images first, then rows, then columns."""
    (kh, kw), (sh, sw), (dh, dw) = layer.kernel_size, layer.stride, layer.dilation
    if layer.padding == "same":
        before_h, before_w = dh * (kh - 1) // 2, dw * (kw - 1) // 2
        after_h, after_w = dh * (kh - 1) - before_h, dw * (kw - 1) - before_w
    else:
        before_h, before_w = (0, 0) if layer.padding == "valid" else layer.padding
        after_h, after_w = before_h, before_w
    n, channels, height, width = x.shape
    out_h = (height + before_h + after_h - dh * (kh - 1) - 1) // sh + 1
    out_w = (width + before_w + after_w - dw * (kw - 1) - 1) // sw + 1
    rows = []
    for image in range(n):
        for i in range(out_h):
            for j in range(out_w):
                patch = torch.zeros(channels, kh, kw, dtype=x.dtype)
                for a in range(kh):
                    for b in range(kw):
                        r, s = i * sh + a * dh - before_h, j * sw + b * dw - before_w
                        if 0 <= r < height and 0 <= s < width:
                            patch[:, a, b] = x[image, :, r, s]
                rows.append(patch.flatten())
    return torch.stack(rows)


GEOMETRIES: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 2)},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": (3, 2), "dilation": (1, 3), "stride": (2, 2), "padding": (0, 1)},
    {"kernel_size": 3, "padding": "same"},
    {"kernel_size": (4, 2), "padding": "same"},
    {"kernel_size": (2, 3), "padding": "same", "dilation": (3, 2)},
    {"kernel_size": 2, "padding": "valid", "stride": 3},
    {"kernel_size": 1, "stride": 2},
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_convolution_patches(geometry: dict[str, Any]) -> None:
    layer = nn.Conv2d(2, 3, **geometry).double()
    x = normal(2, 2, 6, 7)
    columns = layer_columns(layer, x)
    torch.testing.assert_close(columns, patches_by_loop(x, layer), rtol=0, atol=0)
    assert layer.bias is not None
    output = layer(x) - layer.bias[:, None, None]
    torch.testing.assert_close(columns @ layer.weight.flatten(1).T, output.movedim(1, -1).reshape(-1, 3))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(
    "geometry",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "stride": 2, "padding": 2},
        {"kernel_size": 2, "dilation": 3, "padding": 1},
        {"kernel_size": 4, "padding": "same"},
        {"kernel_size": 3, "padding": "valid"},
    ],
    ids=str,
)
def test_convolutions_in_one_dimension(geometry: dict[str, Any]) -> None:
    layer = nn.Conv1d(2, 3, **geometry).double()
    x = normal(4, 2, 9)
    columns = layer_columns(layer, x)
    assert layer.bias is not None
    output = (layer(x) - layer.bias[:, None]).movedim(1, -1).reshape(-1, 3)
    assert columns.shape == (len(output), layer.weight[0].numel())
    torch.testing.assert_close(columns @ layer.weight.flatten(1).T, output)


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5), (2, 2, 3, 5)])
def test_linear_layers_with_leading_axes(shape: tuple[int, ...]) -> None:
    layer = nn.Linear(5, 3).double()
    x = normal(*shape)
    columns = layer_columns(layer, x)
    torch.testing.assert_close(columns @ layer.weight.T, (layer(x) - layer.bias).reshape(-1, 3))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.fc = nn.Linear(3, 4)
        self.again = nn.Linear(3, 4, bias=False)
        self.again.weight = self.fc.weight
        self.unused = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.relu(self.conv(x)).mean((2, 3))
        return self.fc(pooled) + self.again(2 * pooled + 1)


def outer_sum(rows: Tensor) -> Tensor:
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
    for row in rows.double():
        total += torch.outer(row, row)
    return total


def test_second_moments_sum_over_batches_and_over_uses_of_a_weight() -> None:
    model = Net().double()
    batches = [normal(3, 2, 5, 5, seed=1), normal(2, 2, 5, 5, seed=2)]
    found = input_second_moments(model, batches)
    assert set(found) == {"conv.weight", "fc.weight"}
    conv = sum(outer_sum(patches_by_loop(x, model.conv)) for x in batches)
    torch.testing.assert_close(found["conv.weight"], conv)
    expected = torch.zeros(3, 3, dtype=torch.float64)
    with torch.no_grad():
        for x in batches:
            pooled = F.relu(model.conv(x)).mean((2, 3))
            expected += outer_sum(pooled) + outer_sum(2 * pooled + 1)
    torch.testing.assert_close(found["fc.weight"], expected)


def test_second_moments_are_in_float64_whatever_the_model() -> None:
    model = Net()
    x = normal(3, 2, 5, 5).float()
    found = input_second_moments(model, [x])
    assert all(moment.dtype == torch.float64 for moment in found.values())
    torch.testing.assert_close(found["conv.weight"], outer_sum(patches_by_loop(x, model.conv)), rtol=1e-12, atol=1e-12)


def test_the_model_is_left_as_it_was() -> None:
    model = Net()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    input_second_moments(model, [normal(2, 2, 5, 5).float()])
    with pytest.raises(RuntimeError):
        input_second_moments(model, [normal(2, 5, 5, 5).float()])
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(not m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_which_layers_have_linear_inputs() -> None:
    assert has_linear_inputs(nn.Linear(2, 2))
    assert has_linear_inputs(nn.Conv1d(2, 2, 1))
    assert has_linear_inputs(nn.Conv2d(2, 2, 1))
    assert not has_linear_inputs(nn.Conv2d(2, 2, 3, groups=2))
    assert not has_linear_inputs(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"))
    assert not has_linear_inputs(nn.ConvTranspose2d(2, 2, 3))
    assert not has_linear_inputs(nn.BatchNorm2d(2))


def test_a_parametrised_weight_has_no_entry_and_keyword_inputs_are_seen() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 4))
            self.second = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(input=self.first(x))
            return out

    model, x = Model().double(), torch.randn(5, 3, dtype=torch.float64)
    moments = input_second_moments(model, [x])
    hidden = model.first(x).detach()
    assert set(moments) == {"second.weight"}
    assert torch.allclose(moments["second.weight"], hidden.T @ hidden, rtol=1e-12, atol=0)


GROUPED: list[nn.Module] = [
    nn.Conv2d(4, 6, 3, groups=2, stride=2, padding=1),
    nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="reflect"),
    nn.Conv2d(4, 3, (2, 3), padding=(1, 2), padding_mode="circular"),
    nn.Conv2d(4, 2, 3, padding="same", padding_mode="replicate", dilation=2, groups=2),
    nn.Conv1d(4, 6, 3, groups=2, padding=2, dilation=2),
    nn.Conv1d(4, 4, 2, stride=2, padding=1, padding_mode="circular", groups=4),
    nn.Linear(7, 3),
]


@pytest.mark.parametrize("layer", GROUPED, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_a_weight_applied_to_its_rows_is_what_the_layer_computes(layer: nn.Module, batched: bool) -> None:
    layer = layer.double()
    x = normal(3, 4, 6, 7) if not isinstance(layer, nn.Conv1d) else normal(3, 4, 7)
    x = x if batched else x[0]
    rows = layer_rows(layer, x)
    groups = getattr(layer, "groups", 1)
    weight = layer.weight.reshape(groups, -1, layer.weight[0].numel())
    found = torch.cat(list(rows @ weight.mT), dim=1) + layer.bias
    output = layer(x)
    if not isinstance(layer, nn.Linear):
        output = output.movedim(1 if batched else 0, -1)
    torch.testing.assert_close(found, output.reshape(-1, len(layer.weight)))


class Deaf(nn.Module):
    """Channels 1 and 4 of the hidden layer are never active, and the last kernels hang over the edge."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, stride=2)
        self.second = nn.Conv2d(6, 6, 3, padding=1, groups=3)
        self.linear = nn.Linear(6, 2)
        self.linear_again = nn.Linear(6, 2)
        self.linear_again.weight = self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first(x)) * torch.tensor([1.0, 0, 1, 1, 0, 1])[:, None, None]
        pooled = self.second(hidden).mean((2, 3))
        flags = torch.tensor([1.0, 1, 0, 0, 0, 0])
        return self.linear(pooled * flags) + self.linear_again(input=pooled * flags.flip(0))


@pytest.mark.parametrize("size", [3, 5])
def test_reached_coordinates_are_those_of_any_row(size: int) -> None:
    model = Deaf().double()
    model = model.to(torch.float64)
    batches = [normal(2, 2, size, size, seed=1), normal(3, 2, size, size, seed=2)]
    expected: dict[str, Tensor] = {}

    def record(weight: Any, layer: nn.Module, x: Tensor) -> None:
        seen = (layer_rows(layer, x) != 0).any(1)
        expected[weight.name] = expected.get(weight.name, torch.zeros_like(seen)) | seen

    observe_inputs(model, batches, record)
    found = reached_inputs(model, batches)
    assert found.keys() == expected.keys() == {"first.weight", "second.weight", "linear.weight"}
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert found["second.weight"].shape == (3, 18)
    assert not found["second.weight"].all()
    assert found["linear.weight"].tolist() == [[True, True, False, False, True, True]]


def test_observing_leaves_no_hook_behind_and_shows_inputs_before_they_are_written_over() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU(inplace=True)).double()
    x, seen = normal(5, 3), []
    observe_inputs(model, [x], lambda weight, layer, a: seen.append((weight.name, a.clone())))
    assert [name for name, _ in seen] == ["0.weight", "2.weight"]
    torch.testing.assert_close(seen[1][1], F.relu(model[0](x)))
    with pytest.raises(RuntimeError):
        observe_inputs(model, [normal(5, 2)], lambda weight, layer, a: None)
    assert all(not m._forward_pre_hooks for m in model.modules())


sides = st.tuples(st.integers(1, 5), st.integers(1, 5))
small = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=120, deadline=None)
@given(size=sides, kernel=sides, stride=small, dilation=small, padding=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_the_taps_met_are_the_smallest_rectangle_that_data_reaches(
    size: tuple[int, int], kernel: Any, stride: Any, dilation: Any, padding: Any
) -> None:
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    if any(n + 2 * p < r for n, p, r in zip(size, padding, reach, strict=True)):
        return
    layer = nn.Conv2d(2, 1, kernel, stride=stride, dilation=dilation, padding=padding).double()
    x = normal(3, 2, *size).abs() + 1
    window = Window(layer)
    every = layer_rows(layer, x)[0]
    assert torch.equal(every, patches_by_loop(x, layer))
    met = (every != 0).any(0).reshape(2, *kernel)[0]
    taps = window.met_taps(x)
    if not bool(met.any()):
        assert taps == window.all_taps
        return
    down, across = met.any(1).nonzero().flatten().tolist(), met.any(0).nonzero().flatten().tolist()
    assert taps == Taps(down[0], down[-1] + 1, across[0], across[-1] + 1)
    columns = taps.coordinates(window.kernel, 2)
    assert torch.equal(layer_rows(layer, x, taps=taps)[0], every[:, columns])
    assert window.all_taps.holds(taps)
    assert taps.holds(window.all_taps) == (taps == window.all_taps)


def test_padding_that_is_no_zeros_is_met_in_every_tap() -> None:
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="replicate")
    assert Window(layer).met_taps(torch.ones(1, 1, 1, 1)) == Window(layer).all_taps
    assert Window(nn.Conv1d(1, 1, 3, padding=1)).met_taps(torch.ones(2, 1, 1)) == Taps(0, 1, 1, 2)


@pytest.mark.parametrize("groups", [1, 2])
def test_patches_are_the_same_however_images_lie_in_memory(groups: int) -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1, stride=2, groups=groups).double()
    x = normal(7, 4, 6, 5)
    expected = layer_rows(layer, x.contiguous())
    for other in (x.contiguous(memory_format=torch.channels_last), normal(9, 4, 6, 5)[2:], x.transpose(2, 3)):
        assert torch.equal(layer_rows(layer, other), layer_rows(layer, other.contiguous()))
    assert torch.equal(layer_rows(layer, x.contiguous(memory_format=torch.channels_last)), expected)
    bare, later = nn.Conv2d(4, 4, 2, groups=groups).double(), normal(9, 4, 6, 5)[2:, :, 1:]
    assert torch.equal(layer_rows(bare, later), layer_rows(bare, later.clone()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_patches_of_many_images_are_few_kernels_on_a_gpu() -> None:
    layer, x = nn.Conv2d(8, 4, 3, padding=1, device="cuda"), torch.randn(200, 8, 6, 6, device="cuda")
    expected = F.unfold(x, 3, padding=1).permute(0, 2, 1).reshape(1, -1, 72)
    assert torch.equal(layer_rows(layer, x), expected)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        layer_rows(layer, x)
        torch.cuda.synchronize()
    assert sum(event.count for event in seen.key_averages() if event.device_type.name == "CUDA") <= 6


class Seen(TorchFunctionMode):
    """Which functions of torch were called."""

    names: list[str]

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def test_layers_are_looked_at_while_they_run_and_what_is_recorded_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    seen.names = []
    monkeypatch.setattr(layer_inputs, "one_pixel_norms", lambda: seen)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    recorded: list[Tensor] = []
    run_watched(model, [torch.ones(2, 3)], [model[0]], lambda layer, x: recorded.append(x.sin()))
    assert len(recorded) == 1
    assert "batch_norm" in seen.names
    assert "sin" not in seen.names


def test_the_geometry_is_that_of_the_layer_as_it_is_now() -> None:
    """What was found for one setting or size is not given for another."""
    layer = nn.Conv2d(2, 1, 3, padding=1).double()
    for change in ({}, {"stride": (2, 1)}, {"dilation": (1, 2)}, {"padding": (2, 0)}, {"padding": "valid"}):
        for name, value in change.items():
            setattr(layer, name, value)
        for size in ((6, 5), (5, 6)):
            x = torch.arange(2.0 * 2 * size[0] * size[1], dtype=torch.float64).reshape(2, 2, *size)
            down, across = Window(layer).grid(x)
            assert (down, across) == layer._conv_forward(x, layer.weight, layer.bias).shape[2:]
            assert torch.equal(layer_rows(layer, x)[0], unfolded(layer, x))


def unfolded(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The patches by torch's own."""
    padding = (0, 0) if layer.padding == "valid" else layer.padding
    found = nn.functional.unfold(x, layer.kernel_size, layer.dilation, padding, layer.stride)
    return found.mT.reshape(-1, found.shape[1])


@pytest.mark.parametrize("geometry", [{}, {"stride": 2}, {"dilation": 2, "padding": 2}, {"padding": (0, 2)}])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 3), (4, 3), (7, 6)])
def test_taps_that_meet_no_padding_are_read_from_the_image_itself(
    geometry: dict[str, Any], size: tuple[int, int]
) -> None:
    layer = nn.Conv2d(2, 1, 3, **({"padding": 1} | geometry)).double()
    x = torch.randn(3, 2, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    window = Window(layer)
    if min(window.grid(x)) < 1:
        pytest.skip("the kernel has no place on an image of this size")
    every = unfolded(layer, x)
    for top in range(3):
        for left in range(3):
            taps = Taps(top, min(top + 2, 3), left, left + 1)
            found = layer_rows(layer, x, taps=taps)[0]
            assert torch.equal(found, every[:, taps.coordinates(window.kernel, 2)])
