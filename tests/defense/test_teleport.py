from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from warp_unlearning import ChangeOfBasis, Compose, NullSpace, Permutation, teleport
from warp_unlearning.errors import DataError, InputError


class Pairs(Dataset[tuple[Tensor, int]]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], int(self.y[i])


@pytest.mark.parametrize(
    "symmetry", [NullSpace(), ChangeOfBasis(), Permutation(), Compose(Permutation(), NullSpace())], ids=type
)
def test_the_model_given_stays_as_it_is(kit: Any, symmetry: Any) -> None:
    model = kit.network().train()
    model[1].eval()
    model[0].bias.requires_grad_(False)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before, rng = kit.state(model), torch.get_rng_state()
    moved, certificate = teleport(model, symmetry, **kit.sets())
    assert torch.equal(rng, torch.get_rng_state())
    assert kit.same(kit.state(model), before)
    assert [m.training for m in model] == [m.training for m in moved] == [True, False, True, True, True]
    assert [p.requires_grad for p in moved.parameters()] == [p.requires_grad for p in model.parameters()]
    assert bool((model[0].weight.grad == 1).all())
    assert not {t.data_ptr() for t in before.values()} & {t.data_ptr() for t in moved.state_dict().values()}
    assert not kit.same(kit.state(moved), before)
    assert kit.state(moved).keys() == before.keys()
    assert certificate.symmetry == type(symmetry).__name__
    assert certificate.distance_before == 0.0
    assert certificate.distance_after == pytest.approx(certificate.moved)
    assert (certificate.retain.examples, certificate.held_out.examples, certificate.forget.examples) == (20, 5, 9)
    assert certificate.energy_before > 0
    json.dumps(certificate.as_json(), allow_nan=False)


@pytest.mark.parametrize("symmetry", [ChangeOfBasis(), Permutation()], ids=["basis", "permutation"])
def test_the_moved_copy_computes_the_same(kit: Any, symmetry: Any) -> None:
    model = kit.network()
    moved, certificate = teleport(model, symmetry, **kit.sets())
    x = kit.points(50, 9)[0]
    torch.testing.assert_close(kit.logits(moved, x), kit.logits(model, x), rtol=1e-12, atol=1e-12)
    assert certificate.retain.relative < 1e-12
    assert certificate.relative_move > 0.3


def test_the_seed_alone_decides_and_without_one_nobody_knows(kit: Any) -> None:
    for symmetry in (NullSpace(), ChangeOfBasis()):
        states = []
        for seed, noise in ((1, 0), (1, 1), (2, 0), (None, 0), (None, 0)):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(noise)
                states.append(kit.state(teleport(kit.network(), symmetry, seed=seed, **kit.sets())[0]))
        assert kit.same(states[0], states[1])
        assert not any(kit.same(states[i], states[j]) for i, j in ((0, 2), (0, 3), (3, 4)))


def test_a_forget_set_is_no_must(kit: Any) -> None:
    _, certificate = teleport(kit.network(), NullSpace(), retain=kit.sets()["retain"])
    assert certificate.forget is certificate.energy_before is certificate.energy_after is None
    assert certificate.moved > 0
    with pytest.raises(InputError, match="nothing to descend"):
        teleport(kit.network(), NullSpace(dispersion=0), retain=kit.sets()["retain"])
    _, told = teleport(kit.network(), NullSpace(dispersion=0, energy=0.8), **kit.sets())
    assert told.energy_after < told.energy_before


def test_tensors_datasets_and_loaders_give_the_same(kit: Any) -> None:
    wraps: dict[str, Any] = {
        "tensors": lambda pair: pair,
        "tensor dataset": lambda pair: TensorDataset(*pair),
        "dataset": lambda pair: Pairs(*pair),
        "loader": lambda pair: DataLoader(TensorDataset(*pair), batch_size=4),
    }
    states = {}
    for name, wrap in wraps.items():
        sets = {k: wrap(v) for k, v in kit.sets().items()}
        states[name] = kit.state(teleport(kit.network(), NullSpace(), seed=3, **sets)[0])
    assert all(kit.same(states["tensors"], state) for state in states.values())


@pytest.mark.parametrize("as_module", [True, False])
def test_distances_are_from_the_reference(kit: Any, as_module: bool) -> None:
    model = kit.network()
    reference = kit.at(model, kit.shift(model, 0.1, seed=6).shifts)
    given = reference if as_module else {n: t.float() for n, t in reference.state_dict().items()}
    _, certificate = teleport(model, NullSpace(energy=0.9), reference=given, seed=0, **kit.sets())
    assert certificate.distance_before > 0.3
    assert certificate.distance_after != pytest.approx(certificate.distance_before)
    alone = teleport(model, NullSpace(energy=0.9), seed=0, **kit.sets())[1]
    assert alone.distance_before == 0.0


