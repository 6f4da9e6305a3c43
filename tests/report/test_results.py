import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.report.page import make_report
from warp_unlearning.report.pair_results import PairResults
from warp_unlearning.report.results import read_results
from warp_unlearning.report.shadow_results import ShadowResults

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
    ]


def test_numbers_arrive_as_they_were_written(data, read):
    found = read(data)
    assert isinstance(found, ShadowResults)
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


def test_a_pair_arrives(pair_data, read):
    found = read(pair_data)
    assert isinstance(found, PairResults)
    assert found.verdict == pair_data["verdict"] == "leak"
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


@pytest.mark.parametrize("version", [0, 2, "1", True, None, 1.0])
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


def test_a_rate_that_is_not_resolved_has_no_number(data, read):
    rate = data["arms"][0]["all"]["rates"][0]
    rate |= {"resolved": False, "tpr": {"value": 0.5, "low": 0.4, "high": 0.6}}
    assert read(data).arms[0].score.rates[0].tpr is None


def test_null_is_not_measured(data, read):
    arm = data["arms"][0]
    for key in ("all", "against_originals", "retain_leakage", "gradient_test", "strongest", "accuracy", "roc"):
        arm[key] = None
    arm["seconds"]["unlearning"] = {"value": None, "low": None, "high": None}
    found = read(data).arms[0]
    assert found.score is None
    assert found.accuracy is None
    assert found.seconds.unlearning.value is None


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("roc", {"fpr": [0, 1], "tpr": [0, 0.5, 1]}, "as many values"),
        ("roc", {"fpr": [0, 1.2], "tpr": [0, 1]}, "between 0 and 1"),
        ("histogram", {"edges": [0, 1, 2], "forgotten": [1], "never": [1, 2]}, "one value fewer"),
        ("histogram", {"edges": [0, 2, 1], "forgotten": [1, 1], "never": [1, 2]}, "rising"),
        ("risk", {"gradient_norm": [1.0], "score": []}, "as many scores"),
        ("missing", -1, "0 or more"),
        ("missing", 1.5, "whole number"),
        ("complete", 1, "true or false"),
        ("accuracy", {"forget": {"value": 0.5, "low": 0.6, "high": 0.4}}, "lower end"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(data, read, part, value, says):
    data["arms"][2][part] = value
    with pytest.raises(DataError, match=rf"arms\[2\]\.{part}.*{says}"):
        read(data)


def test_an_audit_without_arms_is_refused(data, read):
    with pytest.raises(DataError, match="at least one combination"):
        read(data | {"arms": []})


def test_risks_that_are_unknown_are_left_out(data, read):
    data["arms"][0]["risk"] = {"gradient_norm": [1.0, None, 3.0], "score": [0.1, 0.2, None]}
    assert read(data).arms[0].risk.x == (1.0,)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(InputError, match=r"results\.json or audit\.json"):
        read_results(tmp_path)


def test_the_strongest_attacker_is_read_only_where_that_is_fair(data, read):
    leak = {"attack": "a", "strength": {"value": 0.6, "low": 0.55, "high": 0.65}}
    for extra, expected in (
        ({"pairs": 1}, "leak"),
        ({"pairs": 4}, None),
        ({"pairs": 4, "verdict": "inconclusive"}, "inconclusive"),
        ({"pairs": 1, "verdict": None}, None),
    ):
        data["arms"][0]["strongest"] = leak | extra
        assert read(data).arms[0].verdicts["strongest attacker"] == expected
    data["arms"][0]["strongest"] = leak | {"pairs": 1, "strength": {"value": 0.51, "low": 0.5, "high": 0.515}}
    assert read(data).arms[0].verdicts["strongest attacker"] == "no leak found"


def test_an_arm_that_could_not_be_scored(data, read):
    keys = ("all", "slices", "against_originals", "retain_leakage", "reduction", "roc", "histogram", "risk")
    arm = data["arms"][1] | dict.fromkeys(keys) | {"problem": "one shadow is left"}
    arm["accuracy"] = {"forget": None, "retain": None, "test": None}
    arm["seconds"] = {"unlearning": None, "defense_share": None}
    found = read(data | {"arms": [data["arms"][0], arm]})
    assert found.arms[1].problem == "one shadow is left"
    assert found.arms[1].slices == {}
    assert not found.complete


def test_what_makes_an_audit_incomplete(data, read):
    for change in (
        {"failures": [{"job": "a", "reason": "b"}]},
        {"stages": [{"name": "train", "jobs": 3, "done": 2, "failed": 0, "seconds": None}]},
        {"arms": [data["arms"][0] | {"missing": 1}]},
        {"arms": [data["arms"][0] | {"complete": False}]},
    ):
        assert not read(data | change).complete


def test_several_pairs_have_no_rates(data, read):
    for arm in data["arms"]:
        arm["gradient_test"] |= {"pairs": 2, "rates": None}
    found = read(data)
    assert [arm.gradient_test.rates for arm in found.arms] == [()] * len(found.arms)
    assert found.arms[0].gradient_test.rate(0.01) is None
    make_report(found)
