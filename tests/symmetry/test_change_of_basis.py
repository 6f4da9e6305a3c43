from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.networks import MLP, ResNet18, SmallResNet
from warp_unlearning.symmetry.base import Compose, Symmetry
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.rescaling import ChangeOfBasis, Permutation


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


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


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(x), torch.arange(len(x)))
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize("symmetry", SYMMETRIES.values(), ids=SYMMETRIES)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_projects_networks(make: Callable[[], tuple[nn.Module, Tensor]], symmetry: Symmetry) -> None:
    model, x = make()
    settle(model, x)
    state = deepcopy(model.state_dict())
    move = symmetry.move(model, generator=generator(3))
    moved = deepcopy(model)
    apply_move(moved, move)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        before, after = model(x), moved(x)
        assert float((after - before).abs().max() / before.abs().max()) < 1e-10
        whole, whole_moved = (torch.cat([p.flatten() for p in m.parameters()]) for m in (model, moved))
        assert float((whole_moved - whole).norm() / whole.norm()) > 0.3
    found = gradients(moved, x)
    for name, gradient in gradients(model, x).items():
        expected = move.covector(name, gradient)
        scale = float(expected.abs().max())
        torch.testing.assert_close(found[name], expected, rtol=1e-7, atol=1e-9 * scale + 1e-14)
    apply_move(moved, move.inverse())
    for name, value in moved.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_single_precision(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = make()
    settle(model, x).float()
    moved = deepcopy(model)
    apply_move(moved, ChangeOfBasis().move(model, generator=generator(4)))
    with torch.no_grad():
        before, after = model(x.float()), moved(x.float())
    assert 0 < float((after - before).abs().max() / before.abs().max()) < 1e-4


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


def test_without_norms_the_function_is_kept_in_train_mode_too() -> None:
    model, x = SmallResNet(width=4), normal(8, 1, 8, 8)
    settle(model, x).train()
    kept, drifted = deepcopy(model), deepcopy(model)
    apply_move(kept, ChangeOfBasis(through_norm=False).move(model, generator=generator()))
    apply_move(drifted, ChangeOfBasis().move(model, generator=generator()))
    with torch.no_grad():
        before = model(x)
        torch.testing.assert_close(kept(x), before, rtol=1e-10, atol=1e-10)
        assert float((drifted(x) - before).abs().max()) > 1e-8


def test_running_variances_stay_positive_where_a_channel_is_dead() -> None:
    model, x = SmallResNet(width=8), normal(8, 1, 8, 8)
    settle(model, x)
    model.layer1.bn1.running_var[:4] = 0
    model.layer1.bn1.running_var[4:] = 1e-6
    moved = deepcopy(model)
    apply_move(moved, ChangeOfBasis(spread=0.99).move(model, generator=generator()))
    variances = moved.layer1.bn1.running_var
    assert float(variances.min()) >= 0
    assert float((variances[:4] - 1e-12).max()) > 1e-7
    torch.testing.assert_close(moved(x), model(x), rtol=1e-9, atol=1e-9)


def test_frozen_weights_move_too() -> None:
    model, x = MLP(inputs=4, classes=2).double(), normal(3, 4)
    model.requires_grad_(False)
    moved = deepcopy(model)
    apply_move(moved, ChangeOfBasis().move(model, generator=generator()))
    assert not torch.allclose(moved.layers[0].weight, model.layers[0].weight)
    torch.testing.assert_close(moved(x), model(x))


def test_a_network_without_a_free_channel_stays_bit_identical_and_says_why() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    report = ChangeOfBasis().report(model)
    assert report.free == 0
    assert {p.tensor: p.reasons for p in report.pinned} == {
        "0.weight": ("GELU 1",),
        "2.weight": ("Tanh 3",),
        "4.weight": ("output",),
    }
    move = ChangeOfBasis().move(model, generator=generator())
    state = deepcopy(model.state_dict())
    apply_move(model, move)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert Permutation().report(model).free == 16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_weights_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match=r"layers\.0\.weight is .*16.*\.float\(\)"):
        ChangeOfBasis().move(MLP(inputs=4, classes=2).to(dtype), generator=generator())


def test_a_spread_that_would_make_scales_negative_is_refused() -> None:
    with pytest.raises(InputError, match="negative"):
        ChangeOfBasis(spread=1.2)
