"""From a results file to the results in it: whole, of a version that is read here, and as they were written.

Files of version 1 are read as version 2. Their verdicts were others; the judge's are made of the ends of intervals that
they hold. They do not say what an attack sees in the original, nor whether the model still works: nothing holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import DataError, InputError
from ..runs.directory import MANIFEST, open_run
from ..stats import roc
from ..stats.evidence import beyond_half, from_half, judge_shadows
from ..stats.intervals import Estimate, normal_beyond
from ..stats.verdict import MARGIN, Evidence, Needs, Verdict, judge
from . import schema
from .schema_shadow import Rows, Shadow
from .words import showable

Model = TypeVar("Model", bound=BaseModel)
NAMES = ("results.json", "audit.json")
Results = Shadow | Rows | schema.Pair | schema.Reconstruction | schema.Unlearning
_KINDS: Mapping[str, type[Results]] = {
    "shadow": Shadow,
    "study": Shadow,
    "pair": schema.Pair,
    "reconstruction": schema.Reconstruction,
    "unlearn": schema.Unlearning,
}
# Kinds with files of version 1.
_UPGRADED = ("shadow", "study", "pair")


def results_file(path: Path) -> Path:
    """The file itself, or the results in a folder that a command wrote."""
    found = next((path / name for name in NAMES if (path / name).is_file()), path) if path.is_dir() else path
    if not found.is_file():
        raise InputError(
            f"there is no results file {found}; give the results.json or audit.json of an audit or a reconstruction, "
            "or the folder it is in"
        )
    return found


def read(path: Path) -> Results:
    """The results at `path`, a file or a folder, every field checked; in a run, as its manifest has them."""
    file = results_file(path)
    if (file.parent / MANIFEST).is_file():
        open_run(file.parent)
    try:
        data = json.loads(file.read_bytes().decode(), parse_constant=_not_json)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file} is cut short or damaged: line {error.lineno}, column {error.colno}: {error.msg}; make the "
            "audit again, or copy the file again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read as JSON ({error}); make the audit again") from error
    return read_data(data, str(file))


def read_data(data: object, name: str) -> Results:
    """The results in plain data, which errors call `name`."""
    found = current(data, name)
    model: type[Results] = Rows if "rows" in found and found["kind"] == "study" else _KINDS[found["kind"]]
    return checked(model, found, name)


def current(data: object, name: str) -> dict[str, Any]:
    """Plain data of a version that is read here as this version writes them, every text fit to be shown."""
    if not isinstance(data, Mapping):
        raise DataError(f"{name} holds a {type(data).__name__}, no results; make the audit again")
    kind, version = data.get("kind"), data.get("schema_version")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DataError(
            f"{name}: kind is {showable(repr(kind))}; {', '.join(_KINDS)} can be read here: "
            "`warp audit pair BEFORE AFTER --out FOLDER` makes what is reported"
        )
    known = (1, 2) if kind in _UPGRADED else (2,)
    if type(version) is not int or version not in known:
        raise DataError(
            f"{name} has schema version {showable(repr(version))}; this program reads {' and '.join(map(str, known))}: "
            "make the audit again, or use the version of this package that wrote it"
        )
    found: dict[str, Any] = _showable(data)
    if version == 2:
        return found
    try:
        return upgrade(found)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{name} is no file of version 1 ({error!r}); make the audit again") from error


def checked(model: type[Model], data: object, name: str) -> Model:
    """The data as the model has them, or an error of one line that names the field and its value."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        value = first["input"] if first["type"] != "missing" else None
        shown = (
            f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
            if isinstance(value, dict | list | tuple)
            else showable(repr(value))[:60]
        )
        what = "is missing" if first["type"] == "missing" else f"is {shown}: {first['msg']}"
        raise DataError(
            f"{name}: {where or 'the whole of it'} {what}; the file is damaged or another program wrote it, so make "
            "the audit again"
        ) from error


@dataclass(frozen=True)
class Judged:
    """One verdict of a file, None where nothing was measured, and the rates of each attack; `name` is the arm's."""

    name: str
    verdict: Verdict | None
    rates: tuple[tuple[str, roc.Rate], ...]


def judged(results: Results) -> tuple[Judged, ...]:
    """The verdict of every arm of an audit by shadow models, or the one of other results."""
    if isinstance(results, Rows):
        raise InputError(f"the study {results.study} measures times or images of many runs, and has no verdict")
    if isinstance(results, Shadow):
        return tuple(Judged(arm.name, arm.verdict, _rates(arm.verdict)) for arm in results.arms)
    rates = _rates(results.verdict)
    if isinstance(results, schema.Pair):
        rates = tuple((row.name, roc.Rate(r.fpr, r.tpr, r.negatives)) for row in results.rows for r in row.rates)
    return (Judged("", results.verdict, rates),)


