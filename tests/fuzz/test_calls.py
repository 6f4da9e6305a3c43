"""Bad calls at every public entry of Python: a result, or one line that says what is wrong, and nothing else."""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warp_unlearning as wu
from warp_unlearning.cli.subject import load_run
from warp_unlearning.data.examples import as_examples
from warp_unlearning.data.sources import load_table
from warp_unlearning.data.table import Parts, find, read_request
from warp_unlearning.errors import WarpError
from warp_unlearning.models.own import check_examples
from warp_unlearning.models.weights import load_weights, read_weights, save_weights

from . import bad
from .bad import DEFENSES, DEVICES, EXAMPLES, METHODS, NETWORKS, ODD, REFERENCES, SEEDS, SETTINGS, STATES, made, pool

_UNTOLD = re.compile(r"Traceback|\n|0x[0-9a-f]{6}|object at|torch\.\w*Error")


@dataclass
class Entry:
    """A public function, arguments with which it gives a result, and the bad values of each place."""

    call: Callable[..., Any]
    good: Callable[[], Mapping[str, Any]]
    places: Mapping[str, list[str]] = field(default_factory=dict)


def told(error: WarpError) -> str | None:
    """What is wrong with the text of an error, if anything is."""
    text = str(error)
    return f"{len(text)} characters: {text!r}" if _UNTOLD.search(text) or len(text) > 400 else None


