"""`warp audit`: the commands that measure what an attacker still sees."""

from __future__ import annotations

import typer

from .audit_check import check
from .audit_diff import diff
from .audit_pair import pair
from .audit_plan import plan
from .audit_shadow import shadow

audit = typer.Typer(
    help="Measure what an attacker who holds the models still learns of what was forgotten.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (pair, shadow, plan, check, diff):
    audit.command()(command)
