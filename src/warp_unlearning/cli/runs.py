"""`warp runs`: the store of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json

if TYPE_CHECKING:
    from ..runs.store import Entry, Store

runs_app = typer.Typer(
    help="Look after a store of results: what is in it, whether it is intact, and what can go.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

StorePath = Annotated[Path, typer.Option("--store", help="The folder of the store.", show_default=False)]
Kind = Annotated[str | None, typer.Option("--kind", help="Only jobs of this kind, such as train.")]


@runs_app.command("list")
def list_entries(store: StorePath, kind: Kind = None, as_json: Json = False) -> None:
    """List the results: key, kind, when they were made, how long that took, and their size."""
    from .show import print_table

    opened = _open(store)
    readable = list(opened.entries())
    entries = sorted((e for e in readable if kind in (None, e.key.kind)), key=lambda entry: entry.made)
    unreadable = len(opened.digests()) - len(readable)
    if as_json:
        typer.echo(json.dumps({"entries": [_about(entry) for entry in entries], "unreadable": unreadable}, indent=2))
        return
    print_table(
        f"{len(entries)} results, {_size(sum(entry.size for entry in entries))}",
        ["key", "kind", "version", "made", "seconds", "size", "files"],
        [_row(entry) for entry in entries],
    )
    if unreadable:
        typer.echo(f"{unreadable} more cannot be read; `warp runs verify` says why")


@runs_app.command()
def show(
    key: Annotated[str, typer.Argument(help="The key of a result, or as much of its beginning as tells it apart.")],
    store: StorePath,
    as_json: Json = False,
) -> None:
    """Show one result: everything that decided it, its files, and whether they are intact."""
    from ..errors import DataError
    from ..runs.entry import Fault

    opened = _open(store)
    digest = _find(opened, key)
    try:
        entry = opened.look(digest)
    except Fault as fault:
        raise DataError(f"the entry {digest} is damaged: {fault}; run its job again") from fault
    wrong = opened.fault(digest)
    if as_json:
        typer.echo(json.dumps(_about(entry) | {"fault": wrong or None}, indent=2))
    else:
        _show(entry, wrong)
    if wrong:
        raise typer.Exit(1)


@runs_app.command()
def verify(
    store: StorePath,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Take damaged results out of their place, to be made again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every file of every result and compare it with its checksum. Exit code 1 where one is damaged."""
    opened = _open(store)
    faults = {digest: opened.fault(digest) for digest in opened.digests()}
    damaged = {digest: fault for digest, fault in faults.items() if fault}
    intact = len(faults) - len(damaged)
    if set_aside:
        for digest in damaged:
            opened.set_aside(digest)
    if as_json:
        data = {"intact": intact, "corrupt": damaged, "set_aside": set_aside and bool(damaged)}
        typer.echo(json.dumps(data, indent=2))
    else:
        for digest, fault in damaged.items():
            typer.echo(f"damaged: {digest[:12]}  {fault}")
        typer.echo(f"{intact} intact, {len(damaged)} damaged")
        if damaged:
            typer.echo("set aside: the next run makes them again" if set_aside else "--set-aside has them made again")
    if damaged:
        raise typer.Exit(1)


@runs_app.command()
def gc(
    store: StorePath,
    kind: Kind = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, metavar="DAYS", help="Results made so many days ago.")
    ] = None,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Results of a kind of job that has a later version in the store.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
) -> None:
    """Remove leftovers of killed processes and what was set aside; and results that meet every condition given."""
    opened = _open(store)
    chosen: list[Entry] = []
    if kind is not None or older_than is not None or superseded:
        chosen = _selected(list(opened.entries()), kind=kind, older_than=older_than, superseded=superseded)
    digests = [entry.key.digest for entry in chosen]
    size, leftovers = sum(entry.size for entry in chosen), 0
    if not dry_run:
        size = opened.remove(*digests)
        leftovers, cleared = opened.gc()
        size += cleared
    if as_json:
        data = {"removed": digests, "leftovers": leftovers, "bytes": size, "dry_run": dry_run}
        typer.echo(json.dumps(data, indent=2))
        return
    verb = "would remove" if dry_run else "removed"
    typer.echo(f"{verb} {len(chosen)} results{'' if dry_run else f' and {leftovers} leftovers'}, {_size(size)}")


