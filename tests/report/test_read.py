import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.report.page import make_report
from warp_unlearning.report.read import read as read_results
from warp_unlearning.report.schema import Pair
from warp_unlearning.report.schema_shadow import Shadow

# Written by audits beside what the form asks for, or asked for by nobody yet.
UNREAD = {"level", "strength", "margin", "p_value", "balanced_accuracy", "shadows", "points", "variance", "rates"}
FREE = ("configuration", "digests", "versions", "hardware", "settings")


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in plain data that a reader must look at; of a list, the first item."""
    if path:
        yield path
    if isinstance(value, dict) and (not path or path[-1] not in FREE):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def parent(data: Any, path: tuple[str | int, ...]) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data


def required(data: dict[str, Any]) -> list[tuple[str | int, ...]]:
    return [
        path
        for path in places(data)
        if isinstance(path[-1], str)
        and not (path[-1] in UNREAD and path[:1] == ("arms",) and path[-2:] != ("all", "rates"))
        and "slices" not in path[-2:-1]
        and "verdict" not in path
    ]


def test_numbers_arrive_as_they_were_written(data, read):
    found = read(data)
    assert isinstance(found, Shadow)
    arm, plain = found.arms[1], data["arms"][1]
    assert (arm.method, arm.defense, arm.missing) == ("ngp", "warp", 0)
    assert vars(arm.score.auc) == plain["all"]["auc"]
    assert [rate.resolved for rate in arm.score.rates] == [rate["resolved"] for rate in plain["all"]["rates"]]
    assert arm.roc.x == tuple(plain["roc"]["fpr"])
    assert arm.risk.y == tuple(plain["risk"]["score"])
    assert arm.slices["most memorised 5 %"].auc.high == plain["slices"]["most memorised 5 %"]["auc"]["high"]
    assert found.methods == ("ngp", "scrub", "bad_teacher")
    assert dict(found.configuration)["training.betas"] == "0.9, 0.99"
    assert dict(found.configuration)["data.path"] == "(none)"
    assert found.complete


def test_a_judged_pair_arrives_and_makes_a_page(judged_pair, read):
    found = read(judged_pair)
    assert isinstance(found, Pair)
    assert [row.name for row in found.rows] == [row["name"] for row in judged_pair["rows"]]
    assert vars(found.rows[0].auc) == judged_pair["rows"][0]["auc"]
    drop = next(row for row in found.rows if row.name == "confidence drop")
    assert drop.beyond is not None
    assert drop.retrained is not None
    assert found.verdict.sentence == judged_pair["verdict"]["sentence"]
    page = make_report(found).html
    assert all(row.name in page for row in found.rows)
    broken = {**judged_pair, "verdict": {**judged_pair["verdict"], "outcome": "holds"}}
    for other in (broken, {**judged_pair, "rows": []}, {**judged_pair, "counts": None}):
        with pytest.raises(DataError):
            read(other)


def test_a_pair_arrives(pair_data, read):
    found = read(pair_data)
    assert isinstance(found, Pair)
    assert found.verdict.exit != 0
    assert [row.name for row in found.rows] == [row["name"] for row in pair_data["rows"]]
    assert vars(found.rows[0].auc) == pair_data["rows"][0]["auc"]
    assert found.count("never seen") == str(pair_data["counts"]["never seen"])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.35, 0.5, 0.77, 0.99, 0.99999])
def test_a_file_cut_short_is_named(data, read, share):
    text = json.dumps(data)
    with pytest.raises(DataError, match=r"results\.json.*(cut short|damaged)"):
        read(text[: int(share * len(text))])


def short(data: dict[str, Any]) -> dict[str, Any]:
    """The first arm, with few numbers."""
    arm = data["arms"][0]
    arm["roc"] = {"fpr": [0, 1], "tpr": [0, 1]}
    arm["histogram"] = {"edges": [0, 1], "forgotten": [1], "never": [1]}
    arm["risk"] = {"gradient_norm": [1], "score": [0.5]}
    return data | {"arms": [arm]}


def test_every_missing_field_is_named(data, read):
    data = short(data)
    paths = required(data)
    assert len(paths) > 100
    for path in paths:
        holder = parent(data, path)
        kept = holder.pop(path[-1])
        with pytest.raises(DataError, match=f"no field {path[-1]!r}"):
            read(data)
        holder[path[-1]] = kept


def test_every_wrong_type_is_named(data, read):
    data = short(data)
    for path in required(data)[1:]:
        holder = parent(data, path)
        kept, holder[path[-1]] = holder[path[-1]], {"unheard": []} if not isinstance(holder[path[-1]], dict) else 3
        with pytest.raises(DataError, match=str(path[-1])) as error:
            read(data)
        assert "results.json" in str(error.value)
        holder[path[-1]] = kept


def test_a_verdict_that_was_changed_is_named(data, read):
    verdict = data["arms"][0]["verdict"]
    for change in ({"outcome": "holds"}, {"claims": []}, {"null": "guessed"}, {"rows": -1}, {"evidence": 3}):
        data["arms"][0]["verdict"] = verdict | change
        with pytest.raises(DataError, match=r"results\.json: arms\[0\]\.verdict is"):
            read(data)


@pytest.mark.parametrize("version", [0, 3, "1", True, None, 1.0])
def test_another_version_is_refused(data, read, version):
    with pytest.raises(DataError, match="schema version"):
        read(data | {"schema_version": version})


def test_another_kind_is_refused(data, read):
    with pytest.raises(DataError, match=r"kind is 'plan'; 'shadow' or 'pair' or 'reconstruction' is needed"):
        read(data | {"kind": "plan"})


@pytest.mark.parametrize("text", ["[]", "3", "null", '"shadow"', "{}", "[" * 100_000, "\ufeff{}", "1e5 x"])
def test_what_is_no_results_file_is_refused(read, text):
    with pytest.raises(DataError):
        read(text)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path):
    (tmp_path / "results.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(DataError, match="cannot be read"):
        read_results(tmp_path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 400, "9" * 5000, "true", '"0.5"'])
def test_a_number_that_is_none_is_refused(data, read, number):
    data["arms"][0]["all"]["auc"]["value"] = "HERE"
    with pytest.raises(DataError):
        read(json.dumps(data).replace('"HERE"', number))


def test_numbers_that_json_does_not_know_are_refused_everywhere(data, read):
    data["configuration"]["rate"] = "HERE"
    with pytest.raises(DataError, match="holds NaN, which is not JSON"):
        read(json.dumps(data).replace('"HERE"', "NaN"))


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(InputError, match=r"results\.json or audit\.json"):
        read_results(tmp_path)


def test_a_study_has_its_pages_already(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"schema_version": 1, "kind": "study", "study": "runtime"}))
    with pytest.raises(InputError, match=r"the study runtime, which is written already: see its table\.md") as error:
        read_results(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "damaged" not in str(error.value)
