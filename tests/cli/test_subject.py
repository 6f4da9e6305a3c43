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
from warp_unlearning.errors import InputError
from warp_unlearning.models.weights import read_weights

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
def weights(own: Path, points: Path) -> Path:
    """A checkpoint of a user's own network, trained on the points elsewhere."""
    namespace: dict[str, Any] = {}
    exec(own.read_text(), namespace)
    torch.manual_seed(1)
    model = namespace["build"]()
    data = np.load(points)
    x, y = torch.tensor(data["x"]).float(), torch.tensor(data["y"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    path = own.parent / "model.pt"
    torch.save({"model_state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, path)
    return path


def test_a_checked_run_needs_no_options_later(
    warp: Warp, weights: Path, own: Path, points: Path, tmp_path: Path
) -> None:
    checked = tmp_path / "checked"
    answer = warp("check", weights, "--model", f"{own}:build", "--data", points, "--ids", "name", "--out", checked)
    assert (answer.code, answer.out.splitlines()[-2]) == (0, "holds: this model fits these data")
    run = load_run(checked)
    assert (run.kind, len(run.known), len(run.parts.rows(TEST))) == ("check", 60, 30)
    out = tmp_path / "out"
    (tmp_path / "names.txt").write_text("p03\np17\n")
    done = warp("unlearn", checked, "--forget", tmp_path / "names.txt", "--method", "ngp", "--out", out)
    assert done.code in (0, 1, 3), done.err
    assert done.out.startswith('rows      2 of names.txt: 3 "p03" class 0, 17 "p17" class 2, digest ')
    assert load_run(out).parts.rows(FORGET).tolist() == [3, 17]


def test_what_comes_back_has_the_names_and_the_form_of_what_came_in(
    warp: Warp, weights: Path, own: Path, points: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = ("--model", f"{own}:build", "--data", points)
    assert warp("unlearn", weights, *given, "--forget-class", 1, "--method", "finetune", "--out", out).code in (0, 1, 3)
    before = torch.load(weights, weights_only=True)["model_state_dict"]
    after = torch.load(out / "model.pt", weights_only=True)["model_state_dict"]
    assert list(after) == list(before)
    assert {k: v.dtype for k, v in after.items()} == {k: v.dtype for k, v in before.items()}
    again = tmp_path / "again"
    assert warp("unlearn", out, "--forget-class", 2, "--method", "finetune", "--out", again).code in (0, 1, 3)
    assert torch.load(again / "model.pt", weights_only=True)["model_state_dict"].keys() == before.keys()


def test_half_precision_is_refused_or_computed_in_full(
    warp: Warp, weights: Path, own: Path, points: Path, tmp_path: Path
) -> None:
    state = torch.load(weights, weights_only=True)["model_state_dict"]
    half = tmp_path / "half.pt"
    torch.save({k: v.bfloat16() for k, v in state.items()}, half)
    command = ("unlearn", half, "--model", f"{own}:build", "--data", points, "--forget-class", 1, "--method", "ngp")
    refused = warp(*command, "--out", tmp_path / "no")
    assert refused.code == 2
    assert "holds bfloat16 weights" in refused.err
    assert "--dtype float32" in refused.err
    out = tmp_path / "out"
    assert warp(*command, "--dtype", "float32", "--out", out).code in (0, 1, 3)
    found = torch.load(out / "model.pt", weights_only=True)
    assert {v.dtype for v in found.values()} == {torch.bfloat16}
    deletion = json.loads((out / "record.json").read_text())["deletions"][0]
    rounded = load_run(out, dtype="float32")
    assert deletion["unlearned"] != deletion["original"]
    assert all(torch.equal(rounded.model.state_dict()[k.removeprefix("module.")], v.float()) for k, v in found.items())


def test_data_may_move_and_may_not_change(warp: Warp, points: Path, tmp_path: Path) -> None:
    data, run = tmp_path / "a" / "points.npz", tmp_path / "a" / "run"
    data.parent.mkdir()
    shutil.copy(points, data)
    train = ("train", "--data", data, *MLP, "-o", "training.epochs=2", "--out", run)
    assert warp(*train).code == 0
    shutil.move(tmp_path / "a", tmp_path / "b")
    moved = tmp_path / "b" / "run"
    assert load_run(moved).parts.rows(RETAIN).tolist() == list(range(60))
    elsewhere = tmp_path / "c.npz"
    shutil.move(tmp_path / "b" / "points.npz", elsewhere)
    with pytest.raises(Exception, match=r"there is nothing at .*points\.npz"):
        load_run(moved)
    assert len(load_run(moved, data=str(elsewhere)).known) == 60
    # The finished command, told where the data are now, is still finished.
    answer = warp("train", "--data", elsewhere, *MLP, "-o", "training.epochs=2", "--out", moved)
    assert (answer.code, answer.err) == (0, "")
    arrays = dict(np.load(elsewhere))
    arrays["x"] = arrays["x"][::-1].copy()
    np.savez(elsewhere, **arrays)
    with pytest.raises(Exception, match="rows that the model knows or was tested on are gone or changed"):
        load_run(moved, data=str(elsewhere))
    answer = warp("train", "--data", elsewhere, *MLP, "-o", "training.epochs=2", "--out", moved)
    assert answer.code == 2
    assert "holds a run with another configuration (resolved.rows" in answer.err


def test_other_threads_or_another_network_file_are_another_run(
    warp: Warp, own: Path, points: Path, tmp_path: Path
) -> None:
    file = tmp_path / "net.py"
    shutil.copy(own, file)
    command = (
        "train",
        "--model",
        f"{file}:build",
        "--data",
        points,
        "-o",
        "training.epochs=1",
        "--out",
        tmp_path / "run",
    )
    assert warp(*command).code == 0
    assert (warp(*command).code, warp(*command, "--threads", 2).code) == (0, 2)
    file.write_text(OWN.replace("nn.ReLU()", "nn.Tanh()"))
    answer = warp(*command)
    assert answer.code == 2
    assert "resolved.network_file" in answer.err


def test_a_run_of_a_stranger_executes_nothing_of_theirs(warp: Warp, points: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    file, marker = theirs / "net.py", tmp_path / "executed"
    file.write_text(OWN)
    shutil.copy(points, theirs / "points.npz")
    command = ("train", "--model", f"{file}:build", "--data", theirs / "points.npz", "-o", "training.epochs=30")
    assert warp(*command, "--out", theirs / "run").code == 0
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
        answer = warp(*command)
        assert answer.code == 2
        assert f"this run needs {file}:build, and code is executed only" in answer.err
        assert "name it again (--model" in answer.err
    assert not marker.exists()
    named = warp(*request, "--model", f"{file}:build")
    assert named.code in (0, 1, 3)
    assert marker.exists()


def test_preprocessing_is_said_once_and_kept(warp: Warp, own: Path, points: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = ("--model", "mlp", "--preprocess", f"{own}:centred", "--data", points, "--device", "cpu")
    assert warp("train", *given, "-o", "training.epochs=2", "--out", run).code == 0
    found = load_run(run)
    x = found.examples(np.array([5])).take(torch.tensor([0])).x
    assert torch.equal(x[0], torch.tensor(np.load(points)["x"][5]).float() - 2)
    answer = warp("unlearn", run, "--scale", 3, "--forget-class", 1, "--method", "ngp", "--out", tmp_path / "out")
    assert answer.code == 2
    assert "data differs from that of the run" in answer.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--model", "mlp", "-o", "model.options.hidden=[3]"), "does not fit the model"),
        ((), "nothing says which network the weights are of"),
        (("--model", "nothing.py:build"), "nothing.py cannot be read"),
        (("--model", "mpl"), "did you mean 'mlp'"),
    ],
)
def test_a_weight_file_needs_its_network(
    warp: Warp, weights: Path, points: Path, more: tuple[str, ...], message: str
) -> None:
    answer = warp("check", weights, "--data", points, *more)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_a_run_of_version_0_1_is_refused_with_the_way_out(warp: Warp, trained: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(trained, old)
    (old / "run.json").unlink()
    manifest = json.loads((old / "manifest.json").read_text())
    del manifest["files"]["run.json"]
    (old / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"a run of version 0\.1 .*run `warp check` on its model file"):
        load_run(old)


def test_files_are_for_their_owner_alone_and_links_lead_nowhere(warp: Warp, trained: Path, tmp_path: Path) -> None:
    assert trained.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in trained.iterdir()} == {0o600}
    linked = tmp_path / "linked"
    shutil.copytree(trained, linked)
    shutil.move(linked / "model.safetensors", tmp_path / "other.safetensors")
    (linked / "model.safetensors").symlink_to(tmp_path / "other.safetensors")
    answer = warp("compare", linked, linked)
    assert answer.code == 2
    assert "leads out of the run" in answer.err
    (tmp_path / "link").symlink_to(trained)
    answer = warp("train", "--out", tmp_path / "link")
    assert (answer.code, "is a link" in answer.err) == (2, True)


def test_a_weight_file_takes_what_the_run_beside_it_remembers(
    warp: Warp, trained: Path, unlearned: Path, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    shutil.copy(trained / "model.safetensors", file)
    assert read_weights(file).header["model"] == "small_resnet"
    beside, whole = warp("compare", file, unlearned, "--json"), warp("compare", trained, unlearned, "--json")
    assert json.loads(beside.out) == json.loads(whole.out)
    inside = warp("compare", trained / "model.safetensors", unlearned, "--json")
    assert json.loads(inside.out) == json.loads(whole.out)


@pytest.mark.filterwarnings("ignore")
def test_a_hugging_face_model_is_retrained_from_fresh_weights(warp: Warp, tmp_path: Path) -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = ViTForImageClassification(ViTConfig(**small, image_size=8, patch_size=4, num_labels=2))
    model.save_pretrained(tmp_path / "vit")
    torch.save(model.state_dict(), tmp_path / "w.pt")
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "d.npz", x=images, y=np.arange(40) % 2)
    given = ("--model", f"hf:{tmp_path / 'vit'}", "--data", tmp_path / "d.npz", "--device", "cpu")
    ask = (
        "--forget-fraction",
        0.2,
        "--method",
        "retrain",
        "--our-recipe",
        "-o",
        "training.epochs=1",
        "--device",
        "cpu",
    )
    answer = warp("unlearn", tmp_path / "w.pt", *given, *ask, "--out", tmp_path / "out")
    assert answer.code in (0, 1, 3), answer.err
    assert "the weights of the model itself" not in answer.err


def test_a_hugging_face_folder_is_network_and_weights_in_one(warp: Warp, tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=10, **sizes)
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    images = torch.randint(0, 256, (120, 8, 8)).numpy().astype(np.uint8)
    np.savez(tmp_path / "d.npz", x=images[:90], y=np.arange(90) % 10, x_test=images[90:], y_test=np.arange(30) % 10)
    more = ("--data", tmp_path / "d.npz", "--forget-class", 1, "--method", "retrain", "--our-recipe")
    refused = warp("unlearn", tmp_path / "vit", *more, "--out", tmp_path / "out")
    # Its weights are random, which the check before says.
    assert refused.code == 2
    assert "this is not a model of these data" in refused.err


def test_what_a_model_knows_cannot_be_held_out(
    warp: Warp, weights: Path, own: Path, points: Path, tmp_path: Path
) -> None:
    arrays = dict(np.load(points))
    np.savez(tmp_path / "all.npz", x=arrays["x"], y=arrays["y"])
    answer = warp("check", weights, "--model", f"{own}:build", "--data", tmp_path / "all.npz", "--holdout", "0.2")
    assert answer.code == 2
    assert "this model knows its rows: give --test instead" in answer.err


def test_a_teleport_of_half_precision_is_refused(
    warp: Warp, weights: Path, own: Path, points: Path, tmp_path: Path
) -> None:
    state = torch.load(weights, weights_only=True)["model_state_dict"]
    torch.save({k: v.half() for k, v in state.items()}, tmp_path / "half.pt")
    given = ("--model", f"{own}:build", "--data", points, "--dtype", "float32", "--symmetry", "permutation")
    answer = warp("teleport", tmp_path / "half.pt", *given, "--out", tmp_path / "out")
    assert answer.code == 2
    assert "the weights are float16" in answer.err


def test_a_preprocessing_of_a_stranger_is_not_executed_whatever_it_is_called(
    warp: Warp, points: Path, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    given = ("--model", "mlp", "--preprocess", f"{own}:centred", "--data", points, "-o", "training.epochs=1")
    assert warp("train", *given, "--out", run).code == 0
    (tmp_path / "hf:").mkdir()
    (tmp_path / "hf:" / "evil.py").write_text(
        "from pathlib import Path\nPath('executed').touch()\ndef f(x): return x\n"
    )
    config = (run / "config.yaml").read_text().replace(f"{own.resolve()}:centred", "hf:/evil.py:f")
    (run / "config.yaml").write_text(config)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["files"]["config.yaml"]["sha256"] = sha256(config.encode()).hexdigest()
    (run / "manifest.json").write_text(json.dumps(manifest))
    answer = warp("compare", run, run, "--forget-class", 1)
    assert answer.code == 2
    assert not (tmp_path / "executed").exists()


def test_a_changed_method_or_preprocessing_is_another_run(warp: Warp, points: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from warp_unlearning.methods.neg_grad_plus import NegGradPlus as Own\ndef read(raw):\n    return raw * 1.0\n"
    )
    train = ("train", "--model", "mlp", "--data", points, "--preprocess", f"{file}:read", "-o", "training.epochs=1")
    assert warp(*train, "--out", tmp_path / "r0").code == 0
    unlearn = ("unlearn", tmp_path / "r0", "--forget-class", 1, "--method", f"{file}:Own", "--out", tmp_path / "r1")
    assert warp(*unlearn).code in (0, 1, 3)
    file.write_text(file.read_text().replace("1.0", "1.5"))
    for command in ((*train, "--out", tmp_path / "r0"), (*unlearn, "--preprocess", f"{file}:read")):
        answer = warp(*command)
        assert answer.code == 2
        assert "preprocess_file" in answer.err or "method_file" in answer.err


def test_after_a_class_is_forgotten_and_deleted_the_next_request_works(
    warp: Warp, points: Path, tmp_path: Path
) -> None:
    mlp = ("--model", "mlp", "--device", "cpu", "-o", "training.epochs=2")
    assert warp("train", "--data", points, *mlp, "--out", tmp_path / "r0").code == 0
    gone = ("--forget-class", 2, "--method", "ngp", "--out", tmp_path / "r1")
    assert warp("unlearn", tmp_path / "r0", *gone).code in (0, 1, 3)
    arrays = dict(np.load(points))
    kept = arrays["y"] != 2
    np.savez(tmp_path / "less.npz", **{k: v if k.endswith("_test") else v[kept] for k, v in arrays.items()})
    answer = warp(
        "unlearn",
        tmp_path / "r1",
        "--data",
        tmp_path / "less.npz",
        "--forget-class",
        1,
        *gone[2:4],
        "--out",
        tmp_path / "r2",
    )
    assert answer.code in (0, 1, 3), answer.err


def test_weights_that_have_forgotten_need_their_run(warp: Warp, points: Path, unlearned: Path, tmp_path: Path) -> None:
    shutil.copy(unlearned / "model.safetensors", tmp_path / "alone.safetensors")
    answer = warp("check", tmp_path / "alone.safetensors")
    assert answer.code == 2
    assert "has forgotten rows, and its file cannot say which; give its run" in answer.err


def test_copies_of_learned_rows_are_not_unseen(warp: Warp, points: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(points))
    arrays["x_test"][:4] = arrays["x"][:4]
    np.savez(tmp_path / "d.npz", **arrays)
    run = tmp_path / "run"
    given = ("--data", tmp_path / "d.npz", "--model", "mlp", "-o", "training.epochs=1", "--out", run)
    assert warp("train", *given).code == 0
    assert json.loads((run / "results.json").read_text())["counts"]["test"] == 26