@runs_app.command("pack")
def pack_results(
    store: StorePath,
    file: Annotated[
        Path,
        typer.Argument(help="The file to write; compressed if its name ends in .xz or .gz.", show_default=False),
    ],
    without: Annotated[
        list[str] | None,
        typer.Option(help='A kind to leave out, such as "original", whose weights are large; several times for more.'),
    ] = None,
) -> None:
    """Write results to a file, for a store on another machine or for keeping."""
    from ..runs.pack import pack

    done = pack(_open(store), file, without=without or ())
    typer.echo(f"packed {done.results} results, {_size(file.stat().st_size)}")


@runs_app.command("merge")
def merge_results(
    store: StorePath,
    files: Annotated[
        list[Path],
        typer.Argument(help="Files that `warp runs pack` wrote, or stores, also of version 0.1.", show_default=False),
    ],
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Take uncompressed files of version 0.1, which have no checksums.")
    ] = False,
) -> None:
    """Take packed results into a store; those that are there already stay as they are."""
    from ..runs.pack import merge

    for file in files:
        done = merge(store, file, unchecked=unchecked)
        typer.echo(f"{file}: took {done.results} results; {done.known} were there already")


def _open(path: Path) -> Store:
    from ..runs.store import Store

    return Store(path, create=False)


def _find(store: Store, beginning: str) -> str:
    """The one digest that begins so."""
    from ..errors import InputError

    found = [digest for digest in store.digests() if digest.startswith(beginning.lower())]
    if not beginning or not found:
        raise InputError(
            f"no entry of {store.root} has a key that begins with {beginning!r}; `warp runs list` shows them"
        )
    if len(found) > 1:
        raise InputError(f"{len(found)} keys begin with {beginning!r}; give more of it: {', '.join(found[:3])}")
    return found[0]


def _selected(entries: list[Entry], *, kind: str | None, older_than: float | None, superseded: bool) -> list[Entry]:
    """Entries of this kind, made so many days ago, and of an older version than another of their kind."""
    from datetime import UTC, datetime, timedelta

    from ..errors import InputError

    newest: dict[str, int] = {}
    for entry in entries:
        newest[entry.key.kind] = max(entry.key.version, newest.get(entry.key.kind, 0))
    try:
        before = datetime.now(UTC) - timedelta(days=older_than or 0.0)
    except OverflowError as error:
        raise InputError(f"{older_than:g} days ago is before the calendar begins; give fewer") from error
    return [
        entry
        for entry in entries
        if kind in (None, entry.key.kind)
        and (older_than is None or entry.made < before)
        and (not superseded or entry.key.version < newest[entry.key.kind])
    ]


def _about(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key.digest,
        "kind": entry.key.kind,
        "version": entry.key.version,
        "made": entry.made.isoformat(),
        "seconds": entry.seconds,
        "bytes": entry.size,
        "package": entry.package,
        "ingredients": entry.key.ingredients,
        "files": {name: {"bytes": f.size, "sha256": f.sha256} for name, f in entry.files.items()},
    }


def _row(entry: Entry) -> list[str]:
    made = entry.made.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    seconds = "" if entry.seconds is None else f"{entry.seconds:.2f}"
    key, size, count = entry.key, _size(entry.size), str(len(entry.files))
    return [key.digest[:12], key.kind, str(key.version), made, seconds, size, count]


def _show(entry: Entry, fault: str) -> None:
    typer.echo(f"{entry.key.kind}, version {entry.key.version}: {entry.key.digest}")
    typer.echo(f"made {entry.made.isoformat()} by version {entry.package} of this package")
    if entry.seconds is not None:
        typer.echo(f"took {entry.seconds:.2f} seconds")
    typer.echo(json.dumps(entry.key.ingredients, indent=2))
    for name, file in entry.files.items():
        typer.echo(f"{name}  {_size(file.size)}  {file.sha256[:12]}")
    typer.echo(f"damaged: {fault}" if fault else "intact")


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
