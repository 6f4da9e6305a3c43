"""`warp methods`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .options import Json


def methods(
    name: Annotated[str | None, typer.Argument(help="One method; all without it.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Run the conformance kit over the method.")] = False,
    as_json: Json = False,
) -> None:
    """List the unlearning methods, with each option and its default."""
    from ..errors import InputError, nearest
    from ..methods.protocol import options
    from ..methods.recipes import SMALL_DATA
    from ..methods.registry import method_classes

    known = method_classes()
    if name is not None and name not in known:
        raise InputError(f"unknown method {name!r}; {nearest(name, known)}")
    if check:
        _check(name, as_json)
        return
    chosen = {name: known[name]} if name else known
    if as_json:
        data = {
            n: {
                "about": _about(cls),
                "options": [vars(o) for o in options(cls)],
                "small_data": dict(SMALL_DATA.get(n, {})),
            }
            for n, cls in chosen.items()
        }
        typer.echo(json.dumps(data, indent=2))
        return
    for n, cls in chosen.items():
        typer.echo(f"{n}\n  {_about(cls)}")
        for o in options(cls):
            typer.echo(f"    {f'{o.name} = {o.default!r}':<36} {o.help}")
        if n in SMALL_DATA:
            settings = ", ".join(f"{key} = {value!r}" for key, value in SMALL_DATA[n].items())
            typer.echo(f"    below 5,000 training examples the command line starts from {settings}")
        typer.echo("")


def _check(name: str | None, as_json: bool) -> None:
    from ..conformance import check_method
    from ..errors import InputError
    from ..methods.recipes import small_data_method
    from ..methods.registry import method_classes

    if name is None:
        raise InputError("--check needs the name of a method, as in `warp methods ngp --check`")
    forgets = getattr(method_classes()[name], "forgets", True)
    report = check_method(small_data_method(name), forgetting_seeds=(0, 1, 2) if forgets else ())
    if as_json:
        typer.echo(json.dumps([vars(f) for f in report.findings], indent=2))
    else:
        for finding in report.findings:
            typer.echo(f"{'broken' if finding.broken else 'kept':<8}{finding.rule}  {finding.broken or ''}".rstrip())
    report.require()


def _about(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split())
