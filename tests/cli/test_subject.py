"""A model and its data, opened once and remembered by runs: places, trust, preprocessing, precision."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from warp_unlearning.cli.subject import load_run
from warp_unlearning.data.table import FORGET, RETAIN, TEST
from warp_unlearning.errors import DataError, WarpError
from warp_unlearning.models.own import load_function
from warp_unlearning.models.weights import model_digest

Warp = Callable[..., Any]
OWN = """
from torch import nn
def build(hidden=8):
    return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3))
def centred(raw):
    return raw.float() - 2
"""
MLP = ("--model", "mlp", "-o", "model.options.hidden=[16]", "--device", "cpu")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module")
def weights(own: Path, points: Path, fit: Callable[..., None]) -> Path:
    """A checkpoint of a user's own network, trained on the points elsewhere."""
    torch.manual_seed(1)
    model = load_function(f"{own}:build")()
    fit(model, points, lr=0.05)
    path = own.parent / "model.pt"
    torch.save({"model_state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, path)
    return path


@pytest.fixture(scope="module")
def given(own: Path, points: Path) -> tuple[object, ...]:
    return ("--model", f"{own}:build", "--data", points)


def changed(points: Path, out: Path, **arrays: Any) -> Path:
    np.savez(out, **(dict(np.load(points)) | arrays))
    return out


def rewrite(run: Path, name: str, text: str | None) -> None:
    """A file of a run as a stranger may leave it: changed or gone, with a manifest that fits."""
    manifest = json.loads((run / "manifest.json").read_text())
    if text is None:
        (run / name).unlink()
        del manifest["files"][name]
    else:
        (run / name).write_text(text)
        manifest["files"][name]["sha256"] = sha256(text.encode()).hexdigest()
    (run / "manifest.json").write_text(json.dumps(manifest))


def test_a_checked_run_needs_no_options_later(
    warp: Warp, weights: Path, given: tuple[object, ...], tmp_path: Path
) -> None:
    checked, out = tmp_path / "checked", tmp_path / "out"
    answer = warp("check", weights, *given, "--ids", "name", "--out", checked).ok()
    assert answer.out.splitlines()[-2] == "holds: this model fits these data"
    run = load_run(checked)
    assert (run.kind, len(run.known), len(run.parts.rows(TEST))) == ("check", 60, 30)
    (tmp_path / "names.txt").write_text("p03\np17\n")
    done = warp("unlearn", checked, "--forget", tmp_path / "names.txt", "--method", "ngp", "--out", out).judged()
    assert done.out.startswith('rows      2 of names.txt: 3 "p03" class 0, 17 "p17" class 2, digest ')
    assert load_run(out).parts.rows(FORGET).tolist() == [3, 17]


def test_what_comes_back_has_the_names_and_the_form_of_what_came_in(
    warp: Warp, weights: Path, given: tuple[object, ...], tmp_path: Path
) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    warp("unlearn", weights, *given, "--forget-class", 1, "--method", "finetune", "--out", out).judged()
    before, after = (torch.load(p, weights_only=True)["model_state_dict"] for p in (weights, out / "model.pt"))
    assert list(after) == list(before)
    assert {k: v.dtype for k, v in after.items()} == {k: v.dtype for k, v in before.items()}
    warp("unlearn", out, "--forget-class", 2, "--method", "finetune", "--out", again).judged()
    assert torch.load(again / "model.pt", weights_only=True)["model_state_dict"].keys() == before.keys()


def test_half_precision_is_refused_or_computed_in_full(
    warp: Warp, weights: Path, given: tuple[object, ...], tmp_path: Path
) -> None:
    state = torch.load(weights, weights_only=True)["model_state_dict"]
    half, out = tmp_path / "half.pt", tmp_path / "out"
    torch.save({k: v.bfloat16() for k, v in state.items()}, half)
    command = ("unlearn", half, *given, "--forget-class", 1, "--method", "ngp")
    warp(*command, "--out", tmp_path / "no").refused("holds bfloat16 weights", "--dtype float32")
    warp(*command, "--dtype", "float32", "--out", out).judged()
    found = torch.load(out / "model.pt", weights_only=True)
    assert {v.dtype for v in found.values()} == {torch.bfloat16}
    (deletion,) = json.loads((out / "record.json").read_text())["deletions"]
    rounded = load_run(out, dtype="float32")
    # The record and the verdict are those of the rounded weights.
    assert deletion["unlearned"] == model_digest(rounded.model) != deletion["original"]
    assert all(torch.equal(rounded.model.state_dict()[k.removeprefix("module.")], v.float()) for k, v in found.items())
    moved = ("teleport", half, *given, "--dtype", "float32", "--symmetry", "permutation", "--out", tmp_path / "moved")
    warp(*moved).refused("the weights are bfloat16, and rounding a moved network to that changes its function")


def test_data_may_move_and_may_not_change(warp: Warp, points: Path, tmp_path: Path) -> None:
    data, moved, elsewhere = tmp_path / "a" / "points.npz", tmp_path / "b" / "run", tmp_path / "c.npz"
    data.parent.mkdir()
    shutil.copy(points, data)
    train = ("train", *MLP, "-o", "training.epochs=2", "--data")
    warp(*train, data, "--out", tmp_path / "a" / "run").ok()
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert load_run(moved).parts.rows(RETAIN).tolist() == list(range(60))
    shutil.move(tmp_path / "b" / "points.npz", elsewhere)
    with pytest.raises(DataError, match=r"there is nothing at .*points\.npz"):
        load_run(moved)
    assert len(load_run(moved, data=str(elsewhere)).known) == 60
    # The finished command, given where the data are now, is still finished.
    assert warp(*train, elsewhere, "--out", moved).ok().err == ""
    changed(elsewhere, elsewhere, x=np.load(elsewhere)["x"][::-1].copy())
    with pytest.raises(DataError, match="rows that the model knows or was tested on are gone or changed"):
        load_run(moved, data=str(elsewhere))
    warp(*train, elsewhere, "--out", moved).refused("holds a run with another configuration (resolved.rows")


def test_other_threads_networks_methods_or_preprocessings_are_another_run(
    warp: Warp, points: Path, tmp_path: Path
) -> None:
    file, r0, r1 = tmp_path / "own.py", tmp_path / "r0", tmp_path / "r1"
    method = "from warp_unlearning.methods.neg_grad_plus import NegGradPlus as Own\n"
    text = f"{OWN}{method}def read(raw):\n    return raw * 1.0\n"
    file.write_text(text)
    train = ("train", "--data", points, "-o", "training.epochs=30", "--model", f"{file}:build", "--out", r0)
    warp(*train).ok()
    warp(*train).ok()
    warp(*train, "--threads", 2).refused("resolved.threads")
    unlearn = ("unlearn", r0, "--forget-class", 1, "--method", f"{file}:Own", "--out", r1)
    warp(*unlearn).judged()
    read = ("train", *MLP, "--data", points, "-o", "training.epochs=1", "--preprocess", f"{file}:read")
    warp(*read, "--out", tmp_path / "r2").ok()
    file.write_text(text.replace("1.0", "1.5"))
    warp(*train).refused("resolved.network_file")
    warp(*unlearn, "--model", f"{file}:build").refused("resolved.method_file")
    warp(*read, "--out", tmp_path / "r2").refused("resolved.preprocess_file")


def test_a_run_of_a_stranger_executes_nothing_of_theirs(warp: Warp, points: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    file, marker = theirs / "net.py", tmp_path / "executed"
    file.write_text(OWN)
    shutil.copy(points, theirs / "points.npz")
    train = ("train", "--model", f"{file}:build", "--data", theirs / "points.npz", "-o", "training.epochs=30")
    warp(*train, "--out", theirs / "run").ok()
    file.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n{OWN}")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(theirs, "theirs")
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        tar.extractall(tmp_path / "mine", filter="data")
    run = tmp_path / "mine" / "theirs" / "run"
    request = ("unlearn", run, "--forget-class", 1, "--method", "ngp", "--out", tmp_path / "o")
    for command in (("compare", run, run), request):
        needs = f"this run needs {file}:build, and code is executed only"
        warp(*command).refused(needs, "name it again (--model")
    assert not marker.exists()
    warp(*request, "--model", f"{file}:build").judged()
    assert marker.exists()


def test_a_preprocessing_of_a_stranger_is_not_executed_whatever_it_is_called(
    warp: Warp, points: Path, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, spec = tmp_path / "run", f"{own}:centred"
    warp("train", *MLP, "--preprocess", spec, "--data", points, "-o", "training.epochs=1", "--out", run).ok()
    (tmp_path / "hf:").mkdir()
    evil = "from pathlib import Path\nPath('executed').touch()\ndef f(x): return x\n"
    (tmp_path / "hf:" / "evil.py").write_text(evil)
    config = (run / "config.yaml").read_text().replace(f"{own.resolve()}:centred", "hf:/evil.py:f")
    rewrite(run, "config.yaml", config)
    warp("compare", run, run, "--forget-class", 1).refused()
    assert not (tmp_path / "executed").exists()


def test_preprocessing_is_said_once_and_kept(warp: Warp, own: Path, points: Path, tmp_path: Path) -> None:
    run, spec = tmp_path / "run", f"{own}:centred"
    warp("train", *MLP, "--preprocess", spec, "--data", points, "-o", "training.epochs=2", "--out", run).ok()
    x = load_run(run).examples(np.array([5])).take(torch.tensor([0])).x
    assert torch.equal(x[0], torch.tensor(np.load(points)["x"][5]).float() - 2)
    ask = ("unlearn", run, "--scale", 3, "--forget-class", 1, "--method", "ngp", "--out", tmp_path / "out")
    warp(*ask).refused("data differs from that of the run")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--model", "mlp", "-o", "model.options.hidden=[3]"), "does not fit the model"),
        ((), "nothing says which network the weights are of"),
        (("--model", "nothing.py:build"), "nothing.py cannot be read"),
        (("--model", "mpl"), "did you mean 'mlp'"),
        (("--model", "own.py"), "own.py names no function"),
        (("--model", "mlp", "--holdout", "0.2"), "this model knows its rows: give --test instead"),
    ],
)
def test_a_weight_file_needs_its_network_and_has_no_holdout(
    warp: Warp, weights: Path, points: Path, more: tuple[str, ...], message: str
) -> None:
    answer = warp("check", weights, "--data", points, *more)
    answer.refused(message)
    assert answer.out == ""


def test_a_weight_file_of_a_users_own_network_needs_its_data_named(
    warp: Warp, own: Path, weights: Path, points: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "forget.npy", np.arange(5))
    for command in (("check", weights), ("audit", "pair", weights, weights, "--forget", tmp_path / "forget.npy")):
        named = (*command, "--model", f"{own}:build")
        warp(*named).refused("nothing says what data", "say --data")
        # Data that are named are looked at.
        warp(*named, "--data", "digits").refused("the model")
        warp(*named, "-o", "data.name=digits").refused("the model")
    warp("check", weights, "--model", f"{own}:build", "--data", points).ok()


def test_runs_of_other_versions_and_damaged_ones_are_refused(warp: Warp, trained: Path, tmp_path: Path) -> None:
    about = json.loads((trained / "run.json").read_text())
    for name, text, message in (
        ("old", None, r"a run of version 0\.1 .*run `warp check` on its model file"),
        ("new", json.dumps(about | {"schema_version": 3}), "run.json is damaged or of another version"),
        ("damaged", json.dumps(about | {"classes": 3}), r"run.json is damaged .*classes"),
    ):
        shutil.copytree(trained, tmp_path / name)
        rewrite(tmp_path / name, "run.json", text)
        with pytest.raises(WarpError, match=message):
            load_run(tmp_path / name)


def test_files_are_for_their_owner_alone_and_links_lead_nowhere(warp: Warp, trained: Path, tmp_path: Path) -> None:
    assert trained.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in trained.iterdir()} == {0o600}
    linked = tmp_path / "linked"
    shutil.copytree(trained, linked)
    shutil.move(linked / "model.safetensors", tmp_path / "other.safetensors")
    (linked / "model.safetensors").symlink_to(tmp_path / "other.safetensors")
    warp("compare", linked, linked).refused("leads out of the run")
    (tmp_path / "link").symlink_to(trained)
    warp("train", "--out", tmp_path / "link").refused("is a link")


def test_a_weight_file_takes_what_the_run_beside_it_remembers(
    warp: Warp, trained: Path, unlearned: Path, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    shutil.copy(trained / "model.safetensors", file)
    found = [warp("compare", f, unlearned, "--json").json() for f in (file, trained, trained / "model.safetensors")]
    assert found[0] == found[1] == found[2]
    shutil.copy(unlearned / "model.safetensors", file)
    # Alone, weights that have forgotten rows cannot say which.
    warp("check", file).refused("has forgotten rows, and its file cannot say which; give its run")


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory, digits: Path, fit: Callable[..., None]) -> Path:
    """A small ViT in a folder of Hugging Face, trained elsewhere on x/255."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=10))
    fit(model, digits, scale=255, steps=100)
    folder = tmp_path_factory.mktemp("vit")
    model.save_pretrained(folder)
    return folder


def test_a_hugging_face_model_is_checked_and_forgets(warp: Warp, vit: Path, digits: Path, tmp_path: Path) -> None:
    checked = tmp_path / "checked"
    found = warp("check", vit, "--data", digits, "--out", checked, "--json").ok().json()
    assert (found["reading"], found["known"]["value"] > 0.9) == ("x/255", True)
    # As a folder, as weights beside --model hf:FOLDER, and as the run that remembers it.
    torch.save(ViTForImageClassification.from_pretrained(vit).state_dict(), tmp_path / "w.pt")
    named = ("--model", f"hf:{vit}", "--data", digits)
    sources = {"folder": (vit, *named[2:]), "file": (tmp_path / "w.pt", *named), "run": (checked,)}
    digests = set()
    for name, source in sources.items():
        ask = ("--forget-class", 3, "--method", "ngp", "-o", "method.options.epochs=1", "--defense", "warp")
        answer = warp("unlearn", *source, *ask, "--defense-seed", 1, "--device", "cpu", "--out", tmp_path / name)
        assert answer.judged().out.splitlines()[-1] == f"written to {tmp_path / name}"
        results = json.loads((tmp_path / name / "results.json").read_text())
        assert results["verdict"]["outcome"] in ("holds", "does not hold", "cannot be said")
        assert results["before"]["forgotten"] > 0.9
        digests.add(results["unlearned"])
    assert len(digests) == 1
    assert digests != {results["original"]}


def test_a_hugging_face_model_is_retrained_from_fresh_weights(
    warp: Warp, vit: Path, digits: Path, tmp_path: Path
) -> None:
    ask = ("--forget-class", 1, "--method", "retrain", "--our-recipe", "-o", "training.epochs=1", "--device", "cpu")
    answer = warp("unlearn", vit, "--data", digits, *ask, "--out", tmp_path / "out").judged()
    assert "forgotten by construction" in answer.out
    x, y = np.random.default_rng(0).integers(0, 256, (90, 8, 8)).astype(np.uint8), np.arange(90) % 10
    np.savez(tmp_path / "noise.npz", x=x, y=y)
    noise = warp("unlearn", vit, "--data", tmp_path / "noise.npz", *ask, "--out", tmp_path / "no")
    assert "this is not a model of these data" in noise.err
    assert noise.code == 2


def test_after_a_class_is_forgotten_and_deleted_the_next_request_works(
    warp: Warp, points: Path, tmp_path: Path
) -> None:
    r0, r1, r2 = (tmp_path / name for name in ("r0", "r1", "r2"))
    warp("train", "--data", points, *MLP, "-o", "training.epochs=2", "--out", r0).ok()
    warp("unlearn", r0, "--forget-class", 2, "--method", "ngp", "--out", r1).judged()
    arrays = np.load(points)
    kept = arrays["y"] != 2
    less = changed(points, tmp_path / "less.npz", **{k: arrays[k][kept] for k in ("x", "y", "name")})
    warp("unlearn", r1, "--data", less, "--forget-class", 1, "--method", "ngp", "--out", r2).judged()


def test_copies_of_learned_rows_are_not_unseen(warp: Warp, points: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(points))
    arrays["x_test"][:4] = arrays["x"][:4]
    data, run = changed(points, tmp_path / "d.npz", **arrays), tmp_path / "run"
    warp("train", "--data", data, *MLP, "-o", "training.epochs=1", "--out", run).ok()
    assert json.loads((run / "results.json").read_text())["counts"]["test"] == 26
