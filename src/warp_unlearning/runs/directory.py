"""A run directory: configuration first, then files, each written in one step, then the manifest that makes it complete.

A directory without a manifest is a run that was stopped; one whose configuration differs is another run. A store of
results in the directory is no part of the run: other runs may share it, it may grow, and it verifies itself.

YAML is read so that 1e-3 is a number and a key stands once. YAML 1.1, which PyYAML reads and writes, takes 1e-3 for a
word; PyYAML takes the last of several equal keys, and drops the others without a word.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import yaml
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from ..data.files import read_text, write_atomically
from ..errors import DataError, InputError
from ..version import __version__
from .store import ABOUT

Schema = TypeVar("Schema", bound=BaseModel)

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
CONFIG = "config.yaml"
LOCK = ".lock"
DIVERGED = "diverged.safetensors"

_WAY_OUT = "the folder is not a run of ours or is damaged: give another, or make the run again"
# What write_atomically and save_weights name a file while they write it.
_UNFINISHED = re.compile(r"\..+\.(yaml|json|npy|npz|safetensors|png|html)\.[a-z0-9_]{8}")


@dataclass(frozen=True)
class RunDirectory:
    """A folder that holds one run of one `kind`, such as "train"."""

    path: Path
    kind: str

    @property
    def complete(self) -> bool:
        """Whether the manifest is there."""
        return (self.path / MANIFEST).is_file()

    def config(self) -> dict[str, Any]:
        """The resolved configuration that the run was started with."""
        try:
            data = load_yaml(read_text(self.path / CONFIG))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise DataError(
                f"{self.path / CONFIG} is missing or damaged ({type(error).__name__}); {_WAY_OUT}"
            ) from error
        if not isinstance(data, dict):
            raise DataError(f"{self.path / CONFIG} holds a {type(data).__name__}, no configuration; {_WAY_OUT}")
        return data

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """One JSON file."""
        write_atomically(self.path / name, _json_text(data))

    def read_json(self, name: str) -> dict[str, Any]:
        """One JSON file, or an error that says which is missing or damaged."""
        try:
            data = json.loads(read_text(self.path / name))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{self.path / name} is missing or damaged ({error}); run the command again") from error
        if not isinstance(data, dict):
            raise DataError(f"{self.path / name} holds a {type(data).__name__} where an object was written")
        return data

    def results(self, schema: type[Schema]) -> Schema:
        """The results of a complete run, its files verified, as their schema has them."""
        data = open_run(self.path).read_json("results.json")
        try:
            return schema.model_validate(data)
        except ValidationError as error:
            raise DataError(
                f"{self.path / 'results.json'} holds no results of {schema.__name__.lower()} "
                f"({error.errors()[0]['msg']}); {_WAY_OUT}"
            ) from error

    @contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[None]:
        """A context in which no other process writes in the run; where one does, wait for it or raise an error."""
        file = self.path / LOCK
        lock = FileLock(file, mode=0o600, thread_local=False)
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout as error:
            raise InputError(
                f"another process is at work in {self.path}; wait for it, or choose another --out"
            ) from error
        try:
            yield
        finally:
            # Removed while held: whoever waits for this very file sees that it has no name left, and starts again.
            with suppress(PermissionError):
                file.unlink(missing_ok=True)
            lock.release()

    def finish(self) -> None:
        """Write the manifest: every file with its size and digest."""
        files = {
            str(p.relative_to(self.path)): {"bytes": p.stat().st_size, "sha256": sha256(p.read_bytes()).hexdigest()}
            for p in sorted(_walk(self.path))
            if p.is_file() and p.name != MANIFEST and not p.name.startswith(".")
        }
        about = {"schema_version": SCHEMA_VERSION, "kind": self.kind, "version": __version__, "files": files}
        self.write_json(MANIFEST, about)

    def amend_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Replace one JSON file of a complete run. Stopped at any moment, it leaves the old file or the new one, and a
        manifest that knows it.
        """
        manifest = self.read_json(MANIFEST)
        about = manifest["files"][name]
        text = _json_text(data)
        new = {"bytes": len(text), "sha256": sha256(text).hexdigest()}
        self.write_json(MANIFEST, manifest | {"files": manifest["files"] | {name: new | {"before": about["sha256"]}}})
        write_atomically(self.path / name, text)
        self.write_json(MANIFEST, manifest | {"files": manifest["files"] | {name: new}})


