"""`warp`: the commands, and how errors become exit codes.

0 holds, 1 does not hold, 2 bad usage or input, 3 cannot be said, 70 a defect of ours. Nothing heavy is imported until a
command runs.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import InputError, WarpError, one_line
from ..version import __version__
from .audit import audit
from .bench import bench
from .bounds import bounds
from .check import check
from .compare import compare
from .demo import demo
from .methods import config, defenses, methods
from .reconstruct import reconstruct
from .report import report
from .reproduce import reproduce
from .runs import runs_app
from .selftest import selftest
from .teleport import teleport
from .train import train
from .train_prior import train_prior
from .tune import tune
from .unlearn import unlearn

_COMMANDS = {
    "Start": (demo, check, train),
    "Remove": (unlearn, compare, teleport, methods, defenses, config, tune),
    "Measure": (reconstruct, bounds, train_prior, selftest, bench),
    "Keep": (report, reproduce),
}
INTERRUPTED = 130
MEMORY_IS_FULL = "memory is full; lower the batch size (-o training.batch_size=32, -o method.options.batch_size=32)"


class _Commands(TyperGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name == "evaluate":  # its name in version 0.1
            raise InputError("`warp evaluate` is called `warp compare` now; see `warp compare --help`")
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="warp",
    cls=_Commands,
    help="Remove training examples from a model, hide the trace, and measure what an attacker still sees.",
    epilog="Exit codes: 0 holds, 1 does not hold, 2 bad input, 3 cannot be said, 70 a defect of ours. "
    "`warp config KEY` explains every setting.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Boxes are for a terminal; to draw them takes as long as all else that --help does.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in _COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(audit, name="audit", rich_help_panel="Measure")
app.add_typer(runs_app, name="runs", rich_help_panel="Keep")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"warp-unlearning {__version__}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")]


@app.callback()
def _options(version: _Version = False) -> None:
    return


def main() -> None:
    """Run a command; expected errors become one line and an exit code."""
    # Idle threads sleep instead of spin; said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except WarpError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        typer.echo(one_line(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": ")), err=True)
        sys.exit(2)
    except SystemExit as end:
        # Typer ends so at an interrupt, without a word.
        if end.code == INTERRUPTED:
            typer.echo("stopped; the same command goes on from what has been kept", err=True)
        raise
    except Exception as error:
        if os.environ.get("WARP_DEBUG"):
            raise
        # Torch's own kind is known by its name: it is not imported for --help.
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            typer.echo(f"error: {MEMORY_IS_FULL}", err=True)
            sys.exit(2)
        typer.echo(f"defect: {type(error).__name__}: {error} (WARP_DEBUG=1 shows where; please report it)", err=True)
        sys.exit(70)
