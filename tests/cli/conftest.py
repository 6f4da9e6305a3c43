from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from warp_unlearning.cli.main import main
from warp_unlearning.cli.subject import load_run

QUICK = ("-o", "method.options.epochs=1")


@dataclass(frozen=True)
class Answer:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def ok(self) -> Answer:
        assert self.code == 0, self.err
        return self

    def judged(self) -> Answer:
        """A judgement, whatever it says."""
        assert self.code in (0, 1, 3), self.err
        return self

    def refused(self, *parts: str) -> None:
        """One line that holds these parts, and nothing done."""
        assert self.code == 2, self.out
        (line,) = self.err.splitlines()
        assert line.startswith("error: ")
        assert all(part in line for part in parts), line

    def json(self) -> Any:
        return json.loads(self.out)


Warp = Callable[..., Answer]
THREADED = ("check", "train", "unlearn", "compare", "teleport", "bounds", "train-prior", "reconstruct")


def run(*args: object) -> Answer:
    """`warp` with these arguments, in this process, on one thread."""
    command = [str(a) for a in args]
    threaded = command[:1] and (command[0] in THREADED or command[:2] == ["audit", "pair"])
    if threaded and not {"--help", "-h", "--threads"} & {*command}:
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
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A terminal of one width; the variables and threads a command sets do not outlive its test."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.delenv("WARP_DEBUG", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small() -> tuple[str, ...]:
    """Options of a small training on digits."""
    return ("-o", "training.epochs=2", "-o", "model.options.width=4", "--device", "cpu", "--validation", "0.1")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, small: tuple[str, ...]) -> Path:
    out = tmp_path_factory.mktemp("digits") / "trained"
    run("train", "--out", out, *small).ok()
    return out


@pytest.fixture(scope="session")
def forget_file(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """Fifty rows that the model learned from."""
    path = tmp_path_factory.mktemp("forget") / "forget.npy"
    np.save(path, load_run(trained).known[100:150])
    return path


@pytest.fixture(scope="session")
def unlearned(tmp_path_factory: pytest.TempPathFactory, trained: Path, forget_file: Path) -> Path:
    out = tmp_path_factory.mktemp("digits") / "unlearned"
    run("unlearn", trained, "--out", out, "--forget", forget_file, "--method", "ngp", *QUICK).judged()
    return out


@pytest.fixture(scope="session")
def retrained(tmp_path_factory: pytest.TempPathFactory, trained: Path, forget_file: Path) -> Path:
    out = tmp_path_factory.mktemp("digits") / "retrained"
    run("unlearn", trained, "--out", out, "--forget", forget_file, "--method", "retrain").judged()
    return out


@pytest.fixture(scope="session")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty points of three classes and thirty to test on, for an mlp; each has a name."""
    y = np.arange(90) % 3
    x = np.random.default_rng(0).normal(size=(90, 4)) + 2 * y[:, None]
    path = tmp_path_factory.mktemp("points") / "points.npz"
    names = np.array([f"p{i:02d}" for i in range(60)])
    x = x.astype(np.float32)
    np.savez(path, x=x[:60], y=y[:60], x_test=x[60:], y_test=y[60:], name=names)
    return path


@pytest.fixture(scope="session")
def fit() -> Callable[..., None]:
    """Trains a network on an .npz as a user would elsewhere: on inputs over `scale`, by Adam on all rows at once."""

    def train(model: nn.Module, data: Path, *, scale: float = 1, steps: int = 60, lr: float = 0.01) -> None:
        arrays = np.load(data)
        x, y = torch.tensor(arrays["x"]).float() / scale, torch.tensor(arrays["y"]).long()
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            found = model(x[:, None] if x.dim() == 3 else x)
            F.cross_entropy(getattr(found, "logits", found), y).backward()
            optimizer.step()

    return train


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as 8-bit images from 0 to 255, 1,300 known and 497 unseen."""
    x, y = load_digits(return_X_y=True)
    images = (x.reshape(-1, 8, 8) * 15.9).astype(np.uint8)
    path = tmp_path_factory.mktemp("bytes") / "digits.npz"
    np.savez(path, x=images[:1300], y=y[:1300], x_test=images[1300:], y_test=y[1300:])
    return path
