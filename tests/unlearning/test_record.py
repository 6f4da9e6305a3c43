from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from warp_unlearning.data.examples import TensorExamples, as_examples
from warp_unlearning.errors import DataError
from warp_unlearning.methods.neg_grad_plus import NegGradPlus
from warp_unlearning.unlearning.record import Deletion, DeletionRecord, describe, examples_digest, now, versions


def deletion(**changes: Any) -> Deletion:
    base = Deletion(
        requested=3,
        retained=7,
        forget_digest="f" * 64,
        retain_digest="e" * 64,
        original="a" * 64,
        unlearned="b" * 64,
        method=describe(NegGradPlus(alpha=0.5)),
        defense=None,
        experiment_only=False,
        seed=4,
        seconds=1.5,
        date=now(),
        versions=versions(),
        verdicts={"ok": True},
        request={"how": "ids", "rows": 3, "copies": 1, "drawn": False, "digests": ["0a", "1b"]},
        preprocessing={"scale": 255.0},
        network_file="d" * 64,
        threads=2,
        device="cpu",
        verdict={"outcome": "holds"},
        recipe=None,
    )
    return replace(base, **changes)


def test_a_record_survives_json() -> None:
    record = DeletionRecord((deletion(),)).then(deletion(original="b" * 64, unlearned="c" * 64, defense="hidden"))
    text = json.dumps(record.as_json())
    assert DeletionRecord.from_json(json.loads(text)) == record
    assert json.loads(text)["schema_version"] == 2
    assert DeletionRecord.from_json(json.loads(json.dumps(DeletionRecord().as_json()))) == DeletionRecord()


def test_a_deletion_must_start_from_the_last_result() -> None:
    record = DeletionRecord().then(deletion())
    longer = record.then(deletion(original="b" * 64))
    assert len(longer.deletions) == 2
    assert len(record.deletions) == 1
    with pytest.raises(DataError, match=r"starts from the model aaaaaaaaaaaa, but the record ends with bbbbbbbbbbbb;"):
        record.then(deletion(original="a" * 64))


@pytest.mark.parametrize(
    "data", [{}, {"schema_version": 3, "deletions": []}, {"schema_version": "1"}, {"schema_version": True}, [], None]
)
def test_other_versions_are_refused(data: Any) -> None:
    with pytest.raises(DataError, match="this program reads versions 1 and 2"):
        DeletionRecord.from_json(data)


def test_digests_tell_inputs_and_labels_apart_and_of_a_dataset_labels_alone() -> None:
    x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])
    one = examples_digest(TensorExamples(x, y))
    assert one == examples_digest(TensorExamples(x.clone(), y.clone()))
    others = [TensorExamples(x + 1e-6, y), TensorExamples(x, 1 - y), TensorExamples(x.flip(0), y)]
    assert one not in {examples_digest(other) for other in others}
    first, second = (as_examples(Subset(TensorDataset(part, y), [0, 1]), what="forget") for part in (x, x + 1))
    assert examples_digest(first) == examples_digest(second)
    assert examples_digest(first).startswith("labels:")


def test_a_method_is_described_with_all_its_settings() -> None:
    found = describe(NegGradPlus(alpha=0.5))
    assert found["name"] == "ngp"
    assert found["options"]["alpha"] == 0.5
    assert NegGradPlus(**found["options"]) == NegGradPlus(alpha=0.5)

    class Bare:
        name = "bare"

    assert describe(Bare()) == {"name": "bare", "options": {}}  # type: ignore[arg-type]


def test_the_date_is_in_utc_and_versions_are_those_running() -> None:
    found = datetime.fromisoformat(now())
    assert found.utcoffset() == UTC.utcoffset(None)
    assert abs((datetime.now(UTC) - found).total_seconds()) < 5
    assert versions()["torch"] == torch.__version__
    assert set(versions()) == {"warp_unlearning", "torch", "numpy", "python"}


def test_records_of_version_0_1_are_read_and_written_anew() -> None:
    new = (*NEW, "request")
    row = {k: v for k, v in DeletionRecord((deletion(),)).as_json()["deletions"][0].items() if k not in new}
    record = DeletionRecord.from_json({"schema_version": 1, "deletions": [row]})
    (found,) = record.deletions
    assert found == deletion(request={}, **dict.fromkeys(NEW))
    assert DeletionRecord.from_json(record.then(deletion(original="b" * 64)).as_json()).deletions[0] == found
    with pytest.raises(DataError, match="device"):
        DeletionRecord.from_json({"schema_version": 1, "deletions": [row | {"device": "cpu"}]})
    with pytest.raises(DataError, match="network_file"):
        DeletionRecord.from_json({"schema_version": 2, "deletions": [row]})


NEW = ("preprocessing", "network_file", "threads", "device", "verdict", "recipe")


@pytest.mark.parametrize(
    "request_",
    [{"name": "Ada"}, {"how": "Ada Lovelace"}, {"digests": ["Ada"]}, {"rows": "Ada"}, {"ids": [1]}, {"digests": [3]}],
)
def test_nothing_that_names_a_person_enters_a_request(request_: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="cannot be recorded"):
        deletion(request=request_)
    row = DeletionRecord((deletion(),)).as_json()["deletions"][0]
    with pytest.raises(DataError, match="cannot be recorded"):
        DeletionRecord.from_json({"schema_version": 2, "deletions": [row | {"request": request_}]})


def test_damaged_records_are_refused() -> None:
    data = DeletionRecord((deletion(),)).as_json()
    row = data["deletions"][0]
    odd = {k: v for k, v in row.items() if k != "seed"} | {"colour": "red"}
    cases: list[tuple[Any, str]] = [(None, "damaged"), ([5], "missing or unknown"), ([odd], "colour, seed")]
    changes = {"seed": "0", "original": None, "method": "ngp", "request": [1], "requested": True}
    cases += [([row | {key: value}], f"has {key} = .* damaged") for key, value in changes.items()]
    cases += [([row, row], "record ends with bbbbbbbbbbbb")]
    for rows, message in cases:
        with pytest.raises(DataError, match=message):
            DeletionRecord.from_json(data | {"deletions": rows})