def outcome(entry: Entry, chosen: Mapping[str, str]) -> tuple[str, str | None]:
    """Result, refused or stopped; and what is a fault in that."""
    arguments = dict(entry.good()) | {place: made(expression) for place, expression in chosen.items()}
    must = any(not expression.startswith("?") for expression in chosen.values())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            entry.call(**arguments)
    except WarpError as error:
        late = must and error.exit_code != 2
        return ("stopped" if error.exit_code == 1 else "refused"), (told(error) or (f"late: {error}" if late else None))
    except Exception as error:
        return "other", f"{type(error).__name__}: {str(error)[:200]}"
    return "result", "it should be refused" if must else None


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Entry]:
    folder = tmp_path_factory.mktemp("calls")
    y = np.arange(90) % 3
    x = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32) + 2 * y[:, None]
    np.savez(folder / "points.npz", x=x, y=y, id=np.array([f"p{i}" for i in range(90)]))
    (folder / "rows.csv").write_text("row\n1\n2\n")
    save_weights(folder / "a.safetensors", bad.network())
    table = load_table("npz", folder / "points.npz", ids="id")
    parts = Parts.start(table)
    sets = {"forget": lambda: (bad.x(8, 1), bad.y(8)), "retain": lambda: (bad.x(40, 2), bad.y(40))}
    seen = {"forget": EXAMPLES[1:], "retain": EXAMPLES[1:], "test": EXAMPLES[1:]}
    path = [*ODD[:-1], "'missing'", "'.'", "'/dev/null'", "''", "'a' * 5000", "'a\\0b'"]
    rows = pool("[]; [90]; [-1]; [0.5]; [NAN]; ['zz']; [True]; [None]; [[1]]; None; 'p1'; 5; [2**70]; {1: 2}; object(); x()")
    wrong = pool("'data'; 5; {}; [1]; [None]")
    sizes = pool("5; (0, 4); (2.5, 2); 'ab'; (-1, -1)")

    def teach(**given: Any) -> Any:
        options = {"epochs": 1, "batch_size": 8}
        return wu.unlearn(**{"options": options if given["method"] == "ngp" else None, **given})

    def model_and_sets(**more: Any) -> dict[str, Any]:
        return {"model": bad.network(), **{name: make() for name, make in sets.items()}, **more}

    def checked(**given: Any) -> Any:
        return wu.check_model(given.pop("model"), **given)

    def read(path: Any, column: Any = None) -> Any:
        return find(read_request(path, column), table)

    texts = [e for e in ODD if e != "'a\\\\nb' * 300"]
    return {
        "unlearn": Entry(
            teach,
            lambda: model_and_sets(method="ngp"),
            {
                **seen,
                "model": NETWORKS,
                "validation": EXAMPLES[1:],
                "method": METHODS,
                "options": SETTINGS,
                "defense": DEFENSES,
                "seed": SEEDS,
                "defense_seed": SEEDS[1:],
                "device": DEVICES,
                "on_update": pool("5; 'x'; [1]"),
                "untrained": pool("?5; ?'x'; ?nn.Linear(9, 9); ?(lambda: None); ?fail"),
                "drawn": pool("?5; ?NAN; ?'a\\nb'; ?object()"),
            },
        ),
        "methods": Entry(
            lambda **given: wu.unlearn(**{**given, "options": None if given["method"] == "langevin" else {"epochs": 1}}),
            lambda: model_and_sets(method="scrub"),
            {
                "model": NETWORKS,
                "method": [f"?'{name}'" for name in ("salun", "pgu", "bad_teacher", "srf_on", "retrain", "finetune")],
                "untrained": pool("?5; ?'x'; ?nn.Linear(9, 9); ?(lambda: None); ?fail; ?(lambda a: a)"),
                "validation": EXAMPLES[1:],
            },
        ),
        "compare": Entry(
            lambda **given: wu.compare(given.pop("original"), given.pop("unlearned"), **given),
            lambda: {"original": bad.network(), "unlearned": bad.network(1)} | {n: make() for n, make in sets.items()},
            {
                **seen,
                "original": NETWORKS,
                "unlearned": NETWORKS,
                "retrained": [e if e not in ("()", "[]") else f"?{e}" for e in REFERENCES],
                "seed": SEEDS,
            },
        ),
        "teleport": Entry(
            lambda **given: wu.teleport(given.pop("model"), given.pop("symmetry"), **given),
            lambda: {"model": bad.network(), "symmetry": wu.ChangeOfBasis(), "retain": sets["retain"]()},
            {"model": NETWORKS, "symmetry": ODD, "retain": EXAMPLES, "forget": EXAMPLES[1:], "seed": SEEDS[1:]},
        ),
        "check_model": Entry(
            checked,
            lambda: {"model": bad.network(), "known": (bad.x(40), bad.y(40))},
            {
                "model": NETWORKS,
                "known": EXAMPLES,
                "test": EXAMPLES[1:],
                "preprocess": pool("5; (lambda a: None); (lambda a: a[:3]); (lambda a: a * NAN); fail; (lambda: 1); 'x'"),
                "readings": pool("5; 'x'; [1]; {'a': 5}; ?{'a': lambda a: a[:, :1]}; ?{1: fail}"),
                "accuracy": pool("2; -1; NAN; 'x'; [1]; True; 0.5"),
                "defense": DEFENSES,
            },
        ),
        "load_run": Entry(
            lambda **given: load_run(given.pop("path"), **given),
            lambda: {"path": str(folder / "a.safetensors"), "data": str(folder / "points.npz")},
            {
                "path": path,
                **{name: ODD for name in ("model", "data", "kind", "test", "holdout", "ids", "classes", "scale", "mean")},
                **{name: ODD for name in ("std", "preprocess", "dtype", "seed", "device", "threads", "config")},
                "override": pool("5; 'a'; ['a']; ['a.b=1']; [1]; ['seed=x']; {1: 2}"),
                "nonsense": ODD,
            },
        ),
        "as_examples": Entry(
            lambda source: check_examples(bad.network(), {"data": as_examples(source, what="data")}),
            lambda: {"source": sets["retain"]()},
            {"source": EXAMPLES},
        ),
        "read_weights": Entry(read_weights, lambda: {"path": folder / "a.safetensors"}, {"path": path}),
        "load_weights": Entry(
            load_weights,
            lambda: {"model": bad.network(), "weights": bad.network().state_dict()},
            {"weights": STATES, "model": pool("None; 5; 'x'; nn.Linear; {}; nn.Linear(2, 2); network().to('meta')")},
        ),
        "load_table": Entry(
            load_table,
            lambda: {"kind": "npz", "path": folder / "points.npz"},
            {
                "kind": [*ODD, "'npx'", "'csv'", "'folder'", "'npy'", "'cifar10'", "'digits'", "'fashion_mnist'"],
                "path": path,
                "test": path,
                "holdout": pool("0; 1; -1; NAN; 'x'; [1]; True; 1e-9; ?0.5"),
                "ids": [e for e in ODD if e != "'id'"],
                "size": sizes,
                "classes": pool("0; -1; 2; 2.5; 'abc'; [1, 2]; []; ['a']; {1: 2}; ['a', 'a', 'a']; NAN; ?5"),
                "seed": [f"?{e.lstrip('?')}" for e in SEEDS],
            },
        ),
        "find": Entry(
            find, lambda: {"asked": [1, 2], "table": table, "by": "row"}, {"asked": rows, "table": wrong, "by": ODD}
        ),
        "read_request": Entry(
            read, lambda: {"path": folder / "rows.csv"}, {"path": path, "column": [e for e in texts if e != "5"]}
        ),
        "Parts.start": Entry(Parts.start, lambda: {"table": table}, {"table": wrong, "validation": rows[1:9]}),
        "Parts.request": Entry(
            parts.request, lambda: {"table": table, "rows": np.array([1])}, {"table": wrong, "rows": rows}
        ),
        "Parts.load": Entry(Parts.load, lambda: {"path": folder / "rows.npz"}, {"path": path}),
        "Parts.save": Entry(parts.save, lambda: {"path": folder / "rows.npz"}, {"path": path}),
        "Parts.align": Entry(parts.align, lambda: {"table": table}, {"table": wrong}),
    }


