from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.linalg.co_subspace import AnySubspace, CoSubspace
from warp_unlearning.linalg.on_host import on_host
from warp_unlearning.linalg.orthonormal import departure
from warp_unlearning.linalg.subspace import principal_subspace
from warp_unlearning.linalg.tracked import TrackedSubspace, start_all
from warp_unlearning.symmetry import refresh_verdict, tracked_bases
from warp_unlearning.symmetry.input_bases import InputBasis, exact_bases, input_rows, observed_rows
from warp_unlearning.symmetry.layer_inputs import layer_rows, observe_inputs
from warp_unlearning.symmetry.tracked_bases import TrackedBases


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, stride=2, groups=2, bias=False)
        self.hidden = nn.Linear(8, 24)
        self.out = nn.Linear(24, 5)
        self.rare = nn.Linear(5, 5)
        self.use_rare = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.grouped(self.act(self.conv(x)))).mean((2, 3))
        x = self.out(self.act(self.hidden(x)))
        return self.rare(x) if self.use_rare else x


def network(seed: int = 0, *, drift: float = 0.0) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Net().double().eval()
        with torch.no_grad():
            for p in model.parameters():
                p += drift * p.std() * torch.randn_like(p)
    return model


def images(count: int, seed: int) -> Tensor:
    """Smooth images, so that patches have leading directions."""
    x = normal(count, 2, 12, 12, seed=seed)
    return nn.functional.avg_pool2d(x, 3, stride=1, padding=1)[..., ::2, ::2] + 0.3


