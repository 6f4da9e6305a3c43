"""`warp unlearn`: carry out one request to forget, from a model to a run with a new model and a judged record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import (
    Accuracy,
    AsGiven,
    By,
    Column,
    Drawn,
    ForgetClass,
    ForgetFile,
    Json,
    Options,
    prepare,
    takes_options,
)
from .show import Progress, finish, points, print_json

if TYPE_CHECKING:
    from torch import nn

    from ..data.examples import Examples
    from ..data.table import Index, Parts
    from ..defense.base import Defense
    from ..methods.protocol import Method
    from ..runs.directory import RunDirectory
    from ..stats.verdict import Verdict
    from ..training.update import Update
    from ..unlearning.driver import Unlearned
    from .subject import Subject

# Our own networks start from the recipes for small data below so many training rows.
SMALL = 5_000
Watch = Callable[["Update"], None]


@takes_options
def unlearn(
    source: Annotated[Path, typer.Argument(metavar="MODEL", help="A run of check, train or unlearn, or a weight file.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the result.")] = None,
    forget: ForgetFile = None,
    forget_class: ForgetClass = None,
    forget_fraction: Annotated[float | None, typer.Option(help="A random share of each class.")] = None,
    column: Column = None,
    by: By = None,
    drawn: Drawn = False,
    again: Annotated[bool, typer.Option("--again", help="Forget what earlier requests asked for once more, too.")] = False,
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
    accuracy: Accuracy = None,
    as_given: AsGiven = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be done, and what could be judged.")] = False,
    options: Options,
    as_json: Json = False,
) -> None:
    """Remove rows from a model, judge the result, and leave a deletion record.

    The judgement compares the forgotten rows with rows the model never saw. It can say "holds" from some 700 forgotten
    and 1,400 test rows on. For fewer: --method retrain (nothing is left to judge), `warp compare --retrained` beside
    two retrained models, `warp audit shadow`; or --drawn, where the rows were drawn at random.

    Exit code 0: it holds. 1: it does not. 2: bad input. 3: cannot be said, and the last line says what would decide.
    """
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
        say=(lambda line: typer.echo(line, err=as_json)),
        forget__rows=forget,
        forget__label=forget_class,
        forget__fraction=forget_fraction,
        forget__column=column,
        forget__by=by,
        forget__drawn=True if drawn else None,
        forget__again=True if again else None,
        method__name=method,
        defense__name=defense,
        defense__seed=defense_seed,
    )
    if plan:
        return
    if as_json and out is not None:
        print_json(out / "results.json")
        raise typer.Exit(results["verdict"]["exit"])
    finish(_lines(results), exit_code=results["verdict"]["exit"], out=out)


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
) -> dict[str, Any]:
    """Unlearn, or do nothing where the run is complete; returns its results. `flags` are settings, as `assign` has
    them; with `plan` nothing is done and nothing returned.
    """
    from ..config import RESOLVED, as_plain
    from ..data.files import to_json
    from ..data.table import FORGET
    from ..errors import InputError
    from ..runs.directory import start_run
    from ..unlearning.record import describe, describe_defense
    from .check import check_subject
    from .subject import PLACES, open_subject, requested_rows

    options = options or Options()
    subject = open_subject(source, options, **flags)
    if subject.kind == "file":
        for line in check_subject(subject, as_given=as_given).lines:
            say(line)
    asked, how = requested_rows(subject)
    parts = subject.parts.request(subject.table, asked, again=subject.config.forget.again)
    method, recipe, note = _choose_method(subject, train=train, our_recipe=our_recipe)
    defense = _choose_defense(subject)
    forget = parts.rows(FORGET)
    say(f"rows      {_described(subject, asked, forget, how)}")
    say(f"settings  {method.name}, {note}" + (f"; defended by {defense.name}" if defense else ""))
    if plan:
        for line in _plan_lines(subject, parts, method, drawn=bool(how["drawn"])):
            say(line)
        return {}
    if out is None:
        raise InputError("nothing says where the result goes; give --out FOLDER, or --plan to see what would be done")
    request = how | {
        "rows": len(asked),
        "copies": len(forget) - len(asked),
        "digests": [str(parts.digests[row]) for row in forget],
    }
    found = subject.identity() | {
        "request": request,
        "method": describe(method),
        "defense": describe_defense(defense),
        "retrained_by": recipe,
    }
    config = as_plain(subject.config) | {RESOLVED: to_json(found)}
    run = start_run(out, kind="unlearn", config=config, places=PLACES)
    if not run.complete:
        title = f"unlearn ({method.name})"
        with Progress(title) as shown, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = _carry_out(subject, parts, request, method, defense, recipe, run, watch or shown)
        results["notes"] = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
        run.write_json("results.json", to_json(results))
        run.finish()
    return run.read_json("results.json")


def _carry_out(
    subject: Subject,
    parts: Parts,
    request: Mapping[str, Any],
    method: Method,
    defense: Defense | None,
    recipe: str | None,
    run: RunDirectory,
    watch: Watch,
) -> dict[str, Any]:
    """Unlearn, judge and write everything but the results and the manifest."""
    from ..data.files import to_json
    from ..data.table import FORGET, RETAIN, TEST, VALIDATION
    from ..errors import DivergedError
    from ..unlearning.driver import unlearn as unlearn_model
    from .subject import save_subject
    from .train import keep_diverged

    rows = {"forget": FORGET, "retain": RETAIN, "validation": VALIDATION, "test": TEST}
    sets = {what: subject.examples(parts.rows(code)) for what, code in rows.items() if len(parts.rows(code))}
    original = subject.model.to(subject.device)
    builder = subject.builder
    began = process_time()
    try:
        result = unlearn_model(
            original,
            forget=sets["forget"],
            retain=sets["retain"],
            test=sets.get("test"),
            validation=sets.get("validation"),
            method=method,
            defense=defense,
            untrained=None if builder is None else partial(builder, **subject.config.model.options),
            drawn=bool(request["drawn"]),
            seed=subject.config.seed,
            defense_seed=subject.config.defense.seed,
            on_update=watch,
        )
    except DivergedError as error:
        keep_diverged(run, error, subject)
        raise
    used = process_time() - began
    model, verdict = _as_stored(subject, result, sets, drawn=bool(request["drawn"]))
    accuracy = _accuracies(subject, sets, {"original": original, "unlearned": model})
    done = replace(
        result.record.deletions[0],
        request=request,
        preprocessing=subject.preprocess.describe(),
        network_file=subject.identity()["network_file"],
        threads=subject.identity()["threads"],
        device=str(subject.device),
        verdict=to_json(verdict.as_json()),
        recipe=recipe,
        verdicts={**result.record.deletions[0].verdicts, "accuracy": accuracy},
    )
    record = subject.record.then(done)
    save_subject(run, subject, model, parts=parts, record=record)
    run.write_json("record.json", record.as_json())
    teleports = [to_json(certificate.as_json()) for certificate in result.teleports]
    run.write_json("history.json", {"schema_version": 2, "updates": result.history, "teleports": teleports})
    return {
        "schema_version": 1,
        "kind": "unlearn",
        "request": {key: value for key, value in request.items() if key != "digests"},
        "method": done.method,
        "defense": None if defense is None else _defense_summary(subject, result, sets["forget"]),
        "counts": {what: len(examples) for what, examples in sets.items()},
        "accuracy": accuracy,
        "updates": len(result.history),
        "seconds": result.seconds,
        "cpu_seconds": used,
        "requests_so_far": len(record.deletions),
        "unlearned_model": done.unlearned,
        "verdict": verdict.as_json(),
    }


def _as_stored(
    subject: Subject, result: Unlearned, sets: Mapping[str, Examples], *, drawn: bool
) -> tuple[nn.Module, Verdict]:
    """The new model rounded to the precision of the file that it goes into, and the verdict on that."""
    from copy import deepcopy

    from ..unlearning.judge import judge_models

    half = subject.half
    if half is None:
        return result.model, result.verdict
    model = deepcopy(result.model).to(half).to(next(result.model.parameters()).dtype)
    return model, judge_models(subject.model, model, forget=sets["forget"], test=sets.get("test"), drawn=drawn)


def _accuracies(
    subject: Subject, sets: Mapping[str, Examples], models: Mapping[str, nn.Module]
) -> dict[str, dict[str, float]]:
    """Accuracy on each set; where whole classes are gone also on the test rows of the others, and where there were
    requests before also on what they forgot, which a later one may bring back.
    """
    import numpy as np

    from ..data.table import TEST
    from ..training.scoring import accuracy

    parts = {what: examples for what, examples in sets.items() if what != "validation"}
    test, y = subject.parts.rows(TEST), subject.table.y
    kept = test[np.isin(y[test], sets["retain"].y.unique().cpu().numpy())]
    if 0 < len(kept) < len(test):
        parts["test, classes kept"] = subject.examples(kept)
    if len(subject.forgotten):
        parts["forgotten before"] = subject.examples(subject.forgotten)
    return {name: {what: accuracy(model, part) for what, part in parts.items()} for name, model in models.items()}


def _described(subject: Subject, asked: Index, forget: Index, how: Mapping[str, Any]) -> str:
    """How many rows, by what, the first of them read back, and their copies."""
    from ..data.files import array_digest

    by = how.get("file") or (f"class {how['class']}" if "class" in how else f"a random share of {how['share']}")
    column = f" (column {how['column']})" if how.get("column") else ""
    first = ", ".join(subject.table.describe(int(row)) for row in asked[:5])
    more = " ..." if len(asked) > 5 else ""
    copies = len(forget) - len(asked)
    extra = f"; {copies} {'copy' if copies == 1 else 'copies'} of them too" if copies > 0 else ""
    digest = array_digest(subject.parts.digests[forget])[:8]
    return f"{len(asked):,} of {by}{column}: {first}{more}{extra}, digest {digest}"


def _choose_method(subject: Subject, *, train: str | None, our_recipe: bool) -> tuple[Method, str | None, str]:
    """The method of the configuration, whose recipe retrains (None: nothing is retrained), and its settings as text.

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
        return RetrainBy(load_function(train, what="a training function"), spec=train), train, f"by {train}"
    if about.name == "retrain" and not ours and not our_recipe:
        raise InputError(
            "nothing says how your network is trained; give --train FILE.py:train, a function train(model, rows) that "
            "returns the trained model, or --our-recipe to train it as our own networks are (training.* in the settings)"
        )
    if ":" in about.name:
        return as_method(about.name), None, "your own"
    small = about.recipe == "small" or (about.recipe == "auto" and ours and subject.table.train < SMALL)
    settings: dict[str, Any] = dict(SMALL_DATA.get(about.name, {})) if small else {}
    if about.name == "retrain":
        settings = subject.config.training.model_dump(exclude={"recipe", "checkpoint_seconds"})
        settings |= {"fill": subject.preprocess.fill}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in about.options.items()}
    _check_types(about.name, given)
    method = make_method(about.name, **(settings | given))
    said = ", ".join(f"{key}={value}" for key, value in (settings | given).items())
    kind = "as trained" if about.name == "retrain" else "for small data" if small else "published"
    return method, ("our recipe" if about.name == "retrain" else None), f"{kind}{': ' if said else ''}{said}"


