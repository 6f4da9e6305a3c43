"""Models after requests to forget, what each forgot, and which of them were made in one way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cli.subject import Subject, check_known, on_one_table
from ..data.table import FORGET, Index, Parts, find, read_request
from ..errors import InputError
from ..models.weights import model_digest
from .known_unlearning import KnownUnlearning, known_unlearning


@dataclass(frozen=True, eq=False)
class Attacked:
    """A model after a request, and what that forgot."""

    path: Path
    source: Subject
    forget: Index
    known: KnownUnlearning


@dataclass(frozen=True)
class Column:
    """Models that were made in one way, each by forgetting something else."""

    name: str
    members: tuple[Attacked, ...]

    @property
    def known(self) -> KnownUnlearning:
        """What is known of that way."""
        return self.members[0].known

    @property
    def positions(self) -> list[int]:
        """What was forgotten, one request after another."""
        return [int(i) for member in self.members for i in member.forget]


def load_attacked(
    original: Subject, after: Sequence[Path], *, forget: Path | None, most: int, load: Callable[[Path], Subject]
) -> list[Attacked]:
    """The models at `after`, which all start from the original and forgot equally many examples, at most `most`:
    those that each run says, or those in the file `forget`.
    """
    if not after:
        raise InputError("no model after the unlearning was given; give at least one")
    sources = {path: load(path) for path in dict.fromkeys(after)}
    same = on_one_table({"original": original, **{str(path): source for path, source in sources.items()}})
    sources = {path: same[str(path)] for path in sources}
    digest = model_digest(original.model)
    for path, source in sources.items():
        if model_digest(source.model) == digest:
            raise InputError(f"{path} is identical to the model before: there is no difference to attack")
    found = [
        Attacked(
            path, source, _forgotten(path, source, forget, original), known_unlearning(path, source, original=digest)
        )
        for path, source in sources.items()
    ]
    sizes = sorted({len(a.forget) for a in found})
    if len(sizes) > 1:
        raise InputError(
            f"the models forgot {' and '.join(map(str, sizes))} examples; give models that forgot equally many, or "
            "attack them one by one"
        )
    if sizes[0] > most:
        raise InputError(
            f"{sizes[0]} examples were forgotten together and only the sum of their gradients is seen, from which more "
            f"than {most} are rarely told apart; attack a request of fewer, or allow them by --most {sizes[0]}"
        )
    return found


def in_columns(attacked: Sequence[Attacked]) -> list[Column]:
    """Models of one method and defence side by side, where they forgot different examples; a weight file by itself."""
    groups: dict[tuple[str, str, int], list[Attacked]] = {}
    for one in attacked:
        repeat = 1
        while any(np.intersect1d(one.forget, other.forget).size for other in groups.get((*_way(one), repeat), [])):
            repeat += 1
        groups.setdefault((*_way(one), repeat), []).append(one)
    seen: Counter[str] = Counter()
    columns = []
    for (name, _, _), members in groups.items():
        seen[name] += 1
        columns.append(Column(name if seen[name] == 1 else f"{name} ({seen[name]})", tuple(members)))
    return columns


def _way(one: Attacked) -> tuple[str, str]:
    """A name for how the model was made, and all that decided it."""
    known = one.known
    if known.method is None:
        return one.path.name, str(one.path.resolve())
    defense = "" if known.defense == "none" else f" + {known.defense or 'a defence'}"
    last = one.source.record.deletions[-1]
    return f"{known.method}{defense}", f"{dict(known.settings)} {last.defense} {known.schedule}"


def _forgotten(path: Path, source: Subject, file: Path | None, original: Subject) -> Index:
    told = source.parts.rows(FORGET) if source.record.deletions else None
    if told is not None:
        check_known(original, told)
    if file is not None:
        given = asked_parts(file, original).rows(FORGET)
        if told is not None and not np.array_equal(given, told):
            raise InputError(f"{file} names other rows than those that {path} forgot; leave --forget out")
        return given
    if told is None:
        raise InputError(f"nothing says which rows {path} forgot; give --forget FILE")
    return told


def asked_parts(file: Path, original: Subject) -> Parts:
    """The part of each row once those in a file are forgotten with their copies, all of which the original knew."""
    rows = find(read_request(file), original.table)
    check_known(original, rows)
    return original.parts.request(original.table, rows)
