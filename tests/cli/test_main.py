"""The command line as a whole: help, exit codes, errors of one line, and what is printed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warp_unlearning.cli.train as train_module
from warp_unlearning.cli.main import MEMORY_IS_FULL
from warp_unlearning.cli.show import print_table
from warp_unlearning.data.table import Parts
from warp_unlearning.errors import ConformanceError, DataError, DivergedError, InputError, WeightsError
from warp_unlearning.version import __version__

Warp = Callable[..., Any]
COMMANDS = (
    *("demo", "check", "train", "unlearn", "compare", "teleport", "methods", "defenses", "config", "train-prior"),
    *("bounds", "reconstruct", "tune", "reproduce", "bench"),
)
SCRIPT = Path(sys.executable).parent / "warp"


def test_help_answers_at_once() -> None:
    times = []
    for _ in range(5):
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time, as other tests run beside this one.
        times.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
        assert all(command in answer.stdout for command in COMMANDS)
    assert min(times) < 0.25


@pytest.mark.parametrize("command", [(), *((c,) for c in COMMANDS)], ids=lambda c: c[0] if c else "warp")
def test_help_needs_nothing_heavy(command: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['warp', *{command!r}, '--help']\n"
        "from warp_unlearning.cli.main import main\n"
        "try:\n    main()\n"
        "finally:\n"
        "    heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'PIL', 'yaml'} & set(sys.modules)\n"
        "    print('HEAVY', sorted(heavy))\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.endswith("HEAVY []\n")


def test_every_option_of_every_command_is_explained(warp: Warp) -> None:
    """By three words at least, beside the option or, where that is long, below it."""
    for command in COMMANDS:
        answer = warp(command, "--help").ok()
        lines = answer.out.splitlines()
        assert f"warp {command}" in lines[0]
        places = [place for place, line in enumerate(lines) if line.startswith("  -")]
        assert any("--" in lines[place] for place in places)
        for place in places:
            _, _, beside = lines[place].strip().partition("  ")
            # What stands below is no explanation if it is the next option.
            explained = beside or ("" if place + 1 in places else lines[place + 1].strip())
            assert len(explained.split()) >= 3, (command, lines[place])
    assert warp("train", "-h").out == warp("train", "--help").out


def test_the_version_and_the_module_as_a_command(warp: Warp) -> None:
    code = [sys.executable, "-m", "warp_unlearning", "--version"]
    found = subprocess.run(code, capture_output=True, text=True, check=True).stdout
    assert found == warp("--version").out == f"warp-unlearning {__version__}\n"


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["trian"], "No such command 'trian'"),
        (["train"], "Missing option '--out'"),
        (["unlearn"], "Missing argument"),
        (["compare", "x"], "Missing argument"),
        (["evaluate", "a", "b"], "error: `warp evaluate` is called `warp compare` now; see `warp compare --help`\n"),
        (["train", "--out", "x", "--epochs", "many"], "Invalid value for '--epochs'"),
        (["train", "--out", "x", "--threads", "0"], "Invalid value for '--threads'"),
        (["train", "--out", "x", "--nonsense"], "No such option: --nonsense"),
        (["unlearn", "a", "--out", "x", "--forget-fraction", "some"], "Invalid value for '--forget-fraction'"),
        (["train", "--out", "x", "--mean", "a,b"], "'a,b' is no list of numbers"),
    ],
)
def test_bad_usage_is_code_two_with_what_was_wrong(warp: Warp, args: list[str], part: str) -> None:
    answer = warp(*args)
    assert (answer.code, answer.out) == (2, "")
    assert part in answer.err
    assert "Traceback" not in answer.err
    assert not Path("x").exists()


DEFECT = "(WARP_DEBUG=1 shows where; please report it)\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("a; do b"), 2, "error: a; do b\n"),
        (DataError("a; do b"), 2, "error: a; do b\n"),
        (WeightsError("a; do b"), 2, "error: a; do b\n"),
        (DivergedError("too far", state={}, update=3), 1, "error: too far\n"),
        (ConformanceError("a rule"), 1, "error: a rule\n"),
        (OSError(28, "No space left on device", "/x/y"), 2, "error: No space left on device: /x/y\n"),
        (OSError("the disk is gone"), 2, "error: the disk is gone\n"),
        (RuntimeError("boom"), 70, f"defect: RuntimeError: boom {DEFECT}"),
        (KeyError("k"), 70, f"defect: KeyError: 'k' {DEFECT}"),
        (MemoryError(), 2, f"error: {MEMORY_IS_FULL}\n"),
        (KeyboardInterrupt(), 130, "stopped; the same command goes on from what has been kept\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_each_error_has_its_code_and_one_line(
    warp: Warp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException, code: int, message: str
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(train_module, "train_run", fail)
    answer = warp("train", "--out", tmp_path / "run")
    assert (answer.code, answer.out, answer.err) == (code, "", message)
    assert not (tmp_path / "run").exists()
    if code == 70:
        monkeypatch.setenv("WARP_DEBUG", "1")
        with pytest.raises(type(error)):
            warp("train", "--out", tmp_path / "run")


def test_a_failure_while_a_result_is_written_leaves_no_half_of_it(
    warp: Warp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small: tuple[str, ...]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("boom")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "save", fail)
        assert warp("train", "--out", tmp_path / "run", *small).code == 70
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"config.yaml", "model.safetensors"}
    monkeypatch.setattr(os, "fsync", full)
    warp("train", "--out", tmp_path / "full", *small).refused("No space left on device")
    assert list((tmp_path / "full").iterdir()) == []


def test_idle_threads_sleep_from_before_torch_is_there() -> None:
    code = (
        "import os, sys; sys.argv = ['warp', 'methods', 'ngp']\n"
        "os.environ.pop('OMP_WAIT_POLICY', None)\n"
        "class Found:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'torch':\n            print('POLICY', os.environ.get('OMP_WAIT_POLICY'))\n"
        "sys.meta_path.insert(0, Found())\n"
        "from warp_unlearning.cli.main import main\n"
        "main()\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("POLICY PASSIVE\n")


def test_tables_are_printed_whole_in_order_and_uncut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    wide = [f"{k}.000 [0.000, 1.000]" for k in range(6)]
    print_table("Title", ["model", "a", "b"], [["one", "0.5 [0.4, 0.6]", "1"], ["two", "[red]x[/red]", "22"]])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert (lines[0], lines[1].split()) == ("Title", ["model", "a", "b"])
    assert lines[3].split() == ["one", "0.5", "[0.4,", "0.6]", "1"]
    # The first column is text, the others are numbers.
    assert lines[4].split() == ["two", "[red]x[/red]", "22"]
    assert len(lines[3]) == len(lines[4])
    print_table("t", ["model", *"abcdef"], [["x", *wide]])
    out = capsys.readouterr().out
    assert all(cell in out for cell in wide)
    assert "…" not in out
