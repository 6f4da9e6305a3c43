"""`warp unlearn`: the rows that were asked for, the settings, the files, the verdict and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from warp_unlearning.cli.subject import load_run
from warp_unlearning.data.table import FORGET, FORGOTTEN, TEST, VALIDATION
from warp_unlearning.models.weights import model_digest, read_weights
from warp_unlearning.report.schema import Unlearning
from warp_unlearning.unlearning.record import Deletion, DeletionRecord

Warp = Callable[..., Any]
QUICK = ("--method", "ngp", "-o", "method.options.epochs=1")


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "model.safetensors").state)


def results_of(run: Path) -> Unlearning:
    return Unlearning.model_validate_json((run / "results.json").read_text())


def deletions_of(run: Path) -> tuple[Deletion, ...]:
    return DeletionRecord.from_json(json.loads((run / "record.json").read_text())).deletions


def test_a_user_sees_rows_settings_changes_and_the_verdict(warp: Warp, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = warp("unlearn", trained, "--out", out, "--forget-class", "3", *QUICK)
    results, lines = results_of(out), answer.out.splitlines()
    assert answer.code == results.verdict.exit
    assert lines[0].startswith("rows      129 of class 3: ")
    assert lines[1] == "settings  ngp, for small data: batch_size=64, epochs=1"
    assert "unlearn (ngp): epoch 1, update" in answer.err
    assert {"forgotten rows", "test rows of classes kept"} <= {line[:28].strip() for line in lines}
    assert lines[-2:] == [results.verdict.sentence, f"written to {out}"]
    assert max(map(len, lines[2:9])) <= 100
    (deletion,) = deletions_of(out)
    assert (deletion.requested, deletion.request["how"], deletion.request["drawn"]) == (129, "class", True)
    assert deletion.verdict is not None
    assert deletion.verdict["sentence"] == results.verdict.sentence
    # What is printed is the share of right answers, counted anew.
    before, after = load_run(trained), load_run(out)
    parts = {"forgotten": after.parts.rows(FORGET), "retained": after.known, "test": after.parts.unseen}
    for run, shown in ((before, results.before), (after, results.after)):
        for part, rows in parts.items():
            x, y = run.examples(rows).take(torch.arange(len(rows)))
            right = (run.model.eval()(x).argmax(1) == y).double()
            assert getattr(shown, part) == pytest.approx(float(right.mean()), abs=1e-12)
        assert shown.unseen == pytest.approx(float(right[y == 3].mean()), abs=1e-12)
        assert shown.kept == pytest.approx(float(right[y != 3].mean()), abs=1e-12)
    assert {p.name for p in out.iterdir()} == {
        *("config.yaml", "run.json", "rows.npz", "model.safetensors"),
        *("history.json", "record.json", "results.json", "manifest.json"),
    }


def test_the_same_command_again_does_nothing(
    warp: Warp, trained: Path, unlearned: Path, forget_file: Path, tmp_path: Path
) -> None:
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in unlearned.iterdir()}
    answer = warp("unlearn", trained, "--out", unlearned, "--forget", forget_file, "--json", *QUICK).judged()
    assert answer.out == (unlearned / "results.json").read_text()
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in unlearned.iterdir()} == before
    other = warp("unlearn", trained, "--out", unlearned, "--forget-class", "2", *QUICK)
    other.refused("holds a run with another configuration")
    # The configuration given back makes the same weights.
    again = tmp_path / "again"
    warp("unlearn", trained, "--config", unlearned / "config.yaml", "--out", again).judged()
    assert digest(again) == digest(unlearned)


def test_a_fixed_secret_is_for_experiments(warp: Warp, trained: Path, tmp_path: Path) -> None:
    more = ("--defense", "warp", "-o", "defense.options.energy=0.95", "-o", "defense.options.every=7", *QUICK)
    for name in ("first", "second"):
        ask = ("--forget-class", "3", "--defense-seed", "5", *more)
        answer = warp("unlearn", trained, "--out", tmp_path / name, *ask).judged()
        assert "experiment only: whoever knows the seed can undo the defence\n" in answer.out
        assert "defended by warp: " in answer.out
        (deletion,) = deletions_of(tmp_path / name)
        assert deletion.experiment_only
        assert deletion.defense is not None
        assert deletion.defense["options"]["symmetry"]["options"]["energy"] == 0.95
    assert digest(tmp_path / "first") == digest(tmp_path / "second")


def test_retraining_holds_by_construction(retrained: Path) -> None:
    verdict = results_of(retrained).verdict
    assert {claim.name: claim.reason for claim in verdict.claims}["forgotten"] == "forgotten by construction"
    assert (verdict.null, verdict.exit) == ("ours", 0)


def test_ways_to_retrain_a_network_of_ones_own(warp: Warp, points: Path, tmp_path: Path) -> None:
    file, run = tmp_path / "own.py", tmp_path / "run"
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
    warp("train", "--model", f"{file}:build", "--data", points, "--out", run, "-o", "training.epochs=3").ok()
    ask = ("unlearn", run, "--forget-class", "1", "--method", "retrain")
    warp(*ask, "--out", tmp_path / "no").refused("give --train FILE.py:train", "--our-recipe")
    warp(*ask, "--train", f"{file}:bad", "--out", tmp_path / "bad").refused("returned a int")
    theirs = warp(*ask, "--train", f"{file}:train", "--out", tmp_path / "theirs").judged()
    assert f"trained without these rows by {file}:train" in theirs.out
    warp(*ask, "--our-recipe", "--out", tmp_path / "ours").judged()
    recipes = [deletions_of(tmp_path / name)[0].recipe for name in ("theirs", "ours")]
    assert recipes == [f"{file}:train", "ours"]


def test_a_plan_says_what_would_be_done_and_does_nothing(
    warp: Warp, trained: Path, forget_file: Path, tmp_path: Path
) -> None:
    lines = warp("unlearn", trained, "--forget", forget_file, "--plan", *QUICK).ok().out.splitlines()
    assert [line.split()[0] for line in lines] == ["rows", "settings", "keeps", "takes", "judged", "ways"]
    assert "1,210 rows; 397 unseen" in lines[2]
    assert " rows are needed to say holds, and 50 are asked for" in lines[4]
    assert "--method retrain" in lines[5]
    retrain = warp("unlearn", trained, "--forget", forget_file, "--plan", "--method", "retrain", "--json").json()
    assert retrain["plan"][-1].splitlines()[-1] == "judged    holds by construction, unless test accuracy collapses"
    run = load_run(trained)
    np.save(tmp_path / "q.npy", np.concatenate([run.known[:3], run.parts.rows(VALIDATION)[:2]]))
    answer = warp("unlearn", trained, "--forget", tmp_path / "q.npy", "--plan", *QUICK)
    assert "5 of q.npy: " in answer.out
    assert "2 of them were held out and never learned, so left alone" in answer.out


def test_a_second_request_goes_on_from_the_first(warp: Warp, trained: Path, unlearned: Path, tmp_path: Path) -> None:
    first, out = load_run(unlearned), tmp_path / "second"
    gone = first.parts.rows(FORGET)
    np.save(tmp_path / "more.npy", first.known[:5])
    warp("unlearn", unlearned, "--forget", tmp_path / "more.npy", "--out", out, *QUICK).judged()
    second = load_run(out)
    assert second.parts.rows(FORGET).tolist() == first.known[:5].tolist()
    assert second.parts.rows(FORGOTTEN).tolist() == gone.tolist()
    assert len(second.record.deletions) == 2
    assert results_of(out).after.earlier is not None
    np.save(tmp_path / "old.npy", gone[:3])
    again = ("unlearn", out, "--forget", tmp_path / "old.npy", *QUICK)
    warp(*again, "--out", tmp_path / "no").refused("3 of 3 rows have been forgotten already", "--again")
    warp(*again, "--again", "--out", tmp_path / "again").judged()


THREE = ("--forget-class", "3")


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (("--method", "ngp"), "nothing says what to forget"),
        ((*THREE, "--forget-fraction", "0.1", *QUICK), "are both set"),
        (("--forget-class", "three", *QUICK), "no class is called 'three'"),
        (("--forget-fraction", "1e-9", *QUICK), "is 0 rows"),
        (THREE, "nothing says how to forget; give --method, one of ngp"),
        ((*THREE, "--method", "salum"), "did you mean 'salun'"),
        ((*THREE, "--method", "ngp", "-o", "method.options.lr=fast"), "ngp: lr is 'fast'"),
        ((*THREE, "--defense", "wrap", *QUICK), "did you mean 'warp'"),
        ((*THREE, "--defense-seed", "1", *QUICK), "defense.seed is set, but no defence"),
        ((*THREE, "--our-recipe", *QUICK), "--our-recipe are for --method retrain"),
        (("--forget", "nothing.csv", *QUICK), "there is no file nothing.csv"),
        ((*THREE, "--as-given", *QUICK), "--as-given is for a weight file"),
        ((*THREE, "--accuracy", "0.1", *QUICK), "was stated to be on 0.1"),
    ],
)
def test_bad_requests_are_one_line_and_leave_nothing(
    warp: Warp, trained: Path, tmp_path: Path, more: tuple[str, ...], part: str
) -> None:
    warp("unlearn", trained, "--out", tmp_path / "run", *more).refused(part)
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
    warp("train", *options, *mlp, "--out", tmp_path / "original").ok()
    x, _ = pictures(first)

    def forgotten(run: Path, *more: object) -> set[int]:
        opened = load_run(run, **dict(more))
        found = opened.table.x[opened.parts.rows(FORGET)]
        unseen = opened.table.x[opened.parts.rows(TEST)]
        assert not any((a == b).all() for a in found for b in unseen)
        return {r for r in range(40) if any((x[r] == one).all() for one in found)}

    wanted = [4, 11, 20]
    request = ask(way, first, wanted, order, names)
    warp("unlearn", tmp_path / "original", *request, *options[2:4], *QUICK, "--out", tmp_path / "one").judged()
    assert forgotten(tmp_path / "one") == {4, 7, 9, 11, 20}
    # The request is honoured in the data, the rest is shuffled where it can be, and another request comes.
    left = [r for r in range(40) if r not in {4, 7, 9, 11, 20}]
    if kind != "folder":
        np.random.default_rng(1).shuffle(left)
    options, order, names = write(kind, second, left, held=held)
    request = ask(way, second, [2, 25], order, names)
    moved = ["--data", options[1], *(["--test", options[-1]] if "--test" in options else [])]
    ids = ["--ids", "who"] if kind != "folder" else []
    warp("unlearn", tmp_path / "one", *moved, *ids, *request, *QUICK, "--out", tmp_path / "two").judged()
    places = [("data", options[1]), *([("test", Path(moved[3]))] if len(moved) > 2 else [])]
    assert forgotten(tmp_path / "two", *places) == {2, 25}
