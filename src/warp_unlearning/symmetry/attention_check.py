"""Which parts of a transformer may really move: names can deceive, so each part is tried on a random twin.

The network is called on a random input that it accepts. A part is free if gradients reach all of it there and a random
map of it leaves the outputs as they are; otherwise it stays, and the part says why. So a rotary embedding, a norm the
layout does not know, or a second reader of a layer's output pin what they must, whatever they are called.
`AttentionBasis` calls `checked_parts` before each move, and `draw_axes` to make one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import is_dataclass, replace
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from .attention_layouts import Part, Place, columns, described, norm_part
from .base import Probe
from .moves import AxisMap, ChannelMove, HeadMap, TensorMap
from .rescaling import Law, draw_scales

Axes = Mapping[str, tuple[TensorMap, ...]]

# A wrong map changes the outputs of a random network by about their own size, a right one by rounding; some networks
# compute softmax in float32 whatever their precision.
_TOLERANCE = 1e-5
_BATCH, _TOKENS = 2, 6
# transformers keeps hooks that record outputs and change none.
_RECORDING_HOOKS = "transformers.utils.output_capturing"


def checked_parts(
    model: nn.Module, parts: Sequence[Part], *, probe: Probe | None, outer_norms: bool
) -> tuple[Part, ...]:
    """Try every part on a random twin of the model, and with `outer_norms` also the norms outside of them that linear
    layers alone read. Returns all of them, each free or pinned with the reason.

    The model is left as it is; its own generators are not drawn from.
    """
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")  # Odd inputs cause some.
        tensors = _TensorCheck(model)
        parts = [tensors.pinned_if_unusable(part) for part in parts]
        generator = torch.Generator().manual_seed(0)
        try:
            twin = _random_twin(model, generator)
        except Exception as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            reason = f"{type(model).__name__}, which cannot be copied to be tried ({first_line})"
            return tuple(part if part.pinned else replace(part, pinned=reason) for part in parts)
        trial = _first_trial(twin, _candidate_inputs(twin, probe, generator))
        if outer_norms:
            parts += [tensors.pinned_if_unusable(part) for part in _outer_norms(twin, trial, parts)]
        return _pin_by_trial(parts, trial)


def draw_axes(parts: Iterable[Part], *, law: Law, spread: float, generator: torch.Generator) -> Axes:
    """Independent random maps of all `parts`, by the tensors they act on, in float64 on the CPU.

    Heads: M = U diag(τ) Vᵀ, with U and V uniformly distributed orthogonal matrices (Haar measure) and independent
    singular values τ from the law: the condition number of M is at most (1 + s) / (1 − s) for the uniform law on 1 ± s.
    Norms: independent τ from the same law. Units: a uniform permutation.
    """
    axes: dict[str, tuple[TensorMap, ...]] = {}
    for part in parts:
        maps: list[TensorMap]
        if part.kind == "units":
            order = torch.randperm(part.width, generator=generator, device=generator.device).cpu()
            maps = [AxisMap(place.axis, order) for place in part.places]
        elif part.kind == "norms":
            scales = draw_scales(law, part.channels, spread=spread, generator=generator)
            maps = [AxisMap(place.axis, scale=scales) for place in part.made]
            maps += [AxisMap(place.axis, scale=1 / scales) for place in part.read]
        else:
            scales = draw_scales(law, part.channels, spread=spread, generator=generator)
            left, right = (_draw_orthogonal(part.groups, part.width, generator) for _ in range(2))
            scales = scales.reshape(part.groups, 1, part.width)
            matrices, contragredient = (left * scales) @ right.mT, (left / scales) @ right.mT
            maps = [HeadMap(place.axis, matrices, place.start) for place in part.made]
            maps += [HeadMap(place.axis, contragredient, place.start) for place in part.read]
        for place, tensor_map in zip(part.places, maps, strict=True):
            axes[place.name] = (*axes.get(place.name, ()), tensor_map)
    return axes


def _draw_orthogonal(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Uniformly random orthogonal matrices (count, width, width)."""
    normal = torch.randn(count, width, width, generator=generator, dtype=torch.float64, device=generator.device).cpu()
    q, r = torch.linalg.qr(normal)
    # Without the signs of R's diagonal, Q follows the convention of the routine and not the Haar measure.
    haar: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return haar


