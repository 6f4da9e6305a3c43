from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from warp_unlearning.data.examples import TensorExamples, as_examples
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.unlearning.checks import check_disjoint, check_examples, copies_of


def points(count: int, *, classes: int = 3, width: int = 4, seed: int = 0) -> TensorExamples:
    generator = torch.Generator().manual_seed(seed)
    return TensorExamples(torch.randn(count, width, generator=generator), torch.arange(count) % classes)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def test_the_number_of_classes_comes_from_the_output() -> None:
    network = model().train()
    before = {n: t.clone() for n, t in network.state_dict().items()}
    assert check_examples(network, {"forget": points(1), "retain": points(9, seed=1)}) == 3
    assert all(torch.equal(t, before[n]) for n, t in network.state_dict().items())
    assert all(m.training for m in network.modules())


@pytest.mark.parametrize("what", ["forget", "retain", "validation"])
def test_an_empty_set_is_named(what: str) -> None:
    sets: dict[str, Any] = {"forget": points(3), "retain": points(3), "validation": points(3)}
    sets[what] = TensorExamples(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    with pytest.raises(DataError, match=f"the {what} set is empty"):
        check_examples(model(), sets)


@pytest.mark.parametrize("label", [-1, 3, 255])
@pytest.mark.parametrize("what", ["forget", "retain"])
def test_a_label_outside_the_classes_is_named_with_its_row(what: str, label: int) -> None:
    sets: dict[str, Any] = {"forget": points(5), "retain": points(5)}
    sets[what].y[3] = label
    with pytest.raises(DataError, match=rf"the {what} set has the label {label} at row 3, but the model has 3 classes"):
        check_examples(model(), sets)


def test_the_largest_label_is_allowed() -> None:
    assert int(points(5).y.max()) == 2
    check_examples(model(), {"forget": points(5)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("row", [0, 7, 4096, 5000])
def test_a_value_that_is_not_finite_is_named_with_its_row(value: float, row: int) -> None:
    examples = points(5001)
    examples.x[row, 2] = value
    with pytest.raises(DataError, match=rf"the retain set has a value that is not finite .* at row {row};"):
        check_examples(model(), {"forget": points(3), "retain": examples})


def test_the_wrong_shape_or_type_is_explained() -> None:
    with pytest.raises(DataError, match=r"cannot take an example of the forget set, of shape \(5,\)"):
        check_examples(model(), {"forget": points(3, width=5)})
    double = points(3)
    with pytest.raises(DataError, match=r"torch\.float64"):
        check_examples(model(), {"forget": TensorExamples(double.x.double(), double.y)})
    with pytest.raises(DataError, match=r"type torch\.int64"):
        check_examples(model(), {"forget": TensorExamples(double.x.long(), double.y)})


class Answers(nn.Module):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(x)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: {"logits": x}, "output is dict"),
        (lambda x: (x, x), "output is tuple"),
        (lambda x: x.sum(1), r"output is \(2,\)"),
        (lambda x: x.unsqueeze(1), r"output is \(2, 1, 4\)"),
        (lambda x: x / 0, "output on the forget set is not finite"),
    ],
)
def test_outputs_that_are_no_logits_are_refused(answer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_examples(Answers(answer), {"forget": points(3)})


def naive_copies(forget: TensorExamples, retain: TensorExamples) -> list[int]:
    return [
        j for j in range(len(retain)) if any(forget.x[i].tolist() == retain.x[j].tolist() for i in range(len(forget)))
    ]


few = st.lists(st.tuples(st.sampled_from([0.0, 1.0, -1.0]), st.sampled_from([0.0, 2.0]), st.integers(0, 1)), min_size=1)


@settings(deadline=None)
@given(few, few, st.sampled_from([torch.float16, torch.float32, torch.float64]))
def test_copies_are_found_as_by_comparing_all_pairs(
    forget: list[tuple[float, float, int]], retain: list[tuple[float, float, int]], dtype: torch.dtype
) -> None:
    sets = [
        TensorExamples(torch.tensor([r[:2] for r in rows], dtype=dtype), torch.tensor([r[2] for r in rows]))
        for rows in (forget, retain)
    ]
    assert copies_of(*sets).tolist() == naive_copies(*sets)


def test_copies_among_many_rows() -> None:
    forget, retain = points(50, seed=1), points(3000, seed=2)
    planted = {5: 0, 1023: 7, 1024: 8, 2999: 49}
    for row, source in planted.items():
        retain.x[row], retain.y[row] = forget.x[source], forget.y[source]
    retain.x[9], retain.y[9] = forget.x[3], (forget.y[3] + 1) % 3
    assert copies_of(forget, retain).tolist() == sorted([*planted, 9])


def test_an_example_in_both_sets_is_refused() -> None:
    forget, retain = points(5), points(8, seed=1)
    check_disjoint(forget, retain)
    retain.x[6], retain.y[6] = forget.x[2], forget.y[2]
    with pytest.raises(
        DataError, match=r"1 examples of the retain set are also in the forget set \(first: retain row 6, label 2\)"
    ):
        check_disjoint(forget, retain)


def test_the_same_input_with_another_label_is_refused_and_named() -> None:
    forget, retain = points(5), points(8, seed=1)
    retain.x[6], retain.y[6] = forget.x[2], (forget.y[2] + 1) % 3
    retain.x[7], retain.y[7] = forget.x[1], forget.y[1]
    message = r"2 examples .* forget set, 1 of them under another label \(first: retain row 6, label 0\)"
    with pytest.raises(DataError, match=message):
        check_disjoint(forget, retain)


def test_inputs_of_other_shapes_or_types_cannot_be_copies() -> None:
    one = points(3)
    assert len(copies_of(one, TensorExamples(one.x.double(), one.y))) == 0
    assert len(copies_of(one, TensorExamples(one.x.reshape(3, 2, 2), one.y))) == 0


class Numbers(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((4,), float(i)), i % 3


WHOLE = Numbers()
OVERLAPS: dict[str, tuple[Any, Any, str]] = {
    "lists": (Subset(WHOLE, [1, 5, 2]), Subset(WHOLE, [9, 2, 5]), r"2 indices .* \(first: 2\)"),
    "tensors": (Subset(WHOLE, torch.tensor([1, 5])), Subset(WHOLE, torch.tensor([5, 6])), r"1 indices .* \(first: 5\)"),
    "the same": (WHOLE, WHOLE, "10 indices"),
    "part and whole": (Subset(WHOLE, [4]), WHOLE, r"1 indices .* \(first: 4\)"),
    "whole and part": (WHOLE, Subset(WHOLE, [4]), r"1 indices .* \(first: 4\)"),
    "parts of parts": (Subset(Subset(WHOLE, [7, 8, 9]), [0]), Subset(WHOLE, [6, 7]), r"1 indices .* \(first: 7\)"),
}


@pytest.mark.parametrize("case", list(OVERLAPS))
def test_shared_indices_are_refused(case: str) -> None:
    forget, retain, message = OVERLAPS[case]
    with pytest.raises(DataError, match=message):
        check_disjoint(as_examples(forget, what="forget"), as_examples(retain, what="retain"))


@pytest.mark.parametrize(
    ("forget", "retain"),
    [
        (Subset(WHOLE, [1, 2]), Subset(WHOLE, [3, 4])),
        (Subset(WHOLE, [1, 2]), Subset(Numbers(), [3, 4])),
        (Subset(Subset(WHOLE, [7, 8, 9]), [0]), Subset(WHOLE, [0])),
    ],
)
def test_parts_without_shared_indices_pass(forget: Any, retain: Any) -> None:
    check_disjoint(as_examples(forget, what="forget"), as_examples(retain, what="retain"))


@pytest.mark.parametrize(
    ("forget", "retain"),
    [
        (Subset(WHOLE, [1, 2]), Subset(Numbers(), [1, 2])),
        (Subset(WHOLE, [1, 2]), tuple(torch.utils.data.default_collate([WHOLE[2], WHOLE[5]]))),
        (tuple(torch.utils.data.default_collate([WHOLE[2], WHOLE[5]])), WHOLE),
    ],
    ids=["two data sets of one content", "data set and tensors", "tensors and data set"],
)
def test_the_same_content_is_found_whatever_holds_it(forget: Any, retain: Any) -> None:
    with pytest.raises(DataError, match="also in the forget set"):
        check_disjoint(as_examples(forget, what="forget"), as_examples(retain, what="retain"))
