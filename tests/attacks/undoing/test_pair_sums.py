from __future__ import annotations

import pytest
import torch
from torch import Tensor

from warp_unlearning.attacks.undoing import NotApplicable
from warp_unlearning.attacks.undoing.channel_factors import Channels, channels_of, rescaled, with_deviations
from warp_unlearning.attacks.undoing.pair_sums import by_kernel, pair_sums
from warp_unlearning.attacks.undoing.solving import solved, solved_positive
from warp_unlearning.errors import InputError


def by_loop(channels: Channels, values: dict[str, Tensor]) -> Tensor:
    found = torch.zeros(channels.free + 1, channels.free + 1, dtype=torch.float64)
    for name, value in values.items():
        for index in torch.cartesian_prod(*(torch.arange(n) for n in (*value.shape, 1))).tolist():
            ends = {1: channels.free, -1: channels.free}
            for place in channels.places[name]:
                ends[place.sign] = int(place.classes[tuple(index[axis] for axis in place.axes)])
            found[ends[1], ends[-1]] += value[tuple(index[:-1])]
    return found


@pytest.mark.parametrize("inner", ["plain", "grouped", "depthwise"])
def test_sums_are_those_of_a_loop_over_weights(kit, inner) -> None:
    held = kit.held(kit.residual(width=2, inner=inner))
    channels = channels_of(held)
    values = with_deviations(channels, held.weights)
    sums = pair_sums(channels, values)
    torch.testing.assert_close(sums.matrix, by_loop(channels, values))
    # In another order, and summed over taps beforehand.
    again = pair_sums(channels, {name: by_kernel(values[name]) for name in reversed(list(values))})
    torch.testing.assert_close(again.matrix, sums.matrix)


def test_rescaled_sums_are_sums_of_rescaled_weights(kit) -> None:
    held = kit.held(kit.residual(inner="grouped"))
    channels = channels_of(held)
    values, logs = with_deviations(channels, held.weights), channels.embedded(0.5 * kit.normal(channels.free))
    expected, found = pair_sums(channels, rescaled(channels, values, logs)), pair_sums(channels, values)
    before = found.matrix.clone()
    torch.testing.assert_close(found.first(logs), expected.first())
    torch.testing.assert_close(found.totals(logs), expected.totals())
    torch.testing.assert_close(found.second(logs), expected.second())
    assert torch.equal(found.matrix, before)


def test_weights_without_channels_add_nothing(kit) -> None:
    channels = channels_of(kit.held(kit.residual()))
    assert not bool(pair_sums(channels, {"other": torch.ones(3)}).matrix.any())


def test_positive_systems_are_solved_and_others_too(kit) -> None:
    root, right = kit.normal(6, 6), kit.normal(6, seed=1)
    positive = root @ root.mT + torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(positive @ solved_positive(positive, right), right)
    indefinite = positive - 5 * torch.eye(6, dtype=torch.float64)
    assert float(torch.linalg.eigvalsh(indefinite)[0]) < 0
    torch.testing.assert_close(solved_positive(indefinite, right), solved(indefinite, right))
    torch.testing.assert_close(indefinite @ solved_positive(indefinite, right), right)
    with pytest.raises(NotApplicable):
        solved_positive(torch.zeros(3, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    with pytest.raises(InputError):
        solved_positive(torch.eye(2) * torch.nan, torch.ones(2))
