"""`warp methods`, `warp defenses` and `warp config`: what can be chosen, and every setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json
from .show import print_json

if TYPE_CHECKING:
    from ..symmetry.base import Option


def methods(
    name: Annotated[str | None, typer.Argument(help="A method; all without it.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the conformance rules over a method, also one of yours: FILE.py:Class.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the unlearning methods, with each option and its default."""
    from ..errors import InputError, nearest
    from ..methods.protocol import options
    from ..methods.recipes import SMALL_DATA
    from ..methods.registry import method_classes

    if check:
        _check(name, as_json)
        return
    known = method_classes()
    if name is not None and name not in known:
        raise InputError(f"unknown method {name!r}; {nearest(name, known)}")
    chosen = {name: known[name]} if name else known
    if as_json:
        found = {n: {"about": _about(cls), "options": [vars(o) for o in options(cls)]} for n, cls in chosen.items()}
        print_json({n: about | {"small_data": dict(SMALL_DATA.get(n, {}))} for n, about in found.items()})
        return
    for n, cls in chosen.items():
        typer.echo(f"{n}\n  {_about(cls)}")
        _list(options(cls))
        if n in SMALL_DATA:
            settings = ", ".join(f"{key} = {value!r}" for key, value in SMALL_DATA[n].items())
            typer.echo(f"    our own networks start below 5,000 training rows from {settings}")
        typer.echo("")


def defenses(
    name: Annotated[str | None, typer.Argument(help="A defence or a symmetry; all defences without it.")] = None,
    as_json: Json = False,
) -> None:
    """List the defences and the symmetries they move along, with each option and its default."""
    from ..defense.registry import defense_names, defense_options
    from ..symmetry.base import symmetry_names, symmetry_options

    if name is not None and name in symmetry_names():
        if as_json:
            print_json({name: [asdict(o) for o in symmetry_options(name)]})
        else:
            typer.echo(name)
            _list(symmetry_options(name))
        return
    found = {n: defense_options(n) for n in ([name] if name else defense_names())}
    if as_json:
        print_json({n: asdict(about) for n, about in found.items()})
        return
    for n, about in found.items():
        typer.echo(f"{n}\n  {about.about}")
        _list(about.options)
        typer.echo(f"  along {about.symmetry}:")
        _list(about.symmetry_options)
        typer.echo("")


def config(
    key: Annotated[
        str | None, typer.Argument(help="A key or a section, such as data or training.lr; all without it.")
    ] = None,
    command: Annotated[str, typer.Option("--for", help="unlearn, shadow, tune, reproduce or prior.")] = "unlearn",
    as_json: Json = False,
) -> None:
    """Show every setting with its type, its default and what it does."""
    from ..config import SCHEMAS, describe_keys
    from ..errors import InputError, nearest

    if command not in SCHEMAS:
        raise InputError(f"there is no configuration for {command!r}; {nearest(command, SCHEMAS)}")
    every = describe_keys(SCHEMAS[command])
    found = [one for one in every if key is None or one[0] == key or one[0].startswith(f"{key}.")]
    if not found:
        raise InputError(f"there is no key {key!r}; {nearest(str(key), [one[0] for one in every])}")
    if as_json:
        print_json({name: {"type": kind, "default": default, "about": about} for name, kind, default, about in found})
        return
    for name, kind, default, about in found:
        typer.echo(f"{f'{name} = {default}':<40} {about} ({kind})")


def _check(name: str | None, as_json: bool) -> None:
    from ..conformance import check_method
    from ..errors import InputError
    from ..methods.recipes import small_data_method
    from ..methods.registry import as_method

    if name is None:
        raise InputError("--check needs a method, as in `warp methods ngp --check`, or one of yours: FILE.py:Class")
    method = as_method(name) if ":" in name else small_data_method(name)
    report = check_method(method, forgetting_seeds=(0, 1, 2) if getattr(method, "forgets", True) else ())
    if as_json:
        print_json({"findings": [vars(finding) for finding in report.findings]})
    else:
        for finding in report.findings:
            typer.echo(f"{'broken' if finding.broken else 'kept':<8}{finding.rule}  {finding.broken or ''}".rstrip())
    report.require()


def _list(options: Iterable[Option]) -> None:
    for o in options:
        typer.echo(f"    {f'{o.name} = {o.default!r}':<36} {o.help}")


def _about(cls: type[Any]) -> str:
    return " ".join((cls.__doc__ or "").split())
