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
    from ..runs.store_selection import select
    from .show import print_table

    opened = _open(store)
    entries = sorted(select(opened.entries(), kind=kind), key=lambda entry: entry.manifest.made)
    unreadable = len(opened.digests()) - sum(1 for _ in opened.entries())
    if as_json:
        typer.echo(json.dumps({"entries": [_about(entry) for entry in entries], "unreadable": unreadable}, indent=2))
        return
    print_table(
        f"{len(entries)} results, {_size(sum(entry.manifest.size for entry in entries))}",
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
    from ..runs.store_entry import Damage
    from ..runs.store_selection import find_digest

    opened = _open(store)
    digest = find_digest(opened, key)
    try:
        entry = opened.look(digest)
    except Damage as damage:
        raise DataError(f"the entry {digest} is corrupt: {damage}; run its job again") from damage
    fault = opened.fault(digest)
    if as_json:
        typer.echo(json.dumps(_about(entry) | {"fault": fault or None}, indent=2))
    else:
        _show(entry, fault)
    if fault:
        raise typer.Exit(1)


@runs_app.command()
def verify(
    store: StorePath,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Take corrupt results out of their place, to be made again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every file of every result and compare it with its checksum. Exit code 1 where one is corrupt."""
    opened = _open(store)
    found = opened.verify()
    if set_aside:
        for digest in found.corrupt:
            opened.set_aside(digest)
    if as_json:
        data = {"intact": found.intact, "corrupt": dict(found.corrupt), "set_aside": set_aside and bool(found.corrupt)}
        typer.echo(json.dumps(data, indent=2))
    else:
        for digest, fault in found.corrupt.items():
            typer.echo(f"corrupt: {digest[:12]}  {fault}")
        typer.echo(f"{found.intact} intact, {len(found.corrupt)} corrupt")
        if found.corrupt:
            typer.echo("set aside: the next run makes them again" if set_aside else "--set-aside has them made again")
    if found.corrupt:
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
    from datetime import UTC, datetime

    from ..runs.store_selection import days_before, select

    opened = _open(store)
    chosen: list[Entry] = []
    if kind is not None or older_than is not None or superseded:
        before = None if older_than is None else days_before(datetime.now(UTC), older_than)
        chosen.extend(select(opened.entries(), kind=kind, before=before, superseded=superseded))
    size = sum(entry.manifest.size for entry in chosen)
    leftovers = 0
    if not dry_run:
        size = sum(opened.remove(entry.digest) for entry in chosen)
        cleared = opened.clear_leftovers()
        size, leftovers = size + cleared.size, cleared.leftovers
    if as_json:
        data = {"removed": [e.digest for e in chosen], "leftovers": leftovers, "bytes": size, "dry_run": dry_run}
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
    from ..runs.store_pack import pack

    done = pack(_open(store), file, without=without or ())
    typer.echo(f"packed {done.results} results, {_size(file.stat().st_size)}")


@runs_app.command("merge")
def merge_results(
    store: StorePath,
    files: Annotated[list[Path], typer.Argument(help="Files that `warp runs pack` wrote.", show_default=False)],
) -> None:
    """Take packed results into a store; those that are there already stay as they are."""
    from ..runs.store import Store
    from ..runs.store_pack import require_packed, take_in

    for file in files:
        require_packed(file)
        done = take_in(Store(store), file)
        typer.echo(f"{file}: took {done.results} results; {done.known} were there already")


def _open(path: Path) -> Store:
    from ..runs.store import Store

    return Store(path, create=False)


def _about(entry: Entry) -> dict[str, Any]:
    manifest = entry.manifest
    return {
        "key": entry.digest,
        "kind": manifest.key.kind,
        "version": manifest.key.version,
        "made": manifest.made.isoformat(),
        "seconds": manifest.seconds,
        "bytes": manifest.size,
        "package": manifest.package,
        "ingredients": manifest.key.ingredients,
        "files": {name: {"bytes": f.size, "sha256": f.sha256} for name, f in sorted(manifest.files.items())},
    }


def _row(entry: Entry) -> list[str]:
    manifest = entry.manifest
    made = manifest.made.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    seconds = "" if manifest.seconds is None else f"{manifest.seconds:.2f}"
    key, size, count = manifest.key, _size(manifest.size), str(len(manifest.files))
    return [entry.digest[:12], key.kind, str(key.version), made, seconds, size, count]


def _show(entry: Entry, fault: str) -> None:
    manifest = entry.manifest
    typer.echo(f"{manifest.key.kind}, version {manifest.key.version}: {entry.digest}")
    typer.echo(f"made {manifest.made.isoformat()} by version {manifest.package} of this package")
    if manifest.seconds is not None:
        typer.echo(f"took {manifest.seconds:.2f} seconds")
    typer.echo(json.dumps(manifest.key.ingredients, indent=2))
    for name, file in sorted(manifest.files.items()):
        typer.echo(f"{name}  {_size(file.size)}  {file.sha256[:12]}")
    typer.echo(f"corrupt: {fault}" if fault else "intact")


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
