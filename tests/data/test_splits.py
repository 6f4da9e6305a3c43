import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_unlearning.data.files import array_digest
from warp_unlearning.data.splits import (
    ForgetRule,
    Indices,
    RandomFraction,
    Split,
    WholeClass,
    check_disjoint,
    check_indices,
    make_split,
)
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.randomness import Streams

LABELS = np.arange(200) % 4


def split_of(rule: ForgetRule, *, validation: float = 0.1, seed: int = 0) -> Split:
    generator = Streams(seed).generator("split")
    return make_split(LABELS, forget=rule, validation=validation, test_count=50, generator=generator)


@st.composite
def rules(draw: st.DrawFn, labels: list[int]) -> ForgetRule:
    kind = draw(st.sampled_from(["random", "indices", "class"]))
    if kind == "random":
        return RandomFraction(draw(st.floats(0.01, 0.99)), per_class=draw(st.booleans()))
    if kind == "class":
        return WholeClass(draw(st.sampled_from(labels)))
    index = draw(st.lists(st.integers(0, len(labels) - 1), min_size=1, unique=True))
    return Indices(np.array(index))


def forget_count(rule: ForgetRule, labels: list[int]) -> int:
    if isinstance(rule, RandomFraction):
        return round(rule.fraction * len(labels))
    return len(rule.array) if isinstance(rule, Indices) else labels.count(rule.label)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), labels=st.lists(st.integers(0, 4), min_size=4, max_size=60), validation=st.floats(0, 0.6))
def test_any_split_is_a_partition_of_the_training_part(
    data: st.DataObject, labels: list[int], validation: float
) -> None:
    rule = data.draw(rules(labels))
    forgotten = forget_count(rule, labels)
    rest = len(labels) - forgotten
    generator = torch.Generator()
    if forgotten == 0 or rest == round(validation * rest):
        with pytest.raises(InputError, match=r"is none|leaves none"):
            make_split(np.array(labels), forget=rule, validation=validation, test_count=3, generator=generator)
        return
    split = make_split(np.array(labels), forget=rule, validation=validation, test_count=3, generator=generator)
    parts = [split.forget, split.retain, split.validation]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all(p.dtype == np.int64 and p.tolist() == sorted(p.tolist()) for p in [*parts, split.test])
    assert (len(split.forget), len(split.validation)) == (forgotten, round(validation * rest))
    assert split.test.tolist() == [0, 1, 2]


def test_a_fraction_is_drawn_from_each_class() -> None:
    split = split_of(RandomFraction(0.1))
    assert np.bincount(LABELS[split.forget]).tolist() == [5, 5, 5, 5]
    assert sorted(np.bincount(LABELS[split.validation]).tolist()) == [4, 4, 5, 5]


def test_a_fraction_of_the_whole_need_not_keep_the_classes_in_proportion() -> None:
    counts = {
        tuple(np.bincount(LABELS[split_of(RandomFraction(0.1, per_class=False), seed=s).forget])) for s in range(5)
    }
    assert {sum(c) for c in counts} == {20}
    assert len(counts) > 1


def test_a_whole_class_is_in_no_other_part() -> None:
    split = split_of(WholeClass(2))
    assert split.forget.tolist() == list(range(2, 200, 4))
    assert not (LABELS[np.concatenate([split.retain, split.validation])] == 2).any()
    assert np.bincount(LABELS[split.validation], minlength=4).tolist() == [5, 5, 0, 5]


def test_given_indices_are_forgotten_in_sorted_order() -> None:
    assert split_of(Indices(np.array([9, 3, 150], dtype=np.int32))).forget.tolist() == [3, 9, 150]


def test_no_validation() -> None:
    assert len(split_of(WholeClass(0), validation=0.0).validation) == 0


def test_the_generator_alone_decides() -> None:
    digests = [split_of(RandomFraction(0.1), seed=seed).digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_labels_may_be_a_tensor() -> None:
    generator = Streams(0).generator("split")
    split = make_split(torch.from_numpy(LABELS), forget=RandomFraction(0.1), test_count=50, generator=generator)
    assert split.digest == split_of(RandomFraction(0.1)).digest


def test_digest_covers_all_four_parts() -> None:
    arrays = [np.array([i], dtype=np.int64) for i in range(4)]
    assert Split(*arrays).digest == array_digest(*arrays)
    for i in range(4):
        changed = list(arrays)
        changed[i] = np.array([9], dtype=np.int64)
        assert Split(*changed).digest != Split(*arrays).digest


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 0.001, float("nan")])
def test_a_fraction_that_forgets_none_or_all_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="forget fraction"):
        split_of(RandomFraction(fraction))


def test_an_unknown_class_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="label 7; the labels are 0, 1, 2, 3"):
        split_of(WholeClass(7))


def test_something_must_be_retained() -> None:
    with pytest.raises(InputError, match="leaves none to retain"):
        split_of(Indices(np.arange(200)))


@pytest.mark.parametrize("validation", [-0.1, 1.0, float("nan")])
def test_a_validation_fraction_must_be_below_one(validation: float) -> None:
    with pytest.raises(InputError, match="validation fraction"):
        split_of(WholeClass(0), validation=validation)


def test_labels_and_test_part_must_be_usable() -> None:
    with pytest.raises(DataError, match="type float64"):
        make_split(np.zeros(4), forget=WholeClass(0), test_count=1, generator=torch.Generator())
    with pytest.raises(DataError, match="test part of 0"):
        make_split(LABELS, forget=WholeClass(0), test_count=0, generator=torch.Generator())


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (np.array([], dtype=int), "the forget indices are empty"),
        (np.array([]), "the forget indices are empty"),
        (np.array([4, 7, 2, 7, 4]), "index 4 is repeated"),
        (np.array([1, 10]), "index 10 is out of range; there are 10"),
        (np.array([1, -1]), "index -1 is out of range"),
        (np.array([1.0]), "type float64"),
        (np.array([True, False]), "type bool"),
        (np.array([[1]]), r"shape \(1, 1\)"),
    ],
)
def test_indices_that_cannot_be_used(index: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_indices(index, count=10, what="forget")


def test_good_indices_come_back_sorted_as_int64() -> None:
    index = check_indices(np.array([9, 0, 4], dtype=np.uint8), count=10, what="forget")
    assert index.tolist() == [0, 4, 9]
    assert index.dtype == np.int64


def test_parts_that_share_an_example_are_named() -> None:
    a, b, c = np.array([1, 2]), np.array([3]), np.array([2, 3])
    check_disjoint({"forget": a, "retain": b})
    with pytest.raises(DataError, match="1 examples are in forget and in validation, first 2"):
        check_disjoint({"forget": a, "retain": b, "validation": c})
