"""Damaged files, folders, settings and options at the command line: 0, 1 or 3 with a result, or 2 with one line."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
import yaml
from PIL import Image
from safetensors.torch import save_file
from tests.cli.conftest import Answer, run

Case = tuple[str, str]
GIVEN = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text())
MLP, UNLEARN = GIVEN["mlp"], GIVEN["unlearn"]
VALUES, TEXTS = GIVEN["values"], [*GIVEN["texts"], "\udcff", "é" * 3000, "x" * 400]


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ../outside/marker",)  # when it is unpickled


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with everything that the commands read, whole, and one beside it that nobody may touch."""
    root, before = tmp_path_factory.mktemp("files"), Path.cwd()
    for name in ("outside", "state", "base/pair", "base/taken", "base/images/a", "base/images/b"):
        (root / name).mkdir(parents=True)
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_STATE_HOME", str(root / "state"))
    # Built once, not for each of the commands.
    patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
    os.chdir(root / "base")
    x, y = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32), np.arange(120) % 3
    x += 3 * y[:, None]
    np.savez("points.npz", x=x[:90], y=y[:90], x_test=x[90:], y_test=y[90:], id=np.array([f"p{i}" for i in range(90)]))
    np.save("pair/x.npy", x)
    np.save("pair/y.npy", y)
    np.save("rows.npy", np.arange(6))
    np.save("mask.npy", np.arange(90) < 6)
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 255, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"images/{'ab'[i % 2]}/{i}.{'jpg' if i == 3 else 'png'}")
    listed = "".join(f"images/{'ab'[i % 2]}/{i}.png,{i % 2},n{i}\n" for i in range(3))
    code = "from torch import nn\n\ndef build():\n    return nn.Linear(4, 3)\n"
    config = "seed: 1\ndata: {path: points.npz}\nmodel: {name: mlp}\ntraining: {epochs: 1, lr: 1e-3}\n"
    texts = {"list.csv": f"file,label,id\n{listed}", "rows.txt": "1\n2\n3\n", "rows.csv": "row,who\n1,a\n2,b\n"}
    texts |= {"c.yaml": config, "own.py": code, "evil.py": f"open('../outside/marker', 'w')\n{code}"}
    for name, text in {**texts, "taken/file": "mine", "../outside/secret.txt": "secret\n"}.items():
        Path(name).write_text(text)
    torch.save(torch.nn.Linear(4, 3).state_dict(), "own.pt")
    save_file(torch.nn.Linear(4, 3).state_dict(), "own.safetensors")
    os.symlink("../outside", "link")
    os.symlink("../outside/secret.txt", "leaf")
    assert run(*f"train --out trained --data points.npz {MLP}".split()).code == 0
    command = f"unlearn trained --out un --forget rows.txt {UNLEARN}".removesuffix("--out out")
    assert run(*command.split()).code in (1, 3)
    yield root / "base"
    os.chdir(before)
    patch.undo()


