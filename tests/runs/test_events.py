from __future__ import annotations

from warp_unlearning.runs.events import Event, told_to
from warp_unlearning.runs.keys import Key


def test_every_watch_is_told_in_order() -> None:
    told: list[tuple[str, Event]] = []
    watch = told_to(lambda event: told.append(("first", event)), lambda event: told.append(("second", event)))
    event = Event("started", Key("train", 1, {}))
    watch(event)
    assert told == [("first", event), ("second", event)]