# ------------------------------------------------------------------------------------------------ before any trial


class _TensorCheck:
    """Pins parts whose tensors are no plain parameters of one name and the right size, and parts with forward hooks."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        state = model.state_dict()
        self._parameters = {name: value for name, value in model.named_parameters() if name in state}
        # The names of the tensors that lie in one storage, by its address.
        self._names: dict[int, set[str]] = {}
        tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        for name, value in tensors:
            if not isinstance(value, nn.UninitializedParameter) and value.numel():
                self._names.setdefault(value.untyped_storage().data_ptr(), set()).add(name)

    def pinned_if_unusable(self, part: Part) -> Part:
        """The part, pinned by the first fault found, if there is one."""
        faults = [self._tensor_fault(part, place) for place in part.places]
        reasons = (part.pinned, *faults, self._why_hooked(part.home))
        return replace(part, pinned=next(filter(None, reasons), None))

    def _tensor_fault(self, part: Part, place: Place) -> str | None:
        """Why the tensor at `place` must not be moved, to be reported as what pins the part; None if it may be."""
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

    def _why_hooked(self, home: str) -> str | None:
        """Which module below `home` has forward hooks, which would see moved channels; None if none has."""
        for path, module in self._model.get_submodule(home).named_modules():
            hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
            if any(getattr(hook, "__module__", None) != _RECORDING_HOOKS for hook in hooks):
                return f"{described('.'.join(filter(None, (home, path))), module)}, which has forward hooks"
        return None


# ------------------------------------------------------------------------------------------------ trials


def _pin_by_trial(parts: Sequence[Part], trial: _Trial | None) -> tuple[Part, ...]:
    """Pin the parts that the trial's input does not reach, and those whose moves change the outputs."""
    reasons = {
        part: f"{part.label}: no random input could be found that reaches it, so it could not be tried; give a probe "
        "with inputs that the network accepts"
        for part in parts
        if not part.pinned and (trial is None or not trial.reaches(part))
    }
    free = [part for part in parts if not part.pinned and part not in reasons]
    if trial is not None:
        reasons |= _harmful(trial, [part for part in free if part.kind != "units"], dropout=True)
        # A mask of dropout falls on each unit with the same probability, but on others after they changed places.
        reasons |= _harmful(trial, [part for part in free if part.kind == "units"], dropout=False)
    return tuple(replace(part, pinned=part.pinned or reasons.get(part)) for part in parts)


def _harmful(trial: _Trial, parts: list[Part], *, dropout: bool) -> dict[Part, str]:
    """The parts whose moves change the outputs, with the reason: tried all at once, and one by one only if need be."""
    if trial.change(parts, dropout=dropout) <= _TOLERANCE:
        return {}
    network, reasons = type(trial.model).__name__, dict[Part, str]()
    for part in parts:
        change = trial.change([part], dropout=dropout)
        if change > _TOLERANCE:
            reasons[part] = (
                f"{part.label}: a move of it changes the output of {network} by {change:.0e} of its size, so something "
                "else depends on it (a rotary embedding, a norm, dropout, another reader)"
            )
    harmless = [part for part in parts if part not in reasons]
    if trial.change(harmless, dropout=dropout) > _TOLERANCE:
        reason = f"the output of {network}, which changes under moves that keep it one by one"
        reasons |= dict.fromkeys(harmless, reason)
    return reasons


def _outer_norms(twin: nn.Module, trial: _Trial | None, parts: Sequence[Part]) -> Iterator[Part]:
    """A part for each norm outside the attention blocks that `parts` cover, with its readers, which a trial finds."""
    homes = tuple(f"{part.home}." if part.home else "" for part in parts)
    for path, norm in twin.named_modules():
        if isinstance(norm, nn.LayerNorm | nn.RMSNorm) and not path.startswith(homes):
            (part,) = norm_part("", path, norm, ())
            yield part if part.pinned or trial is None else _with_readers(part, trial)