def _check_types(name: str, given: Mapping[str, Any]) -> None:
    """Raise where an option that the method has is not of the type the method declares."""
    from typing import get_type_hints

    from pydantic import TypeAdapter, ValidationError

    from ..errors import InputError
    from ..methods.protocol import options
    from ..methods.registry import method_classes

    method = method_classes().get(name)
    hints = {} if method is None else get_type_hints(method)
    for key in sorted(given.keys() & ({o.name for o in options(method)} if method is not None else set())):
        try:
            TypeAdapter(hints[key]).validate_python(given[key], strict=True)
        except ValidationError as error:
            raise InputError(
                f"{name}: {key} is {given[key]!r}: {error.errors()[0]['msg']}; `warp methods {name}` lists the options"
            ) from error


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


def _defense_summary(subject: Subject, result: Unlearned, forget: Examples) -> dict[str, Any]:
    """How often the weights were moved, what that did to retained rows, and the forget gradient energies."""
    from ..data.files import to_json

    scales = [certificate.scale for certificate in result.teleports]
    summary: dict[str, Any] = to_json(
        {
            "name": subject.config.defense.name,
            "experiment_only": subject.config.defense.seed is not None,
            "teleports": len(scales),
            "taken_back": scales.count(0.0),
            "largest_relative_move": max((c.relative_move for c in result.teleports), default=0.0),
            "largest_retain_drift": max((c.retain.loss_change for c in result.teleports), default=None),
            "forget_energy": {
                "original": forget_energy(subject.model, forget),
                "unlearned": forget_energy(result.model, forget),
            },
        }
    )
    return summary


