from __future__ import annotations

import pickle

import pytest

from warp_unlearning.errors import DivergedError, WarpError, nearest


def test_a_divergence_survives_the_way_from_a_worker_process() -> None:
    error = pickle.loads(pickle.dumps(DivergedError("gone", state={"w": 1}, update=7)))
    assert isinstance(error, DivergedError)
    assert (str(error), error.state, error.update, error.exit_code) == ("gone", {"w": 1}, 7, 1)


@pytest.mark.parametrize(("name", "hint"), [("scrubb", "did you mean 'scrub'?"), ("zzz", "Known: ngp, scrub")])
def test_nearest_names_what_may_be_meant_or_all_there_is(name: str, hint: str) -> None:
    assert nearest(name, ["scrub", "ngp"]).startswith(hint)


def test_every_error_is_one_of_ours_with_an_exit_code() -> None:
    assert {cls.exit_code for cls in WarpError.__subclasses__()} == {1, 2}
