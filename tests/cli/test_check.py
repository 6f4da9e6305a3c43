"""`warp check`: wrong readings, orders and models are refused with the sentence that says what to set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from warp_unlearning.models.networks import build_model

Warp = Callable[..., Any]
WRONG = ("--scale", "1", "--mean", "127.5", "--std", "10")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, digits: Path, fit: Callable[..., None]) -> Path:
    """Weights of a network that was trained elsewhere on x/255."""
    model = build_model("mlp", generator=torch.Generator().manual_seed(3), inputs=64, classes=10, hidden=[32])
    fit(model, digits, scale=255)
    path = tmp_path_factory.mktemp("foreign") / "model.pt"
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture
def given(digits: Path) -> tuple[object, ...]:
    return ("--model", "mlp", "-o", "model.options.hidden=[32]", "--data", digits)


def test_an_honest_model_holds(warp: Warp, foreign: Path, given: tuple[object, ...], tmp_path: Path) -> None:
    found = warp("check", foreign, *given, "--out", tmp_path / "run", "--json").ok().json()
    assert found == json.loads((tmp_path / "run" / "results.json").read_text())
    assert (found["kind"], found["outcome"], found["reading"]) == ("check", "holds", "x/255")
    assert (found["known_rows"], found["test_rows"]) == (1300, 497)
    assert found["known"]["value"] > 0.9
    assert found["movable"] > 0.5
    text = warp("check", foreign, *given).out.splitlines()
    assert (text[0], text[-1]) == ("read as x/255", "holds: this model fits these data")


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (WRONG, ("read as (x - 128)/10", "Say --scale 255 without --mean and --std, or --as-given")),
        (("--accuracy", "0.5"), ("was stated to be on 0.5",)),
        (("--accuracy", "1.5"), ("accuracy is 1.5",)),
    ],
)
def test_what_does_not_fit_is_refused(
    warp: Warp, foreign: Path, given: tuple[object, ...], more: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    answer = warp("check", foreign, *given, *more)
    answer.refused(*parts)
    assert answer.out == ""
    # Taken as it was said, it is still not a model that beats the commonest class, or it is.
    as_given = warp("check", foreign, *given, *WRONG, "--as-given")
    assert "or --as-given" not in as_given.err
    assert as_given.code in (0, 2)


def test_permuted_classes_and_another_model_are_refused(
    warp: Warp, foreign: Path, given: tuple[object, ...], tmp_path: Path
) -> None:
    state = torch.load(foreign, weights_only=True)
    order = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
    last = [name for name in state if state[name].shape[:1] == (10,)]
    torch.save({k: v[order] if k in last else v for k, v in state.items()}, tmp_path / "permuted.pt")
    torch.save({k: torch.randn_like(v) for k, v in state.items()}, tmp_path / "other.pt")
    permuted, other = (warp("check", tmp_path / f"{name}.pt", *given) for name in ("permuted", "other"))
    permuted.refused("the classes are in another order than in its training")
    other.refused("this is not a model of these data")


def test_unlearning_a_weight_file_checks_it_first(
    warp: Warp, foreign: Path, given: tuple[object, ...], tmp_path: Path
) -> None:
    command = ("unlearn", foreign, *given, "--forget-class", 3, "--method", "ngp", "--out", tmp_path / "run")
    warp(*command, *WRONG).refused("Say --scale 255")
    assert not (tmp_path / "run").exists()
    assert warp(*command).out.startswith("read as x/255\n")
