"""One request to forget: its rows, the method and the defence, carried out on a subject, judged and recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from ..config import ForgetConfig
from ..data.examples import Examples
from ..data.files import array_digest, to_json
from ..data.sampling import draw_per_class
from ..data.table import FORGET, RETAIN, VALIDATION, Index, Parts, find, read_csv, read_request
from ..defense.base import Defense
from ..defense.registry import make_defense
from ..errors import InputError
from ..methods.base import Method
from ..methods.references import RetrainBy
from ..methods.registry import SMALL_DATA, as_method, make_method, method_classes
from ..models.own import file_digest, load_function, trust
from ..randomness import Streams
from ..report.schema import Named, Request, Teleports, Unlearning
from ..runs.directory import RunDirectory
from ..stats.verdict import rows_needed
from ..training.scoring import accuracy, mean_energy
from ..training.update import Update
from ..unlearning.driver import Unlearned, expected_seconds
from ..unlearning.driver import unlearn as unlearn_model
from ..unlearning.record import describe, describe_defense
from .check import check_subject
from .options import Options
from .show import Progress
from .subject import Subject, open_subject, save_subject
from .train import keep_diverged

# Our own networks start from the recipes for small data below so many training rows.
SMALL = 5_000


class Asked(NamedTuple):
    """The rows of a request without their copies: one of the record's ways of asking, the words to print, and who says
    that they were drawn at random (empty where nobody does).
    """

    rows: Index
    way: str
    words: str
    drawn: str = ""


def requested_rows(subject: Subject) -> Asked:
    """The rows that the configuration asks to forget."""
    ask, table, known = subject.config.forget, subject.table, subject.known
    given = [key for key in ("rows", "label", "fraction") if getattr(ask, key) is not None]
    if len(given) != 1:
        what = "nothing says what to forget" if not given else f"{' and '.join(given)} are both set"
        raise InputError(f"{what}; give one of --forget FILE, --forget-class NAME and --forget-fraction SHARE")
    if ask.rows is not None:
        return _rows_of_file(subject, ask, ask.rows)
    if ask.label is not None:
        name = str(ask.label)
        if name not in table.classes and name.isdecimal() and int(name) < len(table.classes):
            name = table.classes[int(name)]
        if name not in table.classes:
            raise InputError(f"no class is called {name!r}; the classes are {', '.join(table.classes[:20])}")
        rows = known[table.y[known] == table.classes.index(name)]
        if not len(rows):
            raise InputError(f"the model knows no row of class {name}; nothing is left to forget")
        return Asked(rows, "class", f"class {name}", "this software")
    share = float(ask.fraction or 0)
    count, generator = round(share * len(known)), Streams(subject.config.seed)
    if not 0 < count < len(known):
        raise InputError(f"a share of {share} of {len(known)} known rows is {count} rows; choose another share")
    drawn = generator.generator("forget", len(subject.record.deletions))
    rows = known[draw_per_class(table.y[known], count=count, generator=drawn)]
    return Asked(rows, "fraction", f"a random share of {share:g}", "this software")


def _rows_of_file(subject: Subject, ask: ForgetConfig, file: Path) -> Asked:
    column = ask.column
    if column is None and file.suffix.lower() in (".csv", ".tsv") and file.is_file():
        # The column by which the data name their rows.
        column = next((head for head in read_csv(file) if head == subject.config.data.ids), None)
    values = read_request(file, column)
    rows, head = find(values, subject.table, ask.by), values.dtype.names[0] if values.dtype.names else ""
    texts = (values[head] if head else values).astype(str)
    by = ask.by or (head if head in ("row", "id") else "row" if np.char.isdecimal(texts).all() else "name")
    way = "mask" if values.dtype == bool else {"row": "numbers", "id": "ids", "name": "names"}[by]
    words = file.name + (f" (column {head})" if head else "")
    return Asked(rows, way, words, "your word" if ask.drawn else "")


def asked_parts(first: Subject, last: Subject, path: Path, *, given: bool, drawn: bool) -> tuple[Parts, str]:
    """The part of each row after a request, as the options of the command have it (`given`) or as the run at `path`
    remembers it; and who says that its rows were drawn at random, empty where nobody does.
    """
    if given:
        asked = requested_rows(first)
        return first.parts.request(first.table, asked.rows), asked.drawn
    if not last.record.deletions:
        raise InputError(f"nothing says which rows {path} forgot; give --forget FILE")
    request, word = last.record.deletions[-1].request, ""
    if request.get("drawn") or drawn:
        word = "this software" if request.get("how") in ("class", "fraction") else "your word"
    return last.parts, word


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
    watch: Callable[[Update], None] | None = None,
    **flags: Any,
) -> Unlearning | None:
    """Unlearn, or do nothing where the run is complete; returns its results. `flags` are settings, as `assign` has
    them; with `plan` nothing is done and nothing returned.
    """
    subject = open_subject(source, options or Options(), **flags)
    config = subject.config
    if as_given and subject.kind != "file" and config.accuracy is None:
        raise InputError(f"--as-given is for a weight file, and the run {source} was checked before; leave it out")
    if subject.kind == "file" or config.accuracy is not None:
        say(str(check_subject(subject, as_given=as_given)))
    asked = requested_rows(subject)
    parts = subject.parts.request(subject.table, asked.rows, again=config.forget.again)
    request = _request(asked, parts)
    method, recipe, settings = _choose_method(subject, train=train, our_recipe=our_recipe)
    defense = _choose_defense(subject)
    say(_row_line(subject, parts, asked, request))
    said = ": ".join(text for text in (recipe, settings) if text)
    say(f"settings  {method.name}, {said}" + (f"; defended by {defense.name}" if defense else ""))
    if plan:
        say("\n".join(_plan_lines(subject, parts, method, drawn=bool(asked.drawn))))
        return None
    if out is None:
        raise InputError("nothing says where the result goes; give --out FOLDER, or --plan to see what would be done")
    about: dict[str, Any] = {"method": describe(method), "defense": describe_defense(defense)}
    own = config.method.name or ""
    run = subject.start_run(
        out,
        kind="unlearn",
        **about,
        request=request.digest,
        train_file=None if train is None else file_digest(train),
        method_file=file_digest(own) if ":" in own else None,
    )
    if not run.complete:
        with Progress(f"unlearn ({method.name})") as shown:
            done = _carry_out(run, subject, parts, asked, method, defense, watch or shown)
        whose = {"method": recipe, "defense": "yours"}
        named: dict[str, Any] = {k: v and Named(**to_json(v), settings=whose[k]) for k, v in about.items()}
        run.write_json("results.json", Unlearning(request=request, **named, **done).model_dump(mode="json"))
        run.finish()
    return run.results(Unlearning)


def _request(asked: Asked, parts: Parts) -> Request:
    forget = parts.rows(FORGET)
    return Request(
        how=asked.words,
        asked=len(asked.rows),
        found=len(forget),
        copies=len(np.setdiff1d(forget, asked.rows)),
        first=tuple(asked.rows[:5].tolist()),
        digest=array_digest(np.sort(parts.digests[forget])),
    )


def _row_line(subject: Subject, parts: Parts, asked: Asked, request: Request) -> str:

    def first_five(rows: Index) -> str:
        return ", ".join(map(subject.table.describe, rows[:5].tolist())) + " ..." * (len(rows) > 5)

    more = ""
    if request.copies:
        named = first_five(np.setdiff1d(parts.rows(FORGET), asked.rows))
        more = f"; {request.copies} {'copy' if request.copies == 1 else 'copies'} of them too: {named}"
    if unlearned := request.asked - (request.found - request.copies):
        more += f"; {unlearned:,} of them were held out and never learned, so left alone"
    return f"rows      {request.asked:,} of {asked.words}: {first_five(asked.rows)}{more}, digest {request.digest[:8]}"


def _choose_method(subject: Subject, *, train: str | None, our_recipe: bool) -> tuple[Method, str, str]:
    about, ours = subject.config.method, subject.network is None
    if about.name is None:
        raise InputError(f"nothing says how to forget; give --method, one of {', '.join(method_classes())}")
    if (train or our_recipe) and about.name != "retrain":
        raise InputError(f"--train and --our-recipe are for --method retrain, not for {about.name}; leave them out")
    if train is not None:
        trust(train)
        return RetrainBy(train=load_function(train, what="training function"), spec=train), f"by {train}", ""
    if ":" in about.name:
        return as_method(about.name, about.options), "your own", ""
    recipe, settings = "published", dict[str, Any]()
    if about.name == "retrain":
        if not (ours or our_recipe):
            raise InputError("nothing says how your network is trained; give --train FILE.py:train, or --our-recipe")
        recipe = "as trained" if ours else "our recipe"
        settings = subject.config.training.model_dump(exclude={"recipe"}) | {"fill": subject.fill}
    elif about.recipe == "small" or (about.recipe == "auto" and ours and subject.table.train < SMALL):
        recipe, settings = "for small data", dict(SMALL_DATA.get(about.name, {}))
    settings |= {k: tuple(v) if isinstance(v, list) else v for k, v in about.options.items()}
    return make_method(about.name, **settings), recipe, ", ".join(f"{key}={value}" for key, value in settings.items())


def _choose_defense(subject: Subject) -> Defense | None:
    about = subject.config.defense
    if about.name is not None:
        return make_defense(about.name, **about.options)
    if about.options or about.seed is not None:
        given = "options" if about.options else "seed"
        raise InputError(f"defense.{given} is set, but no defence; name one with --defense (defense.name)")
    return None


def _sets(subject: Subject, parts: Parts) -> dict[str, Any]:
    rows = {"forget": parts.rows(FORGET), "retain": parts.rows(RETAIN), "validation": parts.rows(VALIDATION)}
    rows["test"] = parts.unseen
    return {what: subject.examples(index) for what, index in rows.items() if len(index)}


def _plan_lines(subject: Subject, parts: Parts, method: Method, *, drawn: bool) -> list[str]:
    forget, retain, test, y = parts.rows(FORGET), parts.rows(RETAIN), parts.unseen, subject.table.y
    unseen, takes = int(np.isin(y[test], y[forget]).sum()), "as long as your training function"
    if not isinstance(method, RetrainBy):
        model, sets = subject.model.to(subject.device), _sets(subject, parts)
        seconds = expected_seconds(model, method=method, untrained=subject.untrained, **sets)
        takes = f"about {seconds:.0f} s on {subject.device}, without a defence's moves"
    lines = [
        f"keeps     {len(retain):,} rows; {len(test):,} unseen, {unseen:,} of the forgotten classes",
        f"takes     {takes}",
    ]
    if len(test) and method.name.startswith("retrain"):
        return [*lines, "judged    holds by construction, unless test accuracy collapses"]
    if not unseen:
        which = " of these classes" if len(test) else ""
        return [*lines, f"judged    cannot be said: no unseen rows{which}; give --test"]
    needed = rows_needed(len(forget), unseen)
    gap = "" if drawn else "; a gap to unseen rows proves nothing, since these rows were not drawn at random"
    lines.append(f"judged    about {needed:,} rows are needed to say holds, and {len(forget):,} are asked for{gap}")
    ways = "ways out  --method retrain; warp compare --retrained, beside two; warp audit shadow; --drawn, if true"
    return [*lines, ways] if needed > len(forget) or not drawn else lines


def _carry_out(
    run: RunDirectory,
    subject: Subject,
    parts: Parts,
    asked: Asked,
    method: Method,
    defense: Defense | None,
    watch: Callable[[Update], None],
) -> dict[str, Any]:
    sets, forget = _sets(subject, parts), parts.rows(FORGET)
    original, config = subject.model.to(subject.device), subject.config
    began = process_time()
    with keep_diverged(run, model=config.model.name), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = unlearn_model(
            original,
            **sets,
            method=method,
            defense=defense,
            untrained=subject.untrained,
            drawn=asked.drawn or False,
            stored=subject.stored,
            seed=config.seed,
            defense_seed=config.defense.seed,
            on_update=watch,
        )
    used, identity, verdict = process_time() - began, subject.identity(), result.verdict
    done = replace(
        result.record.deletions[0],
        request={
            "how": asked.way,
            "rows": len(asked.rows),
            "copies": len(np.setdiff1d(forget, asked.rows)),
            "drawn": bool(asked.drawn),
            "digests": parts.digests[forget].tolist(),
        },
        preprocessing=identity["preprocess"],
        network_file=identity["network_file"],
    )
    record = subject.record.then(done)
    save_subject(run, subject, result.model, parts=parts, record=record)
    teleports = [to_json(certificate.as_json()) for certificate in result.teleports]
    run.write_json("history.json", {"schema_version": 2, "updates": result.history, "teleports": teleports})
    notes = dict.fromkeys(str(warning.message) for warning in caught)
    others = {"retained": sets["retain"], "earlier": subject.examples(subject.forgotten)}
    before, after = (
        {**shares, **{what: accuracy(model, part) if len(part) else None for what, part in others.items()}}
        for model, shares in ((original, result.before), (result.model, result.after))
    )
    return {
        "retained": len(sets["retain"]),
        "before": before,
        "after": after,
        "teleports": None if defense is None else _teleports(original, result, sets["forget"]),
        "verdict": verdict,
        "seed": config.seed,
        "updates": len(result.history),
        "seconds": result.seconds,
        "cpu_seconds": used,
        "original": done.original,
        "unlearned": done.unlearned,
        "requests": len(record.deletions),
        "notes": tuple(note for note in notes if verdict.sentence not in note),
    }


def _teleports(original: nn.Module, result: Unlearned, forget: Examples) -> Teleports:
    scales = [certificate.scale for certificate in result.teleports]
    return Teleports(
        made=len(scales),
        taken_back=scales.count(0.0),
        largest_drift=max((c.retain.loss_change for c in result.teleports), default=None),
        energy_before=mean_energy(original, forget),
        energy_after=mean_energy(result.model, forget),
        experiment_only=result.record.deletions[0].experiment_only,
    )
