"""Which parts of a transformer may really move: names can deceive, so each part is tried on a random twin.

The whole network is called on a random input where one can be found that it accepts, or else the largest module around
the part that accepts one. A part is free if gradients reach all of it there and a random map of it leaves the outputs
as they are; otherwise it stays, and the part says why. So a rotary embedding, a norm the layout does not know, or a
second reader of a layer's output pin what they must, whatever they are called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from .attention_draw import draw_axes
from .attention_examples import example_inputs
from .attention_parts import Part, Place, columns, described, norm_part
from .attention_trial import Trial, first_trial, random_twin, undisturbed
from .laws import draw_scales
from .move import AxisMap
from .symmetry import Probe

# A wrong map changes the outputs of a random network by about their own size, a right one by rounding; some networks
# compute softmax in float32 whatever their precision.
TOLERANCE = 1e-5
SAME = 1e-9
# transformers keeps hooks that record outputs and change none.
RECORDING_HOOKS = "transformers.utils.output_capturing"


def checked_parts(
    model: nn.Module, parts: Sequence[Part], *, probe: Probe | None, outer_norms: bool
) -> tuple[Part, ...]:
    """`parts`, and with `outer_norms` those norms outside them that linear layers alone read, each free or pinned.

    The model is left as it is; its own generators are not drawn from.
    """
    with undisturbed():
        movable = _Movable(model)
        parts = [movable.only(part) for part in parts]
        generator = torch.Generator().manual_seed(0)
        try:
            twin = random_twin(model, generator)
        except Exception as error:
            why = f"{type(model).__name__}, which cannot be copied to be tried ({_first_line(error)})"
            return tuple(part if part.pinned else replace(part, pinned=why) for part in parts)
        trials = _Trials(twin, probe, generator)
        if outer_norms:
            parts += [movable.only(part) for part in _outer_norms(twin, trials, parts)]
        return tuple(_tried(parts, trials))


class _Trials:
    """Modules of the twin that could be run, by path; found when first asked for."""

    def __init__(self, twin: nn.Module, probe: Probe | None, generator: torch.Generator) -> None:
        self.twin = twin
        self._parameters = dict(twin.named_parameters())
        self._probe = probe
        self._generator = generator
        self._found: dict[str, Trial | None] = {}

    def at(self, path: str) -> Trial | None:
        if path not in self._found:
            module = self.twin.get_submodule(path)
            inputs = example_inputs(module, probe=None if path else self._probe, generator=self._generator)
            self._found[path] = first_trial(module, inputs, self._parameters, whole=not path)
        return self._found[path]

    def reaching(self, part: Part) -> tuple[str, Trial] | None:
        """The largest module around `part` that could be run and whose outputs depend on all of it."""
        names = part.home.split(".") if part.home else []
        for depth in range(len(names) + 1):
            path = ".".join(names[:depth])
            trial = self.at(path)
            if trial is not None and _reaches(trial, part):
                return path, trial
        return None


def _tried(parts: Sequence[Part], trials: _Trials) -> list[Part]:
    result = list(parts)
    groups: dict[tuple[str, bool], tuple[Trial, list[int]]] = {}
    for number, part in enumerate(parts):
        if part.pinned:
            continue
        found = trials.reaching(part)
        if found is None:
            why = f"{part.label}: no random input could be found that reaches it, so it could not be tried"
            result[number] = replace(part, pinned=why)
        else:
            path, trial = found
            dropout = part.kind != "units" or not trial.drops
            groups.setdefault((path, dropout), (trial, []))[1].append(number)
    for (path, dropout), (trial, numbers) in groups.items():
        kept = _kept(trial, [parts[n] for n in numbers], where=described(path, trial.module), dropout=dropout)
        for number, part in zip(numbers, kept, strict=True):
            result[number] = part
    return result


def _kept(trial: Trial, parts: list[Part], *, where: str, dropout: bool) -> list[Part]:
    """All at once, as nearly always all are right; one by one where the outputs change."""
    if _change(trial, parts, dropout) <= TOLERANCE:
        return parts
    result = []
    for part in parts:
        change = _change(trial, [part], dropout)
        why = (
            f"{part.label}: a move of it changes the output of {where} by {change:.0e} of its size, so something else "
            "depends on it (a rotary embedding, a norm, dropout, another reader)"
        )
        result.append(part if change <= TOLERANCE else replace(part, pinned=why))
    left = [part for part in result if not part.pinned]
    if left and not _change(trial, left, dropout) <= TOLERANCE:
        why = f"the output of {where}, which changes under moves that keep it one by one"
        return [part if part.pinned else replace(part, pinned=why) for part in result]
    return result


def _change(trial: Trial, parts: Sequence[Part], dropout: bool) -> float:
    generator = torch.Generator().manual_seed(2)
    try:
        return trial.change(draw_axes(parts, law="uniform", spread=0.5, generator=generator), dropout=dropout)
    except Exception:
        return float("inf")


def _reaches(trial: Trial, part: Part) -> bool:
    """Whether the outputs depend on every matrix of the part; a bias of keys never changes any."""
    for place in part.places:
        gradient = trial.gradients.get(place.name)
        if gradient is None:
            return False
        needed = gradient.dim() > 1 or part.kind == "norms"
        if needed and not bool(gradient.narrow(place.axis, place.start, part.channels).any()):
            return False
    return True


def _outer_norms(twin: nn.Module, trials: _Trials, parts: Sequence[Part]) -> Iterator[Part]:
    homes = tuple(f"{part.home}." if part.home else "" for part in parts)
    trial = trials.at("")
    for path, norm in twin.named_modules():
        if not isinstance(norm, nn.LayerNorm | nn.RMSNorm) or path.startswith(homes):
            continue
        (part,) = norm_part("", path, norm, ())
        if part.pinned:
            yield part
        elif trial is None:
            why = f"{type(twin).__name__}, which no random input could be found for, so that it could not be tried"
            yield replace(part, pinned=why)
        else:
            yield _with_readers(part, trial)


def _with_readers(part: Part, trial: Trial) -> Part:
    """The norm with the linear layers whose every input takes on exactly the factors that its output is given."""
    scales = draw_scales("uniform", part.width, spread=0.5, generator=torch.Generator().manual_seed(3))
    after = trial.after({place.name: (AxisMap(0, None, scales),) for place in part.made})
    if any(_scaled(old, new, scales) for old, new in zip(trial.before.outputs, after.outputs, strict=False)):
        return replace(part, pinned="output")
    readers: tuple[Place, ...] = ()
    for path, new in after.entered.items():
        old = trial.before.entered[path]
        if new and len(new) == len(old) and all(map(_scaled, old, new, [scales] * len(new))):
            readers += columns(path)
    if not readers:
        return replace(part, pinned=f"{part.label}, which no linear layer reads as it is")
    return replace(part, read=readers)


def _scaled(old: Tensor, new: Tensor, scales: Tensor) -> bool:
    if old.shape != new.shape or old.dim() == 0 or old.shape[-1] != len(scales) or not bool(old.any()):
        return False
    return bool((new - old * scales.to(old)).abs().max() <= SAME * old.abs().max())


class _Movable:
    """What rules a part out before any trial."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        state = model.state_dict()
        self._parameters = {name: value for name, value in model.named_parameters() if name in state}
        self._names: dict[int, set[str]] = {}
        tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        for name, value in tensors:
            if not isinstance(value, nn.UninitializedParameter) and value.numel():
                self._names.setdefault(value.untyped_storage().data_ptr(), set()).add(name)

    def only(self, part: Part) -> Part:
        """The part, pinned if its tensors are not plain parameters with one name and the size it needs, or if hooks see
        what happens inside its home.
        """
        reasons = (part.pinned, *(self._tensor(part, place) for place in part.places), self._hooks(part.home))
        return replace(part, pinned=next(filter(None, reasons), None))

    def _tensor(self, part: Part, place: Place) -> str | None:
        value = self._parameters.get(place.name)
        if value is None:
            return f"{place.name}, which is computed from others, or has another name in the state or besides"
        if isinstance(value, nn.UninitializedParameter):
            return f"{place.name}, which has no values yet"
        others = self._names.get(value.untyped_storage().data_ptr(), set()) - {place.name}
        if others:
            return f"{place.name}, which shares its values with {min(others)}"
        length = value.shape[place.axis] if place.axis < value.dim() else 0
        if length < place.start + part.channels or (part.kind != "heads" and length != part.channels):
            return f"{place.name}, whose shape {tuple(value.shape)} does not fit {part.channels} channels: {part.label}"
        return None

    def _hooks(self, home: str) -> str | None:
        for path, module in self._model.get_submodule(home).named_modules():
            hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
            if any(getattr(hook, "__module__", None) != RECORDING_HOOKS for hook in hooks):
                return f"{described('.'.join(filter(None, (home, path))), module)}, which has forward hooks"
        return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
