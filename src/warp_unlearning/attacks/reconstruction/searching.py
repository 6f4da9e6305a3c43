"""The search that belongs to an attack, with the options it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from ...errors import InputError, nearest
from .adaptive import invert_adaptively
from .attacks import Attack, Space
from .generative import invert_through
from .inversion import invert
from .joint import invert_jointly
from .problem import Candidates, Problem, Search
from .threat import Threat

_SEARCHES: Mapping[Space, Callable[..., Candidates]] = {
    "pixels": invert,
    "generator": invert_through,
    "factors": invert_jointly,
    "weights": invert_adaptively,
}


def options_of(attack: Attack, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of the attack's search, as given or by default; of an unknown one the error names the nearest."""
    parameters = signature(_SEARCHES[attack.space]).parameters.values()
    known = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    for name in given:
        if name not in known:
            hint = nearest(name, known) if known else "it has none"
            raise InputError(f"the attack {attack.name!r} has no option {name!r}; {hint}")
    return {**known, **given}


def search_with(
    attack: Attack, problem: Problem, search: Search, threats: Sequence[Threat], options: Mapping[str, Any]
) -> Candidates:
    """Carry the attack out on a problem made of these threats."""
    if attack.space == "generator":
        if threats[0].generator is None:
            raise InputError("the generative attack needs a generator; train one with `warp train-prior`")
        return invert_through(problem, search, threats[0].generator, **options)
    if attack.space == "factors":
        return invert_jointly(problem, search, threats[0].held, **options)
    if attack.space == "weights":
        return invert_adaptively(problem, search, threats, **options)
    return invert(problem, search)
