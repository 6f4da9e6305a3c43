from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.sampling import (
    batch_shape,
    draw_per_class,
    endless,
    epoch,
    random_crop_flip,
    shuffled,
)
from warp_unlearning.errors import InputError
from warp_unlearning.randomness import Streams

FILL = (-1.0, -2.0, -3.0)
COUNTS = st.integers(1, 400)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=100, deadline=None)
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=60), part=st.floats(0, 1), seed=st.integers(0, 9))
def test_each_class_is_within_one_of_its_share_and_the_total_is_exact(
    labels: list[int], part: float, seed: int
) -> None:
    y = np.array(labels)
    count = round(part * len(y))
    index = draw_per_class(y, count=count, generator=Streams(seed).generator("t"))
    assert index.dtype == np.int64
    assert index.tolist() == sorted(set(index.tolist()))
    assert len(index) == count
    for label in set(labels):
        share = count * labels.count(label) / len(labels)
        assert abs(int((y[index] == label).sum()) - share) < 1


def test_every_member_of_a_class_is_drawn_equally_often() -> None:
    generator, times = Streams(0).generator("t"), np.zeros(10)
    for _ in range(2000):
        times[draw_per_class(np.repeat([0, 1], 5), count=4, generator=generator)] += 1
    # Each count is binomial(2000, 0.4), of standard deviation 22.
    assert np.abs(times - 800).max() < 5 * 22


@given(count=COUNTS, size=COUNTS)
def test_batches_have_one_shape_and_leave_few_examples_out(count: int, size: int) -> None:
    batches, length = batch_shape(count, size)
    drawn = list(epoch(count, size, generator=seeded()))
    assert [len(b) for b in drawn] == [length] * batches
    assert min(2, count, size) <= length <= size
    everything = torch.cat(drawn)
    assert len(everything.unique()) == len(everything)
    assert count - len(everything) < max(-(-count // size), 2)
    assert 0 <= int(everything.min()) <= int(everything.max()) < count


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_order_is_the_same_on_a_gpu() -> None:
    here, there = (list(epoch(100, 8, generator=seeded(3), device=d)) for d in ("cpu", "cuda"))
    assert all(batch.is_cuda for batch in there)
    assert torch.equal(torch.stack(here), torch.stack(there).cpu())


def one_by_one(x: Tensor, *, padding: int, flip: bool, fill: Sequence[float], generator: torch.Generator) -> Tensor:
    """The same augmentation, one image and one channel at a time, by padding and slicing."""
    count, channels, height, width = x.shape
    shift = torch.randint(-padding, padding + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    out = torch.empty_like(x)
    for i in range(count):
        top, left = int(shift[0, i]) + padding, int(shift[1, i]) + padding
        for c in range(channels):
            padded = torch.full((height + 2 * padding, width + 2 * padding), fill[c])
            padded[padding : padding + height, padding : padding + width] = x[i, c]
            crop = padded[top : top + height, left : left + width]
            out[i, c] = crop.flip(1) if flip and mirrored[i] else crop
    return out


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(("shape", "padding"), [((64, 3, 6, 5), 2), ((64, 3, 4, 4), 0), ((32, 3, 2, 3), 5)])
def test_equals_padding_and_slicing_image_by_image(shape: tuple[int, ...], padding: int, flip: bool) -> None:
    x = torch.rand(shape, generator=seeded())
    plain, last = x, x.half().contiguous(memory_format=torch.channels_last)
    expected = one_by_one(plain, padding=padding, flip=flip, fill=FILL, generator=seeded(7))
    assert torch.equal(random_crop_flip(plain, padding=padding, flip=flip, fill=FILL, generator=seeded(7)), expected)
    half = random_crop_flip(last, padding=padding, flip=flip, fill=FILL, generator=seeded(7))
    assert torch.equal(half, expected.half())


def test_every_offset_and_both_mirrors_come_up_equally_often() -> None:
    x = torch.zeros(9000, 1, 3, 3)
    x[:, 0, 1] = torch.tensor([0.0, 1.0, 2.0])
    out = random_crop_flip(x, padding=1, flip=True, fill=(0.0,), generator=seeded())
    patterns, times = torch.unique(out.reshape(9000, -1), dim=0, return_counts=True)
    assert len(patterns) == 18
    # Each is binomial(9000, 1/18), of standard deviation 22.
    assert int((times - 500).abs().max()) < 5 * 22
    for shape in ((4, 2, 3, 3), (4, 3)):
        with pytest.raises(InputError, match="one a channel"):
            random_crop_flip(torch.zeros(shape), padding=1, flip=True, fill=FILL, generator=seeded())


def test_shuffled_batches_are_those_of_an_epoch() -> None:
    examples = TensorExamples(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    order = torch.cat(list(epoch(10, 4, generator=seeded())))
    batches = list(shuffled(examples, 4, generator=seeded()))
    assert torch.equal(torch.cat([y for _, y in batches]), order)
    assert torch.equal(torch.cat([x for x, _ in batches]), examples.x[order])
    further = shuffled(examples, 4, generator=seeded(), endless=True)
    passes = torch.cat([next(further)[1] for _ in range(6)]).reshape(2, 9)
    assert torch.equal(passes[0], order)
    assert not torch.equal(passes[1], order)
    again = endless(10, 4, generator=seeded())
    assert torch.equal(torch.cat([next(again) for _ in range(6)]).reshape(2, 9), passes)
