"""`warp methods`, `warp defenses` and `warp config`: what can be chosen, and every setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json
from .show import print_json

if TYPE_CHECKING:
    from ..symmetry.base import Option

_CHECK = "Run the conformance rules over a method, also one of yours: FILE.py:Class."


def methods(
    name: Annotated[str | None, typer.Argument(help="A method; all without it.")] = None,
    check: Annotated[bool, typer.Option("--check", help=_CHECK)] = False,
    as_json: Json = False,
) -> None:
    """List the unlearning methods, with each option and its default."""
    from ..methods.base import options
    from ..methods.registry import SMALL_DATA, method_classes

    if check:
        _check(name, as_json)
        return
    known = method_classes()
    chosen = known if name is None else {name: known[_one_of(name, known, "unknown method")]}
    found = {
        n: {"about": " ".join((cls.__doc__ or "").split()), "options": [vars(o) for o in options(cls)]}
        | {"small_data": dict(SMALL_DATA.get(n, {}))}
        for n, cls in chosen.items()
    }
    if as_json:
        print_json(found)
        return
    for n, cls in chosen.items():
        typer.echo(f"{n}\n  {found[n]['about']}")
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
    key: Annotated[str | None, typer.Argument(help="A key or section, as data or training.lr; else all.")] = None,
    command: Annotated[str, typer.Option("--for", help="unlearn, shadow, tune, reproduce or prior.")] = "unlearn",
    as_json: Json = False,
) -> None:
    """Show every setting with its type, its default and what it does."""
    from ..config import SCHEMAS, describe_keys

    every = describe_keys(SCHEMAS[_one_of(command, SCHEMAS, "no configuration is for")])
    found = [one for one in every if key is None or one.key == key or one.key.startswith(f"{key}.")]
    if not found:
        _one_of(str(key), [one.key for one in every], "there is no key")
    if as_json:
        print_json({one.key: {"type": one.type, "default": one.default, "about": one.help} for one in found})
        return
    for one in found:
        typer.echo(f"{f'{one.key} = {one.default}':<40} {one.help} ({one.type})")


def _check(name: str | None, as_json: bool) -> None:
    from ..conformance import check_method
    from ..errors import InputError
    from ..methods.registry import as_method, small_data_method

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


def _one_of(name: str, known: Iterable[str], problem: str) -> str:
    from ..errors import InputError, nearest

    if name not in known:
        raise InputError(f"{problem} {name!r}; {nearest(name, known)}")
    return name


def _list(options: Iterable[Option]) -> None:
    for o in options:
        typer.echo(f"    {f'{o.name} = {o.default!r}':<36} {o.help}")