def test_a_reference_of_another_network_is_refused(kit: Any) -> None:
    model = kit.network()
    short = {n: t for n, t in model.state_dict().items() if n != "4.bias"}
    for reference, name in (
        (kit.network(hidden=9), r"0\.weight of shape \(8, 5\)"),
        (short, r"4\.bias of shape \(3,\)"),
        ({}, r"0\.weight"),
    ):
        with pytest.raises(InputError, match=f"the reference has no {name}.*same architecture"):
            teleport(model, ChangeOfBasis(), reference=reference, **kit.sets())


def test_what_cannot_be_used_is_refused(kit: Any) -> None:
    model, (x, y) = kit.network(), kit.points(12, 0)
    spoilt = x.clone()
    spoilt[5, 1] = float("nan")
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"retain": (x[:0], y[:0])}, DataError, "the retain set is empty"),
        ({"retain": (x, y), "forget": (x[:0], y[:0])}, DataError, "the forget set is empty"),
        ({"retain": (spoilt, y)}, DataError, "the retain set has a value that is not finite .* at row 5"),
        ({"retain": (x, y), "forget": (spoilt, y)}, DataError, "the forget set has a value that is not finite"),
        ({"retain": (x, y + 1)}, DataError, "the label 3 at row 2, but the model has 3 classes"),
        ({"retain": (x[:, :4], y)}, DataError, "cannot take an example of the retain set"),
        ({"retain": (x.float(), y)}, DataError, "cannot take an example of the retain set"),
        ({"retain": None}, InputError, "the retain set is a NoneType"),
        ({"retain": x}, InputError, "the retain set is a Tensor"),
    ]
    for symmetry in (ChangeOfBasis(), NullSpace()):
        for sets, kind, message in cases:
            with pytest.raises(kind, match=message):
                teleport(model, symmetry, **sets)
    for wrong, message in (("cob", "is a str"), (ChangeOfBasis, "is ChangeOfBasis, a class"), (None, "is a NoneType")):
        with pytest.raises(InputError, match=f"the symmetry {message}"):
            teleport(model, wrong, **kit.sets())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no parameters"):
        teleport(nn.Sequential(nn.ReLU()), ChangeOfBasis(), **kit.sets())


def test_one_example_is_enough(kit: Any) -> None:
    x, y = kit.points(1, 0)
    model = kit.network(norm=False)
    moved, certificate = teleport(model, NullSpace(energy=1.0, step_size=0.3), retain=(x, y), seed=0)
    torch.testing.assert_close(kit.logits(moved, x), kit.logits(model, x), rtol=1e-12, atol=1e-12)
    assert certificate.retain.examples == certificate.held_out.examples == 1
    assert certificate.moved > 0.1


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.second(h if bool(h.sum() > 0) else 2 * h)


def test_a_network_that_cannot_be_traced(kit: Any) -> None:
    """Null spaces need no trace; a change of basis says that it does."""
    model = Branching().double()
    _, certificate = teleport(model, NullSpace(energy=0.9), **kit.sets())
    assert certificate.moved > 0
    before = kit.state(model)
    with pytest.raises(InputError, match=r"Branching cannot be traced by torch\.fx"):
        teleport(model, ChangeOfBasis(), **kit.sets())
    assert kit.same(kit.state(model), before)


def test_a_network_that_nothing_can_rescale_is_left_bit_identical_and_says_why(kit: Any) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    moved, certificate = teleport(model, ChangeOfBasis(), **kit.sets())
    assert kit.same(kit.state(moved), kit.state(model))
    assert certificate.moved == 0.0
    assert certificate.layers == ()
    assert {p.tensor: p.reasons for p in certificate.pinned}["0.weight"] == ("Tanh 1",)


def test_half_weights_are_refused_and_the_model_stays(kit: Any) -> None:
    model = kit.network(norm=False).half()
    sets = {k: (x.half(), y) for k, (x, y) in kit.sets().items()}
    before = kit.state(model)
    for symmetry in (NullSpace(energy=0.9), ChangeOfBasis()):
        with pytest.raises(InputError, match=r"float16.*\.float\(\)"):
            teleport(model, symmetry, **sets)
    assert kit.same(kit.state(model), before)


def test_a_symmetry_is_not_changed_by_its_use(kit: Any) -> None:
    symmetry = NullSpace()
    told = deepcopy(vars(symmetry))
    teleport(kit.network(), symmetry, **kit.sets())
    assert vars(symmetry) == told
