from __future__ import annotations

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.models.networks import MLP, SmallResNet
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.rescaling import Permutation


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_weights_are_reordered_and_nothing_else() -> None:
    model = SmallResNet(width=4)
    moved = deepcopy(model)
    apply_move(moved, Permutation().move(model, generator=generator()))
    for (name, before), after in zip(model.state_dict().items(), moved.state_dict().values(), strict=True):
        assert torch.equal(before.flatten().sort().values, after.flatten().sort().values), name
    assert not torch.equal(model.conv1.weight, moved.conv1.weight)
    assert torch.equal(model.fc.bias, moved.fc.bias)


def test_train_mode_and_its_statistics_follow_too() -> None:
    model, x = SmallResNet(width=4).double(), torch.randn(8, 1, 8, 8, generator=generator(1), dtype=torch.float64)
    move = Permutation().move(model, generator=generator())
    moved = deepcopy(model)
    apply_move(moved, move)
    torch.testing.assert_close(moved.train()(x), model.train()(x), rtol=1e-10, atol=1e-10)
    for name, value in moved.state_dict().items():
        torch.testing.assert_close(value, move.point(name, model.state_dict()[name]), rtol=1e-10, atol=1e-10)


def test_every_order_of_a_layer_is_as_likely() -> None:
    # Many layers at once, as a network is looked through anew at each move.
    model = MLP(inputs=2, classes=2, hidden=(3,) * 12)
    biases = [name for name, value in model.named_parameters() if value.shape == (3,)]
    counts: dict[tuple[int, ...], int] = {}
    stream = generator()
    labels = torch.arange(3)
    for _ in range(50):
        move = Permutation().move(model, generator=stream)
        for name in biases:
            order = tuple(move.selection(name, labels).tolist())
            counts[order] = counts.get(order, 0) + 1
    assert sum(counts.values()) == 600
    assert len(counts) == 6
    assert all(60 < count < 145 for count in counts.values())


def test_half_weights_are_reordered_without_rounding() -> None:
    model = MLP(inputs=5, classes=3).to(torch.bfloat16)
    moved = deepcopy(model)
    apply_move(moved, Permutation().move(model, generator=generator()))
    assert not torch.equal(moved.layers[0].weight, model.layers[0].weight)
    x = torch.randn(6, 5, generator=generator(2))
    torch.testing.assert_close(moved.double()(x.double()), model.double()(x.double()), rtol=1e-12, atol=1e-12)


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

    model, x = Net().double(), torch.randn(3, 1, 2, 2, generator=generator(3), dtype=torch.float64)
    report = Permutation().report(model)
    assert any("repeated channels" in reason for part in report.pinned for reason in part.reasons)
    for seed in range(5):
        moved = deepcopy(model)
        apply_move(moved, Permutation().move(model, generator=generator(seed)))
        torch.testing.assert_close(moved(x), model(x), rtol=1e-12, atol=1e-12)