def _rates(verdict: Verdict | None) -> tuple[tuple[str, roc.Rate], ...]:
    evidence = () if verdict is None else verdict.evidence
    return tuple((e.attack, rate) for e in evidence for rate in e.rates)


def upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """Results of version 1 as version 2 has them."""
    found = {**data, "schema_version": schema.SCHEMA_VERSION}
    if "arms" in found:
        found["arms"] = [{**arm, "verdict": _arm_verdict(arm)} for arm in found["arms"]]
    elif found["kind"] == "pair":
        rows, counts = found["rows"], found["counts"]
        found = {key: value for key, value in found.items() if key in schema.Pair.model_fields} | {
            "rows": [_pair_row(row) for row in rows],
            "verdict": _pair_verdict(rows, counts["forgotten"], counts["never seen"]),
            "models": found.get("models", {}),
            "date": found.get("date", ""),
        }
    return found


def _arm_verdict(arm: Mapping[str, Any]) -> Verdict | None:
    whole, kept = arm["all"], arm["retain_leakage"]
    if whole is None:
        return None
    before = None if kept is None else _estimate(kept["before"])
    named = [("U-LiRA", whole), *((name, score) for name, score in (arm["slices"] or {}).items() if score is not None)]
    evidence = [found for name, score in named if (found := _shadow_evidence(name, score, before)) is not None]
    return judge_shadows(evidence, shadows=whole.get("shadows", 2))


def _shadow_evidence(name: str, score: Mapping[str, Any], before: Estimate | None) -> Evidence | None:
    area, p, seen = _estimate(score["auc"]), score["p_value"], from_half(before or Estimate(0.5, 0.0, 1.0))
    if area is None:
        return None
    return Evidence(
        name, "new outputs", area, before, (), beyond_half(area), _error(area), p, p, seen, _plain_rates(score)
    )


def _pair_row(row: Mapping[str, Any]) -> dict[str, Any]:
    attack, _, step = row["name"].partition(" after ")
    own = {key: row[key] for key in ("name", "needs", "auc", "rates")}
    retrained = [] if row["retrained"] is None else [row["retrained"]]
    own["needs"] = _needs(row)
    return own | {"attack": attack, "step": step or "naive", "original": None, "retrained": retrained}


def _needs(row: Mapping[str, Any]) -> Needs:
    """What an attack is given, which version 1 says in a sentence."""
    if "both" in row["needs"]:
        return "both weights" if "weights" in row["needs"] else "both outputs"
    return "new weights" if "weights" in row["needs"] else "new outputs"


def _pair_verdict(rows: list[Mapping[str, Any]], forgotten: int, unseen: int) -> Verdict:
    beside = [row for row in rows if row["beyond"] is not None]
    found = [_pair_evidence(row, len(beside)) for row in rows]
    evidence = [e for e in found if e is not None]
    return judge(evidence, rows=forgotten, unseen=unseen, null="unseen", references=bool(beside))


def _pair_evidence(row: Mapping[str, Any], attacks: int) -> Evidence | None:
    """An attack on the new model beside unseen rows, or one on both models beside the retrained model, if any."""
    area, rates, needs = _estimate(row["auc"]), _plain_rates(row), _needs(row)
    p = 1.0 if row["adjusted_p"] is None else row["adjusted_p"]
    if area is None:
        return None
    if needs.startswith("new"):
        unknown = Estimate(0.0, -0.5, 0.5)
        return Evidence(row["name"], needs, area, None, (), beyond_half(area), _error(area), p, p, unknown, rates)
    beyond, reference = _estimate(row["beyond"]), _estimate(row["retrained"])
    if beyond is None or reference is None:
        return None
    error = max((beyond.high - beyond.low) / 2 / normal_beyond(0.025 / attacks), 1e-12)
    p = NormalDist().cdf((2 * MARGIN - beyond.value) / error)
    more = Estimate(beyond.value, 0.0, beyond.high)
    test = (more, error, p, min(attacks * p, 1.0), from_half(reference), rates)
    return Evidence(row["name"], needs, area, None, (reference,), *test)


def _estimate(plain: Mapping[str, Any] | None) -> Estimate | None:
    """None where the file has none, or not both ends of its interval."""
    return None if plain is None or None in plain.values() else Estimate(plain["value"], plain["low"], plain["high"])


def _plain_rates(of: Mapping[str, Any]) -> tuple[roc.Rate, ...]:
    return tuple(
        roc.Rate(r["fpr"], _estimate(r["tpr"]) if r["resolved"] else None, r["negatives"]) for r in of["rates"]
    )


def _error(area: Estimate) -> float:
    return (area.high - area.low) / 2 / normal_beyond(0.025)


def _showable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {showable(key): _showable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_showable(inner) for inner in value]
    return showable(value) if isinstance(value, str) else value


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not JSON")
