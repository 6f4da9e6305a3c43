"""Audit two checkpoints of a known model: `warp audit pair`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np

from ..attacks.membership.pair_audit import audit_pair
from ..attacks.membership.pair_report import PairAudit
from ..cli.options import Options
from ..cli.subject import PLACES, Subject, asked_parts, check_known, check_reference, open_subjects
from ..config import RESOLVED, as_plain
from ..data.files import array_digest
from ..data.table import FORGET, RETAIN, TEST, Parts
from ..errors import InputError
from ..runs.directory import RunDirectory, open_run, start_run
from ..stats.reading import MARGIN
from ..unlearning.record import DeletionRecord, now
from .audit_results import AUDIT, SCORES, read_audit, write_scores


@dataclass(frozen=True)
class PairRequest:
    """The models, what was forgotten (by default what the run at `after` forgot), and where the results go.

    `steps` are pre-steps that may undo a defence: by default all, or none for a run that used no defence. The deletion
    record of `after` grows the verdict, unless `record` is False.
    """

    before: Path
    after: Path
    forget: Path | None = None
    retrained: Sequence[Path] = ()
    out: Path | None = None
    steps: Sequence[str] | None = None
    background: int = 1000
    probes: int = 512
    margin: float = MARGIN
    seed: int = 0
    record: bool = True
    options: Options = Options()


@dataclass(frozen=True, eq=False)
class PairOutcome:
    """The audit as plain data, whether the deletion record has its verdict, and why not where it should."""

    audit: dict[str, Any]
    recorded: bool
    unrecorded: str = ""


def audit_pair_run(request: PairRequest) -> PairOutcome:
    """Audit the pair, or do nothing where the run at `out` is complete."""
    paths = {"original": request.before, "unlearned": request.after}
    paths |= {f"retrained {i + 1}": path for i, path in enumerate(request.retrained)}
    sources = open_subjects(paths, request.options)
    parts = _parts(request, sources["original"], sources["unlearned"])
    for i, path in enumerate(request.retrained):
        check_reference(sources[f"retrained {i + 1}"], parts.rows(FORGET), path)
    run = _run(request, sources, parts)
    if run is not None and run.complete:
        plain = read_audit(run.path)
    else:
        audit = _audit(request, sources, parts)
        plain = audit.as_json() | {"date": now()}
        if run is not None:
            write_scores(run.path / SCORES, audit)
            run.write_json(AUDIT, plain)
            run.finish()
    unrecorded = "" if not request.record else _grow_record(sources["unlearned"], plain)
    return PairOutcome(plain, request.record and not unrecorded, unrecorded)


def verdict_of(audit: dict[str, Any]) -> dict[str, Any]:
    """What a deletion record keeps of an audit; the digest ties it to the whole."""
    kept = (
        "kind",
        "date",
        "verdict",
        "beyond_retrained",
        "strongest",
        "strongest_strength",
        "counts",
        "digests",
        "level",
    )
    digest = sha256(dumps(audit, sort_keys=True).encode()).hexdigest()
    return {name: audit[name] for name in kept} | {"attacks": len(audit["rows"]), "audit_digest": digest}


def _parts(request: PairRequest, original: Subject, unlearned: Subject) -> Parts:
    """The part of each row after the request."""
    if request.forget is not None:
        return asked_parts(request.forget, original)
    if not unlearned.record.deletions:
        raise InputError(f"nothing says which rows {request.after} forgot; give --forget FILE")
    check_known(original, unlearned.parts.rows(FORGET))
    return unlearned.parts


def _run(request: PairRequest, sources: dict[str, Subject], parts: Parts) -> RunDirectory | None:
    if request.out is None:
        return None
    found = {
        "models": {name: source.identity() for name, source in sources.items()},
        "forget": array_digest(parts.digests, parts.part),
        "steps": list(_steps(request, sources["unlearned"]) or ()),
        "background": request.background,
        "probes": request.probes,
        "margin": request.margin,
        "seed": request.seed,
    }
    config = as_plain(sources["original"].config) | {RESOLVED: found}
    return start_run(request.out, kind="audit pair", config=config, places=PLACES)


def _steps(request: PairRequest, unlearned: Subject) -> Sequence[str] | None:
    """What was asked for; else "naive" alone where the record says that there was no defence, and all otherwise."""
    if request.steps is not None:
        return request.steps
    done = unlearned.record.deletions
    return ("naive",) if done and all(deletion.defense is None for deletion in done) else None


def _audit(request: PairRequest, sources: dict[str, Subject], parts: Parts) -> PairAudit:
    original, device = sources["original"], sources["original"].device
    # Other requests may lie between the two models.
    retain = np.intersect1d(original.known, np.intersect1d(parts.rows(RETAIN), sources["unlearned"].known))
    unseen = parts.unseen
    for source in sources.values():
        unseen = unseen[source.parts.part[unseen] == TEST]
    if not len(unseen):
        raise InputError("an audit needs rows that no model saw; give --test or --holdout")
    forgotten, retained, test = (original.examples(rows) for rows in (parts.rows(FORGET), retain, unseen))
    models = {name: source.model.to(device).eval() for name, source in sources.items()}
    return audit_pair(
        models["original"],
        models["unlearned"],
        forget=forgotten,
        retain=retained if len(retain) else None,
        test=test,
        retrained=[model for name, model in models.items() if name.startswith("retrained")],
        steps=_steps(request, sources["unlearned"]),
        background=request.background,
        probes=request.probes,
        margin=request.margin,
        seed=request.seed,
    )


def _grow_record(unlearned: Subject, audit: dict[str, Any]) -> str:
    """Add the verdict to the record of the audited run, once; or say why it does not belong there."""
    record, verdict, digests = unlearned.record, verdict_of(audit), audit["digests"]
    if unlearned.path is None or unlearned.kind == "file" or not record.deletions:
        return "there is no deletion record beside the audited model"
    last = record.deletions[-1]
    expected = {"unlearned": last.unlearned, "original": last.original, "forget set": last.forget_digest}
    for what, digest in expected.items():
        if digests[what] != digest:
            return f"the audit's {what} is not that of the last deletion in the record"
    earlier = last.verdicts.get("audits", [])
    if not any(known.get("audit_digest") == verdict["audit_digest"] for known in earlier):
        grown: DeletionRecord = record.audited(digests["unlearned"], verdict)
        open_run(unlearned.path).amend_json("record.json", grown.as_json())
    return ""
