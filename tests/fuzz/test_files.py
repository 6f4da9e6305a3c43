"""Damaged files, folders, configurations and options at the command line: 0, 1 or 3 with a result, or 2 with one line."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
import shutil
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from tests.cli.conftest import Answer, run

Draw = random.Random
_PROGRESS = re.compile(r"(\r|train:|unlearn \()")
_ONE = ("--threads", "1")
VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**70, 1e308, -0.5, float("nan"), "", "x", "a\nb", "../outside/secret.txt", "/dev/null"),
    *([], {}, [[]], [None], {"a": 1}, ["../outside"], "evil.py:build", "hf:.", "digits", "mlp", "1", "x" * 3000, "\0"),
]
OPTIONS = {
    "check": "defense accuracy model data kind test holdout ids classes scale mean std preprocess dtype seed device config",
    "unlearn": "forget forget-class forget-fraction column by method defense defense-seed train accuracy model data seed",
    "teleport": "forget forget-class column by tolerance defense-seed symmetry override dtype device",
    "compare": "retrained forget forget-class column by data model override",
    "train": "epochs validation model data kind test holdout classes scale mean std seed device config override threads",
}
TEXTS = [
    *("", "x", "-1", "0", "1e999", "nan", "a\nb", "null", "[]", "{}", "../outside/secret.txt", "/dev/null", ".", "fifo"),
    *("evil.py:build", "evil.py:nothing", "missing.py:f", "hf:.", "points.npz", "a,b,c", "1,2", "cuda:7", "é" * 3000, "ngp"),
    *("training.lr=x", "a.b.c=1", "=", "seed=[", "model.options={hidden: 5}", "data.size=[0,1]", "x" * 400, "\udcff"),
]


class Code:
    """Unpickled, it would leave a marker."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ../outside/marker",)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with everything that the commands read, whole, and one beside it that nobody may touch."""
    root = tmp_path_factory.mktemp("files")
    base, before = root / "base", Path.cwd()
    for folder in (base, root / "outside", root / "state"):
        folder.mkdir()
    (root / "outside" / "secret.txt").write_text("secret\n")
    os.chdir(base)
    y = np.arange(120) % 3
    x = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32) + 3 * y[:, None]
    np.savez("points.npz", x=x[:90], y=y[:90], x_test=x[90:], y_test=y[90:], id=np.array([f"p{i}" for i in range(90)]))
    for name, value in (("x", x), ("y", y)):
        Path("pair").mkdir(exist_ok=True)
        np.save(f"pair/{name}.npy", value)
    for i in range(9):
        Path(f"images/{'abc'[i % 3]}").mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 255, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"images/{'abc'[i % 3]}/{i}.{'jpg' if i == 4 else 'png'}")
    Path("list.csv").write_text("file,label,id\n" + "".join(f"images/{'abc'[i % 3]}/{i}.png,{i % 3},n{i}\n" for i in (0, 1, 2, 3)))
    np.save("rows.npy", np.arange(6))
    np.save("mask.npy", np.arange(90) < 6)
    Path("rows.txt").write_text("1\n2\n3\n")
    Path("rows.csv").write_text("row,who\n1,a\n2,b\n")
    Path("c.yaml").write_text("seed: 1\ndata: {path: points.npz}\nmodel: {name: mlp, options: {hidden: [4]}}\ntraining: {epochs: 1, lr: 1e-3}\n")
    Path("own.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(4, 3)\n")
    Path("evil.py").write_text("open('../outside/marker', 'w')\nfrom torch import nn\n\ndef build():\n    return nn.Linear(4, 3)\n")
    network = torch.nn.Linear(4, 3)
    torch.save(network.state_dict(), "own.pt")
    save_file(network.state_dict(), "own.safetensors")
    os.mkfifo("fifo")
    os.environ["XDG_STATE_HOME"] = str(root / "state")
    small = ("--data", "points.npz", "--model", "mlp", "-o", "model.options.hidden=[4]", *_ONE)
    for command in (
        ("train", "--out", "trained", "--epochs", "3", *small),
        ("check", "own.pt", "--model", "own.py:build", "--data", "points.npz", "--out", "mine", *_ONE),
        ("unlearn", "trained", "--out", "un", "--forget", "rows.txt", "--method", "ngp", "-o", "method.options.epochs=1"),
    ):
        answer = run(*command)
        if command[0] == "check" and answer.code == 2:  # not a model of these data: nothing has trained it
            continue
        assert answer.code in (0, 3), answer
    yield base
    os.chdir(before)
    os.environ.pop("XDG_STATE_HOME")


def bytes_damaged(draw: Draw, file: Path) -> str:
    """A file cut, flipped, grown, emptied, or another in its place."""
    data = bytearray(file.read_bytes())
    how = draw.choice(["cut", "flip", "zero", "grow", "empty", "text", "link", "fifo", "folder", "gone", "swap"])
    if how == "flip":
        for _ in range(draw.choice([1, 2, 8])):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif how == "zero":
        start = draw.randrange(len(data))
        data[start : start + 16] = bytes(min(16, len(data) - start))
    data = {
        "cut": data[: draw.randrange(len(data))],
        "grow": data + bytes(draw.randrange(256) for _ in range(20)),
        "empty": bytearray(),
        "text": bytearray(b"nonsense \xff\xfe{["),
        "swap": bytearray(draw.choice([Path("rows.npy"), Path("points.npz"), Path("own.pt"), Path("c.yaml")]).read_bytes()),
    }.get(how, data)
    file.unlink()
    if how == "link":
        file.symlink_to(Path("..", "outside", "secret.txt").resolve())
    elif how == "fifo":
        os.mkfifo(file)
    elif how == "folder":
        file.mkdir()
    elif how != "gone":
        file.write_bytes(data)
    return f"{how} {file}"


def changed(draw: Draw, data: Any) -> Any:
    """Plain data with one node replaced, added, or left out."""
    if not isinstance(data, dict | list) or not data or draw.random() < 0.15:
        return draw.choice([*VALUES, nested(200), nested(5000) if draw.random() < 0.2 else 3])
    keys = list(data) if isinstance(data, dict) else list(range(len(data)))
    key, how = draw.choice(keys), draw.random()
    if how < 0.12:
        return {k: v for k, v in data.items() if k != key} if isinstance(data, dict) else data[:-1]
    if how < 0.24:
        value = draw.choice(VALUES)
        return {**data, draw.choice(["extra", "", "seed", "../x"]): value} if isinstance(data, dict) else [*data, value]
    made = changed(draw, data[key])
    return {**data, key: made} if isinstance(data, dict) else [*data[:key], made, *data[key + 1 :]]


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def written(text: Callable[[Any], str], data: Any) -> str:
    try:
        return text(data)
    except (RecursionError, yaml.YAMLError):
        return "[" * 5000 + "]" * 5000


def signed(folder: Path) -> None:
    """Write the manifest anew, as whoever hands on a run can."""
    manifest = json.loads((folder / "manifest.json").read_text())
    names = [p.name for p in folder.iterdir() if p.is_file() and not p.is_symlink() and p.name != "manifest.json"]
    files = {n: {"bytes": 1, "sha256": sha256((folder / n).read_bytes()).hexdigest()} for n in names}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": files}))


def damaged_weights(draw: Draw) -> tuple[str, list[str]]:
    name = draw.choice(["own.pt", "own.safetensors"])
    what = ""
    if draw.random() < 0.5:
        what = bytes_damaged(draw, Path(name))
    else:
        state: Any = torch.nn.Linear(4, 3).state_dict()
        weight = state["weight"]
        other = draw.choice([
            *(weight.long(), weight > 0, weight.to(torch.complex64), weight.half(), weight.double(), weight.T.contiguous()),
            *(weight * float("nan"), weight[:2].clone(), weight.bfloat16(), weight.to(torch.float8_e4m3fn), torch.ones(())),
        ])
        what, state = f"{other.dtype}, {tuple(other.shape)}", {**state, "weight": other}
        if name == "own.safetensors":
            about = draw.choice([None, {}, {"warp": "{"}, {"warp": "[1]"}, {"warp": '{"schema_version": 9}'}, {"warp": "[" * 9999}])
            save_file(state, name, metadata=about)
        else:
            state = draw.choice([state, {"state_dict": state}, {"model": {}}, [1], {1: 2}, Code(), {"a": Code()}, weight, "x"])
            torch.save(state, name) if draw.random() < 0.7 else Path(name).write_bytes(pickle.dumps(state))
    data = ["--model", draw.choice(["own.py:build", "mlp", "own.py:build"]), "--data", "points.npz"]
    return f"weights: {what}", ["check", name, *data, "--out", "out"]


def damaged_data(draw: Draw) -> tuple[str, list[str]]:
    path = draw.choice(["points.npz", "points.npz", "pair", "pair/x.npy", "images", "list.csv"])
    files = {"pair": "pair/x.npy pair/y.npy", "pair/x.npy": "pair/y.npy", "images": "images/a/0.png images/b/4.jpg"}
    file = Path(draw.choice(files.get(path, path).split()))
    if draw.random() < 0.5 or path == "images":
        what = bytes_damaged(draw, file)
    elif path == "list.csv":
        lines = file.read_text().splitlines()
        lines[draw.randrange(len(lines))] = draw.choice(["", "a,b", "../outside/secret.txt,0,z", "images/a/0.png,-1,q", '"', "\0,\0,\0", "file,file,id", "images/a,1,z"])
        file.write_text("\n".join(lines))
        what = "lines"
    else:
        x, y, n = np.ones((90, 4), np.float32), np.arange(90) % 3, draw.choice([0, 1, 89, 90])
        bad = draw.choice([
            *(x > 0, x.astype(complex), x.astype("M8[s]"), np.array([Code()] * 90, object), x[:n], x * np.nan, x.astype(np.int64)),
            *(np.ones((90, 2, 2, 2, 2), np.uint8), x.astype("S3"), np.ones(()), x.astype(">f4"), x.astype(np.float64) * 1e200),
            *(y - 1, y + 0.5, y.astype(str), np.eye(3)[y], y[:n], y.astype(np.uint64) + 2**63, y * 10**9, np.asfortranarray(x)),
        ])
        part = draw.choice(["x", "y", "x_test", "y_test", "id", "layout"])
        what = f"{part} {bad.dtype} {bad.shape}"
        if path == "points.npz":
            arrays = dict(np.load(path))
            np.savez(path, **{**arrays, part: bad})
        else:
            np.save(file, bad, allow_pickle=True)
    more = draw.choice([[], [], ["--ids", "id"], ["--holdout", "0.3"], ["--test", "points.npz"], ["--kind", "npz"]])
    model = ["--model", "mlp", "-o", "model.options.hidden=[4]", "--epochs", "1"]
    return f"data: {path}, {what}", ["train", "--data", path, *model, "--out", "out", *more]


def damaged_request(draw: Draw) -> tuple[str, list[str]]:
    name = draw.choice(["rows.npy", "mask.npy", "rows.txt", "rows.csv"])
    if draw.random() < 0.6:
        what = bytes_damaged(draw, Path(name))
    else:
        bad = draw.choice([[-1], [90], [0.5], ["p1"], ["zz"], [], [[1]], [True], [2**63], [1, 1], [np.nan], list(range(90)), ["1e3"]])
        what = str(bad)[:40]
        if name.endswith("npy"):
            np.save(name, np.array(bad))
        else:
            head = draw.choice(["row\n", "id\n", "1\n", "row;row\n", "\n", "\ufeffrow\n"]) if name == "rows.csv" else ""
            Path(name).write_text(head + "".join(f"{value}\n" for value in bad))
    more = draw.choice([[], [], ["--column", "row"], ["--column", "zz"], ["--by", "row"], ["--by", "id"]])
    return f"request: {name} {what}", [*unlearn("trained"), "--forget", name, *more]


def unlearn(source: str) -> list[str]:
    return ["unlearn", source, "--method", "ngp", "-o", "method.options.epochs=1", "--out", "out"]


def damaged_run(draw: Draw) -> tuple[str, list[str]]:
    folder = Path(draw.choice(["trained", "un", "un"]))
    file = draw.choice([p for p in sorted(folder.iterdir()) if p.is_file()])
    sign = draw.random() < 0.7
    if file.suffix in (".json", ".yaml") and draw.random() < 0.8:
        data = json.loads(file.read_text()) if file.suffix == ".json" else yaml.safe_load(file.read_text())
        text = json.dumps if file.suffix == ".json" else yaml.safe_dump
        file.write_text(written(text, changed(draw, data)), errors="replace")
        what = "edited"
    elif file.suffix == ".npz" and draw.random() < 0.7:
        arrays = dict(np.load(file))
        key = draw.choice(sorted(arrays))
        arrays[key] = draw.choice([arrays[key][..., :-1] if arrays[key].ndim else np.array(500), arrays[key] * 0 + 7, np.array([Code()])])
        np.savez(file, **arrays)
        what = f"{key} changed"
    else:
        what = bytes_damaged(draw, file)
    if draw.random() < 0.1:
        shutil.copy("evil.py", folder)
        about = json.loads((folder / "run.json").read_text()) if (folder / "run.json").is_file() else {}
        about = about if isinstance(about, dict) else {}
        about["network"] = {"name": "custom", "file": draw.choice([f"{folder}/evil.py:build", "evil.py:build"])}
        with open(folder / "run.json", "w") if not (folder / "run.json").is_fifo() else io.StringIO() as out:
            out.write(json.dumps(about))
        what += ", evil"
    if sign and (folder / "manifest.json").is_file() and file.name != "manifest.json":
        signed(folder)
    name = str(folder)
    commands = [["check", name], [*unlearn(name), "--forget", "rows.npy"], ["compare", "trained", "un"]]
    commands += [["teleport", name, "--symmetry", "change_of_basis", "--out", "out"], ["unlearn", name, "--plan", "--forget-class", "0", "--method", "ngp"]]
    if name == "trained":
        commands.append(["train", "--out", "trained", "--epochs", "3", "--data", "points.npz", "--model", "mlp", "-o", "model.options.hidden=[4]"])
    return f"run: {file} {what}{', signed' * sign}", draw.choice(commands)


def damaged_config(draw: Draw) -> tuple[str, list[str]]:
    if draw.random() < 0.3:
        what = bytes_damaged(draw, Path("c.yaml"))
    else:
        data = yaml.safe_load(Path("c.yaml").read_text())
        data.setdefault(draw.choice(["method", "forget", "defense", "data", "training", "accuracy", "dtype"]), {})
        text = written(yaml.safe_dump, changed(draw, changed(draw, data)))
        text += draw.choice(["", "", "seed: 2\nseed: 3\n", "a: &a [*a]\n", "? [1]\n: 2\n", "seed: 1e999\n", "!!python/object/apply:os.system ['touch ../outside/marker']\n", "threads: 2001-13-40\n"])
        Path("c.yaml").write_text(text, errors="replace")
        what = text[-60:]
    command = draw.choice([["train", "-c", "c.yaml", "--out", "out"], [*unlearn("trained"), "-c", "c.yaml", "--forget-class", "1"], ["check", "trained", "-c", "c.yaml"]])
    return f"config: {what!r}", command


def odd_options(draw: Draw) -> tuple[str, list[str]]:
    command = draw.choice(sorted(OPTIONS))
    start = {
        "check": ["check", draw.choice(["trained", "own.pt"]), "--out", "out"],
        "unlearn": [*unlearn(draw.choice(["trained", "un"])), "--forget", "rows.npy"],
        "teleport": ["teleport", "trained", "--symmetry", "permutation", "--out", "out"],
        "compare": ["compare", "trained", draw.choice(["un", "trained", "own.pt"])],
        "train": ["train", "--data", "points.npz", "--out", "out", "--epochs", "1"],
    }[command]
    given = [f for name in draw.sample(OPTIONS[command].split(), draw.choice([1, 1, 2])) for f in (f"--{name}", draw.choice(TEXTS))]
    return "options", [*start, *given]


def odd_places(draw: Draw) -> tuple[str, list[str]]:
    os.symlink("../outside", "link")
    os.symlink("../outside/secret.txt", "leaf")
    Path("taken").mkdir()
    Path("taken/file").write_text("mine")
    place = draw.choice([*TEXTS[:14], "link", "leaf", "link/new", "taken", "taken/file", "taken/file/new", "trained", "un", "images", "x\0y", "/proc/x", "own.pt"])
    command = draw.choice([
        ["train", "--data", "points.npz", "--epochs", "1", "--out", place],
        ["unlearn", "trained", "--method", "ngp", "--forget", "rows.npy", "-o", "method.options.epochs=1", "--out", place],
        ["check", "trained", "--out", place],
        ["teleport", "trained", "--symmetry", "permutation", "--out", place],
        ["compare", "trained", "un", "--out", place],
        [draw.choice(["check", "train", "compare", "methods", "defenses", "config", "evaluate", "unlearn"]), place],
    ])
    return "place", command


KINDS = (damaged_weights, damaged_data, damaged_request, damaged_run, damaged_run, damaged_config, odd_options, odd_places)


def seen(folder: Path) -> dict[str, str]:
    """What lies in a folder, with what is in it."""
    files = [p for p in folder.rglob("*") if "__pycache__" not in p.parts]
    return {str(p): str(p.readlink()) if p.is_symlink() else sha256(p.read_bytes()).hexdigest() if p.is_file() else "" for p in files}


def fault_of(answer: Answer) -> str | None:
    lines = [line for line in answer.err.splitlines() if line.strip() and not _PROGRESS.match(line)]
    if "Traceback" in answer.err or answer.code not in (0, 1, 2, 3):
        return f"exit {answer.code}: {answer.err[-300:]}"
    if answer.code != 2:
        return None if answer.out.strip() or answer.code == 1 and lines else f"exit {answer.code} without a result: {answer.err}"
    if any(line.startswith(("Usage:", "error: ")) for line in lines) and (len(lines) == 1 or lines[0].startswith("Usage:")):
        return None if len(answer.err) < 900 else f"{len(answer.err)} characters: {answer.err[:300]}"
    return f"exit 2 with {len(lines)} lines: {answer.err[:300]}"


def check_files(base: Path, count: int, *, seed: int) -> Counter[str]:
    """The number of commands of each exit code; fails with every fault."""
    outcomes, faults = Counter[str](), []

    def late(*_: object) -> None:
        raise TimeoutError("it took longer than 20 s")

    before = signal.signal(signal.SIGALRM, late)
    outside = seen(base.parent / "outside")
    for number in range(count):
        draw, case = Draw(seed * 10**6 + number), base.parent / "case"
        shutil.copytree(base, case, symlinks=True, ignore=lambda _, names: [n for n in names if n == "fifo"])
        os.chdir(case)
        os.mkfifo("fifo")
        try:
            what, command = KINDS[number % len(KINDS)](draw)
            there = seen(case)
            signal.setitimer(signal.ITIMER_REAL, 20)
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                answer = run(*command, *([] if "--threads" in command or command[0] in ("train", "unlearn", "teleport", "methods", "defenses", "config", "evaluate") else _ONE))
            signal.setitimer(signal.ITIMER_REAL, 0)
            fault = fault_of(answer)
            outcomes[f"exit {answer.code}"] += 1
            now = seen(base.parent / "outside")
            out = command[command.index("--out") + 1] if "--out" in command else "out"
            moved = [p for p, d in there.items() if seen(case).get(p, d) != d and not p.startswith(str(case / (out or ".")))] if number % 8 == 7 else []
            if now != outside or moved:
                fault = f"written outside: {set(now) ^ set(outside)} {moved} {fault or ''}"
                (base.parent / "outside" / "marker").unlink(missing_ok=True)
                outside = seen(base.parent / "outside")
            if fault is not None:
                faults.append(f"#{number} {what}: warp {' '.join(map(repr, command))[:300]}: {fault}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.chdir(base)
            shutil.rmtree(case)
    signal.signal(signal.SIGALRM, before)
    assert not faults, f"{len(faults)} of {count} commands: " + "\n".join(faults)
    return outcomes


def test_500_damaged_files(base: Path) -> None:
    found = check_files(base, 500, seed=0)
    print(dict(found))  # noqa: T201
    assert found["exit 2"] > 250


@pytest.mark.long
def test_8000_damaged_files(base: Path) -> None:
    print(dict(check_files(base, 8000, seed=1)))  # noqa: T201
