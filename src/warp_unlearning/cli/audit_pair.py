"""`warp audit pair`: attack the models before and after a request with all that needs no shadow model, and judge."""

from __future__ import annotations

from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import By, Column, Drawn, ForgetClass, ForgetFile, Json, Options, request_flags, takes_options
from .show import finish, points, print_table, short

if TYPE_CHECKING:
    from ..report.schema import AttackRow, Pair
    from .subject import Subject

_RETRAINED = "A model retrained without the rows; two are needed to hold, one can accuse."
_ATTACK = "An attack by name, or FILE.py:Class of your own; all of ours by default, and ggd beside them."
_STEP = "A way to undo a defence before the attack, such as canonical; all unless there was none."
_REPETITIONS = "Parts of the background that the gradient difference is repeated over."


@takes_options
def pair(
    before: Annotated[Path, typer.Argument(help="The model before: a run, or a weight file.")],
    after: Annotated[Path, typer.Argument(help="The model after: a run of `warp unlearn`, or a weight file.")],
    *,
    retrained: Annotated[list[Path] | None, typer.Option(help=_RETRAINED)] = None,
    attack: Annotated[list[str] | None, typer.Option(metavar="NAME|FILE.py:Class", help=_ATTACK)] = None,
    step: Annotated[list[str] | None, typer.Option(help=_STEP)] = None,
    forget: ForgetFile = None,
    forget_class: ForgetClass = None,
    column: Column = None,
    by: By = None,
    drawn: Drawn = False,
    margin: Annotated[float, typer.Option(help="How far an area may lie from its reference.")] = 0.05,
    max_drop: Annotated[float, typer.Option(help="How far the test accuracy may fall.")] = 0.02,
    background: Annotated[int, typer.Option(min=2, help="Unseen rows that attacks are fitted on, at most.")] = 1000,
    probes: Annotated[int, typer.Option(min=1, help="Retained rows that a defence is undone with.")] = 512,
    repetitions: Annotated[int, typer.Option(min=1, help=_REPETITIONS)] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results and the scores.")] = None,
    options: Options,
    as_json: Json = False,
) -> None:
    """Attack the models before and after, also after undoing a defence, and judge what was forgotten and hidden.

    Exit code 0: it holds. 1: it does not. 2: bad input. 3: cannot be said, and the last line says what would decide.
    """
    import numpy as np

    from ..attacks.membership.pair_audit import audit_pair
    from ..data.files import array_digest
    from ..data.table import FORGET, RETAIN, TEST
    from ..errors import InputError
    from ..models.own import file_digest, trust
    from ..report.schema import Pair
    from ..unlearning.record import now
    from .request import asked_parts
    from .subject import check_known, check_reference, open_subjects

    own = [spec for spec in attack or () if ".py:" in spec]
    for spec in own:
        trust(spec)  # the user has just named it
    flags = request_flags(forget, forget_class, column, by) | {"forget__drawn": drawn or None}
    references = {f"retrained {i}": path for i, path in enumerate(retrained or (), 1)}
    subjects = open_subjects({"original": before, "unlearned": after} | references, options, **flags)
    first, last = subjects["original"], subjects["unlearned"]
    parts, word = asked_parts(first, last, after, given=forget is not None or forget_class is not None, drawn=drawn)
    check_known(first, parts.rows(FORGET))
    for name, path in references.items():
        check_reference(subjects[name], parts.rows(FORGET), path)
    # Rows that any of the models has learned from are no unseen rows, and other requests may lie between the two.
    test, retain = parts.unseen, np.intersect1d(np.intersect1d(first.known, last.known), parts.rows(RETAIN))
    for subject in subjects.values():
        test = test[subject.parts.part[test] == TEST]
    if not len(test):
        raise InputError("an audit needs rows that no model saw; give --test or --holdout")
    done = last.record.deletions
    steps = tuple(step) if step else ("naive",) if done and all(d.defense is None for d in done) else None
    settings: dict[str, Any] = {"attacks": attack or None, "steps": steps, "margin": margin, "max_drop": max_drop}
    settings |= {"background": background, "probes": probes, "repetitions": repetitions}
    run = None
    if out is not None:
        about: dict[str, Any] = {
            "models": {name: subject.identity() for name, subject in subjects.items()},
            "drawn": word,
        }
        about |= {"forget": array_digest(parts.digests, parts.part), "files": [file_digest(spec) for spec in own]}
        run = first.start_run(out, kind="audit pair", **about, **settings)
    if run is not None and run.complete:
        results = run.results(Pair)
    else:
        models = {name: subject.model.to(first.device).eval() for name, subject in subjects.items()}
        found = audit_pair(
            models.pop("original"),
            models.pop("unlearned"),
            forget=first.examples(parts.rows(FORGET)),
            retain=first.examples(retain) if len(retain) else None,
            test=first.examples(test),
            retrained=list(models.values()),
            drawn=word,
            seed=first.config.seed,
            **settings,
        )
        forgotten, behind = parts.rows(FORGET), first.table.unseen
        left, copies = len(behind) - len(test), len(forgotten) - len(np.unique(parts.digests[forgotten]))
        notes = [f"copies among the {len(forgotten):,} forgotten rows: {copies:,}"] if copies else []
        notes += [f"test rows left out, as a model learned from copies: {left:,} of {len(behind):,}"] if left else []
        results = Pair.model_validate(found.as_json() | {"date": now(), "notes": [*notes, *found.notes]})
        if run is not None:
            index: dict[str, Any] = {
                "forget_index": found.forget_index,
                "test_index": found.test_index,
                "classes": found.classes,
            }
            _write_scores(run.path / "scores.npz", {**index, **found.scores})
            run.write_json("results.json", results.model_dump(mode="json"))
            run.finish()
    recorded = _grow_record(last, results)
    if not as_json:
        _show(results)
    lines = [*(f"not tried: {what}: {why}" for what, why in results.not_tried.items()), *results.threat]
    lines += [*(f"note: {note}" for note in (*results.notes, recorded)), *results.verdict.lines]
    plain = results.model_dump(mode="json") if as_json else None
    finish(lines, results=plain, exit_code=results.verdict.exit, out=out)


