"""`warp teleport`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import ConfigFile, Json, Threads, UserModel, assign, prepare


def teleport(
    source: Annotated[Path, typer.Argument(help="A run of `warp train` or `warp unlearn`, or a weight file.")],
    symmetry: Annotated[
        list[str],
        typer.Option(
            help="null_space, tracked_null_space, change_of_basis, permutation or attention_basis; several in a row."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the result.")],
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--override",
            "-o",
            metavar="KEY=VALUE",
            help="An option of the symmetry, as in spread=0.5, or a setting, as in model.name=resnet18.",
        ),
    ] = None,
    forget: Annotated[
        Path | None, typer.Option(help="An .npy file of positions whose gradients are to become small.")
    ] = None,
    forget_class: Annotated[int | None, typer.Option(help="The same for every example of this class.")] = None,
    tolerance: Annotated[float, typer.Option(help="Change of the retain loss that a null-space move may make.")] = 0.01,
    defense_seed: Annotated[
        int | None, typer.Option(min=0, help="For experiments only: whoever knows it can undo the move.")
    ] = None,
    config: ConfigFile = None,
    model: UserModel = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Move a model's weights along symmetries that keep its function, and certify that they did.

    Exit code 1: the function was not kept. Exact symmetries may change a logit by 1e-4 of the largest in float32 and by
    1e-10 in float64, others the retain loss by --tolerance.
    """
    from ..workflows.teleport import TeleportRequest, teleport_run

    builder = prepare(threads, model)
    settings = assign(override, forget__rows=forget, forget__label=forget_class, device=device)
    request = TeleportRequest(source, out, tuple(symmetry), settings, config, tolerance, defense_seed)
    outcome = teleport_run(request, builder=builder)
    for note in outcome.notes:
        typer.echo(f"note: {note}", err=True)
    if as_json:
        typer.echo(json.dumps(outcome.certificate, indent=2))
    else:
        _show(outcome.certificate, " then ".join(symmetry), out)
    if not outcome.certificate["verdict"]["holds"]:
        raise typer.Exit(1)


def _show(certificate: dict[str, Any], name: str, out: Path) -> None:
    verdict = certificate["verdict"]
    moved = [layer for layer in certificate["layers"] if layer["moved"] or layer["moved_unreached"]]
    typer.echo(
        f"{name} moved {len(moved)} tensors by {certificate['relative_move']:.3g} of the length of the weights, "
        f"in {certificate['seconds']:.1f} s"
    )
    if certificate["moved_unreached"]:
        typer.echo(f"  and by {certificate['moved_unreached']:.3g} where no input reaches, which hides nothing")
    measured = "not finite" if verdict["measured"] is None else f"{verdict['measured']:.2g}"
    answer = "holds" if verdict["holds"] else "does not hold"
    typer.echo(f"  {verdict['what']}: {measured}; at most {verdict['bound']:.2g}: {answer}")
    for what in ("retain", "held_out", "forget"):
        drift = certificate[what]
        if drift is not None:
            typer.echo(f"  loss on {what.replace('_', ' '):<10}{drift['loss_before']:.4g} -> {drift['loss_after']:.4g}")
    if certificate["energy_before"] is not None and certificate["energy_after"] is not None:
        typer.echo(f"  forget gradient energy {certificate['energy_before']:.4g} -> {certificate['energy_after']:.4g}")
    _show_stuck(certificate)
    if certificate["experiment_only"]:
        typer.echo("  experiment only: whoever knows the seed can undo this move")
    typer.echo(f"written to {out}; the certificate is {out / 'certificate.json'}")


def _show_stuck(certificate: dict[str, Any]) -> None:
    """What could not move, by the reason."""
    pinned = [
        (f"{p['tensor']} ({p['count']} channels)", reason) for p in certificate["pinned"] for reason in p["reasons"]
    ]
    for what, pairs in (("pinned by", pinned), ("left,", list(certificate["left"].items()))):
        for reason in dict.fromkeys(reason for _, reason in pairs):
            names = list(dict.fromkeys(name for name, why in pairs if why == reason))
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            typer.echo(f"  {what} {reason}: {', '.join(names[:3])}{more}")
