"""`warp reconstruct`: rebuild forgotten images from models before and after, and judge what is seen of them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json, Options, takes_options
from .show import finish, print_table

if TYPE_CHECKING:
    from torch import nn

    from ..attacks.reconstruction.audit import Attacked, AttackImages, AuditedModel, ImageAudit
    from ..data.table import Index
    from ..report.images import Column
    from ..report.schema import AttackedModel, ImageAttack, Reconstruction
    from ..runs.directory import RunDirectory
    from ..stats.intervals import Estimate
    from .subject import Subject

_AFTER = "Models after: runs of `warp unlearn` from it, or weight files. Several are compared."
_FORGET = "Rows that were forgotten: .csv, .txt or .npy; by default each run's own."
_ATTACK = "An attack, such as inversion; several times for more. By default those that fit each run."
_PRIOR = "A run of `warp train-prior` that never saw the images, or a generator of your own."
_ASSUMES = (
    "decoys come from the source of the forgotten images",
    "says nothing of attackers with more probes, a better prior or more steps",
)


@takes_options
def reconstruct(
    before: Annotated[Path, typer.Argument(help="The model before: a run of `warp train`, or a weight file.")],
    after: Annotated[list[Path], typer.Argument(help=_AFTER)],
    *,
    forget: Annotated[Path | None, typer.Option(help=_FORGET)] = None,
    attack: Annotated[list[str] | None, typer.Option(help=_ATTACK)] = None,
    labels: Annotated[str, typer.Option(help="Whether the labels are known to the attacker, or inferred.")] = "known",
    prior: Annotated[str | None, typer.Option(metavar="FOLDER|FILE.py:build", help=_PRIOR)] = None,
    probes: Annotated[int, typer.Option(min=1, help="Retained examples that the attacker holds.")] = 256,
    restarts: Annotated[int, typer.Option(min=1, help="Starts of every search; the best match is kept.")] = 2,
    iterations: Annotated[int, typer.Option(min=1, help="Steps of every search.")] = 1000,
    most: Annotated[int, typer.Option(min=1, help="Refuse requests that forgot more examples together.")] = 8,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results and the images.")] = None,
    images: Annotated[bool, typer.Option(help="Keep the images in that folder, readable by their owner alone.")] = True,
    options: Options,
    as_json: Json = False,
) -> None:
    """Rebuild forgotten images from models before and after, also by attackers who know the defence.

    Every attack stands beside attackers who saw nothing. Exit code 0: nothing is seen that they do not have. 1: more is
    seen. 2: bad input. 3: cannot be said.
    """
    import numpy as np

    from ..attacks.reconstruction.attacks import default_attacks, find_attack
    from ..attacks.reconstruction.audit import ImageAudit, gather_images, in_columns
    from ..data.files import array_digest
    from ..errors import InputError, nearest
    from ..models.weights import model_digest
    from ..report.schema import Reconstruction
    from .subject import open_subject

    if labels not in ("known", "inferred"):
        raise InputError(f"labels are {labels!r}; {nearest(labels, ('known', 'inferred'))}")
    through = [name for name in attack or () if find_attack(name).name == "generative"]
    if through and prior is None:
        raise InputError(f"the attack {through[0]!r} needs a generator; give --prior, such as a run of train-prior")
    original = open_subject(before, options)
    models, known = load_attacked(original, after, forget=forget, most=most, options=options)
    targets = np.unique(np.concatenate([one.forget for one in models]))
    generator, seen = (None, None) if prior is None else _load_prior(prior)
    seed = original.config.seed
    found = gather_images(original.data, targets=targets, known=known, probes=probes, seed=seed, seen=seen)
    if generator is not None:
        _check_prior(generator, seen, prior, found, targets, models[0].path)
    settings = {"labels": labels, "probes": probes, "restarts": restarts, "iterations": iterations, "images": images}
    columns = in_columns(models)
    chosen = tuple(dict.fromkeys(attack or ()))
    names = {n: chosen or default_attacks(c[0].known, prior=prior is not None) for n, c in columns.items()}
    digests = {str(one.path): model_digest(one.model) for one in models}
    digests |= {} if generator is None else {"prior": model_digest(generator)}
    decides = {
        "models": list(digests.values()),
        "forget": [array_digest(one.forget) for one in models],
        "probe_digest": array_digest(found.probe_index),
        "attacks": list(names.values()),
    }

    def start(folder: Path) -> RunDirectory:
        return original.start_run(folder, kind="reconstruction", **decides, **settings)

    # What cannot be attacked leaves no folder, so that the next try may use its name.
    run = start(out) if out is not None and out.exists() else None
    if run is not None and run.complete:
        results = run.results(Reconstruction)
    else:
        model = original.model.to(original.device).eval()
        audit = ImageAudit(model, found, labels == "known", generator, restarts, iterations, seed)
        audited = {n: audit.audit(c, names[n], strict=bool(attack), watch=partial(_say, n)) for n, c in columns.items()}
        results, pictures = _results(
            audit,
            audited,
            data=original.data.name,
            classes=original.data.classes,
            settings=settings | {"seed": seed},
            digests=digests | {"original": model_digest(model), "data": original.data.digest},
            images_kept=images and out is not None,
        )
        if out is not None:
            _write(start(out), results, pictures)
    if not as_json:
        for shown in results.models:
            _print_model(shown, results.counts["images"])
    there = ["images of what was forgotten are in images.npz and grid.png"] if results.images_kept else []
    plain = results.model_dump(mode="json") if as_json else None
    finish([*_lines(results), *there], results=plain, exit_code=results.verdict.exit, out=out)


def load_attacked(
    original: Subject, after: Sequence[Path], *, forget: Path | None, most: int, options: Options
) -> tuple[list[Attacked], Index]:
    """The models at `after`, which all start from the original and forgot equally many examples, at most `most`: those
    that each run says, or those in the file `forget`; and the rows that every model still knows.
    """
    import numpy as np

    from ..errors import InputError
    from ..models.weights import model_digest
    from .subject import on_one_table, open_subject

    paths = list(dict.fromkeys(after))
    opened = {str(path): open_subject(path, options, beside=original) for path in paths}
    sources, digest = on_one_table({str(original.path): original, **opened}), model_digest(original.model)
    if same := [path for path in paths if model_digest(sources[str(path)].model) == digest]:
        raise InputError(f"{same[0]} is identical to the model before: there is no difference to attack")
    found = [_attacked(path, sources[str(path)], original, forget, digest) for path in paths]
    sizes = sorted({len(one.forget) for one in found})
    if len(sizes) > 1:
        raise InputError(
            f"the models forgot {' and '.join(map(str, sizes))} examples; give models that forgot equally many, or "
            "attack them one by one"
        )
    if sizes[0] > most:
        raise InputError(
            f"{sizes[0]} examples were forgotten together and only the sum of their gradients is seen, from which more "
            f"than {most} are rarely told apart; attack a request of fewer, or allow them by --most {sizes[0]}"
        )
    known = original.known
    for path in paths:
        known = np.intersect1d(known, sources[str(path)].known)
    return found, known


def _attacked(path: Path, source: Subject, original: Subject, file: Path | None, digest: str) -> Attacked:
    import numpy as np

    from ..attacks.reconstruction.audit import Attacked
    from ..attacks.reconstruction.threat import KnownUnlearning, known_unlearning
    from ..data.table import FORGET
    from ..errors import InputError
    from ..runs.directory import RunDirectory
    from .subject import check_known, read_parts

    told = source.parts.rows(FORGET) if source.record.deletions else None
    if told is not None:
        check_known(original, told)
    given = told if file is None else read_parts(file, original).rows(FORGET)
    if given is None:
        raise InputError(f"nothing says which rows {path} forgot; give --forget FILE")
    if told is not None and not np.array_equal(given, told):
        raise InputError(f"{file} names other rows than those that {path} forgot; leave --forget out")
    if source.path is None or source.kind == "file" or told is None:
        nothing = "nothing says how this model was unlearned: the attacker knows no method, schedule or defence"
        return Attacked(path, source.model, given, KnownUnlearning(notes=(nothing,)))
    last = source.record.deletions[-1]
    if last.original != digest:
        raise InputError(
            f"{path} was unlearned from another model ({last.original[:12]}) than the one before ({digest[:12]}); "
            "give the model that its request started from"
        )
    section = RunDirectory(source.path, "unlearn").config().get("defense")
    name = section.get("name") if isinstance(section, dict) else None
    known = known_unlearning(last, defense="none" if last.defense is None else name)
    return Attacked(path, source.model, given, known, f"{dict(known.settings)} {last.defense} {known.schedule}")


def _load_prior(prior: str) -> tuple[nn.Module, Any]:
    """The generator, and what finds the images among others that it has learned from; None where nothing says so."""
    from ..models.generator import load_prior, saw
    from ..models.own import trust

    if ".py:" in prior:
        trust(prior)  # the user has just named it
    generator, header = load_prior(Path(prior))
    return generator, None if header is None else partial(saw, header)


def _check_prior(
    generator: nn.Module, seen: Any, prior: str | None, images: AttackImages, targets: Index, first: Path
) -> None:
    """Refuse a generator of other images, and one that has learned from what is attacked."""
    from ..errors import InputError
    from ..models.generator import check_generator

    check_generator(generator, shape=images.pixels.shape)  # type: ignore[arg-type]
    known = [] if seen is None else seen(images.truth(targets))
    if len(known):
        raise InputError(
            f"the prior {prior} has learned from {len(known)} of the {len(targets)} attacked images (first: "
            f"{targets[known[0]]}), so what it finds shows nothing; train one without them: warp train-prior --for "
            f"{first}, with --exclude FILE of the rows that other requests forgot"
        )


def _results(
    audit: ImageAudit, audited: Mapping[str, AuditedModel], **about: Any
) -> tuple[Reconstruction, dict[str, Column]]:
    """The results with `about`, and the images by the name of their array."""
    import numpy as np

    from ..attacks.reconstruction.blind import class_means
    from ..attacks.reconstruction.judge import beyond_prior
    from ..report.schema import Reconstruction
    from ..stats.verdict import Verdict
    from ..unlearning.record import now, versions

    images, every = audit.images, list(audited.values())
    rows = list(dict.fromkeys(i for one in every for i in one.positions))
    labels, probes, models = images.train.y[rows], images.probes, []
    pictures: dict[str, Column] = {"truth": ("original", range(len(rows)), _bytes(images.truth(np.array(rows))))}
    if audit.told:
        mean = class_means(images.pixels.images(probes.x).clamp(0, 1), probes.y, labels)
        pictures["class-mean"] = ("class mean (blind)", range(len(rows)), _bytes(mean.images))
    for name, one in audited.items():
        plain, places = one.as_json(), [rows.index(i) for i in one.positions]
        for attack in plain["attacks"]:
            attack["array"] = f"found-{len(pictures)}"
            found = _bytes(one.attacks[attack["name"]].assessed.images)
            pictures[attack["array"]] = (f"{name}: {attack['name']}", places, found)
        models.append({**plain, "name": name, "rows": places})
    claims = [beyond_prior(one.evidence, about=name if len(every) > 1 else "") for name, one in audited.items()]
    decoys = 0 if images.decoys is None else len(images.decoys[1])
    counts = {"images": len(rows), "models": sum(len(one.members) for one in every), "probes": len(probes)}
    results = Reconstruction(
        date=now(),
        counts=counts | {"forgotten together": len(every[0].members[0].forget), "decoys": decoys},
        targets=tuple({"position": row, "label": label} for row, label in zip(rows, labels.tolist(), strict=True)),
        models=models,  # type: ignore[arg-type]
        verdict=Verdict(tuple(claims), (), "drawn", _ASSUMES, len(rows), decoys),
        versions=dict(versions()),
        notes=images.notes,
        **about,
    )
    return results, pictures


def _say(column: str, attack: str, seconds: float) -> None:
    typer.echo(f"{attack} on {column}: {seconds:.1f} s", err=True)


def _bytes(images: Any) -> Any:
    """Images with values in [0, 1] in steps of 1/255."""
    return (images.detach().clamp(0, 1) * 255).round().byte().cpu().numpy()


def _write(run: RunDirectory, results: Reconstruction, pictures: dict[str, Column]) -> None:
    """All files of a run; each is private from the moment it exists."""
    import numpy as np

    from ..data.files import write_atomically
    from ..report.images import GRID, IMAGES, draw_grid

    if results.images_kept:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **{name: column[2] for name, column in pictures.items()})  # type: ignore[arg-type]
        write_atomically(run.path / IMAGES, buffer.getvalue())
        write_atomically(run.path / GRID, draw_grid(list(pictures.values())))
    run.write_json("results.json", results.model_dump(mode="json"))
    run.finish()


def _print_model(model: AttackedModel, images: int) -> None:
    from ..stats.verdict import p_value

    names = list(dict.fromkeys(name for attack in model.attacks for name in attack.blind))
    head = ["attack", "PSNR in dB", "SSIM", "nearer than decoys", *(f"PSNR, {name}" for name in names)]
    print_table(
        f"{model.name}: {len(model.rows)} of {images} images",
        [*head, "p, corrected", "seconds"],
        [
            [
                attack.name,
                _estimate(attack.scores.summary["psnr"], 2),
                _estimate(attack.scores.summary["ssim"], 3),
                _share(attack),
                *(_estimate(attack.blind[name].summary["psnr"], 2) for name in names),
                p_value(attack.adjusted_p),
                f"{attack.seconds:.1f}",
            ]
            for attack in model.attacks
        ],
    )


def _lines(results: Reconstruction) -> list[str]:
    lines: list[str] = []
    for model in results.models:
        lines += [f"note on {attack.name}: {note}" for attack in model.attacks for note in attack.notes]
        lines += [f"not tried: {name}: {why}" for name, why in model.not_tried.items()]
        # What is held beside the first model is not said again.
        name = "" if model is results.models[0] else f"{model.name}: "
        lines += [f"{name}{line}" for line in model.threat if line not in lines]
        lines += [f"note: {note}" for note in model.notes]
    verdict = results.verdict
    lines += [f"note: {note}" for note in results.notes]
    lines += [f"{claim.name:<14}{claim.outcome:<15}{claim.reason}: {claim.sentence}" for claim in verdict.claims]
    return [*lines, *(f"{'assumes':<14}{text}" for text in verdict.assumes), verdict.sentence]


def _share(attack: ImageAttack) -> str:
    named = attack.beyond.identification
    return "" if named is None else _estimate(named.share, 3)


def _estimate(found: Estimate, digits: int) -> str:
    from math import isfinite

    known = isfinite(found.low) and isfinite(found.high)
    ends = f" [{found.low:.{digits}f}, {found.high:.{digits}f}]" if known else ""
    return f"{found.value:.{digits}f}{ends}"
