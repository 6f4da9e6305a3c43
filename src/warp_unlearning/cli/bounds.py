"""`warp bounds`: floors under the error of reconstruction from a model's gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as given
from .options import Options, takes_options
from .show import finish, print_table

_SPREAD = "Spread of the factors; several times for a curve. 0.1, 0.2, 0.4 and 0.8 by default."
_SEEN = "teleported: gradients in the moved basis; conjugated: steps there, moved back."
_PARAMETERS = "all, first (the first layer's), or names of parameters, such as fc.weight."
_BATCH = "Retained examples whose mean gradient makes the noise."
_ENTROPY = "H(x) in nats, where it is known: floors are then absolute."
_ENERGY = "Refuse ratios whose mean square is not 1; by default that is reported."


@takes_options
def bounds(
    source: given.Model,
    *,
    spread: Annotated[list[float] | None, typer.Option(help=_SPREAD)] = None,
    law: Annotated[str, typer.Option(help="Law of the factors: lognormal, uniform or truncated_normal.")] = "lognormal",
    seen: Annotated[str, typer.Option(help=_SEEN)] = "teleported",
    parameters: Annotated[list[str] | None, typer.Option(help=_PARAMETERS)] = None,
    coordinates: Annotated[int, typer.Option(min=1, help="Gradient coordinates that are looked at.")] = 256,
    components: Annotated[int, typer.Option(min=1, help="Gaussians in the mixture.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help=_BATCH)] = 5,
    examples: Annotated[int, typer.Option(min=2, help="Examples that the mixture is fitted to, at most.")] = 1000,
    draws: Annotated[int, typer.Option(min=2, help="Draws of the factors.")] = 1000,
    entropy: Annotated[float | None, typer.Option(help=_ENTROPY)] = None,
    require_energy: Annotated[bool, typer.Option("--require-energy", help=_ENERGY)] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results and the figure.")] = None,
    options: Options,
    as_json: given.Json = False,
) -> None:
    """Floors from information theory under the error of reconstruction from gradients, with and without teleportation.

    It reports and exits with 0 whatever it finds. The floors hold inside a model of the gradients and are relative;
    what they assume, and where this model breaks it, is part of the output.
    """
    from ..bounds.floor import SPREADS, reconstruction_floor
    from ..bounds.report import COLUMNS
    from ..models.weights import model_digest
    from ..report.bounds_plots import plot_floor
    from ..report.schema import Bounds
    from .subject import open_subject

    subject = open_subject(source, options)
    named = parameters or ["all"]
    settings = {
        "law": law,
        "spread": spread or SPREADS,
        "seen": seen,
        "parameters": named[0] if len(named) == 1 else named,
        "coordinates": coordinates,
        "components": components,
        "batch": batch,
        "examples": examples,
        "draws": draws,
        "entropy": entropy,
        "require_energy": require_energy,
        "seed": subject.config.seed,
    }
    run = subject.start_run(out, kind="bounds", settings=settings) if out is not None and out.exists() else None
    if run is not None and run.complete:
        results = run.results(Bounds)
    else:
        model, rows = subject.model.to(subject.device), subject.examples(subject.known)
        floor = reconstruction_floor(model, data=rows, **settings)  # type: ignore[arg-type]
        results = Bounds(data=subject.table.name, model=model_digest(subject.model), floor=floor)
        if out is not None:
            # What cannot be computed leaves no folder, so that the next try may use its name.
            run = subject.start_run(out, kind="bounds", settings=settings)
            plot_floor(floor, out / "bounds.png")
            run.write_json("results.json", results.model_dump(mode="json"))
            run.finish()
    if not as_json:
        typer.echo("\n".join(results.floor.head))
        print_table("floor with teleportation / without", COLUMNS, [row.cells for row in results.floor.rows])
    plain = results.model_dump(mode="json") if as_json else None
    figure = [] if out is None else [f"the figure is {out / 'bounds.png'}"]
    finish([*results.floor.tail, *figure], results=plain, out=out)
