"""`warp audit pair`, `check` and `diff`, as a user calls them."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warp_unlearning.cli.subject import load_run
from warp_unlearning.data.table import VALIDATION
from warp_unlearning.report.schema import Pair
from warp_unlearning.runs.directory import open_run

Warp = Callable[..., Any]
FORGET = ("--forget-fraction", "0.1")
JUDGED = (0, 1, 3)


@pytest.fixture(scope="module")
def runs(warp: Warp, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An unlearned model, a defended one, a retrained one, and the audit of the first."""
    folder = tmp_path_factory.mktemp("audits")
    made = {name: folder / name for name in ("unlearned", "defended", "retrained", "audit")}
    assert warp("unlearn", trained, "--out", made["unlearned"], "--method", "ngp", *FORGET).code in JUDGED
    defended = ("--method", "ngp", "--defense", "cob", "--defense-seed", "1")
    assert warp("unlearn", trained, "--out", made["defended"], *defended, *FORGET).code in JUDGED
    assert warp("unlearn", trained, "--out", made["retrained"], "--method", "retrain", *FORGET).code in JUDGED
    answer = warp("audit", "pair", trained, made["unlearned"], "--retrained", made["retrained"], "--out", made["audit"])
    assert (answer.code, answer.err) == (audit_of(made["audit"])["verdict"]["exit"], "")
    (folder / "audit.txt").write_text(answer.out)
    return made


def audit_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "results.json").read_text())
    return found


def test_a_user_reads_every_attack_and_last_the_verdict(runs: dict[str, Path]) -> None:
    lines = (runs["audit"].parent / "audit.txt").read_text().splitlines()
    found = audit_of(runs["audit"])
    assert lines[-2:] == [found["verdict"]["sentence"], f"written to {runs['audit']}"]
    assert len(found["rows"]) == 6
    assert all(any(line.lstrip().startswith(row["name"]) for line in lines) for row in found["rows"])
    assert "unresolved" in "".join(lines)
    for claim in found["verdict"]["claims"]:
        assert any(line.startswith(f"{claim['name']:<10}{claim['outcome']}") for line in lines)
    assert f"note: the deletion record of {runs['unlearned']} holds this verdict" in lines


def test_a_report_of_another_command_says_which(warp: Warp, runs: dict[str, Path]) -> None:
    answer = warp("report", runs["unlearned"])
    answer.refused("results.json is a result of `warp unlearn`", "`warp audit pair BEFORE AFTER --out FOLDER`")


def test_results_and_scores_are_private_and_complete(runs: dict[str, Path]) -> None:
    for name in ("results.json", "scores.npz"):
        assert stat.S_IMODE((runs["audit"] / name).stat().st_mode) == 0o600
    assert open_run(runs["audit"]).kind == "audit pair"
    found = audit_of(runs["audit"])
    assert Pair.model_validate(found).model_dump(mode="json") == found
    with np.load(runs["audit"] / "scores.npz", allow_pickle=False) as scores:
        assert {row["name"] for row in found["rows"]} | {"forget_index", "test_index", "classes"} == set(scores.files)
        assert len(scores["confidence"]) == found["counts"]["forgotten"] + found["counts"]["never seen"]


def test_the_deletion_record_grows_the_verdict_once(warp: Warp, trained: Path, runs: dict[str, Path]) -> None:
    record = json.loads((runs["unlearned"] / "record.json").read_text())
    (verdict,) = record["deletions"][-1]["verdicts"]["audits"]
    found = audit_of(runs["audit"])
    assert (verdict["outcome"], verdict["attacks"]) == (found["verdict"]["outcome"], 6)
    pair = (trained, runs["unlearned"], "--retrained", runs["retrained"], "--out", runs["audit"])
    again = warp("audit", "pair", *pair, "--json")
    assert json.loads(again.out) == found
    assert again.code == found["verdict"]["exit"]
    assert json.loads((runs["unlearned"] / "record.json").read_text()) == record
    open_run(runs["unlearned"])
    # The run can be used as before.
    assert warp("compare", trained, runs["unlearned"]).code in JUDGED


