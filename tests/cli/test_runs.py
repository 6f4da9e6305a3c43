from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from warp_unlearning.cli.runs import runs_app
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.runs import entry
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.store import Store, StoreError

OLD = Key("train", 1, {"seed": 1})
NEW = Key("train", 2, {"seed": 1, "recipe": {"lr": 0.1}})
SCORE = Key("score", 1, {"of": "\x1b[31m[bold]<b>"})


class Clock(datetime):
    """Entries made at a time that a test sets."""

    moment = datetime(2026, 1, 1, tzinfo=UTC)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return cls.moment


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store(tmp_path / "store")
    with monkeypatch.context() as patched:
        patched.setattr(entry, "datetime", Clock)
        for key, days, seconds in ((OLD, 30.0, 1.25), (NEW, 3.0, 2.5), (SCORE, 0.1, None)):
            patched.setattr(Clock, "moment", datetime.now(UTC) - timedelta(days=days))
            store.write(key, {"weights.bin": b"w" * 2000, "about.json": b"{}"}, seconds=seconds)
    return store


def run(store: Store | Path, *args: str) -> Any:
    path = store.root if isinstance(store, Store) else store
    return CliRunner().invoke(runs_app, [*args, "--store", str(path)], catch_exceptions=False)


def spoil(store: Store, key: Key, at: int = -1) -> None:
    path = store.path(key.digest)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_list_shows_each_result_oldest_first(store: Store) -> None:
    answer = run(store, "list")
    assert answer.exit_code == 0
    known = {key.digest[:12] for key in (OLD, NEW, SCORE)}
    rows = [line.split() for line in answer.output.splitlines() if {*line.split()} & known]
    assert [row[0] for row in rows] == [key.digest[:12] for key in (OLD, NEW, SCORE)]
    assert [row[1] for row in rows] == ["train", "train", "score"]
    assert "1.25" in rows[0]
    assert "3 results, 6.0 kB" in answer.output
    assert "score" not in run(store, "list", "--kind", "train").output
    assert "0 results" in run(store, "list", "--kind", "nothing").output


def test_list_as_json(store: Store) -> None:
    data = json.loads(run(store, "list", "--json").output)
    assert [entry["key"] for entry in data["entries"]] == [key.digest for key in (OLD, NEW, SCORE)]
    assert data["unreadable"] == 0
    assert data["entries"][1]["ingredients"] == {"seed": 1, "recipe": {"lr": 0.1}}
    assert data["entries"][1]["seconds"] == 2.5
    assert data["entries"][1]["bytes"] == 2002


def test_list_counts_what_cannot_be_read(store: Store) -> None:
    spoil(store, OLD, 100)
    assert "1 more cannot be read; `warp runs verify` says why" in run(store, "list").output
    assert json.loads(run(store, "list", "--json").output)["unreadable"] == 1


def test_show_tells_what_decided_a_result(store: Store) -> None:
    answer = run(store, "show", NEW.digest[:8])
    assert answer.exit_code == 0
    assert f"train, version 2: {NEW.digest}" in answer.output
    assert '"lr": 0.1' in answer.output
    assert "took 2.50 seconds" in answer.output
    assert answer.output.splitlines()[-1] == "intact"
    data = json.loads(run(store, "show", NEW.digest, "--json").output)
    assert data["fault"] is None
    assert data["files"]["weights.bin"]["bytes"] == 2000
    # Whatever is among the ingredients cannot steer the terminal.
    assert "\x1b" not in run(store, "show", SCORE.digest[:8]).output


def test_show_says_that_a_result_is_corrupt(store: Store) -> None:
    spoil(store, NEW)
    answer = run(store, "show", NEW.digest[:8])
    assert answer.exit_code == 1
    assert "damaged: weights.bin is not what its checksum says" in answer.output
    assert store.has(NEW)
    spoil(store, OLD, 100)
    with pytest.raises(DataError, match="is damaged"):
        run(store, "show", OLD.digest)


@pytest.mark.parametrize("beginning", ["zz", "f" * 64, "../.."])
def test_show_of_nothing_is_an_error(store: Store, beginning: str) -> None:
    with pytest.raises(InputError, match="no entry of"):
        run(store, "show", beginning)


def test_show_of_several_asks_for_more(store: Store) -> None:
    for i in range(40):
        store.write(Key("k", 1, {"i": i}), {})
    first = min(digit for digit in "0123456789abcdef" if sum(d.startswith(digit) for d in store.digests()) > 1)
    with pytest.raises(InputError, match=f"keys begin with '{first}'; give more"):
        run(store, "show", first)


def test_verify_names_what_is_corrupt_and_sets_it_aside_when_asked(store: Store) -> None:
    assert run(store, "verify").output == "3 intact, 0 damaged\n"
    spoil(store, NEW)
    answer = run(store, "verify")
    assert answer.exit_code == 1
    assert f"damaged: {NEW.digest[:12]}  weights.bin is not" in answer.output
    assert store.has(NEW)
    answer = run(store, "verify", "--set-aside", "--json")
    assert answer.exit_code == 1
    assert json.loads(answer.output) == {
        "intact": 2,
        "corrupt": {NEW.digest: "weights.bin is not what its checksum says"},
        "set_aside": True,
    }
    assert not store.has(NEW)
    assert run(store, "verify").exit_code == 0
    assert "removed 0 results and 1 leftovers, 2.4 kB" in run(store, "gc").output


def test_gc_removes_just_what_is_asked_for(store: Store) -> None:
    assert "removed 0 results and 0 leftovers, 0 B" in run(store, "gc").output
    assert "would remove 2 results, 4.0 kB" in run(store, "gc", "--older-than", "1", "--dry-run").output
    assert len(store.digests()) == 3
    data = json.loads(run(store, "gc", "--superseded", "--json").output)
    assert data["removed"] == [OLD.digest]
    assert data["bytes"] > 2002
    assert json.loads(run(store, "gc", "--older-than", "1", "--kind", "score", "--json").output)["removed"] == []
    assert json.loads(run(store, "gc", "--kind", "train", "--json").output)["removed"] == [NEW.digest]
    assert store.digests() == (SCORE.digest,)
    with pytest.raises(InputError, match="before the calendar begins"):
        run(store, "gc", "--older-than", "1e9")


@pytest.mark.parametrize("command", [["list"], ["show", "ab"], ["verify"], ["gc"]])
def test_a_folder_that_is_no_store_is_left_alone(tmp_path: Path, command: list[str]) -> None:
    with pytest.raises(StoreError, match="is no store of results"):
        run(tmp_path / "none", *command)
    assert not (tmp_path / "none").exists()


def test_the_commands_are_those_documented() -> None:
    group = typer.main.get_command(runs_app)
    assert sorted(group.commands) == ["gc", "list", "merge", "pack", "show", "verify"]  # type: ignore[attr-defined]


def test_a_packed_file_with_the_name_of_one_is_compressed(store: Store, tmp_path: Path) -> None:
    for name in ("p.tar", "p.tar.xz"):
        told = run(store, "pack", str(tmp_path / name)).output
        assert told.startswith("packed 3 results, ")
        answer = run(tmp_path / f"into {name}", "merge", str(tmp_path / name))
        assert "took 3 results; 0 were there already" in answer.output
    assert (tmp_path / "p.tar.xz").stat().st_size < (tmp_path / "p.tar").stat().st_size / 5


def test_no_store_is_made_for_a_file_that_cannot_be_taken_in(tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(b"no archive")
    with pytest.raises(DataError, match="is no file of packed results"):
        run(tmp_path / "store", "merge", str(tmp_path / "bad.tar"))
    assert not (tmp_path / "store").exists()
