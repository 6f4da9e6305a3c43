"""docs/claims.md has a row for every table and figure of the paper; its numbers are those of the files it links to,
and its commands exist.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer

from warp_unlearning.cli.main import app
from warp_unlearning.stats.intervals import Estimate

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "claims.md").read_text()
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line.startswith("| `")]
NUMBER = re.compile(r"\[([^\[\]]+ \[[^\]]+\])\]\(\.\./([^)#]+)#([^)]+)\)")
LABELS = """tab:bb_mm_advred fig:wb_privacy fig:roc_full tab:wb_vit fig:glir_vit tab:recon_teleport tab:recon_core
    fig:recon_ngp_tp fig:adaptive-recon-cob fig:spider_six_methods fig:norm_vs_privacy_risk fig:tradeoff fig:runtime
    fig:fastTime fig:fastwarp fig:teleport-hp-sensitivity tab:dp-langevin-tradeoff cor:tele-improvement-exact-lb
    cor:lognormal-improvement"""


def test_every_label_has_one_row_with_all_its_cells() -> None:
    assert sorted(row[0].strip("`") for row in ROWS) == sorted(LABELS.split())
    for row in ROWS:
        assert len(row) == 5
        assert all(row), row


def test_numbers_are_those_of_the_files() -> None:
    found = NUMBER.findall(TEXT)
    assert len(found) > 8
    for shown, file, pointer in found:
        value = json.loads((ROOT / file).read_text())
        for key in unquote(pointer).split("/")[1:]:
            value = value[int(key)] if isinstance(value, list) else value[key]
        assert str(Estimate(**{name: value[name] for name in ("value", "low", "high")})) == shown, (file, pointer)


@pytest.mark.parametrize("command", sorted({row[2].strip("`") for row in ROWS}))
def test_commands_exist(command: str) -> None:
    program, *words = shlex.split(command)
    if program != "warp":
        assert (ROOT / words[0]).exists()
        return
    group = typer.main.get_command(app)
    context = group.make_context("warp", ["reproduce", "--help"], resilient_parsing=True)
    study = group.get_command(context, words[0])  # type: ignore[attr-defined]
    assert study.make_context("reproduce", [*words[1:], "--out", "x"]).params["study"] == words[1]
