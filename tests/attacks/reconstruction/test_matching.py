from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.attacks.reconstruction.matching import Distance, cosines, distances, from_cosines, unit_length
from warp_unlearning.attacks.undo.base import Held
from warp_unlearning.attacks.undo.channels import channels_of, rescaled

KINDS = get_args(Distance)
SHAPES: dict[str, tuple[int, ...]] = {"conv": (3, 2, 2, 2), "line": (2, 3, 2), "full": (4, 3), "bias": (4,), "heat": ()}
Named = dict[str, Tensor]


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def updates(n: int, r: int, *, seed: int = 0, shapes: dict[str, tuple[int, ...]] = SHAPES) -> tuple[Named, Named]:
    predicted = {name: normal(n, r, *s, seed=seed + i) for i, (name, s) in enumerate(shapes.items())}
    return predicted, {name: normal(n, *s, seed=seed + 90 + i) for i, (name, s) in enumerate(shapes.items())}


def flat(values: Tensor) -> list[float]:
    return [float(v) for v in values.reshape(-1)]


def parts(p: Tensor, t: Tensor, kind: str) -> list[tuple[list[float], list[float]]]:
    """Kernels of one update, one after another, by loops over channels."""
    if kind == "rows":
        return [(flat(p[i]), flat(t[i])) for i in range(len(t))] if t.dim() else [(flat(p), flat(t))]
    if t.dim() < 2:
        return [([a], [b]) for a, b in zip(flat(p), flat(t), strict=True)]
    return [(flat(p[i, j]), flat(t[i, j])) for i in range(t.shape[0]) for j in range(t.shape[1])]


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def looped(predicted: Named, targets: Named, kind: str) -> float:
    """The distance of one prediction from one target by the formulas."""
    if kind in ("kernels", "rows"):
        pairs = [pair for name in targets for pair in parts(predicted[name], targets[name], kind)]
        pairs = [(p, t) for p, t in pairs if dot(t, t) > 0]
        agreement = math.fsum(dot(p, t) / math.sqrt(dot(t, t)) for p, t in pairs)
        return 1 - agreement / math.fsum(math.sqrt(dot(p, p)) for p, _ in pairs)
    p, t = ([x for name in targets for x in flat(v[name])] for v in (predicted, targets))
    cosine = dot(p, t) / math.sqrt(dot(p, p) * dot(t, t))
    if kind == "cosine":
        return 1 - cosine
    step = max(dot(p, t) / dot(p, p), 0.0)
    return math.fsum((step * a - b) ** 2 for a, b in zip(p, t, strict=True)) / dot(t, t)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scalars", [False, True], ids=["", "with a scalar parameter"])
def test_closed_forms_by_loops(kind: Any, scalars: bool) -> None:
    shapes = SHAPES if scalars else {name: s for name, s in SHAPES.items() if s}
    predicted, targets = updates(2, 3, shapes=shapes)
    found = distances(predicted, targets, kind)
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            expected = looped({n: v[i, j] for n, v in predicted.items()}, {n: v[i] for n, v in targets.items()}, kind)
            assert float(found[i, j]) == pytest.approx(expected, rel=1e-12, abs=1e-12)


