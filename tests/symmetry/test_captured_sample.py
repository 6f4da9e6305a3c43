"""Samples by a graph are those without one. On a CPU a stand-in does the work again and writes over what it gave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warp_unlearning.errors import InputError
from warp_unlearning.models.small_resnet import SmallResNet
from warp_unlearning.symmetry import sampled_inputs
from warp_unlearning.symmetry.captured_sample import CapturedSample
from warp_unlearning.symmetry.drawn_ahead import DrawnAhead
from warp_unlearning.symmetry.kept_columns import KeptColumns
from warp_unlearning.symmetry.linear_weights import linear_weights
from warp_unlearning.symmetry.sampled_moment import SampledMoment, moments_of

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Net(nn.Module):
    """A grouped convolution, tokens, a weight that two layers share, and a buffer that a copy has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.tokens, self.again = nn.Linear(8, 8), nn.Linear(8, 8)
        self.again.weight = self.tokens.weight
        self.out = nn.Linear(8, 3)
        self.register_buffer("offset", torch.zeros(8))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = torch.relu_(self.grouped(torch.relu_(self.norm(self.conv(x)))))
        x = self.again(self.tokens(x.flatten(2).mT) + self.offset)
        return self.out(x.mean(1))


def assert_same(found: dict[str, SampledMoment], expected: dict[str, SampledMoment], *, exactly: bool = True) -> None:
    assert list(found) == list(expected)
    close = {"rtol": 0.0, "atol": 0.0} if exactly else {"rtol": 1e-9, "atol": 1e-9}
    for name, sample in expected.items():
        assert found[name].positions == sample.positions
        torch.testing.assert_close(found[name].total, sample.total, **close)
        torch.testing.assert_close(found[name].some_rows(), sample.some_rows(), **close)
        assert (found[name].stray is None) == (sample.stray is None)
        if sample.stray is not None:
            torch.testing.assert_close(found[name].stray, sample.stray, **close)
        if sample.columns is not None:
            torch.testing.assert_close(found[name].all_rows(), sample.all_rows(), **close)


def by_the_same_numbers(model: nn.Module, x: Tensor, patches: int, draw: torch.Generator) -> dict[str, SampledMoment]:
    drawn = DrawnAhead(x.device)
    moments_of(model, [x], patches, drawn, {})
    drawn.provide()
    drawn.draw(draw)
    drawn.begin()
    return moments_of(model, [x], patches, drawn, {})


@pytest.mark.usefixtures("reruns")
@pytest.mark.parametrize("patches", [5, 1000])
def test_it_is_what_the_same_numbers_lead_to(kit: Any, patches: int) -> None:
    model, captured = kit.built(Net), None
    for seed in range(3):
        x = kit.normal(6, 2, 5, 4, seed=seed)
        captured = CapturedSample(model, x, patches, {}) if captured is None else captured
        expected = by_the_same_numbers(model, x, patches, kit.generator(seed))
        assert_same(captured(x, kit.generator(seed)), expected)


@pytest.mark.usefixtures("reruns")
def test_where_nothing_is_drawn_it_is_what_it_is_without_a_graph(kit: Any) -> None:
    model, x = kit.built(Net), kit.normal(6, 2, 5, 4)
    captured = CapturedSample(model, x, 1000, {})
    with torch.no_grad():
        for each in (*model.parameters(), model.offset, model.norm.running_mean):
            each.add_(0.1)
    assert_same(captured(x, kit.generator()), moments_of(model, [x], 1000, kit.generator(), {}))


