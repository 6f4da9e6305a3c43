import pytest

from warp_unlearning.cli.show import print_table


def test_rows_are_printed_whole_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Title", ["model", "a", "b"], [["one", "0.5 [0.4, 0.6]", "1"], ["two", "[red]x[/red]", "22"]])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == "Title"
    assert lines[1].split() == ["model", "a", "b"]
    assert lines[3].split() == ["one", "0.5", "[0.4,", "0.6]", "1"]
    assert lines[4].split() == ["two", "[red]x[/red]", "22"]
    # The first column is text, the others are numbers.
    assert lines[3].endswith(" 1")
    assert lines[4].endswith("22")
    assert len(lines[3]) == len(lines[4])


def test_a_pipe_gets_wide_tables_uncut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    cells = [f"{k}.000 [0.000, 1.000]" for k in range(6)]
    print_table("t", ["model", *"abcdef"], [["x", *cells]])
    out = capsys.readouterr().out
    assert all(cell in out for cell in cells)
    assert "…" not in out
