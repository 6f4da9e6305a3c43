"""When samples are taken by a graph, and that what is followed by them is what is followed without."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import DataError
from warp_unlearning.models.small_resnet import SmallResNet
from warp_unlearning.symmetry import captured_sample, repeated_sample
from warp_unlearning.symmetry.input_bases import InputBasis
from warp_unlearning.symmetry.kept_columns import KeptColumns
from warp_unlearning.symmetry.move import apply_move
from warp_unlearning.symmetry.repeated_sample import RepeatedSample
from warp_unlearning.symmetry.sampled_moment import Asking, Replay, SampledMoment, sampled_moments
from warp_unlearning.symmetry.tracked_bases import TrackedBases
from warp_unlearning.symmetry.tracked_layer import TrackedLayer
from warp_unlearning.symmetry.tracked_null_space import TrackedNullSpace

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, stride=2, groups=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def columns() -> KeptColumns:
    return KeptColumns(9, torch.arange(5), torch.arange(5, 9), None)


def asked(
    sample: RepeatedSample,
    model: nn.Module,
    *parts: Tensor,
    patches: int = 4,
    known: dict[str, KeptColumns] | None = None,
) -> dict[str, SampledMoment] | None:
    return sample.replayed(model, parts, patches, torch.Generator().manual_seed(0), known or {})


def replay_of(sample: RepeatedSample, model: nn.Module) -> Replay:
    return lambda parts, patches, draw, known: sample.replayed(model, parts, patches, draw, known)


def test_what_will_be_asked_for_is_captured_on_demand(kit: Any, reruns: list[Any]) -> None:
    model, x, sample = kit.built(network), kit.normal(8, 2, 5, 5), RepeatedSample()
    some = {"3.weight": columns()}
    sample.capture(model, Asking([x], 4, some))
    sample.capture(model, Asking([x + 1], 4, dict(some)))
    assert asked(sample, model, x[:6], known=some) is None
    assert asked(sample, model, x, known=some) is not None
    assert [graph.replays for graph in reruns] == [1]
    sample.capture(model, Asking([x, x], 4, some))
    sample.capture(model, Asking([], 4, some))
    assert len(reruns) == 1
    sample.capture(model, Asking([x], 3, some))
    assert [graph.replays for graph in reruns] == [1, 0]


def test_what_is_asked_for_twice_in_a_row_is_captured(kit: Any, reruns: list[Any]) -> None:
    model, x, sample = kit.built(network), kit.normal(8, 2, 5, 5), RepeatedSample()
    assert asked(sample, model, x) is None
    assert asked(sample, model, x[:6]) is None
    assert asked(sample, model, x) is None
    assert not sample.captured
    assert asked(sample, model, x) is not None
    assert asked(sample, model, x + 1) is not None
    assert sample.captured
    assert [graph.replays for graph in reruns] == [2]


def test_something_else_is_not_captured_at_once_and_the_graph_is_kept(kit: Any, reruns: list[Any]) -> None:
    model, x, sample = kit.built(network), kit.normal(8, 2, 5, 5), RepeatedSample()
    some = {"3.weight": columns()}
    asked(sample, model, x, known=some)
    assert asked(sample, model, x, known=some) is not None
    others: list[dict[str, Any]] = [{"known": {}}, {"known": {"3.weight": columns()}}, {"known": some, "patches": 3}]
    for other in others:
        assert asked(sample, model, x, **other) is None
        assert asked(sample, model, x, known=dict(some)) is not None
    for parts in ([x[:5]], [x, x], [], [x.float()]):
        assert asked(sample, model, *parts, known=some) is None
        assert asked(sample, model, x, known=some) is not None
    assert len(reruns) == 1


def test_another_shape_that_stays_is_captured_in_place_of_the_first(kit: Any, reruns: list[Any]) -> None:
    model, x, sample = kit.built(network), kit.normal(8, 2, 5, 5), RepeatedSample()
    given = [asked(sample, model, part) is not None for part in (x, x, x[:5], x[:5], x[:5], x)]
    assert given == [False, True, False, True, True, False]
    assert len(reruns) == 2


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), torch.OutOfMemoryError("out of memory")])
def test_what_cannot_be_captured_is_sampled_as_before(
    kit: Any, monkeypatch: pytest.MonkeyPatch, reruns: list[Any], error: Exception
) -> None:
    model, x, sample, tries = kit.built(network), kit.normal(40, 2, 5, 5), RepeatedSample(), []

    def fails(make: Any) -> None:
        tries.append(make)
        raise error

    monkeypatch.setattr(captured_sample, "CudaGraph", fails)
    for seed in range(4):
        found, expected = (
            sampled_moments(model, [x], 12, 4, kit.generator(seed), {}, replay=replay)
            for replay in (replay_of(sample, model), None)
        )
        assert all(torch.equal(found[name].total, each.total) for name, each in expected.items())
        assert all(not module._forward_pre_hooks for module in model.modules())
    assert len(tries) == 1
    assert not sample.captured


def test_a_model_that_lies_in_several_places_is_not_captured(kit: Any, reruns: list[Any]) -> None:
    model, x, sample = kit.built(network), kit.normal(8, 2, 5, 5), RepeatedSample()
    model.register_buffer("scale", torch.ones((), device="meta"))
    assert [asked(sample, model, x) for _ in range(3)] == [None] * 3
    assert reruns == []


def test_on_a_cpu_and_in_modes_of_the_caller_nothing_is_captured(kit: Any) -> None:
    x = kit.normal(8, 2, 5, 5)
    assert not repeated_sample._may_be_captured(x)
    sample = RepeatedSample()
    assert [asked(sample, kit.built(network), x) for _ in range(3)] == [None] * 3


def bases_equal(a: dict[str, InputBasis], b: dict[str, InputBasis]) -> bool:
    assert list(a) == list(b)
    return all(
        torch.equal(p.basis, q.basis) and p.captured == q.captured
        for name in a
        for p, q in zip(a[name].blocks, b[name].blocks, strict=True)
    )


def kept(layer: TrackedLayer) -> list[Tensor]:
    """All that a layer keeps from one refresh to the next."""
    trackers = [
        tensor
        for tracker in layer.trackers
        for tensor in (tracker._alive, tracker._normals, None if tracker._span is None else tracker._span.basis)
        if tensor is not None
    ]
    return [layer.within, *(span.basis for span in layer.spans), *trackers]


@pytest.mark.parametrize("energy", [0.6, 0.95])
def test_bases_that_follow_a_graph_are_those_that_follow_without(kit: Any, reruns: list[Any], energy: float) -> None:
    """All examples and all places: there is nothing to draw. What is kept is spoilt by no later sample."""
    model, sample = kit.built(network), RepeatedSample()
    by_graph, without = (TrackedBases(energy, examples=100, patches=100) for _ in range(2))
    for seed in range(6):
        x = kit.normal(30, 2, 5, 5, seed=seed)
        found = by_graph.refresh(model, [x], generator=kit.generator(), replay=replay_of(sample, model))
        for graph in reruns:
            graph.spoil()
        assert bases_equal(found, without.refresh(model, [x], generator=kit.generator()))
        for name, layer in without._layers.items():
            pairs = zip(kept(by_graph._layers[name]), kept(layer), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.add_(0.02 * kit.normal(*p.shape, seed=100 * seed + i))
    assert [graph.replays for graph in reruns] == [4]


def test_a_layer_first_seen_by_a_graph_keeps_its_own_memory(kit: Any, reruns: list[Any]) -> None:
    model, sample, x = kit.built(network), RepeatedSample(), kit.normal(30, 2, 5, 5)
    tracked = TrackedBases(0.9, examples=100, patches=100)
    for _ in range(3):
        tracked.refresh(model, [x], generator=kit.generator(), replay=replay_of(sample, model))
    assert sample.captured
    without = deepcopy(tracked)
    for each in (tracked, without):
        del each._layers["6.weight"]
    found = tracked.refresh(model, [x], generator=kit.generator(), replay=replay_of(sample, model))
    assert reruns[0].replays == 2
    reruns[0].spoil()
    assert bases_equal(found, without.refresh(model, [x], generator=kit.generator()))
    assert torch.equal(tracked._layers["6.weight"].within, without._layers["6.weight"].within)


def test_what_strays_in_a_sample_by_a_graph_is_taken_in(kit: Any, reruns: list[Any]) -> None:
    """Images of which at first one pixel alone is other than zero, so that most taps seem to meet padding."""
    model = kit.built(lambda: nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, stride=2), nn.Flatten()))
    x = torch.zeros(20, 4, 2, 2, dtype=torch.float64)
    x[:, :, 0, 0] = kit.normal(20, 4)
    by_graph, without, sample = TrackedBases(0.9, restart=1e6), TrackedBases(0.9, restart=1e6), RepeatedSample()
    for turn in range(7):
        if turn == 4:
            x[3, 1, 1, 1] = 1.5
        found = by_graph.refresh(model, [x], generator=kit.generator(), replay=replay_of(sample, model))
        for graph in reruns:
            graph.spoil()
        assert bases_equal(found, without.refresh(model, [x], generator=kit.generator()))
        assert torch.equal(by_graph._layers["0.weight"].moment, without._layers["0.weight"].moment)
    assert [graph.replays for graph in reruns] == [3, 1]


def test_inputs_that_are_not_finite_are_an_error_and_change_nothing(kit: Any, reruns: list[Any]) -> None:
    model, sample, x = kit.built(network), RepeatedSample(), kit.normal(30, 2, 5, 5)
    tracked = TrackedBases(0.9, examples=100, patches=100)
    for _ in range(3):
        tracked.refresh(model, [x], generator=kit.generator(), replay=replay_of(sample, model))
    undisturbed, broken = deepcopy(tracked), x.clone()
    broken[7, 0, 2, 3] = float("nan")
    with pytest.raises(DataError, match=r"0\.weight hold NaN"):
        tracked.refresh(model, [broken], generator=kit.generator(), replay=replay_of(sample, model))
    found = tracked.refresh(model, [x], generator=kit.generator(), replay=replay_of(sample, model))
    assert reruns[0].replays == 3
    assert bases_equal(found, undisturbed.refresh(model, [x], generator=kit.generator()))


def test_a_renewal_is_taken_without_a_graph(kit: Any, reruns: list[Any]) -> None:
    model, sample, x = kit.built(network), RepeatedSample(), kit.normal(30, 2, 5, 5)
    tracked = TrackedBases(0.9, examples=100, patches=100, restart=1.01, afar=1e6)
    for _ in range(3):
        tracked.refresh(model, [x], generator=kit.generator(), replay=replay_of(sample, model))
    for layer in tracked._layers.values():
        layer.missed, layer.best = [1.0 for _ in layer.missed], 0.01
    before = reruns[0].replays
    tracked.refresh(model, [x], generator=kit.generator(), replay=replay_of(sample, model))
    assert (tracked.renewals, reruns[0].replays) == (1, before)
    tracked.refresh(model, [x], generator=kit.generator(), replay=replay_of(sample, model))
    assert reruns[0].replays == before + 1


def problem(kit: Any) -> tuple[nn.Module, Tensor, tuple[Tensor, Tensor]]:
    return kit.built(network), kit.normal(20, 2, 5, 5), (kit.normal(4, 2, 5, 5, seed=1), torch.arange(4) % 3)


def moved(kit: Any, symmetry: TrackedNullSpace, model: nn.Module, x: Tensor, forget: Any, seed: int) -> None:
    apply_move(model, symmetry.move(model, generator=kit.generator(seed), probe=kit.probe(x, forget=forget)))


def test_moves_by_a_graph_are_moves_without(kit: Any, reruns: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for captures in (True, False):
        monkeypatch.setattr(repeated_sample, "_may_be_captured", lambda x, captures=captures: captures)
        model, x, forget = problem(kit)
        symmetry = TrackedNullSpace(energy=0.9)
        for seed in range(6):
            moved(kit, symmetry, model, x, forget, seed)
        assert symmetry._remembered._sample.captured == captures
        found.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    assert [graph.replays for graph in reruns] == [5]
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def test_moves_that_follow_a_decomposition_are_captured_ahead(kit: Any, reruns: list[Any]) -> None:
    """At the first move, and at each that decomposed anew: there the columns that are known are others."""
    model, x, forget = problem(kit)
    symmetry = TrackedNullSpace(energy=0.9)
    counts = []
    for seed in range(5):
        if seed == 3:
            for layer in symmetry._tracked._layers.values():
                layer.missed, layer.best = [1.0 for _ in layer.missed], 0.01
        moved(kit, symmetry, model, x, forget, seed)
        counts.append((len(reruns), sum(graph.replays for graph in reruns)))
    assert symmetry._tracked.exact_builds == 2
    assert [replays for _, replays in counts] == [0, 1, 2, 2, 3]
    assert counts[0][0] == 1


def test_what_is_asked_next_is_what_the_next_refresh_asks(kit: Any) -> None:
    model, asked_for = kit.built(network), []

    def replay(parts: Any, patches: int, draw: torch.Generator, known: Any) -> None:
        asked_for.append(([part.shape for part in parts], patches, known))

    batches, tracked, generator = [kit.normal(20, 2, 5, 5), kit.normal(9, 2, 5, 5)], TrackedBases(0.9), kit.generator()
    assert tracked.asks_next(batches) is None
    tracked.refresh(model, batches, generator=generator, replay=replay)
    before = generator.get_state()
    asking = tracked.asks_next(batches)
    assert torch.equal(generator.get_state(), before)
    assert asking is not None
    tracked.refresh(model, batches, generator=generator, replay=replay)
    assert asked_for == [([part.shape for part in asking.parts], asking.patches, asking.known)]


def elsewhere(model: nn.Sequential) -> None:
    model[3].weight.data = model[3].weight.data.clone()


def hooked(model: nn.Sequential) -> None:
    model[4].register_forward_hook(lambda module, args, output: 2 * output)


def replaced(model: nn.Sequential) -> None:
    model[4] = nn.Hardtanh()


def other_setting(model: nn.Sequential) -> None:
    model[1].eps = 0.5


def other_statistics(model: nn.Sequential) -> None:
    model[1].running_var = model[1].running_var * 2


@pytest.mark.parametrize("change", [elsewhere, hooked, replaced, other_setting, other_statistics])
def test_a_network_that_is_built_otherwise_is_sampled_anew(kit: Any, reruns: list[Any], change: Any) -> None:
    model, x, forget = problem(kit)
    symmetry = TrackedNullSpace(energy=0.9)
    for seed in range(4):
        moved(kit, symmetry, model, x, forget, seed)
    assert [graph.replays for graph in reruns] == [3]
    change(model)
    moved(kit, symmetry, model, x, forget, 5)
    assert not symmetry._remembered._sample.captured
    moved(kit, symmetry, model, x, forget, 6)
    assert [graph.replays for graph in reruns] == [3, 1]


def test_another_model_is_never_sampled_by_the_graph_of_the_first(kit: Any, reruns: list[Any]) -> None:
    model, x, forget = problem(kit)
    symmetry = TrackedNullSpace(energy=0.9)
    for seed in range(4):
        moved(kit, symmetry, model, x, forget, seed)
    replays = reruns[0].replays
    other = kit.built(network, seed=3)
    for given in (other, model, deepcopy(model)):
        assert symmetry._remembered.sample_of(given) is None
        symmetry.input_bases(given, [x], generator=kit.generator())
    assert (len(reruns), reruns[0].replays) == (1, replays)


def test_a_copy_of_a_symmetry_has_no_graph_and_moves_alike(kit: Any, reruns: list[Any]) -> None:
    model, x, forget = problem(kit)
    symmetry = TrackedNullSpace(energy=0.9)
    for seed in range(4):
        moved(kit, symmetry, model, x, forget, seed)
    copied = deepcopy(symmetry)
    assert not copied._remembered._sample.captured
    first, second = (
        each.move(model, generator=kit.generator(9), probe=kit.probe(x, forget=forget)) for each in (symmetry, copied)
    )
    assert reruns[0].replays == 4
    assert all(torch.equal(shift, second.shifts[name]) for name, shift in first.shifts.items())


def test_a_network_whose_samples_were_taken_once_is_not_kept(kit: Any) -> None:
    model, x, forget = problem(kit)
    symmetry = TrackedNullSpace(energy=0.9)
    for seed in range(2):
        moved(kit, symmetry, model, x, forget, seed)
    del model
    assert symmetry._remembered._objects[0]() is None


def problem_on_a_gpu(kit: Any) -> tuple[nn.Module, Tensor, tuple[Tensor, Tensor]]:
    model = kit.built(lambda: SmallResNet(classes=3, width=4)).eval().cuda()
    forget = (kit.normal(6, 1, 8, 8, seed=1).cuda(), (torch.arange(6) % 3).cuda())
    return model, kit.normal(40, 1, 8, 8).cuda(), forget


@pytest.mark.gpu
@needs_gpu
def test_moves_by_a_graph_on_a_gpu_are_moves_without(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All places of all examples, so that there is nothing to draw; the energies' graph runs beside the samples'."""
    found = []
    captures = repeated_sample._may_be_captured
    for wanted in (True, False):
        monkeypatch.setattr(repeated_sample, "_may_be_captured", lambda x, wanted=wanted: wanted and captures(x))
        model, x, forget = problem_on_a_gpu(kit)
        symmetry = TrackedNullSpace(energy=0.9)
        symmetry._tracked.patches = 100
        for seed in range(6):
            moved(kit, symmetry, model, x, forget, seed)
        assert symmetry._remembered._sample.captured == wanted
        found.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], rtol=1e-5, atol=1e-8)


