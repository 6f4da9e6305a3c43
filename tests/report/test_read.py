import json
from pathlib import Path

import pytest

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.report.page import make_report
from warp_unlearning.report.read import read as read_results
from warp_unlearning.report.schema import Pair
from warp_unlearning.report.schema_shadow import Shadow
from warp_unlearning.runs.directory import start_run

RESULTS = Path(__file__).parents[2] / "results"
FILES = [file for file in sorted(RESULTS.rglob("results.json")) if '"kind": "study"' in file.read_text()]


def test_numbers_arrive_as_they_were_written(data, read):
    found = read(data)
    assert isinstance(found, Shadow)
    arm, plain = found.arms[1], data["arms"][1]
    assert (arm.method, arm.defense, arm.missing) == ("ngp", "warp", 0)
    assert vars(arm.all.auc) == plain["all"]["auc"]
    assert [rate.resolved for rate in arm.all.rates] == [rate["resolved"] for rate in plain["all"]["rates"]]
    assert arm.roc.fpr == tuple(plain["roc"]["fpr"])
    assert arm.risk.score == tuple(plain["risk"]["score"])
    assert arm.slices["most memorised 5 %"].auc.high == plain["slices"]["most memorised 5 %"]["auc"]["high"]
    assert found.methods == ("ngp", "scrub", "bad_teacher")
    assert found.configuration == data["configuration"]
    assert found.finished


def test_a_judged_pair_arrives_and_makes_a_page(judged_pair, read):
    found = read(judged_pair)
    assert isinstance(found, Pair)
    assert [row.name for row in found.rows] == [row["name"] for row in judged_pair["rows"]]
    assert vars(found.rows[0].auc) == judged_pair["rows"][0]["auc"]
    drop = next(row for row in found.rows if row.name == "confidence drop")
    assert drop.retrained
    assert found.verdict.sentence == judged_pair["verdict"]["sentence"]
    page = make_report(found).html
    assert all(row.name in page for row in found.rows)
    broken = {**judged_pair, "verdict": {**judged_pair["verdict"], "outcome": "holds"}}
    for other in (broken, {**judged_pair, "rows": []}, {**judged_pair, "counts": None}):
        with pytest.raises(DataError):
            make_report(read(other))


def test_a_pair_arrives(pair_data, read):
    found = read(pair_data)
    assert isinstance(found, Pair)
    assert found.verdict.exit != 0
    assert [row.name for row in found.rows] == [row["name"] for row in pair_data["rows"]]
    assert vars(found.rows[0].auc) == pair_data["rows"][0]["auc"]
    assert found.counts == pair_data["counts"]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.35, 0.5, 0.77, 0.99, 0.99999])
def test_a_file_cut_short_is_named(data, read, share):
    text = json.dumps(data)
    with pytest.raises(DataError, match=r"results\.json.*(cut short|damaged)"):
        read(text[: int(share * len(text))])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("missing", -1),
        ("missing", 1.5),
        ("complete", "perhaps"),
        ("name", 3),
        ("accuracy", {"forget": {"value": 0.5, "low": 0.6, "high": 0.4}}),
        ("roc", {"fpr": [0, 1], "tpr": [0, 0.5, 1]}),
        ("roc", {"fpr": [0, 1.2], "tpr": [0, 1]}),
        ("histogram", {"edges": [0, 1, 2], "forgotten": [1], "never": [1, 2]}),
        ("histogram", {"edges": [0, 2, 1], "forgotten": [1, 1], "never": [1, 2]}),
        ("risk", {"gradient_norm": [1.0], "score": []}),
        ("unheard", 1),
    ],
)
def test_what_an_arm_cannot_have_is_named(data, read, name, wrong):
    data["arms"][2][name] = wrong
    with pytest.raises(DataError, match=rf"results\.json: arms\[2\]\.{name}") as error:
        read(data)
    assert "\n" not in str(error.value)


def test_every_missing_field_is_named(data, read):
    arm = data["arms"][0]
    for holder, place in ((data, ""), (arm, "arms"), (arm["all"]["auc"], "auc"), (data["audited"], "audited")):
        optional = {"schema_version", "kind", "problem", "classes"}
        for name in holder.keys() - optional:
            kept = holder.pop(name)
            with pytest.raises(DataError, match=rf"results\.json.*({name}|{place}.*estimate)"):
                read(data)
            holder[name] = kept


def test_an_edited_file_of_a_run_is_refused(data, tmp_path: Path):
    run = start_run(tmp_path / "run", kind="audit", config={"seed": 1})
    run.write_json("results.json", data)
    run.finish()
    assert read_results(run.path).methods == ("ngp", "scrub", "bad_teacher")
    data["arms"][0]["all"]["auc"]["value"] += 0.001
    run.write_json("results.json", data)
    with pytest.raises(DataError, match=r"results\.json"):
        read_results(run.path)


@pytest.mark.parametrize("file", FILES, ids=[str(file.parent.relative_to(RESULTS)) for file in FILES])
def test_every_committed_file_passes_through_the_schema(file: Path):
    plain, found = json.loads(file.read_text()), read_results(file)
    back = json.loads(found.model_dump_json(exclude_unset=True))
    for one in (plain, back):
        del one["schema_version"]
        for arm in one.get("arms", ()):
            arm.pop("verdict", None)
    assert back == plain
    if isinstance(found, Shadow):
        assert all(arm.verdict is not None and arm.verdict.outcome != "holds" for arm in found.arms)


def test_version_1_is_judged_from_the_ends_of_its_intervals(data, read):
    new = read(data).arms
    data["schema_version"] = 1
    for arm in data["arms"]:
        del arm["verdict"]
        for score in (arm["all"], *arm["slices"].values()):
            score |= {"verdict": "leak", "direction": "positives higher", "margin": 0.02, "strength": 0.6}
    for old, arm in zip(read(data).arms, new, strict=True):
        assert [e.area for e in old.verdict.evidence] == [e.area for e in arm.verdict.evidence]
        assert [e.adjusted for e in old.verdict.evidence] == [e.adjusted for e in arm.verdict.evidence]
        claims = [[(c.name, c.outcome) for c in verdict.claims] for verdict in (old.verdict, arm.verdict)]
        assert claims[0][1] == claims[1][1]
        assert (old.verdict.claims[0].outcome, old.verdict.exit != 0) == ("cannot be said", True)


def test_what_makes_an_audit_incomplete(data, read):
    assert read(data).finished
    for change in (
        {"failures": [{"job": "a", "reason": "b"}]},
        {"stages": [{"name": "train", "jobs": 3, "done": 2, "failed": 0, "seconds": None}]},
        {"arms": [data["arms"][0] | {"missing": 1}]},
        {"arms": [data["arms"][0] | {"complete": False}]},
    ):
        assert not read(data | change).finished


def test_a_verdict_that_was_changed_is_named(data, read):
    verdict = data["arms"][0]["verdict"]
    for change in ({"outcome": "holds"}, {"claims": []}, {"null": "guessed"}, {"rows": -1}, {"evidence": 3}):
        data["arms"][0]["verdict"] = verdict | change
        with pytest.raises(DataError, match=r"results\.json: arms\[0\]\.verdict"):
            read(data)


@pytest.mark.parametrize("version", [0, 3, "1", True, None, 1.0])
def test_another_version_is_refused(data, read, version):
    with pytest.raises(DataError, match="schema version"):
        read(data | {"schema_version": version})


def test_another_kind_is_refused(data, read):
    with pytest.raises(DataError, match=r"kind is 'plan'; shadow, study, pair, reconstruction"):
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
