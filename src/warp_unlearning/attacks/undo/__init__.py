"""Attackers who undo a defence: steps before any attack on two models, by name and by the defence they suit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...errors import InputError, nearest
from .base import Chain, Naive, PreStep
from .canonical import Canonical
from .conservation import Conservation
from .inputs import InputLayer, Span, WienerFilter
from .probes import ScaleFree


def _after_canonical(step: PreStep) -> PreStep:
    # The move that the second step is for also disturbs the fit of the first.
    return Chain(Canonical(reweightings=2), step)


_STEPS: Mapping[str, tuple[Callable[[], PreStep], str]] = {
    "naive": (Naive, "the difference as it is"),
    "canonical": (Canonical, "undo a permutation, then a rescaling, of channels against the original"),
    "span": (Span, "project the difference of each layer on the leading inputs of probe points"),
    "filter": (WienerFilter, "shrink the difference to the energies of probe gradients; strongest against warp"),
    "scale-free": (ScaleFree, "keep the directions of kernels, with the lengths of probe gradients"),
    "conservation": (Conservation, "solve for the factors of an update in a moved basis; strongest on conjugate"),
    "input-layer": (InputLayer, "keep the rows of the layers that read the input, by direction"),
    "canonical+span": (lambda: _after_canonical(Span()), "canonical, then span"),
    "canonical+filter": (lambda: _after_canonical(WienerFilter()), "canonical, then filter"),
    "canonical+conservation": (lambda: _after_canonical(Conservation()), "canonical, then conservation"),
}

_NULL_SPACE = ("naive", "span", "filter", "canonical+span", "canonical+filter")
_AGAINST: Mapping[str, tuple[str, ...]] = {
    "none": ("naive",),
    "warp": _NULL_SPACE,
    "fastwarp": _NULL_SPACE,
    "warp_guarded": _NULL_SPACE,
    "cob": ("naive", "canonical", "canonical+span", "canonical+filter"),
    "conjugate": ("naive", "scale-free", "conservation", "input-layer", "canonical+conservation"),
}


def pre_steps() -> dict[str, str]:
    """Every pre-step in order, with what it does in a line."""
    return {name: about for name, (_, about) in _STEPS.items()}


def make_pre_step(name: str) -> PreStep:
    """The pre-step of that name, with its default settings."""
    if name not in _STEPS:
        raise InputError(f"there is no pre-step {name!r}; {nearest(name, _STEPS)}")
    return _STEPS[name][0]()


def default_steps(defense: str | None) -> tuple[str, ...]:
    """The pre-steps to try against a defence of the project; all of them where the defence is unknown (None).

    "none" means that there was no defence and nothing to undo.
    """
    if defense is None:
        return tuple(_STEPS)
    if defense not in _AGAINST:
        raise InputError(
            f"there is no defence {defense!r}; {nearest(str(defense), _AGAINST)}, or None where it is not known"
        )
    return _AGAINST[defense]
