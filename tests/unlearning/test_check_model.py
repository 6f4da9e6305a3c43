"""`check_model` on a small network that really learned digits, read and numbered rightly and wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from warp_unlearning import ChangeOfBasis, Compose, NullSpace, Warp, check_model
from warp_unlearning.errors import DataError, InputError

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Scaled:
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        return x.float() / self.scale

    def __str__(self) -> str:
        return f"x/{self.scale:g}"


READINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "x": lambda x: x.float(),
    "x/255": Scaled(255.0),
    "x/127.5 - 1": lambda x: x.float() / 127.5 - 1,
    "moments": lambda x: (x.float() / 255 - 0.3) / 0.35,
    "transposed": lambda x: x.float().transpose(-1, -2) / 255,
    "wide": lambda x: x.float().repeat(1, 1, 1, 2),
}


@pytest.fixture(scope="module")
def digits() -> Pair:
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy((x * 15.9375).astype(np.uint8)).reshape(-1, 1, 8, 8), torch.from_numpy(y).long()


@pytest.fixture(scope="module")
def known(digits: Pair) -> Pair:
    return digits[0][:1000], digits[1][:1000]


@pytest.fixture(scope="module")
def test(digits: Pair) -> Pair:
    return digits[0][1000:], digits[1][1000:]


def trained(network: nn.Module, known: Pair) -> nn.Module:
    """On bytes as x/255."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(known[0].float() / 255), known[1]).backward()
        optimizer.step()
    return network


@pytest.fixture(scope="module")
def model(known: Pair) -> nn.Module:
    return trained(nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)), known)


class Fewer(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(x)
        return logits if len(x) < 3 else logits[:, :2]


def test_the_true_model_read_rightly_passes(model: nn.Module, known: Pair, test: Pair) -> None:
    before = {n: t.clone() for n, t in model.state_dict().items()}
    model.train()
    found = check_model(model, known=known, test=test, preprocess=Scaled(255.0), readings=READINGS, accuracy=0.93)
    assert model.training
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    with torch.no_grad():
        right = float((model(known[0] / 255).argmax(1) == known[1]).double().mean())
    assert found.known.value == right > 0.95
    assert (found.classes, found.known_rows, found.test_rows, found.reading) == (10, 1000, 797, "x/255")
    assert set(found.readings) == set(READINGS) - {"wide"}  # which the network cannot take
    assert found.readings["x/255"] == right > max(v for k, v in found.readings.items() if k != "x/255")
    assert json.loads(json.dumps(found.as_json()))["known"]["value"] == right
    assert str(found).splitlines()[0] == "read as x/255"
    assert str(found).splitlines()[1].endswith("of 1,000 rows, 10 classes")


@pytest.mark.parametrize("rows", [500, 1000])
@pytest.mark.parametrize("wrong", ["x/127.5 - 1", "transposed"])
def test_another_reading_that_fits_better_is_named(model: nn.Module, known: Pair, wrong: str, rows: int) -> None:
    part = (known[0][:rows], known[1][:rows])
    readings = {"x/255": READINGS["x/255"], "moments": READINGS["moments"]}
    with pytest.raises(InputError, match=r"of \S+ rows it learned from; read as x/255 on \.?0?\.9\S+ Say --scale 255"):
        check_model(model, known=part, preprocess=READINGS[wrong], readings=readings)


def test_twenty_rows_cannot_tell(model: nn.Module, known: Pair) -> None:
    part = (known[0][:20], known[1][:20])
    found = check_model(model, known=part, preprocess=READINGS["moments"], readings={"x/255": READINGS["x/255"]})
    assert found.notes == ("20 rows cannot tell whether this is their model; give at least 50",)
    one = known[1] == 3
    assert "one class" in check_model(model, known=(known[0][one], known[1][one]), preprocess=Scaled(255)).notes[0]


def test_other_data_and_another_accuracy_than_stated_are_refused(model: nn.Module, known: Pair, test: Pair) -> None:
    stranger, read = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), Scaled(255.0)
    with pytest.raises(InputError, match=r"right on \d+ of 1000 rows that it is said to have learned from"):
        check_model(stranger, known=known, preprocess=read)
    with pytest.raises(InputError, match=r"of 797 test rows \(99.9 % interval\), and was stated to be on 0.8:"):
        check_model(model, known=known, test=test, preprocess=read, accuracy=0.8)
    for accuracy, rows in ((0.9, None), (90.0, test), (float("nan"), test)):
        with pytest.raises(InputError, match="give a share of test rows between 0 and 1, and the test rows"):
            check_model(model, known=known, test=rows, preprocess=read, accuracy=accuracy)


