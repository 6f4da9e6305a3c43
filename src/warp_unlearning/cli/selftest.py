"""`warp selftest`: do the audits see what is there, and only that?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, Threads, prepare
from .show import finish

if TYPE_CHECKING:
    from ..conformance.planted_leak import Check


def selftest(
    seed: Annotated[int, typer.Option(min=0, help="Decides the examples, the networks and the draws.")] = 0,
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Check that audits find planted leaks, and none in retrained models; about a minute.

    Exit code 1: one of them did not see what was there, or saw what was not.
    """
    from ..conformance.planted_leak import selftest as run

    prepare(threads)
    checks = run(seed, watch=(lambda check: None) if as_json else _show)
    held = sum(check.holds for check in checks)
    results = {"schema_version": 1, "seed": seed, "checks": [asdict(check) for check in checks]} if as_json else None
    finish([f"{held} of {len(checks)} checks hold"], results=results, exit_code=int(held < len(checks)))


def _show(check: Check) -> None:
    answer = "holds" if check.holds else "DOES NOT HOLD"
    typer.echo(f"{answer}: {check.what}, {check.attack}: max(AUC, 1 - AUC) {check.strength}; expected {check.expected}")