def start_run(path: Path, *, kind: str, config: Mapping[str, Any], places: Collection[str] = ()) -> RunDirectory:
    """The directory for a run with this configuration: new, stopped before, or already complete.

    A folder that holds anything else, or a run with another configuration, is an error that says what differs, unless
    that run diverged; keys in `places` may differ. Files that a killed process was writing are removed.
    """
    if path.is_symlink():
        raise InputError(f"{path} is a link; give the folder itself as --out")
    _require_ours(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    run = RunDirectory(path, kind)
    with run.lock():
        _take_up(run, config, places)
    return run


def _require_ours(path: Path) -> None:
    """Refuse a folder that holds anything else than a run, a store, and what a killed process was writing."""
    if (path / CONFIG).is_file() or not path.exists():
        return
    if path.is_dir() and all(
        p.name == ".lock" or _UNFINISHED.fullmatch(p.name) or _is_store(p) for p in path.iterdir()
    ):
        return
    raise InputError(f"{path} exists and is not a run of ours; choose another --out")


def _take_up(run: RunDirectory, config: Mapping[str, Any], places: Collection[str]) -> None:
    path, text = run.path, dump_yaml(dict(config))
    _sweep(path)
    if not (path / CONFIG).is_file():
        write_atomically(path / CONFIG, text.encode())
        return
    different = [d for d in _differences(run.config(), load_yaml(text)) if d.partition(": ")[0] not in places]
    if different and (path / DIVERGED).is_file() and not run.complete:
        # A run that diverged is there to be tried again with other settings.
        for file in path.iterdir():
            if file.is_file() and file.name not in (CONFIG, LOCK):
                file.unlink()
        write_atomically(path / CONFIG, text.encode())
    elif different:
        raise InputError(
            f"{path} holds a run with another configuration ({'; '.join(different[:4])}); choose another --out, "
            "or delete it"
        )


def open_run(path: Path) -> RunDirectory:
    """A complete run, its files verified against the manifest."""
    run = RunDirectory(path, "")
    if not path.is_dir():
        raise InputError(f"there is no run directory {path}; give the --out of a finished command")
    if not run.complete:
        raise InputError(f"{path} has no {MANIFEST}: the run was stopped or is not ours; start it again to finish it")
    manifest = run.read_json(MANIFEST)
    if manifest.get("schema_version") != SCHEMA_VERSION:
        raise DataError(
            f"{path / MANIFEST} has schema version {manifest.get('schema_version')}; "
            f"this program reads {SCHEMA_VERSION}: use the version of this package that wrote it"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(about, dict) for about in files.values()):
        raise DataError(f"{path / MANIFEST} lists no files; the run is damaged: make it again")
    # Manifests of version 0.1 list the store too.
    files = {name: about for name, about in files.items() if not _is_store(path / Path(name).parts[0])}
    for file in {*(path / name for name in files), *_walk(path)}:
        if file.is_symlink() or not file.resolve().is_relative_to(path.resolve()):
            raise DataError(f"{file} leads out of the run; the run is damaged or not yours: make it again")
    for name, about in files.items():
        file = path / name
        # A file that was being replaced when its process was killed is the one before.
        known = (about.get("sha256"), about.get("before"))
        if not file.is_file() or sha256(file.read_bytes()).hexdigest() not in known:
            raise DataError(f"{file} is missing or not what the manifest says; the run is damaged: make it again")
    return RunDirectory(path, str(manifest.get("kind")))


def _walk(path: Path) -> Iterator[Path]:
    """Everything in a run; of a store only its folder."""
    for folder, folders, files in os.walk(path):
        yield from (Path(folder, name) for name in (*folders, *files))
        folders[:] = [name for name in folders if not _is_store(Path(folder, name))]


def _is_store(path: Path) -> bool:
    return (path / ABOUT).is_file()


def _json_text(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()


def _sweep(path: Path) -> None:
    for file in _walk(path):
        if _UNFINISHED.fullmatch(file.name):
            file.unlink(missing_ok=True)


def _differences(old: Any, new: Any, where: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new}, key=str)
        return [d for k in keys for d in _differences(old.get(k), new.get(k), f"{where}.{k}" if where else str(k))]
    return [] if old == new else [f"{where}: {old!r} there, {new!r} now"]


_FLOAT = "tag:yaml.org,2002:float"
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z")


class RepeatedKey(yaml.YAMLError):
    """A key that stands in one mapping twice."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping as written, before what it merges from others is put into it."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise RepeatedKey(f"the key {key.value!r} twice, on lines {lines[name]} and {line}; keep one of them")
            lines[name] = line
        return node


class _Dumper(yaml.SafeDumper):
    pass


_Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))
_Dumper.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


def load_yaml(text: str) -> Any:
    """Plain data out of `text`; raises `yaml.YAMLError`, also where a value is not what it seems (a 13th month), and
    `RepeatedKey` where a key stands twice.

    >>> load_yaml("{lr: 1e-3, name: '1e-3'}")
    {'lr': 0.001, 'name': '1e-3'}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from error


def dump_yaml(data: Any) -> str:
    """`data` as text that `load_yaml` reads back the same.

    >>> dump_yaml({"lr": 1e-05, "name": "1e-3"})
    "lr: 1.0e-05\\nname: '1e-3'\\n"
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
