"""`reconstruct`: rebuild forgotten images from pairs of models, many targets and restarts at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...data.files import to_json
from ...errors import InputError
from ...gradients.energy import can_align
from ...randomness import Streams
from ..undo.base import trainable_copy
from .attacks import ImageAttack, closed_form_image, find_attack
from .search import Candidates, Search, SearchProblem
from .targets import read_targets, tried_labels
from .threat import Threat

# How often the numbers of an update exist at once in a search, and how many numbers may.
_COPIES, _NUMBERS = 12, 2**28


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """`images` (n, count, channels, height, width) with values in [0, 1], the best of the restarts for each of n
    targets; `losses` (n,) are their distances from what was read, `restarts` (n, r) those of all restarts. `labels`
    (n, count) are those used, inferred where the threat has none.
    """

    attack: str
    after: str
    images: Tensor
    losses: Tensor
    restarts: Tensor
    labels: Tensor
    threat: tuple[str, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the images."""
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "images"}
        found: dict[str, Any] = to_json({n: v.tolist() if isinstance(v, Tensor) else v for n, v in shown.items()})
        return found


def reconstruct(
    threat: Threat | Sequence[Threat],
    *,
    attack: str = "inversion",
    after: str | None = None,
    search: Search | None = None,
    seed: int = 0,
    at_once: int | None = None,
    **options: Any,
) -> Reconstruction:
    """Rebuild what was forgotten from one threat, or from several that share the original model.

    `attack` is one of `attacks.ATTACKS`, or "attack@reading"; `after` reads the difference in another way than the
    attack's own. `options` are the attack's: sigma, order, prior and rate for "adaptive", spread, pull and rate for
    "joint", stages and rate for "generative". `at_once` bounds how many targets are searched for together, which
    changes no result: a target's starts are those of its place among the threats.
    """
    began = perf_counter()
    threats = [threat] if isinstance(threat, Threat) else list(threat)
    chosen = find_attack(attack, after=after)
    search = search or chosen.search()
    settled = chosen.options(options)
    _check(threats, at_once)
    problem, note = _problem(threats, chosen, search, Streams(seed, "reconstruct"))
    exact = _closed_forms(problem) if chosen.name == chosen.after == "input-layer" else None
    found = _searched(problem, chosen, settled, at_once) if exact is None else exact
    best = found.losses.argmin(1)
    index = torch.arange(len(threats), device=found.losses.device)
    still = problem.targets.unmoved
    notes = [
        note,
        f"{len(still)} parameters did not move and were not compared, such as {still[0]}" if still else "",
        "" if exact is None else "the first layer is fully connected: its rows are the image, with no search",
    ]
    return Reconstruction(
        attack=chosen.name,
        after=chosen.after,
        images=found.images[index, best],
        losses=found.losses[index, best],
        restarts=found.losses,
        labels=problem.labels[index, best],
        threat=threats[0].lines(),
        settings={
            "search": asdict(replace(search, tv=search.tv_weight(threats[0].pixels.shape))),
            "options": settled,
            "seed": seed,
        },
        notes=tuple(text for text in notes if text),
        seconds=perf_counter() - began,
    )


def _check(threats: Sequence[Threat], at_once: int | None) -> None:
    if not threats:
        raise InputError("no threat was given; give at least one pair of models")
    if at_once is not None and at_once < 1:
        raise InputError(f"at_once is {at_once}; search for at least 1 target at a time")
    first = threats[0]
    own = ("unlearned", "labels")
    shared = [f.name for f in fields(Threat) if f.name not in own]
    for other in threats[1:]:
        differ = [name for name in shared if not _same(getattr(first, name), getattr(other, name))]
        differ += [] if (other.labels is None) == (first.labels is None) else ["labels, given or not,"]
        if differ:
            raise InputError(
                f"threats that are attacked together must share everything but the unlearned model and the labels, and "
                f"{differ[0]} differ; attack them one by one"
            )


def _same(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    return one is other or one == other


def _problem(
    threats: Sequence[Threat], attack: ImageAttack, search: Search, streams: Streams
) -> tuple[SearchProblem, str]:
    """All targets as one problem, and a note on its labels."""
    first = threats[0]
    targets = read_targets(threats, after=attack.after, distance=attack.distance)
    model = trainable_copy(first.original)
    labels, note = tried_labels(model, threats, restarts=search.restarts)
    aligned = first.count == 1 and can_align(model, first.blank(2), labels.new_zeros(2), names=list(targets.values))
    return SearchProblem(model, threats, targets, labels, search, streams, aligned=aligned), note


def _searched(problem: SearchProblem, attack: ImageAttack, options: dict[str, Any], at_once: int | None) -> Candidates:
    """The whole problem in parts that fit in memory."""
    n, parts = problem.shape[0], []
    size = at_once or _targets_at_once(problem)
    for first in range(0, n, size):
        rows = slice(first, first + size)
        part = replace(
            problem,
            threats=problem.threats[rows],
            targets=problem.targets.part(rows),
            labels=problem.labels[rows],
            first=first,
        )
        parts.append(attack.run(part, **options))
    return Candidates(torch.cat([p.images for p in parts]), torch.cat([p.losses for p in parts]))


def _targets_at_once(problem: SearchProblem) -> int:
    """How many targets fit in memory together: in half of what a GPU has free, or in 2²⁸ numbers."""
    _, r, count = problem.shape
    device = problem.labels.device
    target = next(iter(problem.targets.values.values()))
    numbers = sum(t[0].numel() for t in problem.targets.values.values()) * r * count * _COPIES
    room = torch.cuda.mem_get_info(device)[0] // (2 * target.itemsize) if device.type == "cuda" else _NUMBERS
    return max(1, room // numbers)


def _closed_forms(problem: SearchProblem) -> Candidates | None:
    """The images that the first layer gives in closed form as the only candidates, if it does so for all targets."""
    if problem.shape[2] > 1:
        return None
    images = [closed_form_image(threat) for threat in problem.threats]
    found = [image for image in images if image is not None]
    if len(found) < len(images):
        return None
    every = torch.stack(found).to(problem.threats[0].dtype).repeat_interleave(problem.shape[1], 0)[:, None]
    with torch.no_grad():
        return problem.candidates(every, problem.matching(every))
