from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from warp_unlearning.report import schema
from warp_unlearning.stats.evidence import Outputs, judge_outputs
from warp_unlearning.stats.verdict import Verdict


def judged(forgotten: int, references: int = 0, **how: Any) -> Verdict:
    rng, n = np.random.default_rng(0), forgotten + 200

    def model() -> Outputs:
        p = rng.random(n)
        return Outputs(np.log(p / (1 - p)), p > 0.5, np.stack([p, 1 - p], axis=1))

    others = {f"{i}.pt": model() for i in range(references)}
    forgot, classes = np.arange(n) < forgotten, np.arange(n) % (1 if forgotten == 1 else 4)
    return judge_outputs(
        model(), model(), forgot=forgot, classes=classes, generator=rng, references=others, draws=199, **how
    )


VERDICTS = [judged(40), judged(1), judged(40, 2), judged(40, drawn=True), judged(40, ours=True)]


@pytest.mark.parametrize("verdict", VERDICTS, ids=["unseen", "one row", "retrained", "drawn", "ours"])
def test_a_verdict_comes_back_from_its_file(verdict: Verdict) -> None:
    text = schema.Verdict.of(verdict).model_dump_json()
    again = schema.Verdict.model_validate_json(text)
    assert again.judged() == verdict
    assert again.judged().lines == verdict.lines
    assert (again.outcome, again.exit) == (verdict.outcome, verdict.exit)
    assert json.loads(text) == json.loads(json.dumps(verdict.as_json(), allow_nan=False))


def test_a_verdict_that_its_claims_contradict_is_refused() -> None:
    plain = VERDICTS[0].as_json()
    for changed in ({"outcome": "holds"}, {"exit": 0}, {"reasons": []}, {"sentence": "fine"}, {"claims": []}):
        with pytest.raises(ValidationError):
            schema.Verdict.model_validate({**plain, **changed})


def unlearning() -> dict[str, Any]:
    part = {"forgotten": 0.993, "unseen": 0.915, "retained": 0.97, "test": None}
    return {
        "request": {
            "how": "delete_ids.csv (column id)",
            "asked": 150,
            "found": 163,
            "copies": 2,
            "first": [17, 52],
            "digest": "3f8ba042",
        },
        "retained": 5850,
        "method": {"name": "ngp", "options": {"lr": 0.01}, "settings": "published"},
        "defense": {"name": "warp", "options": {}, "settings": "published"},
        "before": part,
        "after": part,
        "teleports": {
            "made": 5,
            "taken_back": 1,
            "largest_drift": 0.01,
            "energy_before": 0.3,
            "energy_after": None,
            "experiment_only": False,
        },
        "verdict": VERDICTS[0].as_json(),
        "seed": 0,
        "updates": 120,
        "seconds": 3.5,
        "cpu_seconds": 3.4,
        "original": "aa",
        "unlearned": "bb",
        "requests": 1,
    }


RESULTS: list[tuple[type[schema.Results], dict[str, Any]]] = [
    (schema.Unlearning, unlearning()),
    (
        schema.Check,
        {
            "reading": "x/255",
            "classes": 9,
            "known": {"value": 0.97, "low": 0.96, "high": 0.98},
            "known_rows": 2000,
            "test": None,
            "test_rows": 0,
            "readings": {"x": 0.45},
            "movable": 0.99,
            "digest": "aa",
        },
    ),
    (
        schema.Teleport,
        {
            "outcome": "holds",
            "what": "largest change of an output",
            "measured": 1e-4,
            "bound": 1e-2,
            "experiment_only": False,
            "original": "aa",
            "teleported": "bb",
            "certificate": {"moved": 2.5},
        },
    ),
]


@pytest.mark.parametrize(("form", "fields"), RESULTS, ids=lambda x: getattr(x, "__name__", ""))
def test_results_are_read_as_they_were_written(form: type[schema.Results], fields: dict[str, Any]) -> None:
    results = form.model_validate(fields)
    text = results.model_dump_json()
    assert form.model_validate_json(text) == results
    assert json.loads(text)["schema_version"] == 2
    with pytest.raises(ValidationError, match="extra"):
        form.model_validate({**fields, "note": "hello"})
    with pytest.raises(ValidationError):
        form.model_validate({**fields, "schema_version": 1})
    with pytest.raises(ValidationError, match="frozen"):
        results.schema_version = 2  # type: ignore[misc]
    missing = next(iter(fields))
    with pytest.raises(ValidationError, match=missing):
        form.model_validate({k: v for k, v in fields.items() if k != missing})


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused(bad: float) -> None:
    with pytest.raises(ValidationError):
        schema.Estimate(value=bad, low=0, high=1)
    with pytest.raises(ValidationError):
        schema.Unlearning.model_validate({**unlearning(), "seconds": bad})
