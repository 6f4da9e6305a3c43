"""`warp reconstruct`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Json, Options, prepare, takes_options


@takes_options
def reconstruct(
    before: Annotated[Path, typer.Argument(help="The model before: a run of `warp train`, or a weight file.")],
    after: Annotated[
        list[Path],
        typer.Argument(help="Models after: runs of `warp unlearn` from it, or weight files. Several are compared."),
    ],
    *,
    forget: Annotated[
        Path | None, typer.Option(help="Rows that were forgotten: .csv, .txt or .npy; by default each run's own.")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="An attack, such as inversion; several times for more. By default those that fit each run."),
    ] = None,
    labels: Annotated[str, typer.Option(help="Whether the labels are known to the attacker, or inferred.")] = "known",
    prior: Annotated[
        Path | None, typer.Option(help="A run of `warp train-prior` that never saw the images, or its file.")
    ] = None,
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

    Every score stands beside those of attacks that saw nothing. It reports and exits with 0 whatever it finds.
    """
    from ..workflows.reconstruct import ReconstructRequest, reconstruct_run

    prepare(options.threads)
    request = ReconstructRequest(
        before,
        tuple(after),
        forget=forget,
        attacks=tuple(attack or ()),
        labels=labels,  # type: ignore[arg-type]
        prior=prior,
        probes=probes,
        restarts=restarts,
        iterations=iterations,
        most=most,
        seed=options.seed or 0,
        images=images,
        out=out,
        options=options,
    )
    found = reconstruct_run(request, say=lambda text: typer.echo(text, err=True))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for row in found["models"]:
        _show(row, found)
    for note in found["notes"]:
        typer.echo(f"note: {note}")
    if out is not None:
        kept = "; images of what was forgotten are in images.npz and grid.png" if found["images_kept"] else ""
        typer.echo(f"written to {out}{kept}")


def _show(row: dict[str, Any], found: dict[str, Any]) -> None:
    """The attacks on one model as a table, what they say in words, and what the attacker holds."""
    from .show import print_table

    names = list(dict.fromkeys(name for attack in row["attacks"] for name in attack["blind"]))
    print_table(
        f"{row['name']}: {len(row['rows'])} of {found['counts']['images']} images",
        ["attack", "PSNR in dB", "SSIM", "nearer than decoys", *(f"PSNR, {name}" for name in names), "seconds"],
        [
            [
                attack["name"],
                _estimate(attack["scores"]["summary"]["psnr"], 2),
                _estimate(attack["scores"]["summary"]["ssim"], 3),
                _share(attack["beyond"]["identification"]),
                *(_estimate(attack["blind"][name]["summary"]["psnr"], 2) for name in names),
                f"{attack['seconds']:.1f}",
            ]
            for attack in row["attacks"]
        ],
    )
    for attack in row["attacks"]:
        typer.echo(f"{attack['name']}: {attack['beyond']['verdict']}: {attack['beyond']['reason']}")
        for note in attack["notes"]:
            typer.echo(f"note on {attack['name']}: {note}")
    for name, why in row["not_tried"].items():
        typer.echo(f"not tried: {name}: {why}")
    for line in (*row["threat"], *(f"note: {note}" for note in row["notes"])):
        typer.echo(line)


def _estimate(found: dict[str, float | None], digits: int) -> str:
    if found["low"] is None or found["high"] is None:
        return f"{found['value']:.{digits}f}"
    return f"{found['value']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def _share(found: dict[str, Any] | None) -> str:
    return "" if found is None else _estimate(found["share"], 3)