def all_rows(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    rows: dict[str, Tensor] = {}
    observe_inputs(model, [x], lambda w, layer, a: rows.update({w.name: input_rows(w, layer_rows(layer, a)).clone()}))
    return rows


def missed(basis: InputBasis, rows: Tensor) -> float:
    """Over all groups, with projections formed from the bases."""
    left = [r - r @ b.basis @ b.basis.mT for r, b in zip(rows, basis.blocks, strict=True)]
    return sum(float(part.square().sum()) for part in left) / float(rows.square().sum())


def same_span(a: InputBasis, b: InputBasis, tolerance: float = 1e-6) -> bool:
    return all(
        float((p.basis @ p.basis.mT - q.basis @ q.basis.mT).abs().max()) <= tolerance
        for p, q in zip(a.blocks, b.blocks, strict=True)
    )


def test_the_first_bases_are_exact() -> None:
    model, x = network(), images(60, 1)
    tracked = TrackedBases(0.9)
    found = tracked.refresh(model, x.split(16), generator=generator())
    exact = exact_bases(model, x.split(16), energy=0.9)
    assert list(found) == list(exact)
    for name, basis in found.items():
        assert (basis.bias, basis.d, basis.rank, basis.positions) == (
            exact[name].bias,
            exact[name].d,
            exact[name].rank,
            exact[name].positions,
        )
        assert basis.captured == pytest.approx(exact[name].captured)
        assert torch.equal(basis.reached, exact[name].reached)
        assert same_span(basis, exact[name])
    assert tracked.exact_builds == 1


@pytest.mark.parametrize("examples", [3, 60])
def test_fewer_inputs_than_dimensions_are_no_obstacle(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network(), images(examples, 1)
    tracked = TrackedBases(0.95, patches=100)
    decomposed, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda c: (decomposed.append(len(c)), eigh(c))[1])
    found = tracked.refresh(model, [x], generator=generator())
    smaller = [min(basis.positions, basis.d) for basis in found.values() for _ in basis.blocks]
    assert all(size <= least for size, least in zip(decomposed, smaller, strict=True))
    exact = exact_bases(model, [x], energy=0.95)
    assert all(same_span(found[name], exact[name]) for name in exact)
    again = tracked.refresh(model, [x], generator=generator())
    assert all(same_span(again[name], exact[name], 1e-5) for name in exact)


def test_looking_at_everything_and_keeping_nothing_finds_the_exact_bases_again() -> None:
    first, second, x = network(), network(drift=0.1), images(60, 1)
    tracked = TrackedBases(0.9, rounds=60, examples=100, patches=100, blend=1.0, restart=50.0)
    tracked.refresh(first, [images(60, 2)], generator=generator())
    found = tracked.refresh(second, x.split(7), generator=generator())
    assert tracked.exact_builds == 1
    for name, rows in all_rows(second, x).items():
        for block, r in zip(found[name].blocks, rows, strict=True):
            values = torch.linalg.svdvals(r).square()
            least = float(values[block.rank :].sum() / values.sum())
            assert block.missed(r) <= 1.001 * least + 1e-9


def test_what_is_followed_is_the_blend_of_second_moments() -> None:
    first, second, x, y = network(), network(drift=0.05), images(40, 1), images(30, 2)
    tracked = TrackedBases(0.9, rounds=60, examples=100, patches=100, blend=0.3, restart=50.0)
    tracked.refresh(first, [x], generator=generator())
    found = tracked.refresh(second, [y], generator=generator())
    old, new = all_rows(first, x), all_rows(second, y)
    for name, basis in found.items():
        moments = 0.7 * old[name].mT @ old[name] / old[name].shape[1]
        moments = moments + 0.3 * new[name].mT @ new[name] / new[name].shape[1]
        for block, moment in zip(basis.blocks, moments, strict=True):
            values = torch.linalg.eigvalsh(moment).flip(0)
            held = float((block.basis * (moment @ block.basis)).sum())
            assert held >= float(values[: block.rank].sum()) * (1 - 1e-4)


def test_captured_energy_is_what_was_held_of_the_new_inputs_before_they_were_taken_in() -> None:
    first, second, y = network(), network(drift=0.05), images(50, 2)
    tracked = TrackedBases(0.9, examples=100, patches=100, restart=50.0)
    before = tracked.refresh(first, [images(40, 1)], generator=generator())
    found = tracked.refresh(second, [y], generator=generator())
    for name, rows in all_rows(second, y).items():
        assert found[name].positions == rows.shape[1]
        for block, old, r in zip(found[name].blocks, before[name].blocks, rows, strict=True):
            left = r - r @ old.basis @ old.basis.mT
            assert 1 - block.captured == pytest.approx(float(left.square().sum() / r.square().sum()), rel=1e-6)


def test_new_inputs_weigh_more_where_the_basis_misses_more_of_them() -> None:
    x, y = images(40, 1), images(50, 2)
    tracked = TrackedBases(0.9, rounds=60, examples=100, patches=100, blend=0.1, restart=50.0)
    tracked.refresh(network(), [x], generator=generator())
    tracked.refresh(network(), [x], generator=generator())
    other = network(drift=0.5)
    before = deepcopy(tracked._layers["out.weight"])
    tracked.refresh(other, [y], generator=generator())
    rows = all_rows(other, y)["out.weight"]
    (block,) = before.blocks
    weight = 1 - before.best / block.missed(rows[0])
    assert weight > 0.3
    latest = rows.mT @ rows / rows.shape[1]
    torch.testing.assert_close(
        tracked._layers["out.weight"].moment, (1 - weight) * before.moment + weight * latest, rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("energy", [0.8, 0.97])
def test_sampled_refreshes_follow_a_drifting_network(energy: float) -> None:
    tracked = TrackedBases(energy, examples=64, patches=4)
    states = [network(drift=0.02 * i) for i in range(5)]
    first = tracked.refresh(states[0], images(200, 10).split(50), generator=generator())
    for i, model in enumerate(states[1:], 1):
        found = tracked.refresh(model, images(200, 10 + i).split(50), generator=generator(i))
        exact = exact_bases(model, images(200, 10 + i).split(50), energy=energy)
        fresh = all_rows(model, images(300, 99))
        held = {n: [1 - missed(b[n], fresh[n]) for b in (found, exact, first)] for n in found}
        assert all(tracked_share >= 0.98 * exact_share for tracked_share, exact_share, _ in held.values())
        assert sum(1 - h[0] for h in held.values()) < sum(1 - h[2] for h in held.values())
        for basis in found.values():
            for block in basis.blocks:
                columns = block.normals if isinstance(block, CoSubspace) else block.basis
                assert departure(columns) <= 1e-3
    assert tracked.exact_builds == 1


def test_a_network_that_has_moved_too_far_is_decomposed_again() -> None:
    tracked = TrackedBases(0.95, examples=64, patches=8)
    x = images(100, 1)
    tracked.refresh(network(), [x], generator=generator())
    tracked.refresh(network(drift=0.01), [x], generator=generator())
    other = network(seed=7)
    tracked.refresh(other, [x], generator=generator())
    assert tracked.exact_builds == 1
    found = tracked.refresh(other, [x], generator=generator())
    assert tracked.exact_builds == 2
    exact = exact_bases(other, [x], energy=0.95)
    assert all(same_span(found[name], exact[name]) for name in exact)


def test_a_network_that_has_moved_some_way_is_looked_at_again_with_all_examples() -> None:
    """The second moments are then those of all examples, as exact bases have them, and no longer a blend."""
    x = images(100, 1)
    tracked = TrackedBases(0.95, examples=30, patches=100)
    tracked.refresh(network(), [x], generator=generator())
    tracked.refresh(network(drift=0.01), [x], generator=generator())
    moved = network(drift=0.6)
    tracked.refresh(moved, [x], generator=generator())
    assert (tracked.exact_builds, tracked.renewals) == (1, 0)
    found = tracked.refresh(moved, [x], generator=generator())
    assert (tracked.exact_builds, tracked.renewals) == (1, 1)
    assert all(layer.missed == [] and layer.best == 1.0 for layer in tracked._layers.values())
    exact, fresh = exact_bases(moved, [x], energy=0.95), all_rows(moved, images(300, 9))
    for name, basis in found.items():
        assert basis.captured >= 1 - 0.05 * 1.25 - 1e-9
        assert missed(basis, fresh[name]) <= 1.3 * missed(exact[name], fresh[name]) + 1e-3
    linear = all_rows(moved, x)["hidden.weight"]
    torch.testing.assert_close(tracked._layers["hidden.weight"].moment, linear.mT @ linear / 100)
    tracked.refresh(moved, [x], generator=generator())
    assert tracked.renewals == 1


def test_slack_decides_when_ranks_are_chosen_anew() -> None:
    narrow, wide = images(60, 1) * torch.tensor([1.0, 0.02]).reshape(2, 1, 1), images(60, 1)
    ranks = []
    for slack in (0.0, 100.0):
        tracked = TrackedBases(0.95, examples=100, patches=100, slack=slack, restart=1e6)
        tracked.refresh(network(), [narrow], generator=generator())
        ranks.append(tracked.refresh(network(), [wide], generator=generator())["conv.weight"].rank)
    assert ranks[0] > ranks[1]


def test_all_of_the_energy_is_exact_every_time() -> None:
    model, x = network(), images(5, 1)
    tracked = TrackedBases(1.0)
    for _ in range(2):
        found = tracked.refresh(model, [x], generator=generator())
        assert all(same_span(found[n], b) for n, b in exact_bases(model, [x], energy=1.0).items())
    assert tracked.exact_builds == 2


def test_a_layer_seen_for_the_first_time_starts_from_the_sample() -> None:
    model, x = network(), images(50, 1)
    tracked = TrackedBases(0.9, examples=100)
    assert "rare.weight" not in tracked.refresh(model, [x], generator=generator())
    model.use_rare = True
    found = tracked.refresh(model, [x], generator=generator())["rare.weight"]
    assert same_span(found, exact_bases(model, [x], energy=0.9)["rare.weight"])
    model.use_rare = False
    assert "rare.weight" not in tracked.refresh(model, [x], generator=generator())


def test_an_exact_start_forgets_layers_that_are_no_longer_called() -> None:
    model, x = network(), images(50, 1)
    tracked = TrackedBases(0.9)
    model.use_rare = True
    assert "rare.weight" in tracked.refresh(model, [x], generator=generator())
    model.use_rare = False
    seen = observed_rows(model, [x], dtype=None, met=True)
    names = list(seen)
    assert list(tracked.start(seen)) == list(tracked._layers) == names
    assert seen == {}
    assert "rare.weight" not in names


def test_inputs_that_are_not_finite_are_an_error_and_change_nothing() -> None:
    model, x = network(), images(50, 1)
    tracked = TrackedBases(0.9, examples=100)
    broken = x.clone()
    broken[7, 0, 2, 3] = float("nan")
    with pytest.raises(DataError, match=r"conv\.weight hold NaN"):
        tracked.refresh(model, [broken], generator=generator())
    tracked.refresh(model, [x], generator=generator())
    undisturbed = deepcopy(tracked)
    late = network()
    with torch.no_grad():
        late.hidden.bias[0] = float("inf")
    with pytest.raises(DataError, match=r"out\.weight hold NaN"):
        tracked.refresh(late, [x], generator=generator())
    again, expected = (t.refresh(model, [x], generator=generator()) for t in (tracked, undisturbed))
    for name, basis in again.items():
        assert all(torch.equal(a.basis, b.basis) for a, b in zip(basis.blocks, expected[name].blocks, strict=True))


def test_the_same_generator_gives_the_same_bases_and_another_does_not() -> None:
    x = images(100, 1)
    start = TrackedBases(0.9, examples=20, patches=3)
    start.refresh(network(), [x], generator=generator())
    found = [deepcopy(start).refresh(network(), [x], generator=generator(s))["conv.weight"] for s in (1, 1, 2)]
    bases = [basis.blocks[0].basis for basis in found]
    assert torch.equal(bases[0], bases[1])
    assert not torch.equal(bases[0], bases[2])


def test_the_model_is_left_as_it_was() -> None:
    model, x = network(), images(20, 1)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    tracked = TrackedBases(0.9)
    for _ in range(2):
        tracked.refresh(model, iter([x]), generator=generator())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(not m._forward_pre_hooks for m in model.modules())


def test_no_inputs_have_no_bases_and_do_no_harm() -> None:
    tracked = TrackedBases(0.9)
    assert tracked.refresh(network(), [], generator=generator()) == {}
    assert tracked.refresh(network(), [images(20, 1)], generator=generator())
    assert tracked.refresh(network(), [], generator=generator()) == {}


def test_half_precision_is_followed_in_float32() -> None:
    model, x = network().to(torch.bfloat16), images(40, 1).to(torch.bfloat16)
    tracked = TrackedBases(0.9)
    for _ in range(2):
        found = tracked.refresh(model, [x], generator=generator())
        assert all(block.basis.dtype == torch.float32 for b in found.values() for block in b.blocks)
        assert all(departure(block.basis) <= 1e-3 for b in found.values() for block in b.blocks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": 0}, "examples is 0"),
        ({"patches": -1}, "patches is -1"),
        ({"blend": 0.0}, r"blend is 0\.0"),
        ({"blend": 1.5}, r"blend is 1\.5"),
        ({"restart": 1.0}, r"restart is 1\.0"),
        ({"afar": 0.5}, r"afar is 0\.5"),
        ({"rounds": 0}, "rounds is 0"),
        ({"slack": -1.0}, r"slack is -1\.0"),
        ({"energy": 1.1}, "fraction of energy"),
    ],
)
def test_options_that_make_no_sense_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrackedBases(**{"energy": 0.9, **options})


def test_a_refresh_reads_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refreshes that look for themselves are for layers whose numbers speak against what was proposed."""
    model, tracked, read, looked = network(), TrackedBases(0.9, examples=40, patches=9), [], []
    tracked.refresh(model, [images(200, 1)], generator=generator())
    refresh = TrackedSubspace.refresh
    monkeypatch.setattr(refresh_verdict, "on_host", lambda tensors: (read.append(len(tensors)), on_host(tensors))[1])
    monkeypatch.setattr(TrackedSubspace, "refresh", lambda self, m: (looked.append(len(m)), refresh(self, m))[1])
    tracked.refresh(model, [images(200, 2)], generator=generator())
    assert (len(read), looked) == (1, [])


def test_layers_that_cannot_be_followed_are_decomposed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    tracked = TrackedBases(0.9, restart=50.0)
    tracked.refresh(network(), [images(60, 1)], generator=generator())
    asked: list[int] = []

    def counted(trackers: Sequence[TrackedSubspace], moments: Sequence[Tensor]) -> list[AnySubspace]:
        asked.append(len(trackers))
        return start_all(trackers, moments)

    monkeypatch.setattr(tracked_bases, "start_all", counted)
    left = iter([True, False])
    settled = TrackedSubspace.settled
    monkeypatch.setattr(
        TrackedSubspace, "settled", lambda self, *given: None if next(left, True) else settled(self, *given)
    )
    found = tracked.refresh(network(drift=0.05), [images(60, 2)], generator=generator())
    groups = sum(len(basis.blocks) for basis in found.values())
    assert asked == [groups - 1]
    followed = 0
    for layer, basis in zip(tracked._layers.values(), found.values(), strict=True):
        for tracker, moment, block in zip(layer.trackers, layer.moment, basis.blocks, strict=True):
            exact = principal_subspace(moment, 0.9)
            followed += tracker.decompositions == 1
            if tracker.decompositions > 1:
                assert block.rank == exact.rank
                held = float((block.basis * (moment @ block.basis)).sum() / moment.diagonal().sum())
                assert held == pytest.approx(exact.captured, abs=1e-6)
    assert followed == 1


def test_what_is_followed_by_captured_proposals_is_what_is_followed_without(proposed_again: Any) -> None:
    found: list[list[dict[str, InputBasis]]] = []
    for stream in (None, "one"):
        proposed_again.stream = stream
        bases = TrackedBases(0.9, examples=64, patches=16)
        bases.refresh(network(), [images(64, 1)], generator=generator(2))
        bases.make_ready()
        found.append(
            [
                bases.refresh(network(drift=0.01 * step), [images(64, 3)], generator=generator(step))
                for step in (1, 2, 3)
            ]
        )
    trackers = [tracker for layer in bases._layers.values() for tracker in layer.trackers]
    assert all(tracker._repeated.captured for tracker in trackers)
    assert len(proposed_again.graphs) >= len(trackers)
    assert sum(graph.replays for graph in proposed_again.graphs) >= 2 * len(trackers)
    for without, by_graphs in zip(*found, strict=True):
        assert without.keys() == by_graphs.keys()
        for name, basis in without.items():
            assert same_span(basis, by_graphs[name], 1e-9)
