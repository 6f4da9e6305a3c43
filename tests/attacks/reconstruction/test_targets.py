from __future__ import annotations

import math
from copy import deepcopy
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from warp_unlearning.attacks.reconstruction.reconstruct import reconstruct
from warp_unlearning.attacks.reconstruction.search import Search
from warp_unlearning.attacks.reconstruction.targets import (
    Distance,
    SubspaceFilter,
    distances,
    inferred_labels,
    read_targets,
    unit_length,
)
from warp_unlearning.attacks.undo.base import Held
from warp_unlearning.attacks.undo.channels import channels_of, rescaled
from warp_unlearning.errors import InputError

KINDS = get_args(Distance)
SHAPES: dict[str, tuple[int, ...]] = {"conv": (3, 2, 2, 2), "line": (2, 3, 2), "full": (4, 3), "bias": (4,), "heat": ()}
SOME = {name: s for name, s in SHAPES.items() if s}
BLANK = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
POINTS = 25
Named = dict[str, Tensor]


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def updates(n: int, r: int, *, seed: int = 0, shapes: dict[str, tuple[int, ...]] = SHAPES) -> tuple[Named, Named]:
    predicted = {name: normal(n, r, *s, seed=seed + i) for i, (name, s) in enumerate(shapes.items())}
    targets = {name: normal(n, *s, seed=seed + 90 + i) for i, (name, s) in enumerate(shapes.items())}
    return predicted, unit_length(targets)


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


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**16), up=st.floats(-4, 4), down=st.floats(-4, 4))
@settings(max_examples=20)
def test_lengths_of_predictions_and_of_kernels_in_targets_do_not_matter(
    kind: Any, seed: int, up: float, down: float
) -> None:
    predicted, targets = updates(2, 2, seed=seed, shapes=SOME)
    scaled = {n: 10**up * v for n, v in predicted.items()}
    there = {n: 10**down * v for n, v in targets.items()} if kind in ("kernels", "rows") else targets
    torch.testing.assert_close(
        distances(scaled, there, kind), distances(predicted, targets, kind), rtol=1e-9, atol=1e-11
    )


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
    stacked = unit_length(stacked)
    assert not torch.allclose(distances(predicted, stacked, "cosine"), distances(predicted, targets, "cosine"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_of_zeros_is_far_and_has_a_finite_slope(kind: Any) -> None:
    _, targets = updates(1, 1, shapes=SOME)
    for dtype in (torch.float32, torch.float64):
        there = {n: t.to(dtype) for n, t in targets.items()}
        nothing = {n: torch.zeros(1, 1, *t.shape[1:], dtype=dtype, requires_grad=True) for n, t in there.items()}
        found = distances(nothing, there, kind)
        assert float(found.detach()) == pytest.approx(1.0, abs=1e-4)
        assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(found.sum(), list(nothing.values())))


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


def one(targets: Any, i: int = 0) -> dict[str, torch.Tensor]:
    return {name: value[i] for name, value in targets.values.items()}


def test_the_difference_points_along_the_gradient_at_unit_length(kit: Any) -> None:
    model = kit.net(norm=True)
    threats, _ = kit.threats(model, [0, 1])
    targets = read_targets(threats, after="naive")
    assert len(targets) == 2
    assert targets.distance == "cosine"
    for i in range(2):
        x, y = kit.digits(1, first=i)
        assert kit.cosine(one(targets, i), kit.gradient(model, x, y)) == pytest.approx(1, abs=1e-9)
        assert float(torch.cat([v.flatten() for v in one(targets, i).values()]).norm()) == pytest.approx(1)
    torch.testing.assert_close(targets.part(slice(1, 2)).values["head.bias"], targets.values["head.bias"][1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_difference_at_the_edge_of_precision_is_read_in_float64(kit: Any, dtype: torch.dtype) -> None:
    threats, _ = kit.threats(kit.net(dtype=dtype), [0])
    targets = read_targets(threats, after="naive")
    assert all(v.dtype == dtype for v in targets.values.values())
    plain = kit.difference(threats[0].original.double(), threats[0].unlearned.double())
    assert kit.cosine({n: v.double() for n, v in one(targets).items()}, plain) == pytest.approx(1, abs=1e-6)


def test_canonical_undoes_a_change_of_basis_and_naive_does_not(kit: Any) -> None:
    model = kit.net(norm=True)
    x, y = kit.digits(1)
    hidden = kit.moved(kit.stepped(model, x, y, rate=1e-3))
    truth, probes = kit.gradient(model, x, y), kit.digits(20, first=200)
    threat = kit.threat(model, hidden, probes=probes)
    assert kit.cosine(one(read_targets([threat], after="naive")), truth) < 0.2
    assert kit.cosine(one(read_targets([threat], after="canonical")), truth) > 0.8


def test_kernels_and_first_layers_are_compared_in_their_own_way(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0])
    assert read_targets(threats, after="scale-free").distance == "kernels"
    first = read_targets(threats, after="input-layer")
    assert first.distance == "rows"
    assert list(first.values) == ["first.weight"]
    assert read_targets(threats, after="naive", distance="euclidean").distance == "euclidean"


def test_a_difference_in_what_is_not_read_is_nothing(kit: Any) -> None:
    model = kit.net(norm=True)
    other = deepcopy(model)
    other.norm.running_mean.add_(1)
    with pytest.raises(InputError, match=r"nothing that 'naive' reads moved"):
        read_targets([kit.threat(model, other)], after="naive")
    head = deepcopy(model)
    with torch.no_grad():
        head.head.bias.add_(1)
    good = kit.threats(model, [0])[0]
    with pytest.raises(InputError, match="difference 1 after 'input-layer'"):
        read_targets([*good, kit.threat(model, head)], after="input-layer")


def test_what_did_not_move_is_not_compared(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    after = kit.stepped(model, x, y, rate=0.1)
    frozen = {name: value for name, value in model.state_dict().items() if name.startswith("head")}
    after.load_state_dict({**after.state_dict(), **frozen})
    threat = kit.threat(model, after)
    targets = read_targets([threat], after="naive")
    assert targets.unmoved == tuple(frozen)
    assert not set(frozen) & set(targets.values)
    found = reconstruct(threat, search=Search(restarts=1, iterations=2))
    assert any("did not move" in note for note in found.notes)
    # The head did not move, so that it tells no label, and all are tried.
    assert any("all 10 were tried" in note for note in found.notes)


class Bare(nn.Module):
    """The classifier has no bias and is defined first; features before it are not negative."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(20, 10, bias=False)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("build", ["net", "mlp", "bare"])
@pytest.mark.parametrize("ascent", [True, False])
def test_every_class_is_found_after_one_step(kit: Any, build: str, ascent: bool) -> None:
    model = kit.drawn(Bare) if build == "bare" else getattr(kit, build)()
    x, _ = kit.digits(10)
    threats = [
        kit.threat(
            model,
            kit.stepped(model, x[k : k + 1], torch.tensor([k]), rate=1e-3 if ascent else -1e-3),
            ascent=ascent,
        )
        for k in range(10)
    ]
    found = inferred_labels(model, BLANK, read_targets(threats, after="naive").values, count=1)
    assert found is not None
    assert found.tolist() == [[k] for k in range(10)]


def test_examples_forgotten_together_give_their_labels_in_order(kit: Any) -> None:
    model = kit.net()
    x, _ = kit.digits(3)
    y = torch.tensor([7, 2, 5])
    after = kit.stepped(model, x, y)
    targets = read_targets([kit.threat(model, after, count=3)], after="naive")
    assert inferred_labels(model, BLANK, targets.values, count=3).tolist() == [[2, 5, 7]]


def tiny(kit: Any, seed: int = 20) -> nn.Module:
    return kit.drawn(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Softplus(), nn.Flatten(), nn.Linear(18, 4)), seed=seed
    )


def points(count: int = POINTS, seed: int = 1) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, torch.arange(count) % 4


def projector(kit: Any, model: nn.Module, name: str, energy: float, x: Tensor, y: Tensor) -> Tensor:
    """The dense d×d projector on the leading directions of the gradients, by numpy's singular values."""
    rows = torch.stack([kit.gradient(model, x[i : i + 1], y[i : i + 1])[name].flatten() for i in range(len(x))])
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    share = values.square().cumsum(0) / values.square().sum()
    rank = int((share < energy).sum()) + 1
    return right[:rank].mT @ right[:rank]


@pytest.mark.parametrize("energy", [0.5, 0.9, 0.99])
def test_the_difference_goes_through_dense_projectors(kit: Any, energy: float) -> None:
    model, (x, y) = tiny(kit), points()
    after = kit.stepped(model, *points(3, seed=5), rate=2.0, steps=3)
    undo = SubspaceFilter(energy=energy, points=POINTS).prepared(Held(model, (x, y)))
    found = undo(after.state_dict())
    for name, delta in kit.difference(model, after).items():
        theirs, ours = (projector(kit, m, name, energy, x, y) for m in (after, model))
        identity = torch.eye(len(ours), dtype=torch.float64)
        expected = ours @ (identity - theirs) @ delta.flatten()
        kept = found[name] - dict(model.named_parameters())[name].detach()
        torch.testing.assert_close(kept.flatten(), expected, rtol=1e-7, atol=1e-9)
        if len(ours) > 4:
            # The other order is something else.
            assert not torch.allclose((identity - theirs) @ ours @ delta.flatten(), expected, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_the_forget_gradient_keeps_its_sign_where_the_rest_is_in_the_unlearned_models_span(
    kit: Any, share: float
) -> None:
    # Two classes and two inputs, each with weights of its own. Δθ = −η(g_r − α g_f): the retained input still has a
    # gradient afterwards, and the forgotten one, which ascent has moved to the other class, has none in probes of that.
    model = kit.drawn(lambda: nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)))
    with torch.no_grad():
        model[1].weight.zero_()
    kept, gone = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()
    zero = torch.tensor([0])
    retain, forget = kit.gradient(model, kept, zero), kit.gradient(model, gone, zero)
    after = kit.stepped(model, gone, zero, rate=1.0, ascent=share, descent=0.3, retain=(kept, zero))
    # Far along the same way, so that the other class is certain.
    with torch.no_grad():
        after[1].weight[:, 1] *= 10 / share
    probes = (torch.cat([kept, gone]).repeat(10, 1), torch.tensor([0, 1]).repeat(10))
    plain = kit.difference(model, after)
    assert kit.cosine(plain, retain) < 0
    state = SubspaceFilter(points=20).prepared(Held(model, probes))(after.state_dict())
    filtered = {name: state[name] - p.detach() for name, p in model.named_parameters()}
    assert kit.cosine(plain, forget) < 0.9999
    assert kit.cosine(filtered, forget) == pytest.approx(1, abs=1e-9)
    # −Δθ/η has it with a negative sign.
    assert kit.cosine({n: -v for n, v in filtered.items()}, forget) == pytest.approx(-1, abs=1e-9)


def test_running_statistics_and_shapes_stay(kit: Any) -> None:
    model = kit.net(norm=True, width=2)
    x, y = kit.digits(POINTS)
    after = kit.stepped(model, x[:1], y[:1], rate=0.1)
    after.norm.running_mean.add_(0.5)
    found = SubspaceFilter(points=POINTS).prepared(Held(model, (x, y)))(after.state_dict())
    state = after.state_dict()
    assert set(found) == {n for n, v in state.items() if v.is_floating_point()}
    assert all(found[n].shape == state[n].shape and found[n].dtype == torch.float64 for n in found)
    assert torch.equal(found["norm.running_mean"], state["norm.running_mean"])


def test_settings_and_probes_that_cannot_do_are_refused(kit: Any) -> None:
    for energy in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="energy of the filter"):
            SubspaceFilter(energy=energy)
    with pytest.raises(InputError, match="0 probe points"):
        SubspaceFilter(points=0)
    with pytest.raises(InputError, match="asks for 100 probes and there are 25"):
        SubspaceFilter().prepared(Held(tiny(kit), points()))
    assert SubspaceFilter().name == "filtered"


def test_one_value_for_a_shared_weight_and_the_originals_for_one_that_nothing_uses(kit: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
            self.second.weight, self.unused = self.first.weight, nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(torch.relu(self.first(x.flatten(1)))))

    model, (x, y) = kit.drawn(Tied), points(40)
    after = kit.stepped(model, x[:1], y[:1], rate=0.1)
    found, few = (
        SubspaceFilter(points=POINTS).prepared(Held(model, (x[:n], y[:n])))(after.state_dict()) for n in (40, POINTS)
    )
    assert torch.equal(found["first.weight"], found["second.weight"])
    assert torch.equal(found["unused.weight"], model.unused.weight)
    # The first points alone are looked at.
    assert all(torch.equal(few[name], found[name]) for name in few)


def last_by_convolution() -> nn.Module:
    """Its linear layer has hidden units as rows, some with numbers that no class has."""
    body = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Unflatten(1, (32, 1, 1))]
    return nn.Sequential(*body, nn.Conv2d(32, 10, 1), nn.Flatten())


def test_a_linear_layer_that_gives_no_logits_is_not_taken_for_the_last(kit: Any) -> None:
    threats, _ = kit.threats(kit.drawn(last_by_convolution), [0, 1])
    targets = read_targets(threats, after="naive").values
    assert inferred_labels(threats[0].original, BLANK, targets, count=1) is None
    assert inferred_labels(kit.net(), BLANK, {"first.weight": torch.ones(1, 6, 1, 3, 3)}, count=1) is None
