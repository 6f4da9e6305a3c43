"""`warp unlearn`: the rows that were asked for, the settings, the files, the verdict and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from warp_unlearning.cli.subject import load_run
from warp_unlearning.data.table import FORGET, FORGOTTEN, TEST, VALIDATION
from warp_unlearning.models.weights import model_digest, read_weights
from warp_unlearning.report.schema import Unlearning
from warp_unlearning.unlearning.record import DeletionRecord

Warp = Callable[..., Any]
QUICK = ("--method", "ngp", "-o", "method.options.epochs=1")
JUDGED = (0, 1, 3)


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "model.safetensors").state)


def refused(answer: Any, *parts: str) -> None:
    assert answer.code == 2, answer.out
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_a_user_sees_rows_settings_changes_and_the_verdict(warp: Warp, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = warp("unlearn", trained, "--out", out, "--forget-class", "3", *QUICK)
    results = Unlearning.model_validate_json((out / "results.json").read_text())
    assert answer.code == results.verdict.exit
    lines = answer.out.splitlines()
    assert lines[0].startswith("rows      129 of class 3: ")
    assert lines[1] == "settings  ngp, for small data: batch_size=64, epochs=1"
    assert "unlearn (ngp): epoch 1, update" in answer.err
    assert any(line.startswith("forgotten rows") for line in lines)
    assert any(line.startswith("test rows of classes kept") for line in lines)
    assert lines[-2] == results.verdict.sentence
    assert lines[-1] == f"written to {out}"
    assert max(map(len, lines[2:9])) <= 100
    (deletion,) = DeletionRecord.from_json(json.loads((out / "record.json").read_text())).deletions
    assert (deletion.requested, deletion.request["how"], deletion.request["drawn"]) == (129, "class", True)
    assert deletion.verdict is not None
    assert deletion.verdict["sentence"] == results.verdict.sentence
    files = {p.name for p in out.iterdir()}
    assert files == {
        *("config.yaml", "run.json", "rows.npz", "model.safetensors"),
        *("history.json", "record.json", "results.json", "manifest.json"),
    }


def test_the_same_command_again_does_nothing(warp: Warp, trained: Path, unlearned: Path, forget_file: Path) -> None:
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in unlearned.iterdir()}
    answer = warp("unlearn", trained, "--out", unlearned, "--forget", forget_file, "--json", *QUICK)
    assert answer.code in JUDGED
    assert answer.out == (unlearned / "results.json").read_text()
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in unlearned.iterdir()} == before
    other = warp("unlearn", trained, "--out", unlearned, "--forget-class", "2", *QUICK)
    refused(other, "holds a run with another configuration")


def test_the_configuration_given_back_makes_the_same_weights(
    warp: Warp, trained: Path, unlearned: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    assert warp("unlearn", trained, "--config", unlearned / "config.yaml", "--out", again).code in JUDGED
    assert digest(again) == digest(unlearned)


def test_a_fixed_secret_is_for_experiments(warp: Warp, trained: Path, tmp_path: Path) -> None:
    more = ("--defense", "warp", "-o", "defense.options.energy=0.95", "-o", "defense.options.every=7", *QUICK)
    for name in ("first", "second"):
        answer = warp("unlearn", trained, "--out", tmp_path / name, "--forget-class", "3", "--defense-seed", "5", *more)
        assert answer.code in JUDGED
        assert "experiment only: whoever knows the seed can undo the defence\n" in answer.out
        assert "defended by warp: " in answer.out
        (deletion,) = json.loads((tmp_path / name / "record.json").read_text())["deletions"]
        assert deletion["experiment_only"]
        assert deletion["defense"]["options"]["symmetry"]["options"]["energy"] == 0.95
    assert digest(tmp_path / "first") == digest(tmp_path / "second")


def test_retraining_holds_by_construction(warp: Warp, trained: Path, retrained: Path) -> None:
    results = Unlearning.model_validate_json((retrained / "results.json").read_text())
    claims = {claim.name: claim.reason for claim in results.verdict.claims}
    assert claims["forgotten"] == "forgotten by construction"
    assert results.verdict.null == "ours"
    assert results.verdict.exit == 0


def test_ways_to_retrain_a_network_of_ones_own(warp: Warp, points: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def build():\n    return nn.Sequential(nn.Linear(4, 3))\n"
        "def train(model, rows):\n"
        "    x, y = torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])\n"
        "    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
        "    for _ in range(30):\n"
        "        optimizer.zero_grad(); nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()\n"
        "    return model\n"
        "def bad(model, rows):\n    return 3\n"
    )
    run = tmp_path / "run"
    assert (
        warp("train", "--model", f"{file}:build", "--data", points, "--out", run, "-o", "training.epochs=3").code == 0
    )
    ask = ("unlearn", run, "--forget-class", "1", "--method", "retrain")
    refused(warp(*ask, "--out", tmp_path / "no"), "give --train FILE.py:train", "--our-recipe")
    refused(warp(*ask, "--train", f"{file}:bad", "--out", tmp_path / "bad"), "returned a int")
    theirs = warp(*ask, "--train", f"{file}:train", "--out", tmp_path / "theirs")
    assert theirs.code in JUDGED
    assert f"trained without these rows by {file}:train" in theirs.out
    ours = warp(*ask, "--our-recipe", "--out", tmp_path / "ours")
    assert ours.code in JUDGED
    records = [json.loads((tmp_path / name / "record.json").read_text())["deletions"][0] for name in ("theirs", "ours")]
    assert [record["recipe"] for record in records] == [f"{file}:train", "ours"]


def test_a_plan_says_what_would_be_done_and_does_nothing(warp: Warp, trained: Path, forget_file: Path) -> None:
    answer = warp("unlearn", trained, "--forget", forget_file, "--plan", *QUICK)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines] == ["rows", "settings", "keeps", "takes", "judged", "ways"]
    assert "1,210 rows; 397 unseen" in lines[2]
    assert " rows are needed to say holds, and 50 are asked for" in lines[4]
    assert "--method retrain" in lines[5]
    retrain = warp("unlearn", trained, "--forget", forget_file, "--plan", "--method", "retrain")
    assert retrain.out.splitlines()[-1] == "judged    holds by construction, unless test accuracy collapses"


def test_rows_that_were_never_learned_are_said(warp: Warp, trained: Path, tmp_path: Path) -> None:
    run = load_run(trained)
    held = run.parts.rows(VALIDATION)[:2]
    np.save(tmp_path / "q.npy", np.concatenate([run.known[:3], held]))
    answer = warp("unlearn", trained, "--forget", tmp_path / "q.npy", "--plan", *QUICK)
    assert "5 of q.npy: " in answer.out
    assert "2 of them were held out and never learned, so left alone" in answer.out


def test_a_second_request_goes_on_from_the_first(warp: Warp, trained: Path, unlearned: Path, tmp_path: Path) -> None:
    first = load_run(unlearned)
    gone = first.parts.rows(FORGET)
    np.save(tmp_path / "more.npy", first.known[:5])
    out = tmp_path / "second"
    assert warp("unlearn", unlearned, "--forget", tmp_path / "more.npy", "--out", out, *QUICK).code in JUDGED
    second = load_run(out)
    assert second.parts.rows(FORGET).tolist() == first.known[:5].tolist()
    assert second.parts.rows(FORGOTTEN).tolist() == gone.tolist()
    assert len(second.record.deletions) == 2
    assert Unlearning.model_validate_json((out / "results.json").read_text()).after.earlier is not None
    np.save(tmp_path / "old.npy", gone[:3])
    again = ("unlearn", out, "--forget", tmp_path / "old.npy", *QUICK)
    refused(warp(*again, "--out", tmp_path / "no"), "3 of 3 rows have been forgotten already", "--again")
    assert warp(*again, "--again", "--out", tmp_path / "again").code in JUDGED


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (("--method", "ngp"), ("nothing says what to forget",)),
        (("--forget-class", "3", "--forget-fraction", "0.1", *QUICK), ("are both set",)),
        (("--forget-class", "three", *QUICK), ("no class is called 'three'",)),
        (("--forget-fraction", "1e-9", *QUICK), ("is 0 rows",)),
        (("--forget-class", "3"), ("nothing says how to forget", "ngp")),
        (("--forget-class", "3", "--method", "salum"), ("did you mean 'salun'",)),
        (("--forget-class", "3", "--method", "ngp", "-o", "method.options.lr=fast"), ("ngp: lr is 'fast'",)),
        (("--forget-class", "3", "--defense", "wrap", *QUICK), ("did you mean 'warp'",)),
        (("--forget-class", "3", "--defense-seed", "1", *QUICK), ("defense.seed is set, but no defence",)),
        (("--forget-class", "3", "--our-recipe", *QUICK), ("--our-recipe are for --method retrain",)),
        (("--forget", "nothing.csv", *QUICK), ("there is no file nothing.csv",)),
        (("--forget-class", "3", "--as-given", *QUICK), ("--as-given is for a weight file",)),
        (("--forget-class", "3", "--accuracy", "0.1", *QUICK), ("was stated to be on 0.1",)),
    ],
)
def test_bad_requests_are_one_line_and_leave_nothing(
    warp: Warp, trained: Path, tmp_path: Path, more: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    refused(warp("unlearn", trained, "--out", tmp_path / "run", *more), *parts)
    assert not (tmp_path / "run").exists()


# Every kind of data, way of asking and history: the rows forgotten are those asked for and their copies, by content.
KINDS, WAYS = ("npz", "folder", "csv"), ("rows", "ids", "masks", "names")


def pictures(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Forty 6x6 pictures of two classes; 7 is a copy of 4, and 9 one under the other label."""
    generator = np.random.default_rng(5)
    y = np.arange(40) % 2
    x = generator.integers(0, 100, (40, 6, 6, 3)).astype(np.uint8) + (100 * y[:, None, None, None]).astype(np.uint8)
    x[7], x[9] = x[4], x[4]
    return x, y