def forget_energy(model: nn.Module, forget: Examples, *, batch_size: int = 256) -> float | None:
    """The mean squared norm of the loss gradient over the examples, or None where the network does not allow it."""
    import torch

    from ..data.examples import in_order
    from ..errors import InputError
    from ..gradients.energy import gradient_energy
    from ..models.modes import norm_mode

    total = 0.0
    try:
        with torch.no_grad(), norm_mode(model, "eval"):
            for index in in_order(len(forget), batch_size):
                total += float(gradient_energy(model, *forget.take(index)).double().sum())
    except InputError:
        return None
    return total / len(forget)


def _plan_lines(subject: Subject, parts: Parts, method: Method, *, drawn: bool) -> list[str]:
    """What would be done, how long it may take, and what could be judged afterwards."""
    import numpy as np

    from ..data.table import FORGET, RETAIN, TEST
    from ..stats.verdict import rows_needed

    forget, retain, test = (parts.rows(code) for code in (FORGET, RETAIN, TEST))
    unseen = int(np.isin(subject.table.y[test], subject.table.y[forget]).sum())
    lines = [
        f"keeps     {len(retain):,} rows; {len(test):,} unseen, {unseen:,} of the forgotten classes",
        f"takes     about {_expected_seconds(subject, parts, method):.0f} s on {subject.device}, without a defence's moves",
    ]
    if method.name.startswith("retrain"):
        return [*lines, "judged    holds by construction, unless test accuracy collapses"]
    if not unseen:
        return [*lines, "judged    cannot be said: no unseen rows of these classes; give --test or --holdout"]
    needed = rows_needed(len(forget), unseen)
    lines.append(
        f"judged    about {needed:,} rows are needed to say holds, and {len(forget):,} are asked for"
        + ("" if drawn else "; a gap to unseen rows proves nothing, since these rows were not drawn at random")
    )
    if needed > len(forget) or not drawn:
        lines.append("ways out  --method retrain; warp compare --retrained, beside two; warp audit shadow; --drawn, if true")
    return lines