def drawn(entries: Mapping[str, Entry], count: int, seed: int) -> list[tuple[str, dict[str, str]]]:
    """Every bad value in one place that it may stand in, then any in any place, sometimes two at once."""
    draw = random.Random(seed)
    every = [(name, place, value) for name, entry in entries.items() for place, pool in entry.places.items() for value in pool]
    draw.shuffle(every)
    first = list({(value, name): (name, {place: value}) for name, place, value in every}.values())
    first = list({next(iter(chosen.values())): (name, chosen) for name, chosen in first}.values())
    calls = first[:count]
    while len(calls) < count:
        name, place, value = draw.choice(every)
        chosen = {place: value}
        if draw.random() < 0.3:
            other, pool = draw.choice(list(entries[name].places.items()))
            chosen.setdefault(other, draw.choice(pool))
        calls.append((name, chosen))
    return calls


def check_calls(entries: Mapping[str, Entry], count: int, *, seed: int) -> Counter[str]:
    """The number of calls of each outcome; fails with every fault."""
    outcomes, faults = Counter[str](), []
    for name, chosen in drawn(entries, count, seed):
        torch.manual_seed(0)
        found, fault = outcome(entries[name], chosen)
        outcomes[found] += 1
        if fault is not None:
            faults.append(f"{name}({chosen}): {fault}")
    assert not faults, f"{len(faults)} of {count} calls: " + "\n".join(sorted(set(faults)))
    return outcomes


def test_good_calls_give_results(entries: Mapping[str, Entry]) -> None:
    for name, entry in entries.items():
        if name not in ("check_model", "load_run"):
            assert outcome(entry, {}) == ("result", None) or name == "Parts.load", name


def test_300_bad_calls(entries: Mapping[str, Entry]) -> None:
    found = check_calls(entries, 300, seed=0)
    print(dict(found))  # noqa: T201
    assert found["refused"] > 200


@pytest.mark.long
def test_3000_bad_calls(entries: Mapping[str, Entry]) -> None:
    found = check_calls(entries, 3000, seed=1)
    print(dict(found))  # noqa: T201
