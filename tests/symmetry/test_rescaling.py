from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.oracles.symmetry import assert_symmetric, generator, moved_by, normal
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import MLP, ResNet18, SmallResNet
from warp_unlearning.symmetry.base import Compose, Symmetry
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis, Law, check_law, draw_scales


def settle(model: nn.Module, x: Tensor) -> nn.Module:
    """Random affine parameters and measured running statistics in all batch norms; eval mode, float64."""
    model.double()
    with torch.no_grad():
        for i, module in enumerate(model.modules()):
            if isinstance(module, nn.BatchNorm2d):
                module.weight.copy_(normal(len(module.weight), seed=i) + 1)
                module.bias.copy_(normal(len(module.bias), seed=i + 100))
        model.train()
        model(x)
    return model.eval()


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "cifar": lambda: (ResNet18(width=8), normal(6, 3, 16, 16)),
    "imagenet": lambda: (ResNet18(width=8, stem="imagenet"), normal(6, 3, 32, 32)),
    "small": lambda: (SmallResNet(width=6), normal(6, 1, 8, 8)),
    "mlp": lambda: (MLP(inputs=12, classes=10, hidden=(32, 16)), normal(6, 12)),
}
SYMMETRIES: dict[str, Symmetry] = {
    "uniform": ChangeOfBasis(),
    "lognormal": ChangeOfBasis(law="lognormal", spread=0.7),
    "truncated_normal": ChangeOfBasis(law="truncated_normal"),
    "outside_norms": ChangeOfBasis(through_norm=False),
    "permutation": Permutation(),
    "both": Compose(ChangeOfBasis(), Permutation()),
}


@pytest.mark.parametrize("symmetry", SYMMETRIES.values(), ids=SYMMETRIES)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_projects_networks(make: Callable[[], tuple[nn.Module, Tensor]], symmetry: Symmetry) -> None:
    model, x = make()
    settle(model, x)
    assert_symmetric(model, symmetry.move(model, generator=generator(3)), x)


