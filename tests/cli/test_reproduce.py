from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Warp = Callable[..., Any]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("reproduce") / "study.yaml"
    file.write_text("epochs: 1\nmethods: [ngp]\nshadows: 12\npairs: 0\nmethod_options: {ngp: {epochs: 1}}\n")
    return file


def test_a_plan_says_what_would_be_done(warp: Warp, small: Path, tmp_path: Path) -> None:
    answer = warp("reproduce", "table1", "--config", small, "--out", tmp_path / "out", "--plan", "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "planned: 12 original, 12 scores, 336 cell; 0 are there already" in answer.err


def test_when_the_time_is_up_the_table_says_so_and_the_code_is_3(warp: Warp, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("--config", small, "--out", out, "--device", "cpu", "--budget", "0", "--progress", "none")
    answer = warp("reproduce", "table1", *given)
    assert answer.code == 3, answer.err
    assert "360 jobs left" in answer.err
    assert "NGP + WARP" in answer.out
    assert json.loads((out / "results.json").read_text())["complete"] is False
    assert (out / "audited.npy").is_file()


def test_a_table_of_what_a_store_lacks_is_no_success(warp: Warp, small: Path, tmp_path: Path) -> None:
    given = ("--config", small, "--out", tmp_path / "out", "--device", "cpu", "--only-results", "--progress", "none")
    answer = warp("reproduce", "table1", *given)
    assert answer.code == 3
    assert answer.err == "the store lacks 360 jobs; run the command without --only-results to go on\n"
    assert (tmp_path / "out" / "table.md").is_file()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("tabel1",), "table1"),
        (("table1", "--size", "paper"), "--data-path"),
        (("table1", "--shadows", "4"), "--shadows 12 or more"),
        (("table1", "--methods", "npg"), "ngp"),
        (("table1", "--size", "huge"), "size"),
        (("table1", "--data-path", "nowhere", "--size", "paper"), "nowhere"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_code_2(warp: Warp, tmp_path: Path, given: tuple[str, ...], message: str) -> None:
    answer = warp("reproduce", *given, "--out", tmp_path / "out", "--device", "cpu")
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.err


def test_bench_times_this_machine(warp: Warp, tmp_path: Path) -> None:
    answer = warp("bench", "--out", tmp_path / "b", "--size", "small", "--workers", "0", "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "| plain |" in answer.out
    found = json.loads((tmp_path / "b" / "results.json").read_text())
    assert [row["name"] for row in found["training"]] == ["plain", "eager", "fleet 1"]
    assert found["training"][0]["faster"] == 1.0
    assert warp("bench", "--out", tmp_path / "c", "--size", "huge").code == 2
    assert warp("bench", "--out", tmp_path / "c", "--size", "paper", "--device", "cpu").code == 2
