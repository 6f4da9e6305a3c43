from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warp_unlearning.data.split_folder import load_split
from warp_unlearning.models.weights import model_digest, read_weights

Warp = Callable[..., Any]
QUICK = ("-o", "method.options.epochs=1")


def digest(run: Path) -> str:
    return model_digest(read_weights(run / "model.safetensors").state)


def refused(answer: Any, *parts: str, code: int = 2) -> None:
    """One line on the error stream with all the parts, nothing on the other."""
    assert (answer.code, answer.out) == (code, "")
    (line,) = [line for line in answer.err.splitlines() if not line.startswith(("train: ", "unlearn"))]
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


class Payload:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_a_user_sees_what_was_forgotten_and_kept(warp: Warp, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = warp("unlearn", trained, "--out", out, "--forget-class", "3", "--method", "ngp", *QUICK)
    assert answer.code == 0
    assert "unlearn (ngp): epoch 1, update" in answer.err
    lines = answer.out.splitlines()
    summary = json.loads((out / "summary.json").read_text())
    assert lines[0].startswith(f"ngp forgot 129 examples and kept 1131 in {summary['updates']} updates (")
    for line, what in zip(lines[1:4], ("forget", "retain", "test"), strict=True):
        before, after = (summary["accuracy"][name][what] for name in ("original", "unlearned"))
        assert line.split() == ["accuracy", "on", what, f"{before:.4f}", "->", f"{after:.4f}"]
    assert lines[4].startswith("  accuracy on test, classes kept")
    assert "settings for small data: batch_size=64" in answer.err
    assert lines[5] == f"written to {out}; the deletion record is {out / 'record.json'}"
    assert json.loads((out / "record.json").read_text())["deletions"][0]["requested"] == 129


def test_the_same_command_again_does_nothing(warp: Warp, trained: Path, unlearned: Path, forget_file: Path) -> None:
    before = snapshot(unlearned)
    answer = warp("unlearn", trained, "--out", unlearned, "--forget", forget_file, "--json", *QUICK)
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == json.loads((unlearned / "summary.json").read_text())
    assert snapshot(unlearned) == before


def test_the_configuration_given_back_makes_the_same_weights(
    warp: Warp, trained: Path, unlearned: Path, tmp_path: Path
) -> None:
    assert warp("unlearn", trained, "--config", unlearned / "config.yaml", "--out", tmp_path / "again").code == 0
    assert digest(tmp_path / "again") == digest(unlearned)


@pytest.mark.parametrize("defense", ["warp", "fastwarp", "cob", "conjugate"])
def test_a_user_sees_what_the_defence_did(warp: Warp, trained: Path, tmp_path: Path, defense: str) -> None:
    out = tmp_path / "run"
    answer = warp("unlearn", trained, "--out", out, "--forget-class", "3", "--defense", defense, *QUICK)
    assert answer.code == 0
    about = json.loads((out / "summary.json").read_text())["defense"]
    teleports = json.loads((out / "teleports.json").read_text())["teleports"]
    assert len(teleports) == about["teleports"] == (2 if defense == "conjugate" else 1)
    lines = answer.out.splitlines()
    count = "2 teleports" if defense == "conjugate" else "1 teleport"
    (line,) = [line for line in lines if line.startswith(f"defended by {defense}: {count}, 0 taken back")]
    assert line.endswith(f"; the largest change of the retain loss by one is {about['largest_retain_drift']:+.2g}")
    energy = about["forget_energy"]
    words = ["forget", "gradient", "energy", f"{energy['original']:.4g}", "->", f"{energy['unlearned']:.4g}"]
    assert words in [line.split() for line in lines]
    assert "experiment only" not in answer.out
    (deletion,) = json.loads((out / "record.json").read_text())["deletions"]
    assert deletion["defense"]["name"] == defense
    assert not deletion["experiment_only"]


def test_options_of_a_defence_and_a_fixed_seed_reach_the_record(warp: Warp, trained: Path, tmp_path: Path) -> None:
    more = ("--defense", "warp", "-o", "defense.options.energy=0.95", "-o", "defense.options.every=7", *QUICK)
    runs = [tmp_path / "first", tmp_path / "second"]
    for run in runs:
        answer = warp("unlearn", trained, "--out", run, "--forget-class", "3", "--defense-seed", "5", *more)
        assert answer.code == 0
        assert "  experiment only: whoever knows the seed can undo the defence\n" in answer.out
        (deletion,) = json.loads((run / "record.json").read_text())["deletions"]
        assert deletion["experiment_only"]
        assert deletion["defense"]["options"]["every"] == 7
        assert deletion["defense"]["options"]["symmetry"]["options"]["energy"] == 0.95
    assert digest(runs[0]) == digest(runs[1])


def test_files_are_for_their_owner_alone(unlearned: Path) -> None:
    files = [p for p in unlearned.rglob("*") if p.is_file()]
    names = {p.name for p in files}
    assert {"record.json", "model.safetensors", "forget.npy", "split.json"} <= names
    assert {p.stat().st_mode & 0o777 for p in files} == {0o600}


def test_a_second_request_goes_on_from_the_first(
    warp: Warp, trained: Path, unlearned: Path, forget_file: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    answer = warp("unlearn", unlearned, "--out", second, "--forget-fraction", "0.05", "--json", *QUICK)
    assert answer.code == 0
    assert json.loads(answer.out)["requests_so_far"] == 2
    first, then = json.loads((second / "record.json").read_text())["deletions"]
    assert [first] == json.loads((unlearned / "record.json").read_text())["deletions"]
    assert first["original"] == digest(trained)
    assert first["unlearned"] == then["original"] == digest(unlearned)
    assert then["unlearned"] == digest(second)
    assert then["retained"] + then["requested"] == first["retained"]
    gone = set(np.load(forget_file).tolist())
    split = load_split(second / "split")
    assert not gone & {*split.retain.tolist(), *split.forget.tolist()}
    third = warp("unlearn", second, "--out", tmp_path / "third", "--forget", forget_file)
    refused(third, "no longer knows, 50 of the examples", f"first: {min(gone)}, which was forgotten already", "remove")
    assert not (tmp_path / "third").exists()


def test_a_network_of_ones_own_all_the_way(warp: Warp, network: Path, tmp_path: Path) -> None:
    own = ("--model", f"{network}:build")
    trained, out = tmp_path / "trained", tmp_path / "out"
    options = ("-o", "training.epochs=2", "-o", "model.options.hidden=7")
    assert warp("train", "--out", trained, *options, *own).code == 0
    assert read_weights(trained / "model.safetensors").state["1.weight"].shape == (7, 64)
    refused(warp("unlearn", trained, "--out", out, "--forget-class", "3"), "one of your own", "--model FILE.py:build")
    assert not out.exists()
    assert warp("unlearn", trained, "--out", out, "--forget-class", "3", *QUICK, *own).code == 0
    answer = warp("evaluate", trained, out, "--json", *own)
    assert answer.code == 0
    scores = json.loads(answer.out)["models"]
    assert scores["unlearned"]["accuracy"]["forget"]["value"] < scores["original"]["accuracy"]["forget"]["value"]


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_a_weight_file_gives_the_same_as_its_run(
    warp: Warp, trained: Path, unlearned: Path, forget_file: Path, tmp_path: Path, kind: str
) -> None:
    file = trained / "model.safetensors"
    if kind == "pt":
        file = tmp_path / "model.pt"
        torch.save(read_weights(trained / "model.safetensors").state, file)
    # A file of others does not say what was held out; ours does.
    held = ("-o", "validation=0.1") if kind == "pt" else ()
    more = ("-o", "model.options.width=4", "-o", "training.epochs=2", "-o", "device=cpu", *held, *QUICK)
    out = tmp_path / "run"
    assert warp("unlearn", file, "--out", out, "--forget", forget_file, *more).code == 0
    assert digest(out) == digest(unlearned)


INDICES: dict[str, tuple[Any, list[str]]] = {
    "empty": (np.array([], dtype=np.int64), ["the forget indices are empty", "give at least one"]),
    "out of range": (np.array([3, 1400]), ["index 1400 is out of range", "there are 1400 examples"]),
    "negative": (np.array([-1]), ["index -1 is out of range", "there are 1400 examples, numbered from 0"]),
    "repeated": (np.array([7, 5, 7]), ["index 7 is repeated", "name each example once"]),
    "float": (np.array([1.0, 2.0]), ["type float64", "give whole numbers"]),
    "mask": (np.zeros(1400, dtype=bool), ["type bool", "give whole numbers"]),
    "two axes": (np.array([[1, 2]]), ["shape (1, 2)", "give whole numbers, shape (n,)"]),
    "pickled": (np.array([{}], dtype=object), ["cannot be read (Object arrays", "give an .npy file"]),
    "text": (b"1\n2\n3\n", ["cannot be read (", "give an .npy file of positions"]),
    "nothing": (b"", ["cannot be read (", "give an .npy file of positions"]),
    "broken zip": (b"PK\x03\x04...", ["cannot be read (", "give an .npy file of positions"]),
}


@pytest.mark.parametrize("case", INDICES)
def test_bad_indices_are_named_and_nothing_is_written(warp: Warp, trained: Path, tmp_path: Path, case: str) -> None:
    content, parts = INDICES[case]
    file = tmp_path / "i.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.save(file, content, allow_pickle=True)
    refused(warp("unlearn", trained, "--out", tmp_path / "run", "--forget", file), *parts)
    assert not (tmp_path / "run").exists()


def test_indices_of_the_validation_set(warp: Warp, trained: Path, tmp_path: Path) -> None:
    held = np.load(trained / "validation.npy")
    np.save(tmp_path / "i.npy", held[:5])
    answer = warp("unlearn", trained, "--out", tmp_path / "run", "--forget", tmp_path / "i.npy")
    refused(
        answer, "never learned from", "5 of the examples", f"first: {held[0]}, which is in the validation set", "remove"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--forget", "/none.npy"], ["/none.npy cannot be read (", "No such file", "give an .npy file"]),
        (["--forget-class", "11"], ["no training example has label 11", "the labels are 0, 1, 2"]),
        (["--forget-class", "-1"], ["forget.label is -1", "greater than or equal to 0"]),
        (["--forget-fraction", "0"], ["forget.fraction is 0", "greater than 0"]),
        (["--forget-fraction", "1"], ["forget.fraction is 1", "less than 1"]),
        (["--forget-fraction", "nan"], ["forget.fraction is", "number"]),
        (["--forget-fraction", "0.00001"], ["fraction of 1e-05 of 1260 examples is none", "between 0 and 1"]),
        ([], ["nothing says what to forget", "give one of --forget FILE.npy"]),
        (["--forget-class", "1", "--forget-fraction", "0.1"], ["fraction and label are both set", "give one of"]),
        (["--forget-class", "1", "--forget", "x.npy"], ["label and rows are both set", "give one of"]),
        (["--forget-class", "1", "--method", "salum"], ["unknown method 'salum'", "did you mean 'salun'?"]),
        (["--forget-class", "1", "-o", "method.options.lrr=1"], ["ngp has no option 'lrr'", "did you mean 'lr'?"]),
        (["--forget-class", "1", "-o", "method.options.lr=abc"], ["ngp: lr is 'abc'", "number", "`warp methods ngp`"]),
        (["--forget-class", "1", "-o", "method.options.epochs=1.5"], ["ngp: epochs is 1.5", "valid integer"]),
        (["--forget-class", "1", "-o", "method.options.weight_decay=x"], ["ngp: weight_decay is 'x'", "number"]),
        (["--forget-class", "1", "-o", "method.opions.lr=1"], ["method has no key 'opions'", "'options'?"]),
        (["--forget-class", "1", "--defense", "wrap"], ["unknown defence 'wrap'", "did you mean 'warp'?"]),
        (
            ["--forget-class", "1", "--defense", "warp", "-o", "defense.options.enrgy=1"],
            ["warp has no option 'enrgy'", "did you mean 'energy'?"],
        ),
        (
            ["--forget-class", "1", "--defense", "warp", "-o", "defense.options.energy=1.01"],
            ["energy to protect is 1.01", "above 0 and at most 1"],
        ),
        (
            ["--forget-class", "1", "--defense", "cob", "-o", "defense.options.spread=1"],
            ["could be zero or negative", "give a spread below 1"],
        ),
        (["--forget-class", "1", "-o", "defense.options.energy=1"], ["no defence", "--defense"]),
        (["--forget-class", "1", "--defense-seed", "1"], ["no defence", "--defense"]),
        (["--forget-class", "1", "-o", "data.name=npz"], ["data differs from that of the run", "leave it out"]),
        (["--forget-class", "1", "--device", "gpu"], ["the device 'gpu' cannot be used", "try auto or cpu"]),
        (["--forget-class", "1", "--model", "x.py"], ["'x.py' names no model builder", "FILE.py:NAME"]),
    ],
)
def test_bad_requests_are_named_and_nothing_is_written(
    warp: Warp, trained: Path, tmp_path: Path, args: list[str], parts: list[str]
) -> None:
    refused(warp("unlearn", trained, "--out", tmp_path / "run", *args), *parts)
    assert not (tmp_path / "run").exists()


def no_manifest(run: Path) -> None:
    (run / "manifest.json").unlink()


def no_manifest_and_no_config(run: Path) -> None:
    no_manifest(run)
    (run / "config.yaml").unlink()


def flipped(run: Path) -> None:
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (run / "model.safetensors").write_bytes(bytes(data))


def missing(run: Path) -> None:
    (run / "train.npy").unlink()


def newer(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 9}))