def spoil(draw: random.Random, name: str | Path) -> str:
    """A file cut, flipped, grown or emptied, or something else in its place."""
    file, data = Path(name), bytearray(Path(name).read_bytes())
    how, at = draw.choice(GIVEN["damages"]), draw.randrange(len(data))
    for _ in range({"flip": 1, "flip8": 8}.get(how, 0)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    if how == "zero":
        data[at : at + 16] = bytes(len(data[at : at + 16]))
    other = Path(draw.choice(["rows.npy", "points.npz", "own.pt", "c.yaml", "images/a/0.png"])).read_bytes()
    kinds = {"cut": data[:at], "grow": data + data[:20], "empty": b"", "text": b"nonsense \xff\xfe{[", "swap": other}
    file.unlink()
    if how == "link":
        file.symlink_to(Path("../outside/secret.txt").resolve())
    elif how == "fifo":
        os.mkfifo(file)
    elif how == "folder":
        file.mkdir()
    elif how != "gone":
        file.write_bytes(kinds.get(how, data))
    return f"{how} {file}"


def changed(draw: random.Random, data: Any) -> Any:
    """Plain data with one node replaced, added or left out."""
    if not isinstance(data, dict | list) or not data or draw.random() < 0.15:
        return draw.choice(VALUES)
    key, how = draw.choice(list(data) if isinstance(data, dict) else list(range(len(data)))), draw.random()
    rest = {k: v for k, v in data.items() if k != key} if isinstance(data, dict) else data[:key]
    if how < 0.25:
        added = {draw.choice(["extra", "", "seed", "../x"]): draw.choice(VALUES)}
        return rest if how < 0.12 else {**data, **added} if isinstance(data, dict) else [*data, draw.choice(VALUES)]
    made = changed(draw, data[key])
    return {**data, key: made} if isinstance(data, dict) else [*data[:key], made, *data[key + 1 :]]


def weights(draw: random.Random) -> Case:
    name = draw.choice(["own.pt", "own.safetensors"])
    command = f"check {name} --model {draw.choice(['own.py:build', 'mlp'])} --data points.npz --out out"
    if draw.random() < 0.5:
        return spoil(draw, name), command
    w, b = torch.nn.Linear(4, 3).state_dict().values()
    kinds = [torch.int64, torch.bool, torch.complex64, torch.half, torch.double, torch.bfloat16, torch.float8_e4m3fn]
    bad = draw.choice([*(w.to(kind) for kind in kinds), w.T.contiguous(), w * torch.nan, w[:2].clone(), torch.ones(())])
    state: Any = {"weight": bad, "bias": b}
    if name == "own.safetensors":
        save_file(state, name, {"warp": draw.choice(["{", "[1]", '{"schema_version": 9}', "[" * 9999, "{}"])})
        return f"{bad.dtype} {bad.shape}", command
    state = draw.choice([state, {"state_dict": state}, {"model": {}}, [1], {1: 2}, Code(), {"a": Code()}, w, "x"])
    torch.save(state, name) if draw.random() < 0.7 else Path(name).write_bytes(pickle.dumps(state))
    return f"{type(state).__name__} {bad.dtype} {bad.shape}", command


def data(draw: random.Random) -> Case:
    path = draw.choice(["points.npz", "points.npz", "pair", "pair/x.npy", "images", "list.csv"])
    files = {"pair": "pair/x.npy pair/y.npy", "pair/x.npy": "pair/y.npy", "images": "images/a/0.png images/b/3.jpg"}
    file = Path(draw.choice(files.get(path, path).split()))
    more = draw.choice(["", "", "", "--ids id", "--holdout 0.3", "--test points.npz", "--kind npz"])
    command = f"train --data {path} {MLP} --out out {more}"
    if draw.random() < 0.5 or path == "images":
        return spoil(draw, file), command
    if path == "list.csv":
        lines = file.read_text().splitlines()
        lines[draw.randrange(4)] = draw.choice(GIVEN["lines"])
        return str(file.write_text("\n".join(lines))), command
    x, y, n = np.ones((90, 4), np.float32), np.arange(90) % 3, draw.choice([0, 1, 89, 90])
    bad = [x > 0, x.astype("M8[s]"), np.array([Code()] * 90, object), x[:n], x * np.nan, x.astype(int), x.astype("S3")]
    bad += [y[:n], np.ones((90, 2, 2, 2, 2), np.uint8), x + 1j, np.ones(()), x.astype(">f4"), x.astype(float) * 1e200]
    bad += [
        y - 1,
        y + 0.5,
        y.astype(str),
        np.eye(3)[y],
        y.astype(np.uint64) + 2**63,
        y * 10**9,
        np.asfortranarray(x),
        np.ones((0, 4)),
    ]
    part, value = draw.choice(GIVEN["parts"]), draw.choice(bad)
    if path == "points.npz":
        np.savez(path, **{**np.load(path), part: value})
    else:
        np.save(file, value, allow_pickle=True)
    return f"{part} {value.dtype} {value.shape}", command


def request(draw: random.Random) -> Case:
    name = draw.choice(["rows.npy", "mask.npy", "rows.txt", "rows.csv"])
    more = draw.choice(["", "", "--column row", "--column zz", "--by row", "--by id"])
    command = f"unlearn trained --forget {name} {UNLEARN} {more}"
    if draw.random() < 0.6:
        return spoil(draw, name), command
    numbers = [[-1], [90], [0.5], ["p1"], [], [[1]], [True], [2**63], [1, 1], [np.nan], list(range(90)), ["1e3"]]
    bad: Any = draw.choice(numbers)
    if name.endswith("npy"):
        np.save(name, np.array(bad))
    else:
        head = draw.choice(["row\n", "id\n", "1\n", "row;row\n", "\n", "\ufeffrow\n"]) if name == "rows.csv" else ""
        Path(name).write_text(head + "".join(f"{value}\n" for value in bad))
    return str(bad)[:30], command


def a_run(draw: random.Random) -> Case:
    folder = Path(draw.choice(["trained", "un", "un"]))
    file = draw.choice([p for p in sorted(folder.iterdir()) if p.is_file()])
    if draw.random() < 0.05:
        file.rename(moved := folder.parent / file.name)
        file.symlink_to(moved.resolve())
        return f"! {file} is a link", f"check {folder}"
    if file.suffix in (".json", ".yaml") and draw.random() < 0.8:
        load, dump = (json.loads, json.dumps) if file.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
        text = dump(changed(draw, load(file.read_text())))
        file.write_text("[" * 9000 + "]" * 9000 if draw.random() < 0.03 else text)
        what = f"edited {file}"
    elif file.suffix == ".npz" and draw.random() < 0.7:
        arrays = dict(np.load(file))
        key = draw.choice(sorted(arrays))
        value = arrays[key]
        arrays[key] = draw.choice([value[..., :-1] if value.ndim else np.array(500), value * 0 + 7, np.array([Code()])])
        what = str(np.savez(file, **arrays))
    else:
        what = spoil(draw, file)
    about = folder / "run.json"
    if draw.random() < 0.1 and file != about:
        given = json.loads(about.read_text())
        shutil.copy("evil.py", folder)
        network = {"name": "custom", "file": draw.choice([f"{folder}/evil.py:build", "evil.py:build"])}
        about.write_text(json.dumps({**given, "network": network}))
    if draw.random() < 0.7 and file.name != "manifest.json":  # Signed anew, as whoever hands on a run can.
        manifest = json.loads((folder / "manifest.json").read_text())
        names = [p.name for p in folder.iterdir() if p.is_file() and not p.is_symlink() and p.name != "manifest.json"]
        files = {n: {"bytes": 1, "sha256": sha256((folder / n).read_bytes()).hexdigest()} for n in names}
        (folder / "manifest.json").write_text(json.dumps({**manifest, "files": files}))
    return what, draw.choice(GIVEN["runs"]).replace("RUN", str(folder))


def config(draw: random.Random) -> Case:
    command = draw.choice(GIVEN["configs"])
    if draw.random() < 0.3:
        return spoil(draw, "c.yaml"), command
    given, end = yaml.safe_load(Path("c.yaml").read_text()), draw.choice([*GIVEN["ends"], "[" * 5000])
    given.setdefault(draw.choice(["method", "forget", "defense", "accuracy", "dtype"]), {})
    text = (Path("c.yaml").read_text() if "3" in end else yaml.safe_dump(changed(draw, changed(draw, given)))) + end
    Path("c.yaml").write_text(text)
    return ("! " + text, GIVEN["configs"][0]) if "3" in end else (text[-200:], command)


def options(draw: random.Random) -> Case:
    start = draw.choice(list(GIVEN["options"]))
    names = draw.sample(GIVEN["options"][start].split(), draw.choice([1, 1, 2]))
    return "", " ".join([start, *(f"--{name} \t{draw.choice(TEXTS)}\t" for name in names)])


KINDS = (weights, data, request, a_run, a_run, config, options, options)


def seen(folder: Path) -> dict[str, str]:
    """What lies in a folder, with what is in it; nothing of a link."""
    files = [p for p in folder.rglob("*") if "__pycache__" not in p.parts and p.is_file() and not p.is_symlink()]
    return {str(p.relative_to(folder)): sha256(p.read_bytes()).hexdigest() for p in files}


def fault_of(answer: Answer) -> str | None:
    said = [line for line in re.split("[\r\n]+", answer.err) if line.strip()]
    lines = [line for line in said if not re.match(r"train:|unlearn \(", line)]
    if answer.code != 2:
        result = answer.out.strip() or (answer.code == 1 and lines)
        return None if result and answer.code in (0, 1, 3) else f"exit {answer.code}: {answer.err[-300:]}"
    one = lines[:1] and (lines[0].startswith("Usage:") or (len(lines) == 1 and lines[0].startswith("error: ")))
    return None if one and len(answer.err) < 900 else f"exit 2, {len(lines)} lines: {answer.err[:300]}"


def late(*_: object) -> None:
    raise RuntimeError("it took longer than 30 s")


@pytest.mark.parametrize(("count", "seed"), [(500, 0), pytest.param(8000, 1, marks=pytest.mark.slow)])
def test_damaged_files(base: Path, count: int, seed: int) -> None:
    outcomes, faults, case, outside = Counter[str](), [], base.parent / "case", base.parent / "outside"
    whole, before = seen(outside), signal.signal(signal.SIGALRM, late)
    for number in range(count):
        draw = random.Random(seed * 10**6 + number)
        shutil.copytree(base, case, symlinks=True)
        os.chdir(case)
        os.mkfifo("fifo")
        what, text = KINDS[number % len(KINDS)](draw)
        text = text.replace("MLP", MLP).replace("UNLEARN", UNLEARN)
        command = [part for i, piece in enumerate(text.split("\t")) for part in ([piece] if i % 2 else piece.split())]
        there = seen(case)
        signal.alarm(30)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                answer = run(*command, *(() if command[0] in ("train", "unlearn", "teleport") else ("--threads", "1")))
            fault = "it should be refused" if what[:1] == "!" and answer.code != 2 else fault_of(answer)
            outcomes[f"exit {answer.code}"] += 1
        finally:
            signal.alarm(0)
        now = seen(case)
        gone = {name for name in there if now.get(name) != there[name] and name[:2] not in ("ou", "tr", "un")}
        if gone or seen(outside) != whole:
            fault = f"written outside: {gone} {set(seen(outside)) ^ set(whole)}; {fault}"
            shutil.rmtree(outside)
            outside.mkdir()
            (outside / "secret.txt").write_text("secret\n")
        faults += [] if fault is None else [f"#{number} {what!r}: warp {text[:300]}: {fault}"]
        os.chdir(base)
        shutil.rmtree(case)
    signal.signal(signal.SIGALRM, before)
    print(dict(outcomes))  # noqa: T201
    assert not faults, f"{len(faults)} of {count} commands: " + "\n".join(faults)
    assert outcomes["exit 2"] > count / 2
