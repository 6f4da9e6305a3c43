"""Random residual networks, moved by every symmetry of the channel graph: function, gradients, and the way back; and
what pins, what ties, and what must not be touched, one small network each.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.oracles.symmetry import assert_symmetric, generator, moved_by, normal
from torch import Tensor, nn

from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.channel_graph import ChannelGraph, ChannelReport
from warp_unlearning.symmetry.channels import Kind
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis

ACTS: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda c: nn.ReLU(),
    "in_place": lambda c: nn.ReLU(inplace=True),
    "leaky": lambda c: nn.LeakyReLU(0.2),
    "slope": lambda c: nn.PReLU(),
    "slopes": lambda c: nn.PReLU(c),
    "gelu": lambda c: nn.GELU(),
    "silu": lambda c: nn.SiLU(),
    "none": lambda c: nn.Identity(),
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda c: nn.Identity(),
    "batch": nn.BatchNorm2d,
    "plain_batch": lambda c: nn.BatchNorm2d(c, affine=False),
    "batch_only": lambda c: nn.BatchNorm2d(c, track_running_stats=False),
    "group": lambda c: nn.GroupNorm(2, c),
}


def unit(before: int, after: int, act: str, norm: str, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    kernel = nn.Conv2d(before, after, 3, stride=stride, padding=1, groups=groups, bias=norm == "none")
    return nn.Sequential(kernel, NORMS[norm](after), ACTS[act](after))


class Block(nn.Module):
    def __init__(self, how: str, act: str, norm: str, width: int) -> None:
        super().__init__()
        self.how, self.after = how, width
        if how == "in_place_residual":
            # An in-place sum after an in-place ReLU would have no gradient.
            self.a = unit(width, width, "none", norm)
        elif how in ("plain", "residual", "shared", "shared_sum", "mixed_sum"):
            self.a = unit(width, width, act, norm)
        elif how == "down":
            self.after = 8
            self.a = unit(width, 8, act, norm, stride=2)
            self.b = nn.Sequential(nn.Conv2d(width, 8, 1, stride=2), NORMS[norm](8))
        elif how in ("concat", "dense"):
            self.a, self.b = unit(width, 4, act, norm), unit(width, 2, "relu", "batch")
            self.after = 6 if how == "concat" else 4 + width
        elif how == "concat_residual":
            self.a, self.b = unit(width, width - 2, act, norm), unit(width, 2, "relu", "batch")
        elif how == "depthwise":
            self.after = 2 * width
            self.a = unit(width, 2 * width, act, norm, groups=width)
        elif how == "grouped":
            self.a = unit(width, width, act, norm, groups=2)
        elif how in ("gate", "squeeze"):
            self.a = nn.Conv2d(width, width if how == "gate" else 1, 1)
        elif how == "split":
            self.a, self.after = unit(width, 8, act, norm), 4

    def forward(self, x: Tensor) -> Tensor:
        return HOW[self.how](self, x)


def in_place_residual(m: Any, x: Tensor) -> Tensor:
    branch = m.a(x)
    branch += x
    return F.relu(branch, inplace=True)


def split(m: Any, x: Tensor) -> Tensor:
    left, right = m.a(x).chunk(2, dim=1)
    return left + torch.relu(right)


HOW: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "plain": lambda m, x: m.a(x),
    "residual": lambda m, x: torch.add(x, m.a(x), alpha=0.5),
    "in_place_residual": in_place_residual,
    "down": lambda m, x: F.leaky_relu(m.a(x) + m.b(x)),
    "concat": lambda m, x: torch.cat([m.a(x), m.b(x)], dim=1),
    "dense": lambda m, x: torch.cat((x, m.a(x)), 1),
    "concat_residual": lambda m, x: x + torch.cat([m.a(x), m.b(x)], 1),
    "pool": lambda m, x: F.max_pool2d(x, 3, stride=1, padding=1) - 0.5 * F.avg_pool2d(x, 3, 1, 1),
    "shared": lambda m, x: m.a(m.a(x)),
    "shared_sum": lambda m, x: m.a(x) + m.a(-x),
    "mixed_sum": lambda m, x: m.a(x) + m.a(x).mean(dim=1, keepdim=True),
    "depthwise": lambda m, x: m.a(x),
    "grouped": lambda m, x: m.a(x),
    "gate": lambda m, x: x * torch.sigmoid(m.a(x)),
    "squeeze": lambda m, x: x * torch.tanh(m.a(x)),
    "split": split,
    "shift": lambda m, x: F.dropout(x, training=m.training) + 0.3,
    "sine": lambda m, x: torch.sin(x),
}
HEADS = ("flatten", "view", "mean", "adaptive", "tokens", "double_flat")


class Net(nn.Module):
    def __init__(self, plan: list[tuple[str, str, str]], head: str) -> None:
        super().__init__()
        self.head = head
        self.stem = unit(2, 4, "relu", "batch")
        width, size, blocks = 4, 6, []
        for how, act, norm in plan:
            block = Block(how, act, norm, width)
            blocks.append(block)
            width, size = block.after, (size + 1) // 2 if how == "down" else size
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.norm = nn.LayerNorm(width)
        features = {"mean": width, "tokens": width, "adaptive": 4 * width}.get(head, width * size * size)
        self.hidden = nn.Linear(features, 24)
        self.middle = nn.Sequential(nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU())
        self.twice = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        if self.head == "flatten":
            x = self.hidden(torch.flatten(x, 1))
        elif self.head == "view":
            x = self.hidden(x.view(x.size(0), -1))
        elif self.head == "mean":
            x = self.hidden(x.mean(dim=(-1, 2)))
        elif self.head == "adaptive":
            x = self.hidden(self.pool(x).reshape(x.shape[0], -1))
        elif self.head == "tokens":
            x = self.hidden(self.norm(x.flatten(2).transpose(1, 2))).amax(1)
        else:
            x = self.hidden(F.relu(x).flatten(1) + x.flatten(1))
        x = self.middle(x)
        return self.last(F.relu(self.twice(F.relu(self.twice(x)))))


def settle(model: nn.Module, seed: int) -> nn.Module:
    """Random weights and running statistics of ordinary size, in eval mode and float64."""
    draw = torch.Generator().manual_seed(seed)
    model.double()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=draw, dtype=torch.float64)
            if name.endswith("running_var"):
                value.copy_(0.5 + noise.abs())
            elif value.dim() > 1:
                value.copy_(noise / value[0].numel() ** 0.5)
            else:
                value.copy_(noise * 0.5 + (0.6 if name.endswith("weight") else 0.0))
    return model.eval()


acts, norms = st.sampled_from(sorted(ACTS)), st.sampled_from(sorted(NORMS))
blocks = st.tuples(st.sampled_from(sorted(HOW)), acts, norms)
networks = st.builds(Net, st.lists(blocks, min_size=1, max_size=3), st.sampled_from(HEADS))


@pytest.mark.long
@settings(
    max_examples=200, suppress_health_check=[HealthCheck.too_slow], phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
@given(networks, st.integers(0, 10_000))
def test_random_residual_networks_keep_function_and_gradients(net: Net, seed: int) -> None:
    model, x = settle(net, seed), normal(3, 2, 6, 6, seed=seed)
    for symmetry in (ChangeOfBasis(), Permutation()):
        move = symmetry.move(model, generator=generator(seed))
        assert_symmetric(model, move, x, moving=move.axes, rounding=1e-10)
        # The last hidden layers are free in all of these networks.
        assert symmetry.report(model).free >= 16


# ------------------------------------------------------------------------------------------------ small networks


class Small(nn.Module):
    """Two layers on rows, or on images, with any function around them."""

    def __init__(self, way: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.way = way
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.one = nn.Linear(6, 1)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def check(model: nn.Module, x: Tensor, *, train: bool = False) -> None:
    model.double().train(train)
    for symmetry in (ChangeOfBasis(), Permutation()):
        for seed in range(3):
            moved = moved_by(model, symmetry.move(model, generator=generator(seed)))
            torch.testing.assert_close(moved(x), model(x), rtol=1e-10, atol=1e-12)


def pinned(model: nn.Module, *, kind: Kind = "scale") -> ChannelReport:
    return ChannelGraph(model, kind=kind).report()


def reasons(model: nn.Module, tensor: str, **options: Any) -> str:
    return "; ".join(reason for p in pinned(model, **options).pinned if p.tensor == tensor for reason in p.reasons)


def halves(m: Any, x: Tensor) -> Tensor:
    left, right = m.a(x).chunk(2, -1)
    return m.c(torch.cat([left, F.gelu(right)], -1))


WAYS: dict[str, tuple[Callable[[Any, Tensor], Tensor], int, int]] = {
    # name: the way, free scales, free places
    "plain": (lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x))))), 12, 12),
    "sum": (lambda m, x: m.c((m.a(x) + m.b(F.relu(m.a(x)))).abs()), 6, 6),
    "twice": (lambda m, x: m.c(m.b(F.relu(m.b(m.a(x))))), 6, 6),
    "halves": (halves, 3, 6),
    "one_to_all": (lambda m, x: m.c(m.a(x) + m.one(F.relu(m.b(F.relu(m.a(x)))))), 7, 12),
    "mean_added": (lambda m, x: m.c(m.a(x) + m.a(x).mean(-1, keepdim=True)), 0, 0),
    "gelu": (lambda m, x: m.c(F.relu(m.b(F.gelu(m.a(x))))), 6, 12),
    "number": (lambda m, x: m.c(F.relu(m.b(3 * m.a(x) / 2))) + 1, 12, 12),
    "shift": (lambda m, x: m.c(F.relu(m.b(m.a(x) + 1))), 6, 12),
    "gate": (lambda m, x: m.c(m.a(x) * torch.sigmoid(m.b(x @ torch.ones(5, 6, dtype=x.dtype)))), 6, 6),
    "unknown": (lambda m, x: m.c(m.b(torch.sort(m.a(x)).values)), 6, 6),
    "cumulative": (lambda m, x: m.c(m.b(m.a(x).cumsum(-1))), 6, 6),
    "softmax": (lambda m, x: m.c(m.b(m.a(x).softmax(-1))), 6, 12),
    "sum_of_channels": (lambda m, x: m.c(m.b(m.a(x))) * m.a(x).sum(-1, keepdim=True), 6, 6),
    "product": (lambda m, x: m.c(m.a(x) * m.a(x)), 0, 6),
    "view": (lambda m, x: m.c(m.b(m.a(x).view(-1, 3).view(-1, 6))), 6, 6),
    "input_sum": (lambda m, x: m.c(m.b(F.pad(x, (0, 1)) + m.a(x))), 6, 6),
    "slice": (lambda m, x: m.c(m.b(m.a(x))) + m.a(x)[:, :3], 6, 6),
    "functional": (lambda m, x: m.c(F.linear(m.a(x), m.b.weight, m.b.bias)), 0, 0),
    "own_weight": (lambda m, x: m.c(m.b(m.a(x))) * m.b.weight.norm().item(), 0, 0),
    "own_bias": (lambda m, x: m.c(m.b(m.a(x))) + m.a.bias.sum(), 6, 6),
    "output_twice": (lambda m, x: torch.cat([m.c(F.relu(m.a(x))), m.a(x)], 1), 0, 0),
    "in_place": (lambda m, x: m.c(m.b(m.a(x).relu_().mul_(2.0))), 12, 12),
    "keyword": (lambda m, x: m.c(input=torch.relu(input=m.a(x))), 6, 6),
}


@pytest.mark.parametrize("name", WAYS)
def test_ways_through_two_layers(name: str) -> None:
    way, scales, places = WAYS[name]
    model = Small(way).double()
    assert (pinned(model).free, pinned(model, kind="order").free) == (scales, places)
    check(model, normal(4, 5))


def test_pins_are_named() -> None:
    model = Small(lambda m, x: m.c(torch.sin(m.b(m.act(m.a(x))))), act=nn.Sigmoid())
    assert reasons(model, "a.weight") == "Sigmoid act"
    assert reasons(model, "b.weight") == "sin"
    assert reasons(model, "c.weight") == "output"
    assert reasons(model, "a.weight", kind="order") == ""
    assert reasons(model, "b.weight", kind="order") == "sin"


def test_shared_weights_are_left_alone() -> None:
    model = Small(lambda m, x: m.c(F.relu(m.d(F.relu(m.b(F.relu(m.a(x))))))), d=nn.Linear(6, 6))
    model.d.weight = model.b.weight
    before = model.b.weight.detach().clone()
    assert "shares its weights" in reasons(model, "b.weight")
    check(model, normal(4, 5))
    apply_move(model, ChangeOfBasis().move(model, generator=generator()))
    assert torch.equal(model.b.weight, before.double())


def test_a_module_with_two_names_is_left_alone() -> None:
    inner = nn.Linear(6, 6)
    model = Small(lambda m, x: m.c(F.relu(m.d(F.relu(m.e(F.relu(m.a(x))))))), d=inner, e=inner)
    check(model, normal(4, 5))
    state = ChangeOfBasis().move(model, generator=generator())
    moved = {name: state.point(name, value) for name, value in model.state_dict().items()}
    other = deepcopy(model)
    other.load_state_dict(moved)
    torch.testing.assert_close(other(normal(4, 5)), model(normal(4, 5)))


def test_parametrised_and_hooked_layers_are_left_alone() -> None:
    model = Small(lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x))))))
    torch.nn.utils.parametrizations.weight_norm(model.b)
    handle = model.a.register_forward_hook(lambda module, args, out: out + 1)
    assert "hooks" in reasons(model, "a.weight")
    assert pinned(model).free == pinned(model, kind="order").free == 0
    check(model, normal(4, 5))
    handle.remove()
    assert pinned(model).free == 0


def test_the_way_of_train_mode_is_kept_too() -> None:
    def way(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        return m.c(F.relu(m.b(F.relu(hidden)))) + (m.c(hidden.tanh()) if m.training else 0)

    model = Small(way)
    assert "tanh" in reasons(model, "a.weight")
    check(model, normal(4, 5))
    check(model, normal(4, 5), train=True)


def test_an_untraceable_module_is_named_with_a_way_out_and_left_as_it_was() -> None:
    def way(m: Any, x: Tensor) -> Tensor:
        return m.c(m.a(x)) if x.sum() > 0 else m.c(m.b(m.a(x)))

    model = Small(way).eval()
    model.b.train()
    with pytest.raises(InputError, match=r"Small cannot be traced by torch\.fx .*forward without branches"):
        ChangeOfBasis().move(model, generator=generator())
    assert [m.training for m in (model, model.a, model.b)] == [False, False, True]


def test_weights_without_values_are_refused() -> None:
    with pytest.raises(InputError, match=r"0\.weight has no values yet; call the model once"):
        pinned(nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2)))


def test_weights_used_in_constants_are_refused_and_no_constant_stays() -> None:
    model = Small(lambda m, x: m.c(m.a(x) * sum(p.sum() for p in m.b.parameters())))
    with pytest.raises(InputError, match="outside its layers"):
        pinned(model)
    model = Small(lambda m, x: m.c(m.a(x) * torch.ones(6, dtype=x.dtype)))
    names = set(vars(model))
    pinned(model)
    assert set(vars(model)) == names


RELU, FLAT = nn.ReLU, nn.Flatten
SEQUENCES: dict[str, tuple[list[nn.Module], tuple[int, ...], int]] = {
    # name: the layers, the shape of the input, free scales
    "batch_norm_rows": ([nn.Linear(5, 6), nn.BatchNorm1d(6), RELU(), nn.Linear(6, 2)], (4, 5), 12),
    "batch_norm_first": ([nn.BatchNorm1d(5), FLAT(), nn.Linear(20, 6), nn.Linear(6, 2)], (4, 5, 4), 6),
    "tokens": ([nn.Linear(5, 6), RELU(), FLAT(), nn.Linear(18, 2)], (4, 3, 5), 6),
    "tokens_norm": ([nn.Linear(5, 6), nn.RMSNorm(6), nn.Linear(6, 4), RELU(), nn.Linear(4, 2)], (4, 3, 5), 10),
    "conv1d": ([nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.AvgPool1d(2), FLAT(), nn.Linear(8, 2)], (3, 2, 6), 8),
    "conv3d": ([nn.Conv3d(1, 4, 2), nn.BatchNorm3d(4), nn.MaxPool3d(2), FLAT(), nn.Linear(4, 2)], (3, 1, 3, 3, 3), 8),
    "wrong_axis": ([nn.Conv2d(2, 4, 1), nn.Linear(4, 4), RELU(), nn.Conv2d(4, 2, 1)], (3, 2, 4, 4), 0),
    "pool_over_features": ([nn.Linear(6, 6), nn.AvgPool1d(2), nn.Linear(3, 2)], (3, 2, 6), 0),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_axes_are_followed(name: str) -> None:
    layers, shape, free = SEQUENCES[name]
    model = nn.Sequential(*layers).eval()
    assert pinned(model).free == free
    check(model, normal(*shape))
