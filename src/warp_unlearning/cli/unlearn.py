"""`warp unlearn`: carry out one request to forget, from a model to a run with a new model and a judged record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import (
    AsGiven,
    By,
    Column,
    Drawn,
    ForgetClass,
    ForgetFile,
    Json,
    Options,
    Stated,
    prepare,
    request_flags,
    takes_options,
)
from .show import Progress, finish, points, print_json

if TYPE_CHECKING:
    from torch import nn

    from ..data.examples import Examples
    from ..data.table import Index, Parts
    from ..defense.base import Defense
    from ..methods.protocol import Method
    from ..report.schema import Accuracy, Request, Teleports, Unlearning
    from ..runs.directory import RunDirectory
    from ..stats.verdict import Verdict
    from ..training.update import Update
    from ..unlearning.driver import Unlearned
    from .subject import Asked, Subject

# Our own networks start from the recipes for small data below so many training rows.
SMALL = 5_000
Watch = Callable[["Update"], None]


@takes_options
def unlearn(
    source: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A run of check, train or unlearn, or a weight file.")
    ],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the result.")] = None,
    forget: ForgetFile = None,
    forget_class: ForgetClass = None,
    forget_fraction: Annotated[float | None, typer.Option(help="A random share of each class.")] = None,
    column: Column = None,
    by: By = None,
    drawn: Drawn = False,
    again: Annotated[
        bool, typer.Option("--again", help="Forget what earlier requests asked for once more, too.")
    ] = False,
    method: Annotated[str | None, typer.Option(help="See `warp methods`; FILE.py:Class for one of your own.")] = None,
    defense: Annotated[str | None, typer.Option(help="See `warp defenses`; none without it.")] = None,
    defense_seed: Annotated[
        int | None, typer.Option(min=0, help="For experiments only: whoever knows it can undo the defence.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(metavar="FILE.py:train", help="For --method retrain: your own train(model, rows).")
    ] = None,
    our_recipe: Annotated[
        bool, typer.Option("--our-recipe", help="For --method retrain of your own network: train it by our recipe.")
    ] = False,
    accuracy: Stated = None,
    as_given: AsGiven = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what would be done, and what could be judged.")
    ] = False,
    options: Options,
    as_json: Json = False,
) -> None:
    """Remove rows from a model, judge the result, and leave a deletion record.

    The judgement compares the forgotten rows with rows the model never saw. It can say "holds" from some 700 forgotten
    and 1,400 test rows on. For fewer: --method retrain (nothing is left to judge), `warp compare --retrained` beside
    two retrained models, `warp audit shadow`; or --drawn, where the rows were drawn at random.

    Exit code 0: it holds. 1: it does not. 2: bad input. 3: cannot be said, and the last line says what would decide.
    """
    said: list[str] = []
    prepare(options.threads)
    results = unlearn_run(
        source,
        out,
        options=options,
        train=train,
        our_recipe=our_recipe,
        as_given=as_given,
        plan=plan,
        accuracy=accuracy,
        say=(lambda line: said.append(line) if as_json and plan else typer.echo(line, err=as_json)),
        forget__fraction=forget_fraction,
        forget__drawn=drawn or None,
        forget__again=again or None,
        method__name=method,
        defense__name=defense,
        defense__seed=defense_seed,
        **request_flags(forget, forget_class, column, by),
    )
    if results is None or out is None:
        if as_json:
            print_json({"plan": said})
        return
    if as_json:
        print_json(out / "results.json")
        raise typer.Exit(results.verdict.exit)
    finish(_lines(results), exit_code=results.verdict.exit, out=out)


def unlearn_run(
    source: Path,
    out: Path | None,
    *,
    options: Options | None = None,
    train: str | None = None,
    our_recipe: bool = False,
    as_given: bool = False,
    plan: bool = False,
    say: Callable[[str], None] = lambda line: None,
    watch: Watch | None = None,
    **flags: object,
) -> Unlearning | None:
    """Unlearn, or do nothing where the run is complete; returns its results. `flags` are settings, as `assign` has
    them; with `plan` nothing is done and nothing returned.
    """
    import numpy as np

    from ..config import RESOLVED, as_plain
    from ..data.files import array_digest, to_json
    from ..data.table import FORGET
    from ..errors import InputError
    from ..models.own import file_digest
    from ..report.schema import Request, Unlearning
    from ..runs.directory import start_run
    from ..unlearning.record import describe, describe_defense
    from .check import check_subject
    from .subject import PLACES, open_subject, requested_rows

    options = options or Options()
    subject = open_subject(source, options, flags=flags)
    stated = subject.config.accuracy is not None
    if as_given and subject.kind != "file" and not stated:
        raise InputError(f"--as-given is for a weight file, and the run {source} was checked before; leave it out")
    if subject.kind == "file" or stated:
        say(str(check_subject(subject, as_given=as_given)))
    asked = requested_rows(subject)
    parts = subject.parts.request(subject.table, asked.rows, again=subject.config.forget.again)
    forget = parts.rows(FORGET)
    method, settings = _choose_method(subject, train=train, our_recipe=our_recipe)
    defense = _choose_defense(subject)
    also = np.setdiff1d(forget, asked.rows)
    request = Request(
        how=asked.words,
        asked=len(asked.rows),
        found=len(forget),
        copies=len(also),
        first=tuple(int(row) for row in asked.rows[:5]),
        digest=array_digest(np.sort(parts.digests[forget])),
    )
    say(_row_line(subject, request, also))
    say(f"settings  {method.name}, {settings}" + (f"; defended by {defense.name}" if defense else ""))
    if plan:
        say("\n".join(_plan_lines(subject, parts, method, drawn=bool(asked.drawn))))
        return None
    if out is None:
        raise InputError("nothing says where the result goes; give --out FOLDER, or --plan to see what would be done")
    found = subject.identity() | {
        "request": request.digest,
        "method": describe(method),
        "defense": describe_defense(defense),
        "train_file": None if train is None else file_digest(train),
        "method_file": file_digest(own) if ":" in (own := subject.config.method.name or "") else None,
    }
    config = as_plain(subject.config) | {RESOLVED: to_json(found)}
    run = start_run(out, kind="unlearn", config=config, places=PLACES)
    if not run.complete:
        with Progress(f"unlearn ({method.name})") as shown:
            results = _carry_out(subject, parts, asked, request, method, settings, defense, run, watch or shown)
        run.write_json("results.json", results.model_dump(mode="json"))
        run.finish()
    return run.results(Unlearning)


def _carry_out(
    subject: Subject,
    parts: Parts,
    asked: Asked,
    request: Request,
    method: Method,
    settings: str,
    defense: Defense | None,
    run: RunDirectory,
    watch: Watch,
) -> Unlearning:
    """Unlearn, judge and write everything but the results and the manifest."""
    from ..data.files import to_json
    from ..data.table import FORGET, RETAIN, TEST, VALIDATION
    from ..errors import DivergedError
    from ..models.weights import model_digest
    from ..report import schema
    from ..unlearning.driver import unlearn as unlearn_model
    from ..unlearning.record import describe_defense
    from .subject import save_subject
    from .train import keep_diverged

    rows = {"forget": FORGET, "retain": RETAIN, "validation": VALIDATION, "test": TEST}
    index = {what: parts.unseen if what == "test" else parts.rows(code) for what, code in rows.items()}
    sets = {what: subject.examples(found) for what, found in index.items() if len(found)}
    original, config = subject.model.to(subject.device), subject.config
    began = process_time()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = unlearn_model(
                original,
                forget=sets["forget"],
                retain=sets["retain"],
                test=sets.get("test"),
                validation=sets.get("validation"),
                method=method,
                defense=defense,
                untrained=subject.untrained,
                drawn=asked.drawn or False,
                seed=config.seed,
                defense_seed=config.defense.seed,
                on_update=watch,
            )
    except DivergedError as error:
        keep_diverged(run, error, header={"model": config.model.name})
        raise
    used = process_time() - began
    model, verdict = _as_stored(subject, result, sets, drawn=asked.drawn)
    identity = subject.identity()
    done = replace(
        result.record.deletions[0],
        request={
            "how": asked.way,
            "rows": request.asked,
            "copies": request.copies,
            "drawn": bool(asked.drawn),
            "digests": [str(digest) for digest in parts.digests[parts.rows(FORGET)]],
        },
        preprocessing=identity["preprocess"],
        network_file=identity["network_file"],
        unlearned=model_digest(model),
        verdict=to_json(verdict.as_json()),
    )
    record = subject.record.then(done)
    save_subject(run, subject, model, parts=parts, record=record)
    teleports = [to_json(certificate.as_json()) for certificate in result.teleports]
    run.write_json("history.json", {"schema_version": 2, "updates": result.history, "teleports": teleports})
    about = describe_defense(defense)
    return schema.Unlearning(
        request=request,
        retained=len(sets["retain"]),
        method=schema.Named(**done.method, settings=settings.partition(":")[0]),
        defense=None if about is None else schema.Named(**to_json(about), settings="yours"),
        before=_accuracy(subject, parts, sets, original),
        after=_accuracy(subject, parts, sets, model),
        teleports=None if defense is None else _teleports(subject, result, sets["forget"]),
        verdict=schema.Verdict.of(verdict),
        seed=config.seed,
        updates=len(result.history),
        seconds=result.seconds,
        cpu_seconds=used,
        original=done.original,
        unlearned=done.unlearned,
        requests=len(record.deletions),
        notes=tuple(note for note in dict.fromkeys(str(w.message) for w in caught) if verdict.sentence not in note),
    )


def _as_stored(
    subject: Subject, result: Unlearned, sets: Mapping[str, Examples], *, drawn: str
) -> tuple[nn.Module, Verdict]:
    """The new model rounded to the precision of the file that it goes into, and the verdict on that."""
    from copy import deepcopy

    from ..unlearning.judge import judge_models

    if subject.stored is None:
        return result.model, result.verdict
    model = deepcopy(result.model).to(subject.stored).to(subject.dtype)
    verdict = judge_models(
        subject.model,
        model,
        forget=sets["forget"],
        retain=sets["retain"],
        test=sets.get("test"),
        drawn=bool(drawn),
        ours=result.verdict.null == "ours",
        word=result.record.deletions[0].recipe if result.verdict.null == "ours" else drawn or None,
        seed=subject.config.seed,
    )
    return model, verdict


def _accuracy(subject: Subject, parts: Parts, sets: Mapping[str, Examples], model: nn.Module) -> Accuracy:
    """Accuracy on the forgotten and retained rows, on unseen rows of the forgotten classes, on test rows, on those of
    classes that are kept where whole classes are gone, and on what earlier requests forgot.
    """
    import numpy as np

    from ..report.schema import Accuracy
    from ..training.scoring import accuracy, logits

    test, labels = parts.unseen, subject.table.y
    forgotten = sets["forget"].y.cpu().numpy()
    right = np.empty(0, dtype=bool)
    if len(test):
        right = (logits(model, sets["test"]).argmax(1) == sets["test"].y).cpu().numpy()
    here = [c for c in np.unique(forgotten) if (labels[test] == c).any()]
    unseen = [right[labels[test] == c].mean() for c in here]
    kept = np.isin(labels[test], np.unique(sets["retain"].y.cpu().numpy()))
    return Accuracy(
        forgotten=accuracy(model, sets["forget"]),
        unseen=float(np.average(unseen, weights=[(forgotten == c).sum() for c in here])) if here else None,
        retained=accuracy(model, sets["retain"]),
        test=float(right.mean()) if len(test) else None,
        kept=float(right[kept].mean()) if 0 < kept.sum() < len(test) else None,
        earlier=accuracy(model, subject.examples(subject.forgotten)) if len(subject.forgotten) else None,
    )


def _row_line(subject: Subject, request: Request, also: Index) -> str:
    """How many rows, by what, the first of them read back, and their copies."""
    first = ", ".join(subject.table.describe(row) for row in request.first)
    more = " ..." if request.asked > len(request.first) else ""
    copies = ""
    if request.copies:
        named = ", ".join(subject.table.describe(int(row)) for row in also[:5]) + (" ..." if len(also) > 5 else "")
        copies = f"; {request.copies} {'copy' if request.copies == 1 else 'copies'} of them too: {named}"
    unlearned = request.asked - (request.found - request.copies)
    copies += f"; {unlearned:,} of them were held out and never learned, so left alone" if unlearned else ""
    return f"rows      {request.asked:,} of {request.how}: {first}{more}{copies}, digest {request.digest[:8]}"


def _choose_method(subject: Subject, *, train: str | None, our_recipe: bool) -> tuple[Method, str]:
    """The method of the configuration, and its settings as text.

    The recipe's settings come first, then the options. Retraining one of our networks takes the settings of its
    training; a foreign network is retrained by the user's own function, or by our recipe where the user says so.
    """
    from ..errors import InputError
    from ..methods.recipes import SMALL_DATA
    from ..methods.registry import as_method, make_method, method_classes
    from ..methods.retrain import RetrainBy
    from ..models.own import load_function, trust

    about, ours = subject.config.method, subject.network is None
    if about.name is None:
        raise InputError(f"nothing says how to forget; give --method, one of {', '.join(method_classes())}")
    if (train or our_recipe) and about.name != "retrain":
        raise InputError(f"--train and --our-recipe are for --method retrain, not for {about.name}; leave them out")
    if train is not None:
        trust(train)
        return RetrainBy(train=load_function(train, what="training function"), spec=train), f"by {train}"
    if about.name == "retrain" and not ours and not our_recipe:
        raise InputError(
            "nothing says how your network is trained; give --train FILE.py:train, a function train(model, rows) that "
            "returns the trained model, or --our-recipe to train it as our own networks are (settings training.*)"
        )
    if ":" in about.name:
        return as_method(about.name, about.options), "your own"
    small = about.recipe == "small" or (about.recipe == "auto" and ours and subject.table.train < SMALL)
    settings: dict[str, Any] = dict(SMALL_DATA.get(about.name, {})) if small else {}
    if about.name == "retrain":
        settings = subject.config.training.model_dump(exclude={"recipe"})
        settings |= {"fill": subject.fill}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in about.options.items()}
    method = make_method(about.name, **(settings | given))
    said = ", ".join(f"{key}={value}" for key, value in (settings | given).items())
    kind = "for small data" if small else "published"
    if about.name == "retrain":
        kind = "as trained" if ours else "our recipe"
    return method, f"{kind}: {said}".removesuffix(": ")


def _choose_defense(subject: Subject) -> Defense | None:
    """The defence of the configuration, if it names one."""
    from ..defense.registry import make_defense
    from ..errors import InputError

    about = subject.config.defense
    if about.name is not None:
        return make_defense(about.name, **about.options)
    if about.options or about.seed is not None:
        given = "options" if about.options else "seed"
        raise InputError(f"defense.{given} is set, but no defence; name one with --defense (defense.name)")
    return None


def _teleports(subject: Subject, result: Unlearned, forget: Examples) -> Teleports:
    """How often the weights were moved, what that did to retained rows, and the forget gradient energies."""
    from ..report.schema import Teleports
    from ..training.scoring import mean_energy

    scales = [certificate.scale for certificate in result.teleports]
    return Teleports(
        made=len(scales),
        taken_back=scales.count(0.0),
        largest_drift=max((c.retain.loss_change for c in result.teleports), default=None),
        energy_before=mean_energy(subject.model, forget),
        energy_after=mean_energy(result.model, forget),
        experiment_only=subject.config.defense.seed is not None,
    )


def _plan_lines(subject: Subject, parts: Parts, method: Method, *, drawn: bool) -> list[str]:
    """What would be done, how long it may take, and what could be judged afterwards."""
    import numpy as np

    from ..data.table import FORGET, RETAIN, VALIDATION
    from ..methods.retrain import RetrainBy
    from ..stats.verdict import rows_needed
    from ..unlearning.driver import expected_seconds

    forget, retain, held = (parts.rows(code) for code in (FORGET, RETAIN, VALIDATION))
    test, takes = parts.unseen, "as long as your training function"
    if not isinstance(method, RetrainBy):
        seconds = expected_seconds(
            subject.model.to(subject.device),
            forget=subject.examples(forget),
            retain=subject.examples(retain),
            validation=subject.examples(held) if len(held) else None,
            untrained=subject.untrained,
            method=method,
        )
        takes = f"about {seconds:.0f} s on {subject.device}, without a defence's moves"
    unseen = int(np.isin(subject.table.y[test], subject.table.y[forget]).sum())
    lines = [
        f"keeps     {len(retain):,} rows; {len(test):,} unseen, {unseen:,} of the forgotten classes",
        f"takes     {takes}",
    ]
    if not len(test):
        return [*lines, "judged    cannot be said: no unseen rows; give --test"]
    if method.name.startswith("retrain"):
        return [*lines, "judged    holds by construction, unless test accuracy collapses"]
    if not unseen:
        return [*lines, "judged    cannot be said: no unseen rows of these classes; give --test"]
    needed = rows_needed(len(forget), unseen)
    lines.append(
        f"judged    about {needed:,} rows are needed to say holds, and {len(forget):,} are asked for"
        + ("" if drawn else "; a gap to unseen rows proves nothing, since these rows were not drawn at random")
    )
    if needed > len(forget) or not drawn:
        lines.append(
            "ways out  --method retrain; warp compare --retrained, beside two; warp audit shadow; --drawn, if true"
        )
    return lines


def _lines(results: Unlearning) -> list[str]:
    """What changed, and the verdict."""
    before, after, teleports = results.before, results.after, results.teleports
    updates = f"{results.updates} update{'s' * (results.updates != 1)}"
    lines = [
        f"done      {updates} in {results.seconds:.1f} s; {results.retained:,} rows kept",
        f"{'right on':<28}before  after",
    ]
    names = {
        "forgotten": "forgotten rows",
        "unseen": "unseen rows of their classes",
        "retained": "retained rows",
        "test": "test rows",
        "kept": "test rows of classes kept",
        "earlier": "rows forgotten before",
    }
    for field, name in names.items():
        if getattr(before, field) is not None:
            lines.append(f"{name:<28}{points(getattr(before, field)):>6}{points(getattr(after, field)):>7}")
    if teleports is not None and results.defense is not None:
        count, drift = teleports.made, teleports.largest_drift
        lines.append(
            f"defended by {results.defense.name}: {count} teleport{'s' * (count != 1)}, {teleports.taken_back} taken "
            "back" + ("" if drift is None else f"; the largest change of the retain loss by one is {drift:+.2g}")
        )
        if teleports.energy_before is not None and teleports.energy_after is not None:
            lines.append(f"forget gradient energy {teleports.energy_before:.4g} -> {teleports.energy_after:.4g}")
        if teleports.experiment_only:
            lines.append("experiment only: whoever knows the seed can undo the defence")
    return [*lines, *(f"note: {note}" for note in results.notes), *results.verdict.judged().lines]