def test_a_verdict_on_something_else_is_not_the_deletions(
    warp: Warp, trained: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    before = (runs["unlearned"] / "record.json").read_bytes()
    np.save(tmp_path / "some.npy", load_run(runs["unlearned"]).forgotten[:50])
    answer = warp("audit", "pair", trained, runs["unlearned"], "--forget", tmp_path / "some.npy")
    assert (
        "no deletion record holds this verdict: the audit's forget set is not that of the last deletion" in answer.out
    )
    assert (runs["unlearned"] / "record.json").read_bytes() == before


def test_a_model_to_which_nothing_was_done_does_not_hold(
    warp: Warp, trained: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    same = tmp_path / "same.safetensors"
    same.write_bytes((trained / "model.safetensors").read_bytes())
    np.save(tmp_path / "forget.npy", load_run(runs["unlearned"]).forgotten)
    asked = ("audit", "pair", trained, same, "--forget", tmp_path / "forget.npy", "--step", "naive")
    for more in ((), ("--drawn",), ("--retrained", runs["retrained"])):
        answer = warp(*asked, *more)
        assert answer.code == 1
        assert "nothing moved" in answer.out


def test_one_attack_and_one_of_a_file(warp: Warp, trained: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "class Entropy:\n"
        "    name, needs = 'entropy', 'new outputs'\n"
        "    def score(self, pair, batch):\n"
        "        log_p = batch.logits_of(pair.new).log_softmax(1)\n"
        "        return (log_p.exp() * log_p).sum(1)\n"
    )
    pair = ("audit", "pair", trained, runs["unlearned"], "--json")
    found = warp(
        *pair, "--attack", "accuracy", "--attack", f"{tmp_path / 'own.py'}:Entropy", "--max-drop", "0.1"
    ).json()
    assert [row["name"] for row in found["rows"]] == ["accuracy", "entropy"]
    assert {e["attack"] for e in found["verdict"]["evidence"]} == {"confidence", "accuracy", "entropy"}
    assert found["verdict"]["max_drop"] == 0.1
    printed = warp(*pair, "--attack", "ggd", "--repetitions", "2").json()
    assert [row["name"] for row in printed["rows"]] == ["ggd"]
    assert "no attack 'acuracy'; did you mean 'accuracy'" in warp(*pair, "--attack", "acuracy").err
    assert "no attack 'Entropi'" in warp(*pair, "--attack", f"{tmp_path / 'own.py'}:Entropi").err


def test_a_defended_model_meets_attackers_who_undo_it(warp: Warp, trained: Path, runs: dict[str, Path]) -> None:
    found = json.loads(warp("audit", "pair", trained, runs["defended"], "--json", "--probes", "64").out)
    assert {row["step"] for row in found["rows"]} >= {"naive", "canonical", "span", "scale-free", "input-layer"}
    some = warp("audit", "pair", trained, runs["defended"], "--json", "--step", "canonical")
    assert {row["step"] for row in json.loads(some.out)["rows"]} == {"naive", "canonical"}


def test_weight_files_need_to_be_told_what_was_forgotten(
    warp: Warp, trained: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    after = tmp_path / "after.safetensors"
    after.write_bytes((runs["unlearned"] / "model.safetensors").read_bytes())
    answer = warp("audit", "pair", trained, after)
    assert (answer.code, answer.out) == (2, "")
    assert "give --forget FILE" in answer.err
    np.save(tmp_path / "forget.npy", load_run(runs["unlearned"]).forgotten)
    told = warp("audit", "pair", trained, after, "--forget", tmp_path / "forget.npy", "--step", "naive", "--json")
    assert told.code in JUDGED
    assert json.loads(told.out)["digests"]["unlearned"] == audit_of(runs["audit"])["digests"]["unlearned"]


def test_an_original_that_never_knew_what_was_forgotten(
    warp: Warp, trained: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    np.save(tmp_path / "held.npy", load_run(trained).parts.rows(VALIDATION)[:5])
    answer = warp("audit", "pair", trained, runs["unlearned"], "--forget", tmp_path / "held.npy")
    assert answer.code == 2
    assert "the model learned none of the 5 rows asked for" in answer.err
    swapped = warp("audit", "pair", trained, runs["unlearned"], "--retrained", runs["unlearned"])
    assert "so it is no reference" in swapped.err


def test_copies_go_with_what_is_named_and_unseen_rows_are_needed(warp: Warp, tmp_path: Path) -> None:
    y = np.arange(60) % 3
    x = (np.random.default_rng(0).normal(size=(60, 4)) + y[:, None]).astype(np.float32)
    x[9], x[43] = x[6], x[6]
    np.savez(tmp_path / "whole.npz", x=x, y=y)
    np.savez(tmp_path / "parts.npz", x=x[:40], y=y[:40], x_test=x[40:], y_test=y[40:])
    np.save(tmp_path / "forget.npy", np.array([6, 7]))
    found = {}
    for name in ("whole", "parts"):
        before, after = tmp_path / name, tmp_path / f"{name} after"
        model = ("--model", "mlp", "--data", tmp_path / f"{name}.npz", "--epochs", "1", "--device", "cpu")
        assert warp("train", "--out", before, *model).code == 0
        asked = ("--forget", tmp_path / "forget.npy", "--method", "ngp")
        assert warp("unlearn", before, "--out", after, *asked).code in JUDGED
        found[name] = warp("audit", "pair", before, after, "--forget", tmp_path / "forget.npy", "--json")
    assert found["whole"].code == 2
    assert "an audit needs rows that no model saw; give --test or --holdout" in found["whole"].err
    told = json.loads(found["parts"].out)
    assert told["counts"]["forgotten"] == 3
    copies = ["copies among the 3 forgotten rows: 1", "test rows left out, as a model learned from copies: 1 of 20"]
    assert told["notes"][:2] == copies
    file = tmp_path / "after.safetensors"
    file.write_bytes((tmp_path / "parts after" / "model.safetensors").read_bytes())
    for asked in ((tmp_path / "parts after",), (file, "--forget", tmp_path / "forget.npy", "--step", "naive")):
        other = json.loads(warp("audit", "pair", tmp_path / "parts", *asked, "--json").out)
        assert (other["digests"], other["rows"]) == (told["digests"], told["rows"])
