import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from warp_unlearning.data.stratified import draw, draw_per_class, fixed_test_part

from warp_unlearning.errors import DataError
from warp_unlearning.randomness import Streams


@settings(max_examples=100, deadline=None)
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=60), part=st.floats(0, 1), seed=st.integers(0, 9))
def test_each_class_is_within_one_of_its_share_and_the_total_is_exact(
    labels: list[int], part: float, seed: int
) -> None:
    y = np.array(labels)
    count = round(part * len(y))
    index = draw_per_class(y, count=count, generator=Streams(seed).generator("t"))
    assert len(set(index.tolist())) == count
    assert index.dtype == np.int64
    assert index.tolist() == sorted(index.tolist())
    for label in set(labels):
        share = count * labels.count(label) / len(labels)
        assert abs(int((y[index] == label).sum()) - share) < 1


def test_draws_depend_on_the_generator_alone() -> None:
    y = np.arange(100) % 3
    draws = [draw_per_class(y, count=30, generator=Streams(seed).generator("t")).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_every_member_of_a_class_is_drawn_equally_often() -> None:
    generator = Streams(0).generator("t")
    times = np.zeros(10)
    for _ in range(2000):
        times[draw_per_class(np.repeat([0, 1], 5), count=4, generator=generator)] += 1
    # Each count is binomial(2000, 0.4), of standard deviation 22.
    assert np.abs(times - 800).max() < 5 * 22


def test_draw_without_classes_gives_sorted_positions() -> None:
    index = draw(np.array([2, 4, 6, 8]), count=3, generator=torch.Generator().manual_seed(0))
    assert len(index) == 3
    assert set(index.tolist()) < {2, 4, 6, 8}
    assert index.tolist() == sorted(index.tolist())


def test_fixed_test_part_is_a_partition_with_the_classes_in_proportion() -> None:
    y = np.repeat([0, 1], [50, 150])
    train, test = fixed_test_part(y, fraction=0.2, name="mine")
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(200))
    assert np.bincount(y[test]).tolist() == [10, 30]
    assert test.tolist() == fixed_test_part(y, fraction=0.2, name="mine")[1].tolist()


def test_too_few_examples_for_a_test_part() -> None:
    with pytest.raises(DataError, match="has 2 examples, too few"):
        fixed_test_part(np.array([0, 1]), fraction=0.2, name="mine")