def write(kind: str, folder: Path, rows: list[int], *, held: bool) -> tuple[list[str], list[int], list[str]]:
    """The pictures `rows` as data of a kind; the options that name them, the rows in the order of the data, names."""
    x, y = pictures(folder)
    known, unseen = [r for r in rows if r < 30 or not held], [r for r in rows if r >= 30 and held]
    if kind == "npz":
        arrays = {"x": x[known], "y": y[known], "who": np.array([f"id{r}" for r in known])}
        np.savez(folder / "d.npz", **arrays, **({"x_test": x[unseen], "y_test": y[unseen]} if held else {}))
        return ["--data", str(folder / "d.npz"), "--ids", "who"], known, [f"id{r}" for r in known]
    if kind == "csv":
        lines = [f"img{r}.png,{y[r]},id{r}" for r in known]
        (folder / "d.csv").write_text("\n".join(["file,label,who", *lines]))
        (folder / "t.csv").write_text("\n".join(["file,label,who", *[f"img{r}.png,{y[r]},id{r}" for r in unseen]]))
        for r in rows:
            Image.fromarray(x[r]).save(folder / f"img{r}.png")
        test = ["--test", str(folder / "t.csv")] if held else []
        return ["--data", str(folder / "d.csv"), "--ids", "who", *test], known, [f"id{r}" for r in known]
    ordered = sorted(known, key=lambda r: (y[r], f"img{r}.png"))
    for r in rows:
        part = "test" if r in unseen else "train"
        place = folder / "d" / part / f"c{y[r]}" if held else folder / "d" / f"c{y[r]}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[r]).save(place / f"img{r}.png")
    names = [f"{'train/' if held else ''}c{y[r]}/img{r}.png" for r in ordered]
    return ["--data", str(folder / "d")], ordered, names


