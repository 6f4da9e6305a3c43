"""`reconstruct`: rebuild forgotten images from pairs of models, many targets and restarts at once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...gradients.alignment import can_align
from ...randomness import Streams
from .attacks import Attack, find_attack
from .closed_form_input import closed_form_image
from .descent import Watch
from .predicted import Predictor, size_of
from .problem import Candidates, Problem, Search, tv_weight
from .reading import read_targets
from .reconstruction import Reconstruction
from .searching import options_of, search_with
from .threat import Threat
from .tried_labels import tried_labels

# How often the numbers of an update exist at once in a search, and how many numbers may.
_COPIES, _NUMBERS = 12, 2**28


def reconstruct(
    threat: Threat | Sequence[Threat],
    *,
    attack: str = "inversion",
    after: str | None = None,
    search: Search | None = None,
    seed: int = 0,
    at_once: int | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> Reconstruction:
    """Rebuild what was forgotten from one threat, or from several that share the original model.

    `attack` is one of `attacks()`; `after` reads the difference in another way than the attack's own. `options` are the
    attack's: sigma, order, prior and rate for "adaptive", spread, pull and rate for "joint", stages and rate for
    "generative". `at_once` bounds how many targets are searched for together, which changes no result: a target's
    starts are those of its place among the threats.
    """
    began = perf_counter()
    threats = [threat] if isinstance(threat, Threat) else list(threat)
    chosen, search = _settled(find_attack(attack), after, search)
    settled = options_of(chosen, options)
    _check(threats, at_once)
    problem, note = _problem(threats, chosen, search, Streams(seed, "reconstruct"), watch)
    exact = _closed_forms(threats) if chosen.name == chosen.after == "input-layer" else None
    found = (
        exactly(problem, exact) if exact is not None else _searched(problem, chosen, search, threats, settled, at_once)
    )
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
            "search": asdict(replace(search, tv=tv_weight(search, threats[0].pixels.shape))),
            "options": settled,
            "seed": seed,
        },
        notes=tuple(text for text in notes if text),
        seconds=perf_counter() - began,
    )


def targets_at_once(model: nn.Module, predictor: Predictor, images: int) -> int:
    """How many targets' searches of so many images each fit in memory together: half of what a GPU has free, or 2²⁸
    numbers.
    """
    first = next(model.parameters())
    numbers = size_of(model, predictor.names) * images * _COPIES
    room = torch.cuda.mem_get_info(first.device)[0] // (2 * first.itemsize) if first.is_cuda else _NUMBERS
    return max(1, room // numbers)


def exactly(problem: Problem, images: Tensor) -> Candidates:
    """Images (n, channels, height, width) known without a search as the only candidates, with their distances."""
    r = problem.shape[1]
    every = images[:, None, None].repeat(1, r, 1, 1, 1, 1)
    with torch.no_grad():
        return problem.candidates(every.flatten(0, 1), problem.matching(every.flatten(0, 1), {}))


def _settled(attack: Attack, after: str | None, search: Search | None) -> tuple[Attack, Search]:
    if after is not None and attack.space == "weights":
        raise InputError(
            f"the attack {attack.name!r} compares weights and reads no difference; leave after={after!r} out"
        )
    attack = attack if after is None else replace(attack, after=after)
    if search is None:
        search = Search(tv=0.0, signed=False) if attack.name == "differencing" else Search()
    return attack, search


def _check(threats: Sequence[Threat], at_once: int | None) -> None:
    if not threats:
        raise InputError("no threat was given; give at least one pair of models")
    if at_once is not None and at_once < 1:
        raise InputError(f"at_once is {at_once}; search for at least 1 target at a time")
    first = threats[0]
    for other in threats[1:]:
        equal = ("count", "pixels", "ascent", "schedule", "defense", "method", "settings")
        differ = [name for name in ("original", "generator") if getattr(other, name) is not getattr(first, name)]
        differ += [name for name in equal if getattr(other, name) != getattr(first, name)]
        differ += [] if _same(first.probes, other.probes) else ["probes"]
        differ += [] if (other.labels is None) == (first.labels is None) else ["labels, given or not,"]
        if differ:
            raise InputError(
                f"threats that are attacked together must share everything but the unlearned model and the labels, and "
                f"{differ[0]} differ; attack them one by one"
            )


def _same(one: tuple[Tensor, Tensor] | None, other: tuple[Tensor, Tensor] | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _problem(
    threats: Sequence[Threat], attack: Attack, search: Search, streams: Streams, watch: Watch | None
) -> tuple[Problem, str]:
    """All targets as one problem, and a note on its labels."""
    targets = read_targets(threats, after=attack.after, distance=attack.distance)
    model = _in_eval_mode(threats[0].original)
    labels, note = tried_labels(model, threats, restarts=search.restarts)
    predictor = _predictor(model, attack, threats[0], list(targets.values))
    aligned = not attack.unrolled and threats[0].count == 1 and _can_align(predictor, threats[0])
    return Problem(predictor, targets, threats[0].pixels, labels, 0, streams, aligned, watch), note


def _searched(
    problem: Problem,
    attack: Attack,
    search: Search,
    threats: Sequence[Threat],
    options: dict[str, Any],
    at_once: int | None,
) -> Candidates:
    """The whole problem in parts that fit in memory."""
    n, r, count = problem.shape
    size = at_once or targets_at_once(problem.predictor.model, problem.predictor, r * count)
    parts = []
    for first in range(0, n, size):
        rows = slice(first, first + size)
        part = replace(problem, targets=problem.targets.part(rows), labels=problem.labels[rows], first=first)
        parts.append(search_with(attack, part, search, threats[rows], options))
    return Candidates(torch.cat([p.images for p in parts]), torch.cat([p.losses for p in parts]))


def _in_eval_mode(model: nn.Module) -> nn.Module:
    """A copy with every floating-point parameter trainable."""
    copy = deepcopy(model).eval()
    for p in copy.parameters():
        p.requires_grad_(p.is_floating_point())
    return copy


def _can_align(predictor: Predictor, threat: Threat) -> bool:
    blank = torch.zeros(2, *threat.pixels.shape, device=threat.device, dtype=next(predictor.model.parameters()).dtype)
    labels = torch.zeros(2, dtype=torch.long, device=threat.device)
    return can_align(predictor.model, blank, labels, names=predictor.names)


def _predictor(model: nn.Module, attack: Attack, threat: Threat, names: list[str]) -> Predictor:
    if not attack.unrolled:
        return Predictor(model, names)
    if threat.schedule is None:
        raise InputError("the unrolled attack repeats the steps of the unlearning; give the threat a schedule")
    if not threat.ascent:
        raise InputError("the unrolled attack repeats gradient ascent; this method lowered a loss instead")
    retained = (threat.held.x, threat.held.y) if threat.schedule.descent else None
    return Predictor(model, names, threat.schedule, retained)


def _closed_forms(threats: Sequence[Threat]) -> Tensor | None:
    """The images (n, channels, height, width) that the first layer gives in closed form, if it does so for all."""
    if threats[0].count > 1:
        return None
    found = [image for threat in threats if (image := closed_form_image(threat)) is not None]
    kind = next(threats[0].original.parameters()).dtype
    return torch.stack(found).to(kind) if len(found) == len(threats) else None
