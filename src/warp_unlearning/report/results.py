"""From a results file to the results in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..errors import DataError, InputError
from ..stats.roc import Rate
from ..stats.verdict import Verdict
from .fields import Field
from .measures import read_rate
from .pair_results import PairResults, read_pair
from .reconstruction_results import ReconstructionResults, read_reconstruction
from .shadow_arm import arm_verdict, read_verdict
from .shadow_results import ShadowResults, read_shadow

SCHEMA_VERSIONS = (1, 2)
NAMES = ("results.json", "audit.json")
Results = ShadowResults | PairResults | ReconstructionResults
_READERS: Mapping[str, Callable[[Field], Results]] = {
    "shadow": read_shadow,
    "pair": read_pair,
    "reconstruction": read_reconstruction,
}
# Commands by the kind of their results, which have no page.
_COMMANDS = {kind: kind for kind in ("unlearn", "check", "train", "teleport", "bounds")} | {"prior": "train-prior"}


def results_file(path: Path) -> Path:
    """The file itself, or the results in a folder that an audit wrote."""
    found = next((path / name for name in NAMES if (path / name).is_file()), path) if path.is_dir() else path
    if not found.is_file():
        raise InputError(
            f"there is no results file {found}; give the results.json or audit.json of an audit or a reconstruction, "
            "or the folder it is in"
        )
    return found


@dataclass(frozen=True)
class Judged:
    """One verdict of a file, None where nothing was measured, and the rates of each attack; `name` is the arm's."""

    name: str
    verdict: Verdict | None
    rates: tuple[tuple[str, Rate], ...]


def read_results(path: Path) -> Results:
    """The results at `path`, a file or a folder, with every field checked."""
    whole = read_whole(path)
    if whole["kind"].value == "study":
        raise InputError(
            f"{whole.file} holds the study {whole['study'].value}, which is written already: see its table.md and its "
            f"figures in {Path(whole.file).parent}; `warp report` is for an audit or a reconstruction"
        )
    if command := _COMMANDS.get(str(whole["kind"].value)):
        raise InputError(
            f"{whole.file} is a result of `warp {command}`, of which there is no report; "
            "`warp audit pair BEFORE AFTER --out FOLDER` makes what is reported"
        )
    return _READERS[whole["kind"].one_of(*_READERS)](whole)


def read_judged(path: Path) -> tuple[Judged, ...]:
    """The verdict of every arm of an audit by shadow models, or the one of other results."""
    whole = read_whole(path)
    if "arms" in whole:
        verdicts = [(arm["name"].text(), arm_verdict(arm)) for arm in whole["arms"]]
        return tuple(Judged(name, verdict, _rates(verdict)) for name, verdict in verdicts)
    if "verdict" in whole and isinstance(whole["verdict"].value, dict):
        verdict = read_verdict(whole["verdict"])
        rates = _rates(verdict)
        if "rows" in whole:
            rates = tuple((row["name"].text(), read_rate(r).known) for row in whole["rows"] for r in row["rates"])
        return (Judged("", verdict, rates),)
    whole["kind"].one_of("pair")
    verdict = read_pair(whole).verdict
    return (Judged("", verdict, _rates(verdict)),)


def _rates(verdict: Verdict | None) -> tuple[tuple[str, Rate], ...]:
    evidence = () if verdict is None else verdict.evidence
    return tuple((e.attack, rate) for e in evidence for rate in e.rates)


def read_whole(path: Path) -> Field:
    """The results at `path`, a file or a folder, of a version that is read here."""
    file = results_file(path)
    try:
        data = json.loads(file.read_bytes().decode(), parse_constant=_not_json)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file} is cut short or damaged: line {error.lineno}, column {error.colno}: {error.msg}; make the "
            "again, or copy the file again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read as JSON ({error}); make the audit again") from error
    whole = Field(data, str(file))
    version = whole["schema_version"].value
    known = SCHEMA_VERSIONS[1:] if whole["kind"].value == "reconstruction" else SCHEMA_VERSIONS
    if type(version) is not int or version not in known:
        raise DataError(
            f"{file} has schema version {version!r}; this program reads {' and '.join(map(str, known))}: make the "
            "audit again, or use the version of this package that wrote it"
        )
    return whole


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not JSON")
