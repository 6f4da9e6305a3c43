"""Pre-steps by name, and which of them to try against which defence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import InputError, nearest
from .canonical import Canonical
from .conservation import Conservation
from .input_layer import InputLayer
from .naive import Naive
from .protocol import PreStep
from .scale_free import ScaleFree
from .span import Span
from .then import Then
from .wiener_filter import WienerFilter


@dataclass(frozen=True)
class _Entry:
    make: Callable[[], PreStep]
    about: str


def _after_canonical(step: PreStep) -> PreStep:
    # What the second step is there for also disturbs the fit of the first.
    return Then(Canonical(reweightings=2), step)


_STEPS: Mapping[str, _Entry] = {
    "naive": _Entry(Naive, "the difference as it is"),
    "canonical": _Entry(Canonical, "undo a permutation, then a rescaling, of channels against the original"),
    "span": _Entry(Span, "project the difference of each layer on the leading inputs of probe points"),
    "filter": _Entry(WienerFilter, "shrink the difference to the energies of probe gradients; strongest against warp"),
    "scale-free": _Entry(ScaleFree, "keep the directions of kernels, with the lengths of probe gradients"),
    "conservation": _Entry(Conservation, "solve for the factors of an update in a moved basis; strongest on conjugate"),
    "input-layer": _Entry(InputLayer, "keep the rows of the layers that read the input, by direction"),
    "canonical+span": _Entry(lambda: _after_canonical(Span()), "canonical, then span"),
    "canonical+filter": _Entry(lambda: _after_canonical(WienerFilter()), "canonical, then filter"),
    "canonical+conservation": _Entry(lambda: _after_canonical(Conservation()), "canonical, then conservation"),
}

_AGAINST: Mapping[str, tuple[str, ...]] = {
    "none": ("naive",),
    "warp": ("naive", "span", "filter", "canonical+span", "canonical+filter"),
    "fastwarp": ("naive", "span", "filter", "canonical+span", "canonical+filter"),
    "warp_guarded": ("naive", "span", "filter", "canonical+span", "canonical+filter"),
    "cob": ("naive", "canonical", "canonical+span", "canonical+filter"),
    "conjugate": ("naive", "scale-free", "conservation", "input-layer", "canonical+conservation"),
}


def pre_steps() -> dict[str, str]:
    """Every pre-step in order, with what it does in a line."""
    return {name: entry.about for name, entry in _STEPS.items()}


def make_pre_step(name: str) -> PreStep:
    """The pre-step of that name, with its default settings."""
    if name not in _STEPS:
        raise InputError(f"there is no pre-step {name!r}; {nearest(name, _STEPS)}")
    return _STEPS[name].make()


def default_steps(defense: str | None) -> tuple[str, ...]:
    """The pre-steps to try against a defence of the project; all of them where it is unknown (None).

    "none" says that there was no defence: nothing is to be undone.
    """
    if defense is None:
        return tuple(_STEPS)
    if defense not in _AGAINST:
        raise InputError(
            f"there is no defence {defense!r}; {nearest(str(defense), _AGAINST)}, or None where it is not known"
        )
    return _AGAINST[defense]
