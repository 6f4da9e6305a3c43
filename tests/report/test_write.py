import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from warp_unlearning.cli.report import report
from warp_unlearning.errors import DataError, InputError
from warp_unlearning.report.page import write_report


@pytest.fixture
def source(pair_data, tmp_path: Path) -> Path:
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(pair_data))
    return path


def test_the_page_lies_beside_the_results_and_only_its_owner_reads_it(source):
    written = write_report(source.parent)
    assert written.page == source.with_suffix(".html")
    assert written.page.stat().st_mode & 0o777 == 0o600
    assert written.page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(os.listdir(source.parent)) == ["audit.html", "audit.json"]


def test_figures_are_written_in_both_forms(source, tmp_path):
    written = write_report(source, out=tmp_path / "new" / "r.html", figures=tmp_path / "figures")
    assert [path.name for path in written.figures] == [
        "attacks-01-auc-of-every-attack.png",
        "attacks-01-auc-of-every-attack.pdf",
    ]
    assert written.figures[0].read_bytes().startswith(b"\x89PNG")
    assert written.figures[1].read_bytes().startswith(b"%PDF")


def test_a_damaged_file_leaves_an_earlier_report_whole(source):
    page = source.with_suffix(".html")
    page.write_text("earlier")
    source.write_text(source.read_text()[:500])
    with pytest.raises(DataError, match="cut short"):
        write_report(source)
    assert page.read_text() == "earlier"


def test_places_that_cannot_be_written_to_are_refused(source, tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        write_report(source, out=tmp_path)
    with pytest.raises(InputError, match="results file itself"):
        write_report(source, out=source)
    with pytest.raises(InputError, match="name a folder"):
        write_report(source, figures=source)


def test_the_command(source, tmp_path):
    app = typer.Typer()
    app.command()(report)
    found = CliRunner().invoke(app, [str(source), "--figures", str(tmp_path / "f")])
    assert found.exit_code == 0
    assert found.output.splitlines() == [
        f"written to {source.with_suffix('.html')}",
        f"2 figures written to {tmp_path / 'f'}",
    ]
    found = CliRunner().invoke(app, [str(source), "--json", "--out", str(tmp_path / "r.html")])
    assert json.loads(found.output) == {"report": str(tmp_path / "r.html"), "figures": []}
