"""Bad calls at every public entry of Python: a result, or one line that says what is wrong, and nothing else."""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
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
from .bad import POOLS, made

_UNTOLD = re.compile(r"Traceback|\n|0x[0-9a-f]{6}|torch\.\w*Error")
Entry = tuple[Callable[..., Any], Callable[[], Mapping[str, Any]], Mapping[str, list[str]]]
Entries = Mapping[str, Entry]
# The pool of bad values for each argument of each entry.
PLACES = """
unlearn: model=networks forget=sets retain=sets test=sets validation=sets method=methods options=settings
    defense=defenses seed=seeds defense_seed=seeds_or_none device=devices on_update=watchers untrained=untrained
    drawn=words stored=odd
methods: model=networks method=names untrained=untrained validation=sets
compare: original=networks unlearned=networks retrained=references seed=seeds drawn=words
    forget=sets retain=sets test=sets
teleport: model=networks symmetry=odd retain=examples forget=sets seed=seeds_or_none
check_model: model=networks known=examples test=sets preprocess=functions readings=readings accuracy=shares
    defense=defenses
load_run: path=paths model=odd data=odd kind=odd test=odd holdout=odd ids=odd classes=odd scale=odd mean=odd std=odd
    preprocess=odd dtype=odd seed=odd device=odd threads=odd config=odd override=overrides nonsense=odd
as_examples: source=examples
read_weights: path=paths
load_weights: weights=states model=no_networks
load_table: kind=kinds path=paths test=paths holdout=holdouts ids=odd size=sizes classes=classes seed=seeds
find: asked=asked table=no_tables by=odd
read_request: path=paths column=odd
Parts.start: table=no_tables validation=numbers
Parts.request: table=no_tables rows=rows
Parts.load: path=paths
Parts.save: path=unwritable
Parts.align: table=no_tables
"""


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Entries:
    """Each public function, arguments with which it gives a result, and the bad values of each place."""
    folder = tmp_path_factory.mktemp("calls")
    y = np.arange(90) % 3
    x = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32) + 2 * y[:, None]
    np.savez(folder / "points.npz", x=x, y=y, id=np.array([f"p{i}" for i in range(90)]))
    (folder / "rows.csv").write_text("row\n1\n2\n")
    save_weights(folder / "a.safetensors", bad.network())
    table = load_table("npz", folder / "points.npz", ids="id")
    parts = Parts.start(table)
    parts.save(folder / "rows.npz")

    def sets(**more: Any) -> dict[str, Any]:
        return {"forget": (bad.x(8, 1), bad.y(8)), "retain": (bad.x(40, 2), bad.y(40)), **more}

    def unlearn(options: Any = (), **given: Any) -> Any:
        quick = {"epochs": 1, "batch_size": 8} if given["method"] == "ngp" else {"epochs": 1}
        return wu.unlearn(options=quick if isinstance(options, tuple) else options, **given)

    calls: dict[str, tuple[Callable[..., Any], Callable[[], Mapping[str, Any]]]] = {
        "unlearn": (unlearn, lambda: sets(model=bad.network(), method="ngp")),
        "methods": (unlearn, lambda: sets(model=bad.network(), method="scrub")),
        "compare": (wu.compare, lambda: sets(original=bad.network(), unlearned=bad.network(1))),
        "teleport": (wu.teleport, lambda: {**sets(model=bad.network(), symmetry=wu.ChangeOfBasis())}),
        "check_model": (wu.check_model, lambda: {"model": bad.network(), "known": (bad.x(40), bad.y(40))}),
        "load_run": (load_run, lambda: {"path": str(folder / "a.safetensors"), "data": str(folder / "points.npz")}),
        "as_examples": (
            lambda source: check_examples(bad.network(), {"data": as_examples(source, what="data")}),
            lambda: {"source": sets()["retain"]},
        ),
        "read_weights": (read_weights, lambda: {"path": folder / "a.safetensors"}),
        "load_weights": (load_weights, lambda: {"model": bad.network(), "weights": bad.network().state_dict()}),
        "load_table": (load_table, lambda: {"kind": "npz", "path": folder / "points.npz"}),
        "find": (find, lambda: {"asked": [1, 2], "table": table, "by": "row"}),
        "read_request": (
            lambda path, column=None: find(read_request(path, column), table),
            lambda: {"path": folder / "rows.csv"},
        ),
        "Parts.start": (Parts.start, lambda: {"table": table}),
        "Parts.request": (parts.request, lambda: {"table": table, "rows": np.array([1])}),
        "Parts.load": (Parts.load, lambda: {"path": folder / "rows.npz"}),
        "Parts.save": (parts.save, lambda: {"path": folder / "rows.npz"}),
        "Parts.align": (parts.align, lambda: {"table": table}),
    }
    found = dict(re.findall(r"^(\S+): (.*(?:\n .*)*)", PLACES, re.MULTILINE))
    pools = {
        name: {k: POOLS[pool] for k, pool in (one.split("=") for one in text.split())} for name, text in found.items()
    }
    return {name: (*call, pools[name]) for name, call in calls.items()}


def outcome(entry: Entry, chosen: Mapping[str, str]) -> tuple[str, str | None]:
    """A result, refused or stopped; and what is a fault in that."""
    call, good, _ = entry
    arguments = dict(good()) | {place: made(expression) for place, expression in chosen.items()}
    must = any(not expression.startswith("?") for expression in chosen.values())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(**arguments)
    except WarpError as error:
        text, late = str(error), must and error.exit_code != 2
        untold = _UNTOLD.search(text) is not None or len(text) > 400
        return "stopped" if error.exit_code == 1 else "refused", f"says {text!r}" if untold or late else None
    except Exception as error:
        return "other", f"{type(error).__name__}: {str(error)[:200]}"
    return "result", "it should be refused" if must else None


def drawn(entries: Entries, count: int, seed: int) -> list[tuple[str, dict[str, str]]]:
    """Every bad value once, in one of the places where it may stand, then any in any place, sometimes two at once."""
    draw = random.Random(seed)
    every = [(n, place, value) for n, (*_, places) in entries.items() for place in places for value in places[place]]
    draw.shuffle(every)
    calls = [
        (name, {place: value}) for name, place, value in {value: one for one in every for value in one[2:]}.values()
    ]
    while len(calls) < count:
        name, place, value = draw.choice(every)
        other, pool = draw.choice(list(entries[name][2].items()))
        calls.append((name, {other: draw.choice(pool), place: value} if draw.random() < 0.3 else {place: value}))
    return calls[:count]


@pytest.mark.parametrize(("count", "seed"), [(300, 0), pytest.param(3000, 1, marks=pytest.mark.slow)])
def test_bad_calls(entries: Entries, count: int, seed: int) -> None:
    outcomes, faults = Counter[str](), set()
    for name, chosen in drawn(entries, count, seed):
        torch.manual_seed(0)
        found, fault = outcome(entries[name], chosen)
        outcomes[found] += 1
        if fault is not None:
            faults.add(f"{name}({chosen}): {fault}")
    print(dict(outcomes))  # noqa: T201
    assert not faults, f"{len(faults)} of {count} calls: " + "\n".join(sorted(faults))
    assert outcomes["refused"] > 2 * count / 3
    assert seed == 0 or outcomes["result"] > 100


def test_good_calls_give_results(entries: Entries) -> None:
    found = {name: outcome(entry, {}) for name, entry in entries.items()}
    # Nobody has trained the network of these, and says which it is.
    assert {name for name, each in found.items() if each != ("result", None)} == {"load_run"}