def damaged_manifest(run: Path) -> None:
    (run / "manifest.json").write_text("{")


def emptied_manifest(run: Path) -> None:
    (run / "manifest.json").write_text('{"schema_version": 1}')


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (no_manifest, ["has no manifest.json", "start it again to finish it"]),
        (no_manifest_and_no_config, ["has no manifest.json", "is not ours"]),
        (flipped, ["model.safetensors is missing or not what the manifest says", "make it again"]),
        (missing, ["train.npy is missing or not what the manifest says", "make it again"]),
        (newer, ["schema version 9", "this program reads 1"]),
        (damaged_manifest, ["manifest.json is missing or damaged", "run the command again"]),
        (emptied_manifest, ["manifest.json lists no files", "make it again"]),
    ],
)
def test_a_run_that_is_not_whole_is_refused(
    warp: Warp, trained: Path, tmp_path: Path, damage: Callable[[Path], None], parts: list[str]
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(trained, run)
    damage(run)
    refused(warp("unlearn", run, "--out", tmp_path / "run", "--forget-class", "1"), str(run), *parts)
    assert not (tmp_path / "run").exists()


def test_a_source_that_is_not_there(warp: Warp, tmp_path: Path) -> None:
    answer = warp("unlearn", tmp_path / "none", "--out", tmp_path / "run", "--forget-class", "1")
    refused(answer, f"nothing at {tmp_path / 'none'}", "`warp train`", "weight file")


def test_weight_files_that_are_not_whole_or_not_weights(warp: Warp, trained: Path, tmp_path: Path) -> None:
    def unlearn(file: Path) -> Any:
        return warp("unlearn", file, "--out", tmp_path / "run", "--forget-class", "1", "-o", "model.options.width=4")

    short = tmp_path / "model.safetensors"
    short.write_bytes((trained / "model.safetensors").read_bytes()[:-100])
    refused(unlearn(short), f"{short} is no whole safetensors file", "copy or save it again")
    (tmp_path / "short.pt").write_bytes(b"PK")
    refused(unlearn(tmp_path / "short.pt"), "short.pt", "save")
    state = read_weights(trained / "model.safetensors").state
    torch.save(dict(list(state.items())[1:]), tmp_path / "other.pt")
    refused(
        unlearn(tmp_path / "other.pt"), "other.pt does not fit the model SmallResNet", "1 missing", "Build the model"
    )
    state[next(iter(state))].fill_(float("nan"))
    torch.save(state, tmp_path / "nan.pt")
    refused(unlearn(tmp_path / "nan.pt"), "not finite", "use weights saved earlier")
    (tmp_path / "model.onnx").write_bytes(b"x")
    refused(unlearn(tmp_path / "model.onnx"), "ends in '.onnx'", ".safetensors, .pt")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_code_in_a_weight_file_is_never_run(warp: Warp, tmp_path: Path, writer: str) -> None:
    trap, file = tmp_path / "trap", tmp_path / "model.pt"
    if writer == "torch":
        torch.save({"weight": torch.zeros(2), "x": Payload(trap)}, file)
    else:
        file.write_bytes(pickle.dumps(Payload(trap), protocol=2))
    answer = warp("unlearn", file, "--out", tmp_path / "run", "--forget-class", "1")
    refused(answer, "holds Python objects, which are never loaded", "save `model.state_dict()` instead")
    assert not trap.exists()
    assert not (tmp_path / "run").exists()


def test_weights_for_images_of_another_size(warp: Warp, tmp_path: Path) -> None:
    settings = ("-o", "model.name=mlp", "-o", "training.epochs=1")
    assert warp("train", "--out", tmp_path / "trained", *settings).code == 0
    torch.save(read_weights(tmp_path / "trained" / "model.safetensors").state, tmp_path / "w.pt")
    images = np.random.default_rng(0).integers(0, 255, (40, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "big.npz", x=images, y=np.arange(40) % 10)
    more = ("-o", "data.name=npz", "-o", f"data.path={tmp_path / 'big.npz'}", "--forget-class", "1")
    answer = warp("unlearn", tmp_path / "w.pt", "--out", tmp_path / "run", *settings, *more)
    refused(answer, "w.pt does not fit the model MLP", "64) and should be", "144)")
    own = tmp_path / "trained" / "model.safetensors"
    answer = warp("unlearn", own, "--out", tmp_path / "run", *settings, *more)
    refused(answer, "was trained on other data (digits", "give the data it was trained on")
    assert not (tmp_path / "run").exists()


def test_a_network_that_cannot_take_the_images(warp: Warp, network: Path, points: Path, tmp_path: Path) -> None:
    own = ("--model", f"{network}:build")
    assert warp("train", "--out", tmp_path / "trained", *own, "-o", "training.epochs=1").code == 0
    torch.save(read_weights(tmp_path / "trained" / "model.safetensors").state, tmp_path / "w.pt")
    more = ("-o", "data.name=npz", "-o", f"data.path={points}", "--forget-class", "1", *own)
    answer = warp("unlearn", tmp_path / "w.pt", "--out", tmp_path / "run", *more)
    refused(answer, "cannot take an example of the forget set, of shape (4,)")
    assert not (tmp_path / "run" / "manifest.json").exists()
    assert list((tmp_path / "run").rglob(".*")) == []


def test_data_rewritten_since_training(warp: Warp, points: Path, tmp_path: Path) -> None:
    data = Path(shutil.copy(points, tmp_path / "data.npz"))
    settings = ("--data", "npz", "--data-path", data, "-o", "model.name=mlp", "--epochs", "1")
    assert warp("train", "--out", tmp_path / "trained", *settings).code == 0
    arrays = dict(np.load(data))
    arrays["x"][7, 1] += 0.5
    np.savez(data, **arrays)
    answer = warp("unlearn", tmp_path / "trained", "--out", tmp_path / "run", "--forget-class", "1")
    refused(answer, "was trained on other data (npz, digest ", "give the data it was trained on")
    again = warp("train", "--out", tmp_path / "trained", *settings)
    refused(again, "another configuration (resolved.data: ", "choose another --out")
    moved = Path(shutil.copy(points, tmp_path / "2024"))
    more = ("--forget-class", "1", *QUICK, "-o", f"data.path={moved}")
    assert warp("unlearn", tmp_path / "trained", "--out", tmp_path / "run", *more).code == 0


def test_a_diverging_update_is_code_one_and_leaves_finite_weights(warp: Warp, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = warp("unlearn", trained, "--out", out, "--forget-class", "3", "-o", "method.options.lr=1e6")
    refused(answer, "the last finite ones and are kept", "Lower the learning rate", "diverged.safetensors", code=1)
    assert {p.name for p in out.iterdir()} == {"config.yaml", "diverged.safetensors"}
    state = read_weights(out / "diverged.safetensors").state
    assert all(bool(t.isfinite().all()) for t in state.values())
    assert (out / "diverged.safetensors").stat().st_mode & 0o777 == 0o600
    usable = warp("unlearn", out / "diverged.safetensors", "--out", tmp_path / "next", "--forget-class", "3", *QUICK)
    assert usable.code == 0
    # The folder of a run that diverged may be used again.
    assert warp("unlearn", trained, "--out", out, "--forget-class", "3", *QUICK).code == 0
    assert not (out / "diverged.safetensors").exists()


def test_a_second_request_tells_what_became_of_the_first(warp: Warp, trained: Path, tmp_path: Path) -> None:
    first, second, again = (tmp_path / name for name in ("first", "second", "again"))
    assert warp("unlearn", trained, "--out", first, "--forget-class", "3", "--method", "srf_on").code == 0
    more = ("--forget-class", "5", "--method", "finetune")
    assert warp("unlearn", first, "--out", second, *more).code == 0
    assert warp("unlearn", first, "--out", again, *more, "--again").code == 0
    verdicts = [json.loads((out / "record.json").read_text())["deletions"][-1] for out in (second, again)]
    assert all("forgotten before" in v["verdicts"]["accuracy"]["unlearned"] for v in verdicts)
    assert verdicts[1]["requested"] == verdicts[0]["requested"] + 129


def test_a_model_that_forgot_cannot_go_on_from_its_weight_file_alone(
    warp: Warp, unlearned: Path, tmp_path: Path
) -> None:
    more = ("-o", "model.options.width=4", "-o", "training.epochs=2", "-o", "device=cpu", "--forget-class", "3")
    answer = warp("unlearn", unlearned / "model.safetensors", "--out", tmp_path / "run", *more)
    refused(answer, "cannot be told from its weight file alone", "give the run directory")


def test_a_model_left_as_it_was_is_said_so(warp: Warp, trained: Path, tmp_path: Path) -> None:
    more = ("-o", "method.options.lr=1e-30", "-o", "method.options.epochs=1", "-o", "method.options.norm_mode=eval")
    answer = warp("unlearn", trained, "--out", tmp_path / "run", "--forget-class", "3", *more)
    assert answer.code == 0
    assert "note: ngp left the model bit-identical: nothing was forgotten" in answer.err


def test_a_folder_that_is_taken_is_left_alone(warp: Warp, trained: Path, unlearned: Path, tmp_path: Path) -> None:
    before = snapshot(unlearned)
    answer = warp("unlearn", trained, "--out", unlearned, "--forget-class", "3", *QUICK)
    refused(answer, "another configuration", "forget.label: None there, 3 now", "choose another --out")
    refused(warp("unlearn", trained, "--out", trained, "--forget-class", "3"), "holds a run with another configuration")
    (tmp_path / "x").write_text("mine")
    refused(warp("unlearn", trained, "--out", tmp_path, "--forget-class", "3"), "is not a run of ours", "--out")
    assert snapshot(unlearned) == before


def test_notes_are_printed_beside_the_result(warp: Warp, points: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(points))
    arrays["x"][:], arrays["y"][:20] = arrays["x"], arrays["y"][:20]
    arrays["x"] = np.concatenate([arrays["x"], arrays["x"][:1]])
    arrays["y"] = np.concatenate([arrays["y"], arrays["y"][:1]])
    test = {"x_test": arrays["x"][:9], "y_test": arrays["y"][:9]}
    np.savez(tmp_path / "d.npz", **arrays, **test)
    settings = ("--data", "npz", "--data-path", tmp_path / "d.npz", "-o", "model.name=mlp", "--epochs", "1")
    assert warp("train", "--out", tmp_path / "t", *settings, "-o", "validation=0").code == 0
    np.save(tmp_path / "i.npy", np.array([0]))
    answer = warp("unlearn", tmp_path / "t", "--out", tmp_path / "u", "--forget", tmp_path / "i.npy", "--json", *QUICK)
    assert answer.code == 0
    assert "note: 1 retained examples are exact copies of forgotten ones and are left out\n" in answer.err
    assert json.loads(answer.out)["retained"] == 59