@pytest.mark.gpu
@needs_gpu
def test_on_a_stream_of_its_own_moves_are_the_same(kit: Any) -> None:
    found = []
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            model, x, forget = problem_on_a_gpu(kit)
            symmetry = TrackedNullSpace(energy=0.9)
            for seed in range(6):
                moved(kit, symmetry, model, x, forget, seed)
        stream.synchronize()
        assert symmetry._remembered._sample.captured
        found.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], rtol=1e-5, atol=1e-8)


@pytest.mark.gpu
@needs_gpu
def test_a_network_whose_values_the_host_reads_is_moved_as_before(kit: Any) -> None:
    class Reads(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2 if float(self.weight.detach().sum()) > 1e9 else 1)

    model = kit.built(lambda: nn.Sequential(nn.Linear(6, 8), Reads(8, 8), nn.ReLU(), nn.Linear(8, 3))).eval().cuda()
    symmetry, x = TrackedNullSpace(energy=0.9), kit.normal(40, 6).cuda()
    for seed in range(4):
        moved(kit, symmetry, model, x, None, seed)
    assert not symmetry._remembered._sample.captured
    assert symmetry._remembered._sample._refused


@pytest.mark.gpu
@needs_gpu
def test_in_modes_of_the_caller_nothing_is_captured(kit: Any) -> None:
    x = kit.normal(3, 2).cuda()
    assert repeated_sample._may_be_captured(x)
    with torch.autocast("cuda"):
        assert not repeated_sample._may_be_captured(x)
    with torch.inference_mode():
        assert not repeated_sample._may_be_captured(x)
