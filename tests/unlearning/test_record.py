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
from warp_unlearning.unlearning.record import (
    Deletion,
    DeletionRecord,
    describe,
    examples_digest,
    now,
    versions,
)


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
    )
    return replace(base, **changes)


def test_a_record_survives_json() -> None:
    record = DeletionRecord((deletion(),)).then(deletion(original="b" * 64, unlearned="c" * 64, defense="hidden"))
    text = json.dumps(record.as_json())
    assert DeletionRecord.from_json(json.loads(text)) == record
    assert json.loads(text)["schema_version"] == 1
    assert DeletionRecord.from_json(json.loads(json.dumps(DeletionRecord().as_json()))) == DeletionRecord()


def test_a_deletion_must_start_from_the_last_result() -> None:
    record = DeletionRecord().then(deletion())
    longer = record.then(deletion(original="b" * 64))
    assert len(longer.deletions) == 2
    assert len(record.deletions) == 1
    with pytest.raises(DataError, match=r"starts from the model aaaaaaaaaaaa, but the record ends with bbbbbbbbbbbb;"):
        record.then(deletion(original="a" * 64))


@pytest.mark.parametrize("data", [{}, {"schema_version": 2, "deletions": []}, {"schema_version": "1"}, [], None])
def test_other_versions_are_refused(data: Any) -> None:
    with pytest.raises(DataError, match="this program reads version 1"):
        DeletionRecord.from_json(data)


def test_missing_and_unknown_fields_are_named() -> None:
    data = DeletionRecord((deletion(),)).as_json()
    row = {k: v for k, v in data["deletions"][0].items() if k != "seed"} | {"colour": "red"}
    with pytest.raises(DataError, match="colour, seed"):
        DeletionRecord.from_json(data | {"deletions": [row]})


def test_digests_tell_inputs_and_labels_apart() -> None:
    x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])
    one = examples_digest(TensorExamples(x, y))
    assert one == examples_digest(TensorExamples(x.clone(), y.clone()))
    assert one != examples_digest(TensorExamples(x + 1e-6, y))
    assert one != examples_digest(TensorExamples(x, 1 - y))
    assert one != examples_digest(TensorExamples(x.flip(0), y))


def test_of_a_dataset_only_the_labels_are_named() -> None:
    x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])
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


def test_the_date_is_in_utc() -> None:
    found = datetime.fromisoformat(now())
    assert found.utcoffset() == UTC.utcoffset(None)
    assert abs((datetime.now(UTC) - found).total_seconds()) < 5


def test_versions_are_those_running() -> None:
    assert versions()["torch"] == torch.__version__
    assert set(versions()) == {"warp_unlearning", "torch", "numpy", "python"}


def test_a_record_with_a_broken_chain_does_not_load() -> None:
    from dataclasses import replace

    from warp_unlearning.unlearning.record import Deletion

    first = Deletion(1, 2, "f", "r", "a", "b", {"name": "ngp"}, None, False, 0, 1.0, "today", {})
    data = DeletionRecord((first, replace(first, original="c"))).as_json()
    with pytest.raises(DataError, match="record ends with b"):
        DeletionRecord.from_json(data)
    with pytest.raises(DataError, match="damaged"):
        DeletionRecord.from_json({**data, "deletions": None})
    with pytest.raises(DataError, match="missing or unknown"):
        DeletionRecord.from_json({**data, "deletions": [5]})
