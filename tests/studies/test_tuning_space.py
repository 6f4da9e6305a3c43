"""What a search may set: the ranges, and that every method and defence can be made at their ends."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.defense.registry import defense_names, make_defense
from warp_unlearning.errors import InputError
from warp_unlearning.methods.registry import SMALL_DATA, make_method, method_classes
from warp_unlearning.studies.tuning_space import (
    Choice,
    Limits,
    Span,
    corners,
    defense_space,
    method_space,
)

LIMITS = Limits(training_epochs=91, retained=21_375)
METHODS = sorted(set(method_classes()) - {"retrain"})


@pytest.mark.parametrize("name", METHODS)
def test_rates_epochs_and_batches_are_those_of_the_published_search(name: str) -> None:
    space = method_space(name, LIMITS)
    own = {"pgu": {"lr", "epochs"}}.get(name, set())
    expected = {
        "lr": Span(1e-5, 1e-1, log=True),
        "weight_decay": Span(1e-5, 1e-1, log=True),
        "epochs": Span(1, 19, whole=True),
        "batch_size": Choice((64, 128, 256)),
        "retain_batch_size": Choice((64, 128, 256)),
        "forget_batch_size": Choice((64, 128, 256)),
    }
    shared = {setting for setting in space if setting in expected} - own
    assert "lr" in space
    assert shared
    assert {setting: space[setting] for setting in shared} == {setting: expected[setting] for setting in shared}
    assert "momentum" not in space


def test_weights_of_the_losses_lie_between_0_and_1() -> None:
    assert method_space("ngp", LIMITS)["alpha"] == Span(0.0, 1.0)
    assert method_space("scrub", LIMITS)["gamma"] == Span(0.0, 1.0)
    assert method_space("scrub", LIMITS)["temperature"] == Span(0.1, 5.0)


def test_what_pgu_and_srf_on_need_is_in_their_ranges() -> None:
    assert method_space("pgu", LIMITS)["lr"] == Span(1e-5, 1.0, log=True)
    assert method_space("pgu", LIMITS)["epochs"] == Span(1, 95, whole=True)
    # 19 epochs of 334 batches of 64.
    assert method_space("srf_on", LIMITS)["iterations"] == Span(1, 19 * ceil(21_375 / 64), whole=True)


@given(st.integers(1, 2000))
def test_epochs_are_a_fifth_rounded_up(epochs: int) -> None:
    found = Limits(training_epochs=epochs, retained=1).epochs
    assert found - 1 < epochs / 5 <= found


@pytest.mark.parametrize("name", METHODS)
def test_methods_can_be_made_at_both_ends(name: str) -> None:
    low, high = corners(method_space(name, LIMITS))
    assert all(low[setting] != high[setting] for setting in low)
    for corner in (low, high):
        made = make_method(name, **corner)
        assert all(getattr(made, setting) == value for setting, value in corner.items())


@pytest.mark.parametrize("name", METHODS)
def test_hand_chosen_settings_are_inside_of_the_ranges(name: str) -> None:
    """The hand-chosen settings for small data are inside of the ranges, but for smaller batches and more epochs."""
    space = method_space(name, LIMITS)
    for setting, value in SMALL_DATA.get(name, {}).items():
        found = space.get(setting)
        if isinstance(found, Span):
            assert found.low <= value <= found.high, setting


@pytest.mark.parametrize("name", defense_names())
def test_defences_can_be_made_at_both_ends(name: str) -> None:
    space = defense_space(name)
    for corner in corners(space):
        made: Any = make_defense(name, **corner)
        for setting, value in corner.items():
            assert getattr(made if setting == "every" else made.symmetry, setting) == value


@pytest.mark.parametrize("name", ["warp", "fastwarp", "warp_guarded"])
def test_null_space_defences_are_searched_in_step_dispersion_energy_and_schedule(name: str) -> None:
    space = defense_space(name)
    assert set(space) == {"step_size", "steps", "dispersion", "energy", "every"}
    assert (space["step_size"], space["energy"]) == (Span(0.005, 0.5, log=True), Span(0.95, 0.999))
    assert space["dispersion"] == Span(0.01, 1.0, log=True)


@pytest.mark.parametrize("name", ["cob", "conjugate"])
def test_changes_of_basis_are_searched_in_their_spread(name: str) -> None:
    assert set(defense_space(name)) == {"spread"}


def test_given_ranges_go_over_ours() -> None:
    space = method_space("ngp", LIMITS, changed={"alpha": Span(0.5, 0.6), "norm_mode": Choice(("train", "eval"))})
    assert space["alpha"] == Span(0.5, 0.6)
    assert space["norm_mode"] == Choice(("train", "eval"))
    assert space["lr"] == method_space("ngp", LIMITS)["lr"]
    assert defense_space("warp", changed={"every": Choice(("epoch", "end"))})["every"].bring("end") == "end"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: method_space("ngq", LIMITS), "unknown method 'ngq'; did you mean 'ngp'"),
        (lambda: method_space("retrain", LIMITS), "retrain is what the trials are measured against"),
        (lambda: method_space("ngp", LIMITS, changed={"alpa": Span(0, 1)}), "ngp has no option 'alpa' to search"),
        (lambda: defense_space("wrap"), "unknown defence 'wrap'"),
        (lambda: defense_space("cob", changed={"energy": Span(0, 1)}), "cob has no option 'energy' to search"),
        (lambda: Span(2, 1), "a range from 2 to 1 holds nothing"),
        (lambda: Span(0, 1, log=True), "has no logarithm"),
        (lambda: Choice(()), "a choice among no values"),
    ],
)
def test_ranges_that_cannot_be_searched_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@given(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3), st.floats(0, 1e3))
def test_a_start_is_brought_to_the_nearest_number_of_a_span(value: float, low: float, width: float) -> None:
    found = Span(low, low + width).bring(value)
    assert low <= found <= low + width
    assert abs(found - value) <= min(abs(low - value), abs(low + width - value)) or found == value


def test_a_start_that_is_no_number_is_in_the_middle() -> None:
    assert Span(1, 5, whole=True).bring(None) == 3
    assert Span(1e-4, 1e-2, log=True).bring(None) == pytest.approx(1e-3)


@pytest.mark.parametrize(("value", "expected"), [(64, 64), (32, 64), (100, 128), (1000, 256), ("x", 64), (None, 64)])
def test_a_start_is_brought_to_the_nearest_choice(value: object, expected: int) -> None:
    assert Choice((64, 128, 256)).bring(value) == expected
