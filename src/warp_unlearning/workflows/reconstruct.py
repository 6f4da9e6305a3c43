"""Rebuild what was forgotten from models before and after: `warp reconstruct`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..attacks.reconstruction.search import Search
from ..cli.options import Options
from ..cli.subject import PLACES, Subject, open_subject
from ..config import RESOLVED, as_plain
from ..data.files import array_digest, to_json
from ..data.table import Index
from ..errors import InputError, nearest
from ..models.generator import load_prior, saw
from ..models.weights import model_digest
from ..runs.directory import open_run, start_run
from ..unlearning.record import now, versions
from .attack_images import AttackImages, gather_images
from .attacked_models import Attacked, Column, in_columns, load_attacked
from .known_unlearning import KnownUnlearning
from .reconstruct_attacks import Attacker, Labels, Say, default_attacks, named_attack
from .reconstruction_files import RECONSTRUCTION, SCHEMA_VERSION, Grid, write_reconstruction

MOST = 8
"""Examples forgotten together that are attacked without being asked to."""
_LABELS = ("known", "inferred")


@dataclass(frozen=True)
class ReconstructRequest:
    """The model before, models after requests to it, and how they are attacked.

    What was forgotten is what each run says, or `forget` for all. `attacks` are names of attacks or of ways to read a
    difference, which inversion then follows; by default inversion and those that know the defence of each run. `images`
    says whether the run at `out` keeps the images.
    """

    before: Path
    after: Sequence[Path]
    forget: Path | None = None
    attacks: Sequence[str] = ()
    labels: Labels = "known"
    prior: Path | None = None
    probes: int = 256
    restarts: int = Search.restarts
    iterations: int = Search.iterations
    most: int = MOST
    seed: int = 0
    images: bool = True
    out: Path | None = None
    options: Options = Options()

    def settings(self) -> dict[str, Any]:
        """What decides the result, besides models, data and attacks."""
        return {name: getattr(self, name) for name in ("labels", "probes", "restarts", "iterations", "seed", "images")}


def reconstruct_run(request: ReconstructRequest, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Attack every model; the results as plain data, read back where the run at `out` is complete."""
    if request.labels not in _LABELS:
        raise InputError(f"labels are {request.labels!r}; {nearest(request.labels, _LABELS)}")
    original = open_subject(request.before, request.options)
    load = partial(open_subject, options=request.options, beside=original)
    attacked = load_attacked(original, request.after, forget=request.forget, most=request.most, load=load)
    generator, header = (None, None) if request.prior is None else load_prior(request.prior)
    seen = None if header is None else partial(_seen, header)
    images = gather_images(
        original,
        [a.forget for a in attacked],
        [a.source.known for a in attacked],
        probes=request.probes,
        seed=request.seed,
        seen=seen,
    )
    if seen is not None:
        _check_prior(request, images, attacked, seen)
    columns = in_columns(attacked)
    plans = [_plan(request, column.known) for column in columns]
    digests = _digests(original, columns, generator)
    config = as_plain(original.config) | {RESOLVED: _found(request, attacked, images, plans) | digests}
    if request.out is not None and request.out.exists():
        run = start_run(request.out, kind="reconstruction", config=config, places=PLACES)
        if run.complete:
            return open_run(request.out).read_json(RECONSTRUCTION)
    attacker = Attacker(
        original.model.to(original.device).eval(),
        images,
        original.data.classes,
        request.labels,
        request.restarts,
        request.iterations,
        request.seed,
        bool(request.attacks),
        generator,
        say,
    )
    grid = attacker.grid(columns)
    models = [attacker.attack(column, plan, grid) for column, plan in zip(columns, plans, strict=True)]
    result = _result(request, original, images, grid, models, digests)
    if request.out is not None:
        # What cannot be attacked leaves no folder, so that the next try may use its name.
        write_reconstruction(start_run(request.out, kind="reconstruction", config=config, places=PLACES), result, grid)
    return result


def _seen(header: dict[str, object], images: Tensor) -> Index:
    return saw(header, images)


def _check_prior(
    request: ReconstructRequest,
    images: AttackImages,
    attacked: Sequence[Attacked],
    seen: Callable[[Tensor], Index],
) -> None:
    """Refuse a prior that learned from what is attacked."""
    targets = np.unique(np.concatenate([a.forget for a in attacked]))
    known = seen(images.truth(targets))
    if len(known):
        raise InputError(
            f"the prior {request.prior} has learned from {len(known)} of the {len(targets)} attacked images (first: "
            f"{targets[known[0]]}), so what it finds shows nothing; train one without them: warp train-prior --for "
            f"{attacked[0].path}, with --exclude FILE of the rows that other requests forgot"
        )


def _plan(request: ReconstructRequest, known: KnownUnlearning) -> tuple[str, ...]:
    """The attacks on models of which that is known."""
    if not request.attacks:
        return default_attacks(known, prior=request.prior is not None)
    for name in request.attacks:
        named_attack(name)
    return tuple(dict.fromkeys(request.attacks))


def _found(
    request: ReconstructRequest, attacked: Sequence[Attacked], images: AttackImages, plans: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """What decides the run, for its configuration."""
    return {
        "forget": [array_digest(a.forget) for a in attacked],
        "probe_digest": array_digest(images.probe_index),
        "attacks": [list(plan) for plan in plans],
        **request.settings(),
    }


def _digests(original: Subject, columns: Sequence[Column], generator: nn.Module | None) -> dict[str, Any]:
    models = {"original": model_digest(original.model)}
    for column in columns:
        for i, member in enumerate(column.members):
            suffix = f", request {i + 1}" if len(column.members) > 1 else ""
            models[f"{column.name}{suffix}"] = model_digest(member.source.model)
    prior = {} if generator is None else {"prior": model_digest(generator)}
    return {"models": models, "data": original.data.digest, **prior}


def _result(
    request: ReconstructRequest,
    original: Subject,
    images: AttackImages,
    grid: Grid,
    models: list[dict[str, Any]],
    digests: dict[str, Any],
) -> dict[str, Any]:
    requests = sum(len(model["paths"]) for model in models)
    result: dict[str, Any] = to_json(
        {
            "schema_version": SCHEMA_VERSION,
            "kind": "reconstruction",
            "date": now(),
            "data": original.data.name,
            "level": 0.95,
            "counts": {
                "images": len(grid.positions),
                "models": requests,
                "forgotten together": sum(len(model["rows"]) for model in models) // requests,
                "probes": len(images.probe_index),
                "decoys": 0 if images.decoys is None else len(images.decoys[1]),
            },
            "targets": grid.targets(),
            "models": models,
            "settings": request.settings(),
            "digests": digests,
            "versions": versions(),
            "notes": list(images.notes),
            "images_kept": request.images and request.out is not None,
        }
    )
    return result