def _with_readers(part: Part, trial: _Trial) -> Part:
    """Rescale the norm's output by random factors to find its readers: the linear layers whose every input then has
    exactly these factors. Returns the part with these layers, or pinned.
    """
    scales = draw_scales("uniform", part.width, spread=0.5, generator=torch.Generator().manual_seed(3))
    with trial.moved({place.name: (AxisMap(axis=0, scale=scales),) for place in part.made}):
        layer_inputs, outputs = trial.run_with_layer_inputs()

    def is_rescaled(old: Tensor, new: Tensor) -> bool:
        """Whether `new` is `old` with the last axis multiplied by the factors, up to rounding."""
        if old.shape != new.shape or old.dim() == 0 or old.shape[-1] != len(scales) or not bool(old.any()):
            return False
        return bool((new - old * scales.to(old)).abs().max() <= 1e-9 * old.abs().max())

    if any(map(is_rescaled, trial.outputs, outputs)):
        return replace(part, pinned="output")
    readers: tuple[Place, ...] = ()
    for path, new_inputs in layer_inputs.items():
        old_inputs = trial.layer_inputs[path]
        if new_inputs and len(new_inputs) == len(old_inputs) and all(map(is_rescaled, old_inputs, new_inputs)):
            readers += columns(path)
    return replace(
        part, read=readers, pinned=None if readers else f"{part.label}, which no linear layer reads as it is"
    )


def _random_twin(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy in float64 without hooks: weights N(0, 1/inputs), vectors N(1, 0.3²). On the GPU if all of the model is.

    Trained or fresh weights may hide what a move breaks: biases and layer scales near zero, attention near uniform.
    """
    copy = deepcopy(model)
    twin = (copy if all(p.is_cuda for p in copy.parameters()) else copy.cpu()).double()
    for module in twin.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    for parameter in twin.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        inputs = parameter.numel() / max(len(parameter), 1) if parameter.dim() > 1 else 0
        parameter.data = (drawn / inputs**0.5 if inputs else 1 + 0.3 * drawn).to(parameter.device)
        parameter.requires_grad_(True)
    return twin


def _first_trial(twin: nn.Module, inputs: Iterable[Tensor]) -> _Trial | None:
    """The trial on the first input that the network accepts; None if it accepts none."""
    for x in inputs:
        # Most candidates do not fit, and modules may raise any error.
        with suppress(Exception):
            return _Trial(twin, x)
    return None


class _Trial:
    """Moves parts of the random twin and compares its outputs on an input that it accepts.

    It holds the twin's outputs and gradients before any part is moved, in eval and in train mode. In train mode the
    same dropout is drawn before and after a move, or none.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model = model
        self._parameters = dict(model.named_parameters())
        self._x = x.to(next(model.parameters()).device)
        with torch.enable_grad():
            self.layer_inputs, outputs = self.run_with_layer_inputs()
        if not outputs or not all(bool(output.isfinite().all()) for output in outputs):
            raise ValueError("no finite output")
        self._gradients = self._gradients_of(outputs)
        self.outputs = [output.detach() for output in outputs]
        self._dropouts = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
        # Outputs in train mode, by whether dropout is on.
        self._train_outputs: dict[bool, list[Tensor]] = {}
        # Some networks want labels in train mode and raise without them; then train mode is not compared.
        with suppress(Exception):
            for dropout in (True, False):
                self._train_outputs[dropout] = self._run(training=True, dropout=dropout)

    def reaches(self, part: Part) -> bool:
        """Whether the outputs depend on every matrix of the part; a bias of keys never changes any."""
        for place in part.places:
            gradient = self._gradients.get(place.name)
            if gradient is None:
                return False
            needed = gradient.dim() > 1 or part.kind == "norms"
            if needed and not bool(gradient.narrow(place.axis, place.start, part.channels).any()):
                return False
        return True

    def change(self, parts: Sequence[Part], *, dropout: bool) -> float:
        """The largest change of an output under a move of the parts, relative to its largest entry; in both modes."""
        axes = draw_axes(parts, law="uniform", spread=0.5, generator=torch.Generator().manual_seed(2))
        try:
            with self.moved(axes):
                change = _largest_change(self.outputs, self._run(training=False))
                if dropout in self._train_outputs:
                    after = self._run(training=True, dropout=dropout)
                    change = max(change, _largest_change(self._train_outputs[dropout], after))
            return change
        except Exception:
            return float("inf")

    @contextmanager
    def moved(self, axes: Axes) -> Iterator[None]:
        """The twin moved within the block."""
        move = ChannelMove(axes)
        before = {name: self._parameters[name].data for name in axes}
        try:
            for name, value in before.items():
                self._parameters[name].data = move.point(name, value)
            yield
        finally:
            for name, value in before.items():
                self._parameters[name].data = value

    def run_with_layer_inputs(self) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
        """Run the twin in eval mode. Returns the input of each linear layer, one for every call, and the outputs."""
        layer_inputs: dict[str, list[Tensor]] = {}
        handles = []
        for path, layer in self.model.named_modules():
            if isinstance(layer, nn.Linear):
                calls = layer_inputs.setdefault(path, [])

                def record(_: nn.Module, args: Any, named: Any, calls: list[Tensor] = calls) -> None:
                    calls.append((args[0] if args else named["input"]).detach())

                handles.append(layer.register_forward_pre_hook(record, with_kwargs=True))
        try:
            return layer_inputs, self._run(training=False)
        finally:
            for handle in handles:
                handle.remove()

    def _run(self, *, training: bool, dropout: bool = True) -> list[Tensor]:
        """The twin's outputs on the trial's input; buffers and random generators stay as they were."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        device = self._x.device
        self.model.train(training)
        for layer in () if dropout else self._dropouts:
            layer.eval()
        try:
            # The generators go back to where they were, so that every run draws the same dropout.
            with torch.random.fork_rng([device] * self._x.is_cuda), torch.autocast(device.type, enabled=False):
                return _floating_tensors(self.model(self._x))
        finally:
            # Train mode may have updated running statistics; a write to others would spoil the backward pass.
            for buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.detach().copy_(value)

    def _gradients_of(self, outputs: list[Tensor]) -> dict[str, Tensor | None]:
        """The gradients of a random sum of the outputs, by parameter: zero or None where the input does not reach."""
        generator = torch.Generator().manual_seed(1)
        outputs = [output for output in outputs if output.requires_grad]
        if not outputs:
            return {}
        weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outputs]
        gradients = torch.autograd.grad(outputs, list(self._parameters.values()), weights, allow_unused=True)
        return dict(zip(self._parameters, gradients, strict=True))


def _largest_change(before: list[Tensor], after: list[Tensor]) -> float:
    """The largest change of an entry relative to its output's largest entry; infinite where it cannot be compared."""
    if [output.shape for output in before] != [output.shape for output in after]:
        return float("inf")
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if bool(old.any())]
    changes = [float((new - old).abs().max() / old.abs().max()) for old, new in pairs]
    return max((float("inf") if isnan(change) else change for change in changes), default=float("inf"))