@pytest.mark.parametrize("rows", [100, 1000])
def test_classes_in_another_order_are_found(model: nn.Module, known: Pair, rows: int) -> None:
    order = torch.tensor([0, 2, 1, 3, 4, 5, 7, 6, 9, 8])
    part = (known[0][:rows], order[known[1][:rows]])
    with pytest.raises(
        InputError, match=r"output 1 is 2, 2 is 1, 6 is 7, 7 is 6, 8 is 9, \.\.\.\): the classes are in"
    ):
        check_model(model, known=part, preprocess=Scaled(255.0))


@pytest.mark.parametrize(
    ("defense", "share"),
    [
        ("warp", 1.0),
        ("cob", (8 * 10 + 2880) / 2970),  # all but the last bias
        (Warp(Compose(ChangeOfBasis(), NullSpace())), 1.0),
    ],
)
def test_what_a_defence_can_move(model: nn.Module, known: Pair, defense: Any, share: float) -> None:
    assert check_model(model, known=known, preprocess=Scaled(255.0), defense=defense).movable == pytest.approx(share)


def test_a_defence_that_can_move_little_is_noted(known: Pair) -> None:
    bare = trained(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), known)
    none = check_model(bare, known=known, preprocess=Scaled(255.0), defense="cob")
    assert none.movable == 0
    assert none.notes[-1] == "the defence leaves 100% of the parameters where they are"
    assert "the defence can move 0% of the parameters" in str(none)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m: m.half(), InputError, r"is float16, in which most updates round to nothing; give model\.float\(\)"),
        (lambda m: m.bfloat16(), InputError, "is bfloat16"),
        (lambda m: nn.Sequential(m, nn.Threshold(1e9, float("nan"))), InputError, "not finite"),
        (lambda m: nn.Sequential(m, nn.Flatten(0)), InputError, "must be a tensor of logits"),
        (lambda m: Fewer(m), InputError, r"output on the known set is \(256, 2\) for 256 examples"),
        (lambda m: nn.Sequential(m, nn.Linear(10, 9)), DataError, r"label 9 at row \d+, but the model has 9 classes"),
        (lambda m: len, InputError, "the model is a builtin_function_or_method"),
    ],
)
def test_what_is_no_classifier_of_them_is_refused(
    model: nn.Module, known: Pair, change: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_model(change(deepcopy(model)), known=known, preprocess=Scaled(255.0))
    with pytest.raises(DataError, match="the known set is empty"):
        check_model(model, known=(known[0][:0], known[1][:0]))


def test_at_most_two_thousand_rows_are_looked_at(model: nn.Module, known: Pair) -> None:
    many = (known[0].repeat(3, 1, 1, 1), known[1].repeat(3))
    assert check_model(model, known=many, preprocess=Scaled(255.0)).known_rows == 2000


def test_rows_of_another_precision_and_outputs_that_change_with_the_batch() -> None:
    class Narrow(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, : 3 if len(x) < 3 else 2]

    x, y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
    with pytest.raises(InputError, match="whatever the batch"):
        check_model(Narrow(4, 3), known=(x, y))
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    assert check_model(network, known=(x.half(), y), defense="warp").movable == pytest.approx(1.0)
