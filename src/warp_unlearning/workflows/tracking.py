"""Events of a run as TensorBoard scalars, where the extra `track` is installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError
from ..runs.events import Event, Watch, ignore


@contextmanager
def tracked(folder: Path | None) -> Iterator[Watch]:
    """What writes an event to `folder`: by kind of job, the seconds of each and how many ended; nothing without one."""
    if folder is None:
        yield ignore
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoard is not installed; install warp-unlearning[track]") from error
    ended: Counter[tuple[str, str]] = Counter()
    writer = SummaryWriter(str(folder))

    def note(event: Event) -> None:
        if event.what not in ("finished", "found", "failed"):
            return
        kind = event.key.kind
        ended[kind, event.what] += 1
        writer.add_scalar(f"{kind}/{event.what}", ended[kind, event.what], sum(ended.values()), walltime=event.at)
        if event.seconds is not None:
            writer.add_scalar(f"{kind}/seconds", event.seconds, ended[kind, event.what], walltime=event.at)

    try:
        yield note
    finally:
        writer.close()
