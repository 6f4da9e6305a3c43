"""`warp bounds`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Json, Options, takes_options


@takes_options
def bounds(
    source: Annotated[Path, typer.Argument(help="A run of `warp train` or `warp unlearn`, or a weight file.")],
    *,
    spread: Annotated[
        list[float] | None,
        typer.Option(help="Spread of the factors; several times for a curve. 0.1, 0.2, 0.4 and 0.8 by default."),
    ] = None,
    law: Annotated[str, typer.Option(help="Law of the factors: lognormal, uniform or truncated_normal.")] = "lognormal",
    seen: Annotated[
        str, typer.Option(help="teleported: gradients in the moved basis; conjugated: steps there, moved back.")
    ] = "teleported",
    parameters: Annotated[
        list[str] | None,
        typer.Option(help="all, first (the first layer's), or names of parameters, such as fc.weight."),
    ] = None,
    coordinates: Annotated[int, typer.Option(min=1, help="Gradient coordinates that are looked at.")] = 256,
    components: Annotated[int, typer.Option(min=1, help="Gaussians in the mixture.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Retained examples whose mean gradient makes the noise.")] = 5,
    examples: Annotated[int, typer.Option(min=2, help="Examples that the mixture is fitted to, at most.")] = 1000,
    draws: Annotated[int, typer.Option(min=2, help="Draws of the factors.")] = 1000,
    entropy: Annotated[
        float | None, typer.Option(help="H(x) in nats, where it is known: floors are then absolute.")
    ] = None,
    require_energy: Annotated[
        bool,
        typer.Option("--require-energy", help="Refuse ratios whose mean square is not 1; by default that is reported."),
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results and the figure.")] = None,
    options: Options,
    as_json: Json = False,
) -> None:
    """Floors from information theory under the error of reconstruction from gradients, with and without teleportation.

    It reports and exits with 0 whatever it finds. The floors hold inside a model of the gradients and are relative;
    what they assume, and where this model breaks it, is part of the output.
    """
    from ..bounds.floor import SPREADS
    from ..workflows.bounds import BoundsRequest, bounds_run

    request = BoundsRequest(
        source,
        out,
        law=law,  # type: ignore[arg-type]
        spread=tuple(spread or SPREADS),
        seen=seen,  # type: ignore[arg-type]
        parameters=tuple(parameters or ("all",)),
        coordinates=coordinates,
        components=components,
        batch=batch,
        examples=examples,
        draws=draws,
        entropy=entropy,
        require_energy=require_energy,
        seed=options.seed or 0,
        subject=options,
    )
    found = bounds_run(request)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    _show(found)
    if out is not None:
        typer.echo(f"written to {out}; the figure is {out / 'bounds.png'}")


def _show(found: dict[str, Any]) -> None:
    from ..bounds.report import factor_text, head_lines, tail_lines
    from .show import print_table

    for line in head_lines(found):
        typer.echo(line)
    print_table(
        "floor with teleportation / without",
        ["spread", "as drawn", "energy-matched", "E[r²] least", "median", "largest", "further than 5 % from 1"],
        [
            [
                f"{row['spread']:g}",
                factor_text(row, "gain"),
                factor_text(row, "matched_gain"),
                *(f"{row['energy'][key]:.3g}" for key in ("least", "median", "largest")),
                f"{100 * row['energy']['outside']:.0f} %",
            ]
            for row in found["rows"]
        ],
    )
    for line in tail_lines(found):
        typer.echo(line)