def test_the_model_is_left_as_it_was(kit: Any, reruns: list[Any]) -> None:
    model, x = kit.built(Net), kit.normal(6, 2, 5, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    captured, given = CapturedSample(model, x, 5, {}), x.clone()
    for _ in range(2):
        captured(x, kit.generator())
    assert reruns[0].replays == 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(not module._forward_pre_hooks for module in model.modules())
    assert torch.equal(x, given)


@pytest.mark.usefixtures("reruns")
def test_the_generator_decides_about_the_places(kit: Any) -> None:
    model, x = kit.built(Net), kit.normal(6, 2, 5, 4)
    captured = CapturedSample(model, x, 3, {})
    found = [captured(x, kit.generator(seed))["grouped.weight"].total.clone() for seed in (1, 1, 2)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.usefixtures("reruns")
def test_every_place_is_as_likely_as_the_others(kit: Any) -> None:
    """The mean over many samples is the second moment of all inputs."""
    model, x = kit.built(Net), kit.normal(6, 2, 5, 4)
    captured, draw = CapturedSample(model, x, 4, {}), kit.generator()
    every = moments_of(model, [x], 1000, draw, {})
    runs = [
        {name: (sample.total / sample.positions).clone() for name, sample in captured(x, draw).items()}
        for _ in range(400)
    ]
    for name, sample in every.items():
        whole = (sample.total / sample.positions).tril()
        each = torch.stack([run[name].tril() for run in runs])
        # Of some two hundred means none is further off than five standard errors.
        error = each.std(0) / len(runs) ** 0.5
        assert bool(((each.mean(0) - whole).abs() <= 5 * error + 1e-9).all())


@pytest.mark.usefixtures("reruns")
def test_each_layer_has_numbers_of_its_own(kit: Any) -> None:
    """Two layers of one input, which look at the same places only by chance."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 1, 1, bias=False), nn.Conv2d(1, 1, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) + self.second(x)

    x = torch.arange(80.0).reshape(2, 1, 8, 5)
    captured = CapturedSample(Beside(), x, 4, {})
    found = captured(x, kit.generator())
    first, second = (set(sample.some_rows().flatten().tolist()) for sample in found.values())
    assert len(first) == len(second) == 8
    assert first != second


@pytest.mark.usefixtures("reruns")
def test_columns_that_are_known_are_kept_and_what_strays_is_seen(kit: Any) -> None:
    model = kit.built(lambda: nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, stride=2), nn.Flatten()))
    x = torch.zeros(5, 4, 2, 2, dtype=torch.float64)
    x[:, :, 0, 0] = kit.normal(5, 4)
    (weight,) = linear_weights(model)
    alive = torch.zeros(1, 37, dtype=torch.bool)
    alive[0, 4::9] = alive[0, 36] = True
    columns = KeptColumns.of(alive, weight, x.device)
    assert columns is not None
    captured = CapturedSample(model, x, 9, {"0.weight": columns})
    for far in (0.0, 2.0):
        x[1, 0, 1, 1] = far
        found = captured(x, kit.generator())
        assert_same(found, moments_of(model, [x], 9, kit.generator(), {"0.weight": columns}))
        assert float(found["0.weight"].stray) == far


@pytest.mark.usefixtures("reruns")
def test_tables_that_were_captured_stay_in_memory(kit: Any) -> None:
    captured = CapturedSample(kit.built(Net), kit.normal(6, 2, 5, 4), 5, {})
    places = {table.data_ptr() for table in captured._drawn._tables.values()}
    sampled_inputs._pixels_read.cache_clear()
    sampled_inputs._first_pixels.cache_clear()
    assert places
    assert {table.data_ptr() for table in captured._drawn._tables.values()} == places


class Outside(TorchDispatchMode):
    """Where the tensors lie that operations read and that none of them made; no operation may read a value."""

    READS = frozenset({"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select"})

    def __init__(self) -> None:
        super().__init__()
        self.places: set[int] = set()
        # Kept, so that no place is taken twice.
        self._made: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name.split("::")[1] not in self.READS
        given = {_place(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor) and each.numel()}
        found = func(*args, **(kwargs or {}))
        self.places |= given - self._made.keys()
        made = (each for each in tree_leaves(found) if isinstance(each, Tensor))
        self._made |= {_place(each): each for each in made if _place(each) not in given}
        return found


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_all_that_it_reads_is_held_on_to(kit: Any, reruns: list[Any]) -> None:
    """What is captured reads nothing but the model, its own inputs, tables and columns, where they lie."""
    model, x = kit.built(Net), kit.normal(6, 2, 5, 4)
    alive = torch.ones(1, 19, dtype=torch.bool)
    alive[0, 2:18:9] = False
    weight = next(iter(linear_weights(model)))
    columns = KeptColumns.of(alive, weight, x.device)
    assert columns is not None
    captured, outside = CapturedSample(model, x, 5, {"conv.weight": columns}), Outside()
    with outside:
        reruns[0]._make()
    drawn = captured._drawn
    held = [captured._x, drawn._numbers, columns.kept, columns.others, *drawn._tables.values()]
    assert outside.places <= {_place(each) for each in (*held, *model.parameters(), *model.buffers())}
    assert {_place(each) for each in held} <= outside.places


@pytest.mark.usefixtures("reruns")
def test_a_model_that_asks_for_other_places_each_time_is_refused(kit: Any) -> None:
    class Wavering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.calls = nn.Conv2d(2, 2, 1), [0]

        def __deepcopy__(self, memo: Any) -> Wavering:
            return self

        def forward(self, x: Tensor) -> Tensor:
            self.calls[0] += 1
            return self.conv(x[: self.calls[0]])

    with pytest.raises(InputError, match="ask for different places"):
        CapturedSample(kit.built(Wavering), kit.normal(6, 2, 5, 4), 5, {})


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("patches", [5, 1000])
def test_a_graph_is_what_the_same_numbers_lead_to(kit: Any, patches: int) -> None:
    """Also after the weights and buffers have changed, and where the tables of others have taken the cache."""
    model, captured = kit.built(Net).cuda(), None
    for seed in range(4):
        x = kit.normal(6, 2, 5, 4, seed=seed).cuda()
        captured = CapturedSample(model, x, patches, {}) if captured is None else captured
        sampled_inputs._pixels_read.cache_clear()
        sampled_inputs._first_pixels.cache_clear()
        with torch.no_grad():
            for each in (*model.parameters(), model.offset, model.norm.running_mean):
                each.add_(0.01)
        draws = [torch.Generator("cuda").manual_seed(seed) for _ in range(2)]
        expected = by_the_same_numbers(model, x, patches, draws[0])
        assert_same(captured(x, draws[1]), expected, exactly=False)


@pytest.mark.gpu
@needs_gpu
def test_a_graph_beside_other_work_is_what_it_is_alone(kit: Any) -> None:
    """Another stream multiplies matrices, and so do graphs that were captured for other purposes."""
    model = kit.built(lambda: SmallResNet(classes=3, width=16)).cuda()
    x, side = kit.normal(64, 1, 16, 16).cuda(), torch.cuda.Stream()
    captured = CapturedSample(model, x, 8, {})
    alone = {n: s.total.clone() for n, s in captured(x, torch.Generator("cuda").manual_seed(0)).items()}
    busy = torch.randn(512, 512, device="cuda")
    for _ in range(5):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(50):
                busy = busy @ busy / 512
        found = captured(x, torch.Generator("cuda").manual_seed(0))
        for name, sample in found.items():
            torch.testing.assert_close(sample.total, alone[name], rtol=1e-9, atol=1e-9)
    torch.cuda.current_stream().wait_stream(side)