def test_every_stream_and_every_inner_layer_of_a_resnet_is_free() -> None:
    """Width w: streams of w, 2w, 4w, 8w, twice as many inner channels, and as many again as batch norms have inputs."""
    model = ResNet18(width=4)
    report = ChangeOfBasis().report(model)
    norms = sum(len(m.weight) for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    streams, inner = 15 * 4, 2 * 15 * 4
    assert report.free == streams + inner + norms
    assert ChangeOfBasis(through_norm=False).report(model).free == streams + inner
    assert Permutation().report(model).free == streams + inner
    assert [(p.tensor, p.count, p.reasons) for p in report.pinned] == [("fc.weight", 10, ("output",))]


def test_train_mode_is_kept_without_norms_or_by_a_permutation() -> None:
    model, x = SmallResNet(width=4), normal(8, 1, 8, 8)
    settle(model, x).train()
    outside = ChangeOfBasis(through_norm=False).move(model, generator=generator())
    through, order = (symmetry.move(model, generator=generator()) for symmetry in (ChangeOfBasis(), Permutation()))
    with torch.no_grad():
        before, moved = deepcopy(model), moved_by(model, order)
        expected = before(x)
        torch.testing.assert_close(moved_by(model, outside)(x), expected, rtol=1e-10, atol=1e-10)
        assert float((moved_by(model, through)(x) - expected).abs().max()) > 1e-8
        torch.testing.assert_close(moved(x), expected, rtol=1e-10, atol=1e-10)
    for name, value in moved.state_dict().items():
        torch.testing.assert_close(value, order.point(name, before.state_dict()[name]), rtol=1e-10, atol=1e-10)


def test_running_variances_stay_positive_where_a_channel_is_dead() -> None:
    model, x = SmallResNet(width=8), normal(8, 1, 8, 8)
    settle(model, x)
    model.layer1.bn1.running_var[:4] = 0
    model.layer1.bn1.running_var[4:] = 1e-6
    moved = moved_by(model, ChangeOfBasis(spread=0.99).move(model, generator=generator()))
    variances = moved.layer1.bn1.running_var
    assert float(variances.min()) >= 0
    assert float((variances[:4] - 1e-12).max()) > 1e-7
    torch.testing.assert_close(moved(x), model(x), rtol=1e-9, atol=1e-9)


def test_frozen_weights_move_too() -> None:
    model, x = MLP(inputs=4, classes=2).double().requires_grad_(False), normal(3, 4)
    moved = moved_by(model, ChangeOfBasis().move(model, generator=generator()))
    assert not torch.allclose(moved.layers[0].weight, model.layers[0].weight)
    torch.testing.assert_close(moved(x), model(x))


def test_a_network_without_a_free_channel_stays_bit_identical_and_says_why() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    report = ChangeOfBasis().report(model)
    assert report.free == 0
    expected = {"0.weight": ("GELU 1",), "2.weight": ("Tanh 3",), "4.weight": ("output",)}
    assert {p.tensor: p.reasons for p in report.pinned} == expected
    moved = moved_by(model, ChangeOfBasis().move(model, generator=generator()))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in moved.state_dict().items())
    assert Permutation().report(model).free == 16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_weights_are_reordered_without_rounding_and_not_rescaled(dtype: torch.dtype) -> None:
    model = MLP(inputs=5, classes=3).to(dtype)
    with pytest.raises(InputError, match=r"layers\.0\.weight is .*16.*\.float\(\)"):
        ChangeOfBasis().move(model, generator=generator())
    moved = moved_by(model, Permutation().move(model, generator=generator()))
    assert not torch.equal(moved.layers[0].weight, model.layers[0].weight)
    x = normal(6, 5)
    torch.testing.assert_close(moved.double()(x), model.double()(x), rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------ orders


def test_weights_are_reordered_and_nothing_else() -> None:
    model = SmallResNet(width=4)
    moved = moved_by(model, Permutation().move(model, generator=generator()))
    for (name, before), after in zip(model.state_dict().items(), moved.state_dict().values(), strict=True):
        assert torch.equal(before.flatten().sort().values, after.flatten().sort().values), name
    assert not torch.equal(model.conv1.weight, moved.conv1.weight)
    assert torch.equal(model.fc.bias, moved.fc.bias)


def test_every_order_of_a_layer_is_as_likely() -> None:
    # Many layers at once, as a network is traced anew at each move.
    model = MLP(inputs=2, classes=2, hidden=(3,) * 12)
    biases = [name for name, value in model.named_parameters() if value.shape == (3,)]
    counts: dict[tuple[int, ...], int] = {}
    stream, labels = generator(), torch.arange(3)
    for _ in range(50):
        move = Permutation().move(model, generator=stream)
        for name in biases:
            order = tuple(move.selection(name, labels).tolist())
            counts[order] = counts.get(order, 0) + 1
    assert sum(counts.values()) == 600
    assert len(counts) == 6
    assert all(60 < count < 145 for count in counts.values())


def test_a_channel_with_a_repeated_place_is_not_torn_apart() -> None:
    """A list that holds channels twice, in another order the second time, and is cut: only the whole may stay."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 4, 1), nn.Conv2d(8, 8, 1, groups=2)
            self.c = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.gelu(self.a(x))
            left, right = hidden.chunk(2, dim=1)
            both = torch.cat([hidden, right, left], dim=1)
            return self.c(self.b(both).tanh().mean((2, 3)))

    model, x = Net().double(), normal(3, 1, 2, 2, seed=3)
    report = Permutation().report(model)
    assert any("repeated channels" in reason for part in report.pinned for reason in part.reasons)
    for seed in range(5):
        moved = moved_by(model, Permutation().move(model, generator=generator(seed)))
        torch.testing.assert_close(moved(x), model(x), rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------ laws of the factors

N = 200_000


def draws(law: Law, spread: float, seed: int = 0) -> Tensor:
    return draw_scales(law, N, spread=spread, generator=generator(seed))


def test_uniform_factors_fill_their_range() -> None:
    scales = draws("uniform", 0.8)
    assert float(scales.min()) == pytest.approx(0.2, abs=1e-3)
    assert float(scales.max()) == pytest.approx(1.8, abs=1e-3)
    assert float(scales.std()) == pytest.approx(0.8 / math.sqrt(3), rel=0.01)
    assert scales.dtype == torch.float64


@pytest.mark.parametrize("spread", [0.2, 0.5])
def test_lognormal_factors_keep_the_mean_square(spread: float) -> None:
    scales = draws("lognormal", spread)
    assert float(scales.log().std()) == pytest.approx(spread, rel=0.01)
    assert float(scales.log().mean()) == pytest.approx(-(spread**2), abs=0.005)
    assert float(scales.square().mean()) == pytest.approx(1, rel=0.02)
    ratio = scales / draws("lognormal", spread, seed=1)
    assert float(ratio.square().mean()) == pytest.approx(math.exp(4 * spread**2), rel=0.05)


@pytest.mark.parametrize("spread", [0.1, 0.8])
def test_truncated_normal_factors_follow_the_conditional_law(spread: float) -> None:
    scales = draws("truncated_normal", spread)
    plain = 1 + spread * normal(N, seed=3)
    kept = plain[plain > 0.05]
    assert float(scales.min()) >= 0.05
    assert float(scales.mean()) == pytest.approx(float(kept.mean()), abs=0.01)
    for level in (0.1, 0.5, 0.9):
        assert float(scales.quantile(level)) == pytest.approx(float(kept.quantile(level)), abs=0.015)


@pytest.mark.parametrize(
    ("law", "spread", "says"),
    [
        ("uniform", 1.0, "zero or negative.*lognormal"),
        ("lognormal", 3.5, "at most 3"),
        ("uniform", 0.0, "above 0"),
        ("truncated_normal", -0.1, "above 0"),
        ("uniform", math.nan, "nan"),
        ("lognormal", math.inf, "inf"),
        ("uniform", True, "True"),
        ("uniform", "0.5", "'0.5'"),
        ("log-normal", 0.5, "did you mean 'lognormal'"),
    ],
)
def test_laws_that_cannot_be_are_refused(law: Any, spread: Any, says: str) -> None:
    for refuse in (lambda: check_law(law, spread), lambda: ChangeOfBasis(law=law, spread=spread)):
        with pytest.raises(InputError, match=says):
            refuse()
