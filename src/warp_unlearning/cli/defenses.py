"""`warp defenses`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json

if TYPE_CHECKING:
    from ..symmetry.options import Option


def defenses(
    name: Annotated[str | None, typer.Argument(help="One defence; all without it.")] = None,
    as_json: Json = False,
) -> None:
    """List the defences, with each option and its default."""
    from ..defense.registry import defense_names, defense_options

    found = {n: defense_options(n) for n in ([name] if name else defense_names())}
    if as_json:
        typer.echo(json.dumps({n: asdict(about) for n, about in found.items()}, indent=2))
        return
    for n, about in found.items():
        typer.echo(f"{n}\n  {about.about}")
        _list(about.options)
        typer.echo(f"  along {about.symmetry}:")
        _list(about.symmetry_options)
        typer.echo("")


def _list(options: tuple[Option, ...]) -> None:
    for o in options:
        typer.echo(f"    {f'{o.name} = {o.default!r}':<36} {o.help}")
