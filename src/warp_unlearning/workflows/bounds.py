"""Fit the floors of reconstruction to a model's gradients: `warp bounds`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bounds.channel_ratios import Seen
from ..bounds.floor import SPREADS, reconstruction_floor
from ..cli.options import Options
from ..cli.subject import PLACES, Subject, open_subject
from ..config import RESOLVED, as_plain
from ..data.files import array_digest, to_json
from ..data.table import Index
from ..models.weights import model_digest
from ..report.bounds_plots import plot_floor
from ..runs.directory import RunDirectory, open_run, start_run
from ..symmetry.rescaling import Law

BOUNDS = "bounds.json"
FIGURE = "bounds.png"


@dataclass(frozen=True)
class BoundsRequest:
    """Which model, which factors, how the fit is made, and where the results go; options as `reconstruction_floor` has
    them.
    """

    source: Path
    out: Path | None = None
    law: Law = "lognormal"
    spread: Sequence[float] = SPREADS
    seen: Seen = "teleported"
    parameters: Sequence[str] = ("all",)
    coordinates: int = 256
    components: int = 3
    batch: int = 5
    examples: int = 1000
    draws: int = 1000
    entropy: float | None = None
    require_energy: bool = False
    seed: int = 0
    subject: Options = Options()

    def options(self) -> dict[str, Any]:
        """What decides the result, besides model and data."""
        names = ("law", "seen", "coordinates", "components", "batch", "examples", "draws", "entropy", "require_energy")
        parameters = self.parameters[0] if len(self.parameters) == 1 else list(self.parameters)
        given = {name: getattr(self, name) for name in (*names, "seed")}
        return given | {"spread": list(self.spread), "parameters": parameters}


def bounds_run(request: BoundsRequest) -> dict[str, Any]:
    """The floors of a model as plain data, on the training examples that it knows; read back where the run at `out` is
    complete.
    """
    source = open_subject(request.source, request.subject)
    known = source.known
    found = {**request.options(), "model": model_digest(source.model), "examples_digest": array_digest(known)}
    config = as_plain(source.config) | {RESOLVED: found}
    if request.out is not None and request.out.exists():
        run = start_run(request.out, kind="bounds", config=config, places=PLACES)
        if run.complete:
            return open_run(request.out).read_json(BOUNDS)
    result = _result(request, source, known)
    if request.out is not None:
        # What cannot be computed leaves no folder, so that the next try may use its name.
        _write(start_run(request.out, kind="bounds", config=config, places=PLACES), result)
    return result


def _result(request: BoundsRequest, source: Subject, known: Index) -> dict[str, Any]:
    digest = model_digest(source.model)
    floor = reconstruction_floor(source.model.to(source.device), data=source.examples(known), **request.options())
    result: dict[str, Any] = to_json(floor.as_json() | {"model": digest, "data": source.table.name})
    return result


def _write(run: RunDirectory, result: dict[str, Any]) -> None:
    plot_floor(result, run.path / FIGURE)
    run.write_json(BOUNDS, result)
    run.finish()
