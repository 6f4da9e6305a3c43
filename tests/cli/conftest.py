from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from warp_unlearning.cli.main import main


@dataclass(frozen=True)
class Answer:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


Warp = Callable[..., Answer]
THREADED = ("train", "unlearn", "evaluate", "teleport", "bounds", "train-prior", "reconstruct")


def run(*args: object) -> Answer:
    """`warp` with these arguments, in this process, on one thread."""
    command = [str(a) for a in args]
    if (
        command
        and (
            command[0] in ("train", "unlearn", "evaluate", "teleport", "bounds", "train-prior", "reconstruct")
            or command[:2] == ["audit", "pair"]
        )
        and not {"--help", "--threads"} & {*command}
    ):
        command += ["--threads", "1"]
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    argv = sys.argv
    try:
        sys.argv = ["warp", *command]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as exit_:
        code = exit_.code or 0
    finally:
        sys.argv = argv
    assert isinstance(code, int)
    return Answer(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def warp() -> Warp:
    return run


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal of one width; the variables and threads a command sets do not outlive its test."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.delenv("WARP_DEBUG", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small() -> tuple[str, ...]:
    """Options of a small training on digits."""
    return ("-o", "training.epochs=2", "-o", "model.options.width=4", "-o", "device=cpu")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, small: tuple[str, ...]) -> Path:
    out = tmp_path_factory.mktemp("digits") / "trained"
    assert run("train", "--out", out, *small).code == 0
    return out


@pytest.fixture(scope="session")
def forget_file(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """Fifty positions that the model learned from."""
    path = tmp_path_factory.mktemp("forget") / "forget.npy"
    np.save(path, np.load(trained / "train.npy")[100:150])
    return path


@pytest.fixture(scope="session")
def unlearned(tmp_path_factory: pytest.TempPathFactory, trained: Path, forget_file: Path) -> Path:
    out = tmp_path_factory.mktemp("digits") / "unlearned"
    answer = run("unlearn", trained, "--out", out, "--forget", forget_file, "-o", "method.options.epochs=1")
    assert answer.code == 0
    return out


@pytest.fixture(scope="session")
def retrained(tmp_path_factory: pytest.TempPathFactory, trained: Path, forget_file: Path) -> Path:
    out = tmp_path_factory.mktemp("digits") / "retrained"
    assert run("unlearn", trained, "--out", out, "--forget", forget_file, "--method", "retrain").code == 0
    return out


@pytest.fixture(scope="session")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty points of three classes, for an mlp."""
    y = np.arange(60) % 3
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32) + y[:, None]
    path = tmp_path_factory.mktemp("points") / "points.npz"
    np.savez(path, x=x, y=y)
    return path


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python file with networks of a user's own, and with functions that are none."""
    path = tmp_path_factory.mktemp("network") / "network.py"
    path.write_text(
        "from torch import nn\n"
        "def build(hidden=6):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))\n"
        "def nothing():\n"
        "    return None\n"
        "def broken():\n"
        "    raise ValueError('no such thing')\n"
        "constant = 3\n"
    )
    return path