def ask(way: str, folder: Path, wanted: list[int], order: list[int], names: list[str]) -> list[str]:
    """A request for the pictures `wanted` in one of the ways."""
    at = [order.index(r) for r in wanted]
    if way == "rows":
        np.save(folder / "q.npy", np.array(at))
        return ["--forget", str(folder / "q.npy")]
    if way == "masks":
        np.save(folder / "q.npy", np.isin(np.arange(len(order)), at))
        return ["--forget", str(folder / "q.npy")]
    if way == "ids":
        (folder / "q.csv").write_text("\n".join(["other,who", *[f"0,{names[i]}" for i in at]]))
        return ["--forget", str(folder / "q.csv"), "--column", "who", "--by", "id"]
    (folder / "q.txt").write_text("\r\n".join(names[i] for i in at))
    return ["--forget", str(folder / "q.txt")]


@pytest.mark.parametrize(("kind", "way", "held"), list(product(KINDS, WAYS, (False, True))))
def test_the_rows_forgotten_are_those_asked_for_and_their_copies(
    warp: Warp, tmp_path: Path, kind: str, way: str, held: bool
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    mlp = ("--model", "mlp", "-o", "model.options.hidden=[4]", "-o", "training.epochs=1", "--device", "cpu")
    options, order, names = write(kind, first, list(range(40)), held=held)
    assert warp("train", *options, *mlp, "--out", tmp_path / "original").code == 0
    x, _ = pictures(first)

    def forgotten(run: Path, *more: object) -> set[int]:
        opened = load_run(run, **dict(more))
        found = opened.table.x[opened.parts.rows(FORGET)]
        unseen = opened.table.x[opened.parts.rows(TEST)]
        assert not any((a == b).all() for a in found for b in unseen)
        return {r for r in range(40) if any((x[r] == one).all() for one in found)}

    wanted = [4, 11, 20]
    request = ask(way, first, wanted, order, names)
    answer = warp("unlearn", tmp_path / "original", *request, *options[2:4], *QUICK, "--out", tmp_path / "one")
    assert answer.code in JUDGED, answer.err
    assert forgotten(tmp_path / "one") == {4, 7, 9, 11, 20}
    # The request is honoured in the data, the rest is shuffled where it can be, and another request comes.
    left = [r for r in range(40) if r not in {4, 7, 9, 11, 20}]
    if kind != "folder":
        np.random.default_rng(1).shuffle(left)
    options, order, names = write(kind, second, left, held=held)
    request = ask(way, second, [2, 25], order, names)
    moved = ["--data", options[1], *(["--test", options[-1]] if "--test" in options else [])]
    ids = ["--ids", "who"] if kind != "folder" else []
    answer = warp("unlearn", tmp_path / "one", *moved, *ids, *request, *QUICK, "--out", tmp_path / "two")
    assert answer.code in JUDGED, answer.err
    assert forgotten(
        tmp_path / "two", ("data", options[1]), *([("test", Path(moved[3]))] if len(moved) > 2 else [])
    ) == {2, 25}