SOME = {name: s for name, s in SHAPES.items() if s}


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**16), up=st.floats(-4, 4), down=st.floats(-4, 4))
@settings(max_examples=20)
def test_lengths_of_predictions_and_targets_do_not_matter(kind: Any, seed: int, up: float, down: float) -> None:
    predicted, targets = updates(2, 2, seed=seed, shapes=SOME)
    scaled = ({n: 10**up * v for n, v in predicted.items()}, {n: 10**down * v for n, v in targets.items()})
    torch.testing.assert_close(distances(*scaled, kind), distances(predicted, targets, kind), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_at_the_target_and_most_at_its_opposite(kind: Any) -> None:
    _, targets = updates(3, 1, shapes=SOME)
    same = {name: torch.stack([0.3 * t, -2 * t], 1) for name, t in targets.items()}
    found = distances(same, targets, kind)
    torch.testing.assert_close(found[:, 0], torch.zeros(3).double(), atol=1e-12, rtol=0)
    most = 1.0 if kind == "euclidean" else 2.0
    torch.testing.assert_close(found[:, 1], torch.full((3,), most).double(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", ["kernels", "rows"])
def test_parts_that_the_target_did_not_move_say_nothing(kind: Any) -> None:
    predicted, targets = updates(1, 2, shapes={"conv": (3, 2, 2, 2), "bias": (4,)})
    targets["conv"][0, 1] = 0
    targets["bias"][0, 2] = 0
    before = distances(predicted, targets, kind)
    predicted["conv"][0, :, 1] += 5
    predicted["bias"][0, :, 2] -= 5
    torch.testing.assert_close(distances(predicted, targets, kind), before)
    predicted["bias"][0, :, 1] += 5
    assert float((distances(predicted, targets, kind) - before).abs().min()) > 1e-3


@settings(max_examples=15)
@given(seed=st.integers(0, 2**16), spread=st.floats(0.1, 3), norm=st.booleans())
def test_kernels_do_not_see_the_factors_of_channels(kit: Any, seed: int, spread: float, norm: bool) -> None:
    model = kit.net(seed=seed, norm=norm, width=3)
    channels = channels_of(Held(model, kit.digits(2)))
    assert channels.free >= 3
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    predicted, targets = updates(2, 2, seed=seed, shapes=shapes)
    logs = channels.embedded(spread * normal(channels.free, seed=seed + 7))
    changed = [rescaled(channels, {n: t[i] for n, t in targets.items()}, logs) for i in range(2)]
    stacked = {name: torch.stack([c[name] for c in changed]) for name in targets}
    torch.testing.assert_close(distances(predicted, stacked, "kernels"), distances(predicted, targets, "kernels"))
    assert not torch.allclose(distances(predicted, stacked, "cosine"), distances(predicted, targets, "cosine"))


def test_rows_see_no_factors_of_output_channels_alone() -> None:
    predicted, targets = updates(1, 2, shapes={"conv": (3, 2, 2, 2)})
    factors = torch.tensor([0.2, 3.0, 11.0]).double()[None, :, None, None, None]
    before = distances(predicted, targets, "rows")
    torch.testing.assert_close(distances(predicted, {"conv": targets["conv"] * factors}, "rows"), before)
    other = torch.tensor([0.2, 3.0]).double()[None, None, :, None, None]
    assert not torch.allclose(distances(predicted, {"conv": targets["conv"] * other}, "rows"), before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_of_zeros_is_far_and_has_a_finite_slope(kind: Any) -> None:
    _, targets = updates(1, 1, shapes=SOME)
    for dtype in (torch.float32, torch.float64):
        there = {n: t.to(dtype) for n, t in targets.items()}
        nothing = {n: torch.zeros(1, 1, *t.shape[1:], dtype=dtype, requires_grad=True) for n, t in there.items()}
        found = distances(nothing, there, kind)
        assert float(found.detach()) == pytest.approx(1.0, abs=1e-4)
        assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(found.sum(), list(nothing.values())))


def test_names_that_the_targets_lack_are_left_out() -> None:
    predicted, targets = updates(2, 2, shapes=SOME)
    del targets["conv"]
    fewer = {name: predicted[name] for name in targets}
    for kind in KINDS:
        torch.testing.assert_close(distances(predicted, targets, kind), distances(fewer, targets, kind))


def test_from_cosines_and_cosines() -> None:
    predicted, targets = updates(2, 3, shapes=SOME)
    c = cosines(predicted, targets)
    for kind in ("cosine", "euclidean"):
        torch.testing.assert_close(from_cosines(c, kind), distances(predicted, targets, kind))
    assert float(from_cosines(torch.tensor(-0.5), "euclidean")) == 1
    assert float(from_cosines(torch.tensor(0.5), "euclidean")) == pytest.approx(0.75)


@pytest.mark.parametrize("scalars", [False, True], ids=["", "with a scalar parameter"])
def test_unit_length_over_all_parameters(scalars: bool) -> None:
    _, targets = updates(3, 1, shapes=SHAPES if scalars else SOME)
    targets = {
        name: t * torch.tensor([1e-20, 0.0, 7.0]).reshape(-1, *[1] * (t.dim() - 1)) for name, t in targets.items()
    }
    found = unit_length(targets)
    for i, expected in enumerate((1.0, 0.0, 1.0)):
        whole = torch.cat([v[i].flatten() for v in found.values()])
        assert float(whole.norm()) == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(found["conv"][2] / found["bias"][2, 0], targets["conv"][2] / targets["bias"][2, 0])


def test_a_network_with_one_scalar_weight_has_distances(kit: Any) -> None:
    model = nn.Linear(1, 1).double()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    predicted, targets = updates(1, 1, shapes=shapes)
    for kind in KINDS:
        single = ({n: v[0, 0] for n, v in predicted.items()}, {n: v[0] for n, v in targets.items()})
        assert float(distances(predicted, targets, kind)) == pytest.approx(looped(*single, kind))