def _show(results: Pair) -> None:
    models = [[name, *map(points, values.values())] for name, values in results.models.items()]
    print_table("Right answers and mean losses", ["model", *next(iter(results.models.values()))], models)
    others = [f"retrained {i + 1}" for i in range(max((len(row.retrained) for row in results.rows), default=0))]
    shown = [rate.fpr for rate in results.rows[0].rates if rate.fpr >= 0.01] if results.rows else []
    columns = ["attack", "needs", "AUC", "original", *others, *(f"TPR at {100 * fpr:g} %" for fpr in shown)]
    title = f"{results.counts['forgotten']:,} forgotten rows against {results.counts['never seen']:,} unseen ones"
    print_table(title, columns, [_cells(row) for row in results.rows])


def _cells(row: AttackRow) -> list[str]:
    rates = [rate.tpr for rate in row.rates if rate.fpr >= 0.01]
    estimates = (row.auc, row.original, *row.retrained)
    found = ["-" if e is None else short(e) for e in estimates]
    return [row.name, row.needs, *found, *("unresolved" if tpr is None else points(tpr.value) for tpr in rates)]


def _write_scores(path: Path, arrays: dict[str, Any]) -> None:
    import io

    import numpy as np

    from ..data.files import write_atomically

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def _grow_record(audited: Subject, results: Pair) -> str:
    """Add the verdict to the record of the audited run, once; returns what was done, or why nothing."""
    from ..runs.directory import open_run

    record, digests = audited.record, results.digests
    if audited.path is None or audited.kind == "file" or not record.deletions:
        return "no deletion record holds this verdict: there is none beside the audited model"
    last = record.deletions[-1]
    expected = {"unlearned": last.unlearned, "original": last.original, "forget set": last.forget_digest}
    for what, digest in expected.items():
        if digests[what] != digest:
            why = f"the audit's {what} is not that of the last deletion in the record"
            return f"no deletion record holds this verdict: {why}"
    plain = results.model_dump(mode="json")
    said = {key: plain["verdict"][key] for key in ("outcome", "reasons", "sentence")}
    kept = {key: plain[key] for key in ("kind", "date", "strongest", "counts", "digests")}
    digest = sha256(dumps(plain, sort_keys=True).encode()).hexdigest()
    if all(known.get("audit_digest") != digest for known in last.verdicts.get("audits", ())):
        verdict = said | kept | {"attacks": len(results.rows), "audit_digest": digest}
        open_run(audited.path).amend_json("record.json", record.audited(digests["unlearned"], verdict).as_json())
    return f"the deletion record of {audited.path} holds this verdict"
