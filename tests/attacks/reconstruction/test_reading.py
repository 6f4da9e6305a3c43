from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.attacks.reconstruction.problem import Search
from warp_unlearning.attacks.reconstruction.reading import read_targets, readings
from warp_unlearning.attacks.reconstruction.reconstruct import reconstruct
from warp_unlearning.attacks.undo import pre_steps
from warp_unlearning.errors import InputError


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


def test_a_loss_that_was_lowered_turns_the_sign(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    down = kit.stepped(model, x, y, rate=-1e-3)
    target = one(read_targets([kit.threat(model, down, ascent=False)], after="naive"))
    assert kit.cosine(target, kit.gradient(model, x, y)) == pytest.approx(1, abs=1e-9)


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


@pytest.mark.parametrize("after", ["canonical", "span", "filter", "conservation", "filtered"])
def test_what_needs_probes_says_so(kit: Any, after: str) -> None:
    threats, _ = kit.threats(kit.net(), [0])
    with pytest.raises(InputError, match="needs probes"):
        read_targets(threats, after=after)


def test_an_unknown_way_names_the_nearest(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0])
    with pytest.raises(InputError, match="did you mean 'canonical'"):
        read_targets(threats, after="canonicl")
    assert set(readings()) == {*pre_steps(), "filtered"}


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


def test_a_scalar_parameter_is_read_like_any_other(kit: Any) -> None:
    class Heated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.heat = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), nn.Parameter(torch.tensor(0.7))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.heat * self.layers(x)

    model = kit.drawn(Heated)
    threats, _ = kit.threats(model, [0])
    target = one(read_targets(threats, after="naive"))
    x, y = kit.digits(1)
    assert kit.cosine(target, kit.gradient(model, x, y)) == pytest.approx(1, abs=1e-9)


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