def _expected_seconds(subject: Subject, parts: Parts, method: Method) -> float:
    """The time of all updates, from that of the first few on a copy."""
    from itertools import islice
    from time import perf_counter

    from ..data.table import FORGET, RETAIN, VALIDATION
    from ..randomness import Streams
    from ..unlearning.driver import drive, make_task, working_copy

    model = working_copy(subject.model, subject.device)
    held = parts.rows(VALIDATION)
    task = make_task(
        model,
        forget=subject.examples(parts.rows(FORGET)),
        retain=subject.examples(parts.rows(RETAIN)),
        validation=subject.examples(held) if len(held) else None,
        seed=subject.config.seed,
    )
    times = [perf_counter()]
    for update in islice(drive(model, task, method, secret=Streams.secret()), 5):
        times.append(perf_counter())
    # The first update also waits for what is prepared once.
    steady = (times[-1] - times[1]) / max(1, len(times) - 2) if len(times) > 2 else times[-1] - times[0]
    return times[1] - times[0] + steady * (update.of - 1)


def _lines(results: Mapping[str, Any]) -> list[str]:
    """What changed, and the verdict."""
    before, after = results["accuracy"]["original"], results["accuracy"]["unlearned"]
    lines = [f"          {results['updates']} updates in {results['seconds']:.1f} s", f"{'right on':<20}before  after"]
    for what in before:
        lines.append(f"{'forgotten' if what == 'forget' else what:<20}{points(before[what])}   {points(after[what])}")
    about = results["defense"]
    if about is not None:
        count, drift, energy = about["teleports"], about["largest_retain_drift"], about["forget_energy"]
        lines.append(
            f"defended by {about['name']}: {count} teleport{'s' * (count != 1)}, {about['taken_back']} taken back"
            + ("" if drift is None else f"; the largest change of the retain loss by one is {drift:+.2g}")
        )
        if None not in energy.values():
            lines.append(f"forget gradient energy {energy['original']:.4g} -> {energy['unlearned']:.4g}")
        if about["experiment_only"]:
            lines.append("experiment only: whoever knows the seed can undo the defence")
    lines += [f"note: {note}" for note in results["notes"]]
    return [*lines, *results["verdict"]["lines"]]
