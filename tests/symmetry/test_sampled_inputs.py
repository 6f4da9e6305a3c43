from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.symmetry.layer_inputs import layer_rows
from warp_unlearning.symmetry.sampled_inputs import sampled_examples, sampled_rows


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Conv2d(3, 2, 3, padding=1), (3, 6, 5)),
    (nn.Conv2d(4, 6, (2, 3), stride=(2, 1), padding=(1, 2), groups=2), (4, 6, 5)),
    (nn.Conv2d(2, 2, 3, dilation=2, padding="same", padding_mode="circular"), (2, 7, 6)),
    (nn.Conv1d(4, 4, 3, stride=2, padding=2, groups=4), (4, 15)),
    (nn.Linear(5, 2), (9, 5)),
    (nn.Linear(5, 2), (3, 4, 5)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=str)
def test_rows_are_different_places_of_each_example(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = normal(5, *shape)
    for patches in (1, 4):
        found = sampled_rows(layer, x, patches, generator=generator())
        assert found.shape[1] == 5 * patches
        for i, own in enumerate(x):
            every = layer_rows(layer, own.unsqueeze(0))
            part = found[:, i * patches : (i + 1) * patches]
            # The same place in every group.
            distance = (part.unsqueeze(2) - every.unsqueeze(1)).abs().amax((0, 3))
            assert distance.amin(1).max() == 0
            assert len(set(distance.argmin(1).tolist())) == patches


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=str)
def test_all_places_are_all_rows(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = normal(3, *shape)
    torch.testing.assert_close(sampled_rows(layer, x, 1000, generator=generator()), layer_rows(layer, x))


def test_rows_without_places_of_their_own_are_all_taken() -> None:
    x = normal(6, 5)
    assert torch.equal(sampled_rows(nn.Linear(5, 2), x, 1, generator=generator())[0], x)


def test_every_place_is_as_likely_as_the_others() -> None:
    x = torch.arange(12.0).reshape(1, 1, 3, 4).expand(3000, 1, 3, 4)
    drawn = sampled_rows(nn.Conv2d(1, 1, 1), x, 4, generator=generator())
    counts = Counter(drawn.flatten().tolist())
    assert len(counts) == 12
    # 1,000 each; the standard deviation is 26.
    assert max(abs(c - 1000) for c in counts.values()) < 130


@pytest.mark.parametrize("sizes", [[7, 7, 7], [30], [1] * 25, [4, 0, 9, 12]])
def test_examples_are_drawn_without_replacement_from_all_batches(sizes: list[int]) -> None:
    batches = list(torch.arange(float(sum(sizes))).unsqueeze(1).split(sizes))
    counts: Counter[float] = Counter()
    for seed in range(100):
        drawn = torch.cat(sampled_examples(iter(batches), 6, generator=generator(seed))).flatten().tolist()
        assert len(set(drawn)) == 6
        counts.update(drawn)
    expected = 100 * 6 / sum(sizes)
    assert len(counts) == sum(sizes)
    assert max(abs(c - expected) for c in counts.values()) < 5 * expected**0.5


def test_fewer_examples_than_asked_for_are_all_taken() -> None:
    batches = [torch.ones(2, 3), torch.zeros(1, 4)]
    drawn = sampled_examples(batches, 10, generator=generator())
    assert [tuple(part.shape) for part in drawn] == [(2, 3), (1, 4)]
    assert sampled_examples([], 10, generator=generator()) == []


def test_the_draw_is_the_generators() -> None:
    x = normal(40, 3)
    first, again, other = (torch.cat(sampled_examples([x], 5, generator=generator(s))) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