def _floating_tensors(value: Any) -> list[Tensor]:
    """The tensors of floating-point numbers in a network's output, however nested."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if is_dataclass(value) and not isinstance(value, Mapping | type):
        value = vars(value)
    parts = list(value.values()) if isinstance(value, Mapping) else value
    return [tensor for part in parts for tensor in _floating_tensors(part)] if isinstance(parts, list | tuple) else []


# ------------------------------------------------------------------------------------------------ inputs to try


def _candidate_inputs(model: nn.Module, probe: Probe | None, generator: torch.Generator) -> Iterator[Tensor]:
    """Random inputs in float64, the likeliest first: of the probe's shape (with its values if they are whole numbers),
    an image, token numbers, token vectors.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    if probe is not None and len(probe.retain):
        example = probe.retain[0][:_BATCH]
        yield normal(*example.shape) if example.is_floating_point() else example.cpu()
    modules = list(model.modules())
    convolution = next((m for m in modules if isinstance(m, nn.Conv2d)), None)
    if convolution is not None:
        height, width = convolution.kernel_size
        # With a single patch, attention would not depend on the queries.
        for patches in range(2, 33):
            yield normal(_BATCH, convolution.in_channels, patches * height, patches * width)
    vocabularies = [m.num_embeddings for m in modules if isinstance(m, nn.Embedding)]
    if vocabularies:
        yield torch.randint(min(vocabularies), (_BATCH, _TOKENS), generator=generator)
    norm = next((m for m in modules if isinstance(m, nn.LayerNorm | nn.RMSNorm)), None)
    if norm is not None:
        yield normal(_BATCH, _TOKENS, norm.normalized_shape[-1])
