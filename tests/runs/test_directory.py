import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from warp_unlearning.errors import DataError, InputError
from warp_unlearning.runs import directory
from warp_unlearning.runs.directory import SCHEMA_VERSION, RunDirectory, open_run, start_run
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.store import Store
from warp_unlearning.version import __version__

CONFIG = {"seed": 1, "training": {"lr": 0.1, "epochs": 3}}


def finished(path: Path) -> RunDirectory:
    run = start_run(path, kind="train", config=CONFIG)
    run.write_json("metrics.json", {"accuracy": 0.5})
    (path / "split").mkdir()
    (path / "split" / "test.npy").write_bytes(b"numbers")
    run.finish()
    return run


def edited(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | changes))


def test_a_new_run_has_its_configuration_and_is_not_complete(tmp_path: Path) -> None:
    run = start_run(tmp_path / "a" / "b", kind="train", config=CONFIG)
    assert (run.path, run.kind, run.complete) == (tmp_path / "a" / "b", "train", False)
    assert run.config() == CONFIG
    assert [p.name for p in run.path.iterdir()] == ["config.yaml"]
    assert (run.path / "config.yaml").stat().st_mode & 0o777 == 0o600


def test_the_manifest_names_every_file_with_size_and_digest(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["schema_version"] == SCHEMA_VERSION == 1
    assert (manifest["kind"], manifest["version"]) == ("train", __version__)
    assert set(manifest["files"]) == {"config.yaml", "metrics.json", "split/test.npy"}
    for name, about in manifest["files"].items():
        data = (run.path / name).read_bytes()
        assert about == {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    assert run.complete
    assert open_run(run.path) == run


def test_hidden_files_are_no_part_of_a_run(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", kind="train", config=CONFIG)
    (run.path / ".DS_Store").write_text("x")
    run.finish()
    assert set(run.read_json("manifest.json")["files"]) == {"config.yaml"}
    (run.path / ".DS_Store").unlink()
    open_run(run.path)


def test_a_store_is_no_part_of_the_run(tmp_path: Path) -> None:
    """A sound run stays sound when the store in it grows, is collected, or is gone."""
    store = Store(tmp_path / "run" / "store")
    store.write(Key("k", 1, {}), {"a": b"1"})
    run = finished(tmp_path / "run")
    assert set(run.read_json("manifest.json")["files"]) == {"config.yaml", "metrics.json", "split/test.npy"}
    store.write(Key("k", 2, {}), {"a": b"2"})
    open_run(run.path)
    store.remove(*store.digests())
    store.gc()
    open_run(run.path)
    (run.path / "metrics.json").write_text("{}")
    with pytest.raises(DataError, match=r"metrics\.json is missing or not what the manifest says"):
        open_run(run.path)


def test_a_manifest_of_before_that_lists_its_store_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "run" / "store")
    store.write(Key("k", 1, {}), {"a": b"1"})
    run = finished(tmp_path / "run")
    files = run.read_json("manifest.json")["files"]
    edited(run.path, files=files | {"store/entries/ab/abc/scores.npz": {"bytes": 1, "sha256": "0" * 64}})
    open_run(run.path)


def test_the_manifest_is_written_last_and_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def record(path: Path, data: bytes, **_: object) -> None:
        assert not (path.parent / "manifest.json").exists()
        written.append(path.name)
        path.write_bytes(data)

    monkeypatch.setattr(directory, "write_atomically", record)
    finished(tmp_path / "run")
    assert written == ["config.yaml", "metrics.json", "manifest.json"]


def test_the_same_configuration_takes_up_the_same_run(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", kind="train", config=CONFIG)
    before = (run.path / "config.yaml").stat().st_mtime_ns
    assert start_run(run.path, kind="train", config=json.loads(json.dumps(CONFIG))) == run
    finished(tmp_path / "other")
    assert start_run(tmp_path / "other", kind="train", config=CONFIG).complete
    assert (run.path / "config.yaml").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"seed": 2, "training": {"lr": 0.1, "epochs": 3}}, "seed: 1 there, 2 now"),
        ({"seed": 1, "training": {"lr": 0.2, "epochs": 3}}, "training.lr: 0.1 there, 0.2 now"),
        ({"seed": 1, "training": {"epochs": 3}}, "training.lr: 0.1 there, None now"),
        ({"seed": 1, "training": {"lr": 0.1, "epochs": 3}, "device": "cpu"}, "device: None there, 'cpu' now"),
        ({"seed": 1, "training": "x"}, "training: {'lr': 0.1, 'epochs': 3} there, 'x' now"),
        ({"seed": 2, "training": {"lr": 0.2, "epochs": 3}}, "seed: 1 there, 2 now; training.lr: 0.1 there, 0.2 now"),
    ],
)
def test_another_configuration_is_refused_and_the_difference_named(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    run = finished(tmp_path / "run")
    with pytest.raises(InputError) as error:
        start_run(run.path, kind="train", config=config)
    assert f"{run.path} holds a run with another configuration ({message}); choose another --out" in str(error.value)
    assert run.config() == CONFIG


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is not a run of ours; choose another --out"):
        start_run(tmp_path, kind="train", config=CONFIG)
    with pytest.raises(InputError, match=r"notes\.txt exists and is not a run"):
        start_run(tmp_path / "notes.txt", kind="train", config=CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    assert start_run(tmp_path, kind="train", config=CONFIG).config() == CONFIG


@pytest.mark.parametrize("name", [".config.yaml.abcd_123", ".model.safetensors.a1b2c3d4"])
def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("half")
    start_run(tmp_path, kind="train", config=CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["config.yaml"]
    (tmp_path / name).write_text("half")
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / ".forget.npy.a1b2c3d4").write_text("half")
    (tmp_path / ".gitignore").write_text("*")
    start_run(tmp_path, kind="train", config=CONFIG)
    assert {p.name for p in tmp_path.rglob("*")} == {"config.yaml", "split", ".gitignore"}


def test_hidden_files_of_others_make_a_folder_theirs(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*")
    with pytest.raises(InputError, match="is not a run of ours"):
        start_run(tmp_path, kind="train", config=CONFIG)


@pytest.mark.parametrize("content", [b"- a\n", b"a: [", b"\xff\xfe", b"x: !hydra 1"])
def test_a_damaged_configuration_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(DataError, match=r"config\.yaml .*; the folder is not a run of ours or is damaged"):
        start_run(tmp_path, kind="train", config=CONFIG)


def test_configurations_survive_the_file(tmp_path: Path) -> None:
    config = {"path": "1e5", "lr": 1e-5, "none": None, "list": [1, "ü", {"a": True}]}
    start_run(tmp_path, kind="train", config=config)
    assert RunDirectory(tmp_path, "train").config() == config
    start_run(tmp_path, kind="train", config=config)
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == config


def test_a_changed_or_missing_file_is_detected(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    for name in ("metrics.json", "config.yaml", "split/test.npy"):
        file = run.path / name
        content = file.read_bytes()
        # Of the same length, so that only the digest can tell.
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(DataError, match=f"{name} is missing or not what the manifest says"):
            open_run(run.path)
        file.unlink()
        with pytest.raises(DataError, match=f"{name} is missing or not what the manifest says; .* make it again"):
            open_run(run.path)
        file.write_bytes(content)
        open_run(run.path)


@pytest.mark.parametrize("version", [2, 0, None, "1"])
def test_another_schema_version_is_refused(tmp_path: Path, version: object) -> None:
    run = finished(tmp_path / "run")
    edited(run.path, schema_version=version)
    with pytest.raises(DataError, match=f"schema version {version}; this program reads 1: use the version"):
        open_run(run.path)


@pytest.mark.parametrize("files", [None, [], "x", {"config.yaml": "x"}, {"config.yaml": {}}, {"config.yaml": None}])
def test_a_manifest_that_lists_no_digests_is_refused(tmp_path: Path, files: object) -> None:
    run = finished(tmp_path / "run")
    edited(run.path, files=files)
    with pytest.raises(DataError, match="damaged: make it again"):
        open_run(run.path)


def test_folders_that_are_no_complete_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run directory .*none; give the --out of a finished command"):
        open_run(tmp_path / "none")
    start_run(tmp_path / "run", kind="train", config=CONFIG)
    with pytest.raises(InputError, match=r"has no manifest\.json: .* start it again to finish it"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("content", ["{", "", "[1]", "1"])
def test_damaged_json_is_named(tmp_path: Path, content: str) -> None:
    run = finished(tmp_path / "run")
    (run.path / "metrics.json").write_text(content)
    with pytest.raises(DataError, match=r"metrics\.json (is missing or damaged|holds a)"):
        run.read_json("metrics.json")
    (run.path / "metrics.json").unlink()
    with pytest.raises(DataError, match=r"metrics\.json is missing or damaged"):
        run.read_json("metrics.json")


def test_json_is_read_back_as_written_and_private(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", kind="unlearn", config={})
    run.write_json("x.json", {"a": [1, 2.5, None]})
    assert run.read_json("x.json") == {"a": [1, 2.5, None]}
    assert (run.path / "x.json").stat().st_mode & 0o777 == 0o600


def test_an_amended_file_is_whole_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_run(tmp_path / "run", kind="train", config={"seed": 1})
    run.write_json("record.json", {"n": 1})
    run.finish()
    writes = directory.write_atomically
    for stop in range(3):
        left = [stop]

        def killed(path: Path, data: bytes, left: list[int] = left) -> None:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            writes(path, data)

        monkeypatch.setattr(directory, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            open_run(run.path).amend_json("record.json", {"n": 2})
        monkeypatch.setattr(directory, "write_atomically", writes)
        assert open_run(run.path).read_json("record.json") == {"n": 1 if stop < 2 else 2}
        run.write_json("record.json", {"n": 1})
        run.finish()
    open_run(run.path).amend_json("record.json", {"n": 3})
    assert open_run(run.path).read_json("record.json") == {"n": 3}
    assert "before" not in run.read_json("manifest.json")["files"]["record.json"]
    (run.path / "record.json").write_text("{}")
    with pytest.raises(DataError, match="not what the manifest says"):
        open_run(run.path)
