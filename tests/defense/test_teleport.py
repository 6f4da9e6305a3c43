from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning import ChangeOfBasis, Compose, NullSpace, Permutation, teleport
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.symmetry.base import settings_of

NULL = NullSpace(energy=0.8)


@pytest.mark.parametrize("symmetry", [NULL, ChangeOfBasis(), Permutation(), Compose(Permutation(), NULL)], ids=type)
def test_the_model_given_stays_as_it_is(kit: Any, symmetry: Any) -> None:
    model = kit.network().train()
    model[0].bias.requires_grad_(False)
    before, rng, settings = kit.state(model), torch.get_rng_state(), settings_of(symmetry)
    moved, certificate = teleport(model, symmetry, **kit.sets())
    assert torch.equal(rng, torch.get_rng_state())
    assert kit.same(kit.state(model), before)
    assert all(m.training for m in (*model, *moved))
    assert [p.requires_grad for p in moved.parameters()] == [p.requires_grad for p in model.parameters()]
    assert not {t.data_ptr() for t in before.values()} & {t.data_ptr() for t in moved.state_dict().values()}
    assert not kit.same(kit.state(moved), before)
    assert kit.state(moved).keys() == before.keys()
    assert certificate.symmetry == type(symmetry).__name__
    assert certificate.distance_before == 0.0
    assert certificate.distance_after == pytest.approx(certificate.moved)
    assert (certificate.retain.examples, certificate.held_out.examples, certificate.forget.examples) == (20, 5, 9)
    assert certificate.energy_before > 0
    assert settings_of(symmetry) == settings


def test_the_seed_alone_decides_and_without_one_nobody_knows(kit: Any) -> None:
    for symmetry in (NullSpace(energy=0.8, batch_size=8), ChangeOfBasis()):
        states = []
        for seed, noise in ((1, 0), (1, 1), (2, 0), (None, 0), (None, 0)):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(noise)
                states.append(kit.state(teleport(kit.network(), symmetry, seed=seed, **kit.sets())[0]))
        assert kit.same(states[0], states[1])
        assert not any(kit.same(states[i], states[j]) for i, j in ((0, 2), (0, 3), (3, 4)))


@pytest.mark.parametrize("symmetry", [ChangeOfBasis(), NullSpace(energy=0.5, aim="random")], ids=type)
def test_seeds_that_agree_in_most_bits_give_unrelated_moves(kit: Any, symmetry: Any) -> None:
    """In any 32 or 48 bits: whoever knows these knows nothing of the draws."""
    seed = 0x1234_5678_9ABC_DEF0_1234_5678
    near = [seed ^ (1 << bit) for bit in (0, 31, 32, 47, 48, 63, 64, 95)]
    near += [seed & (2**32 - 1), seed & (2**48 - 1), seed >> 32, seed >> 48, seed + 2**128, -seed]
    model, draws = kit.network(hidden=300, norm=False), []
    for each in (seed, *near):
        after = kit.state(teleport(model, symmetry, seed=each, retain=kit.sets()["retain"])[0])
        change = after["0.weight"] - model[0].weight.detach()
        draws.append((change / model[0].weight.detach()).mean(1) if symmetry.looks_at == (0, 0) else change.flatten())
    related = torch.corrcoef(torch.stack(draws)) - torch.eye(len(draws))
    assert float(related.abs().max()) < 5 / len(draws[0]) ** 0.5


def test_a_descent_needs_a_forget_set(kit: Any) -> None:
    with pytest.raises(InputError, match="examples to forget; give forget="):
        teleport(kit.network(), NULL, retain=kit.sets()["retain"])
    _, found = teleport(kit.network(), NullSpace(dispersion=0, energy=0.8), **kit.sets())
    assert found.energy_after < found.energy_before


def test_distances_are_from_the_reference(kit: Any) -> None:
    model = kit.network()
    reference = kit.at(model, kit.shift(model, 0.1, seed=6).shifts)
    for given in (reference, {n: t.float() for n, t in reference.state_dict().items()}):
        _, certificate = teleport(model, NULL, reference=given, seed=0, **kit.sets())
        assert certificate.distance_before > 0.3
        assert certificate.distance_after != pytest.approx(certificate.distance_before)


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
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"retain": (x[:0], y[:0])}, DataError, "the retain set is empty"),
        (
            {"retain": (x, y), "forget": (x / 0, y)},
            DataError,
            "the forget set has a value that is not finite",
        ),
        ({"retain": (x[:, :4], y)}, DataError, "cannot take an example of the retain set"),
        ({"retain": x}, InputError, "the retain set is a Tensor"),
    ]
    for sets, kind, message in cases:
        with pytest.raises(kind, match=message):
            teleport(model, NULL, **sets)
    for wrong, message in (("cob", "is a str"), (ChangeOfBasis, "is ChangeOfBasis, a class"), (None, "is a NoneType")):
        with pytest.raises(InputError, match=f"the symmetry {message}"):
            teleport(model, wrong, **kit.sets())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no parameters"):
        teleport(nn.Sequential(nn.ReLU()), ChangeOfBasis(), **kit.sets())
    half, before = kit.network(norm=False).half(), kit.state(kit.network(norm=False).half())
    with pytest.raises(InputError, match=r"float16.*\.float\(\)"):
        teleport(half, NULL, **{k: (x.half(), y) for k, (x, y) in kit.sets().items()})
    assert kit.same(kit.state(half), before)


def test_one_example_is_enough(kit: Any) -> None:
    x, y = kit.points(1, 0)
    model = kit.network(norm=False)
    moved, certificate = teleport(model, NullSpace(energy=1.0, step_size=0.3, aim="random"), retain=(x, y), seed=0)
    torch.testing.assert_close(kit.logits(moved, x), kit.logits(model, x), rtol=1e-12, atol=1e-12)
    assert certificate.retain.examples == certificate.held_out.examples == 1
    assert certificate.moved > 0.1
