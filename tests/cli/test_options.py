from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.cli.options import assign, prepare
from warp_unlearning.config import ShadowConfig, resolve, resolve_as
from warp_unlearning.runs import cores

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1).filter(
    lambda name: Path(name).name == name
)


def test_flags_come_behind_overrides_and_only_if_given() -> None:
    assert assign(["seed=1"], seed=2, device=None, training__epochs=3) == ["seed=1", "seed=2", "training.epochs=3"]
    assert assign(None) == []
    assert assign(None, seed=0) == ["seed=0"]


@given(NAMES)
def test_any_path_arrives_as_it_was_given(name: str) -> None:
    assert resolve(overrides=assign(None, data__path=Path(name))).data.path == Path(name)


@given(st.lists(NAMES))
def test_lists_of_names_arrive_as_they_were_given(names: list[str]) -> None:
    assert resolve_as(ShadowConfig, overrides=assign(None, defenses=names)).defenses == names


@given(st.floats(1e-30, 0.999))
def test_numbers_arrive_as_they_were_given(number: float) -> None:
    assert resolve(overrides=assign(None, forget__fraction=number)).forget.fraction == number


def test_threads_are_those_asked_for_or_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(cores, "use_threads", used.append)
    monkeypatch.setattr(cores, "available_cores", lambda: 12)
    assert prepare(3, None) is None
    assert prepare(None, None) is None
    assert used == [3, 12]


def test_a_network_of_the_users_own_is_loaded(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "use_threads", lambda threads: None)
    builder = prepare(1, f"{network}:build")
    assert builder is not None
    assert sum(p.numel() for p in builder(hidden=2).parameters()) == 64 * 2 + 2 + 2 * 10 + 10
