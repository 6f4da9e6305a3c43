"""Events of a run as TensorBoard scalars, where the extra `track` is installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError
from ..runs.progress import Event


@contextmanager
def tracked(folder: Path | None) -> Iterator[Callable[[Event], object] | None]:
    """What writes an event to `folder`: by kind of job, the seconds of each and how many ended; None without one."""
    if folder is None:
        yield None
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
