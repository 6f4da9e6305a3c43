"""A network tried out: random inputs through a float64 copy of it with random weights, before and after a move.

Random weights, because those of a trained or fresh network may hide what a move breaks: biases and layer scales near
zero, attention near uniform. Both in eval and in train mode, with the same dropout before and after or, where a move
changes places, without: a mask falls on each unit with the same probability, but not on the same ones.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .move import ChannelMove, TensorMap

# Arguments that a module may also be given, and that do not depend on the basis of its channels.
HARMLESS = {
    *("attn_mask", "attention_mask", "mask", "src_mask", "src_key_padding_mask", "key_padding_mask", "head_mask"),
    *("is_causal", "need_weights", "average_attn_weights", "output_attentions"),
}
# Modules whose every argument is known.
KNOWN_MODULES = ("torch.nn.modules.", "transformers.models.vit.", "transformers.models.deit.")


def random_twin(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy in float64 without hooks: weights N(0, 1/inputs), vectors N(1, 0.3²). On the device of a CUDA model, or
    on the CPU.
    """
    twin = deepcopy(model)
    on_gpu = all(p.is_cuda for p in twin.parameters())
    twin = twin.double() if on_gpu else twin.cpu().double()
    for module in twin.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    for parameter in twin.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        inputs = parameter.numel() / max(len(parameter), 1) if parameter.dim() > 1 else 0
        parameter.data = (drawn / inputs**0.5 if inputs else 1 + 0.3 * drawn).to(parameter.device)
        parameter.requires_grad_(True)
    return twin


@dataclass(frozen=True)
class Sight:
    """What one run shows: what enters each linear layer at each of its calls, by path, and the outputs."""

    entered: Mapping[str, list[Tensor]]
    outputs: list[Tensor]


class Trial:
    """A module of a twin with arguments it accepts; `parameters` are the twin's, by name.

    `before` is what a run in eval mode shows, and `gradients` holds those of a random sum of its outputs.
    """

    def __init__(
        self, module: nn.Module, arguments: tuple[Tensor, ...], parameters: Mapping[str, nn.Parameter]
    ) -> None:
        self.module = module
        self.parameters = parameters
        self._device = next(module.parameters()).device
        self._arguments = tuple(argument.to(self._device) for argument in arguments)
        with torch.enable_grad():
            seen = self._watch()
        if not seen.outputs or not all(bool(output.isfinite().all()) for output in seen.outputs):
            raise ValueError("no finite output")
        self.gradients = self._gradients(seen.outputs)
        self.before = Sight(seen.entered, [output.detach() for output in seen.outputs])
        self._dropouts = [m for m in module.modules() if isinstance(m, nn.Dropout) and m.p > 0]
        self._trained: dict[bool, list[Tensor]] = {}
        # Some networks want labels in train mode.
        with suppress(Exception):
            for dropout in (True, False) if self.drops else (True,):
                self._trained[dropout] = self._run(training=True, dropout=dropout)

    @property
    def drops(self) -> bool:
        """Whether dropout layers act in train mode."""
        return bool(self._dropouts)

    def change(self, axes: Mapping[str, tuple[TensorMap, ...]], *, dropout: bool) -> float:
        """The largest change of an output under a move, relative to the output's largest entry; in both modes."""
        with self._moved(axes):
            change = _largest_change(self.before.outputs, self._run(training=False))
            if dropout in self._trained:
                after = self._run(training=True, dropout=dropout)
                change = max(change, _largest_change(self._trained[dropout], after))
        return change

    def after(self, axes: Mapping[str, tuple[TensorMap, ...]]) -> Sight:
        """What a run in eval mode shows after a move."""
        with self._moved(axes):
            return self._watch()

    @contextmanager
    def _moved(self, axes: Mapping[str, tuple[TensorMap, ...]]) -> Iterator[None]:
        move = ChannelMove(axes)
        before = {name: self.parameters[name].data for name in axes}
        try:
            for name, value in before.items():
                self.parameters[name].data = move.point(name, value)
            yield
        finally:
            for name, value in before.items():
                self.parameters[name].data = value

    def _watch(self) -> Sight:
        entered: dict[str, list[Tensor]] = {}
        layers = [(path, layer) for path, layer in self.module.named_modules() if isinstance(layer, nn.Linear)]
        handles = [_watch(layer, entered.setdefault(path, [])) for path, layer in layers]
        try:
            return Sight(entered, self._run(training=False))
        finally:
            for handle in handles:
                handle.remove()

    def _run(self, *, training: bool, dropout: bool = True) -> list[Tensor]:
        buffers = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        devices = [self._device] if self._device.type == "cuda" else []
        self.module.train(training)
        for layer in () if dropout else self._dropouts:
            layer.eval()
        try:
            # The generators go back to where they were, so that every run draws the same dropout.
            with torch.random.fork_rng(devices), torch.autocast(self._device.type, enabled=False):
                return _floats(self.module(*self._arguments))
        finally:
            # Train mode may have updated running statistics; a write to others would spoil the backward pass.
            for buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.detach().copy_(value)

    def _gradients(self, outputs: list[Tensor]) -> dict[str, Tensor | None]:
        generator = torch.Generator().manual_seed(1)
        differentiable = [output for output in outputs if output.requires_grad]
        if not differentiable:
            return {}
        weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in differentiable]
        found = torch.autograd.grad(
            differentiable, list(self.parameters.values()), grad_outputs=weights, allow_unused=True
        )
        return dict(zip(self.parameters, found, strict=True))


def _largest_change(before: list[Tensor], after: list[Tensor]) -> float:
    if [output.shape for output in before] != [output.shape for output in after]:
        return float("inf")
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if bool(old.any())]
    changes = [float((new - old).abs().max() / old.abs().max()) for old, new in pairs]
    return max((float("inf") if change != change else change for change in changes), default=float("inf"))


def first_trial(
    module: nn.Module, candidates: Iterable[tuple[Tensor, ...]], parameters: Mapping[str, nn.Parameter], *, whole: bool
) -> Trial | None:
    """The module on the first arguments it accepts, or None.

    A module that is not the whole network may be called with arguments we do not know of; it is tried only if all it
    could take are harmless.
    """
    for arguments in candidates:
        try:
            if whole or _takes_nothing_else(module, len(arguments)):
                return Trial(module, arguments, parameters)
        except Exception:
            # Most candidates do not fit, and there is no end to the errors that modules raise then.
            continue
    return None


@contextmanager
def undisturbed() -> Iterator[None]:
    """No gradients unless asked for, whatever the caller's mode, and no warnings about odd inputs."""
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _takes_nothing_else(module: nn.Module, given: int) -> bool:
    if type(module).__module__.startswith(KNOWN_MODULES):
        return True
    others = list(inspect.signature(module.forward).parameters.values())[given:]
    return all(other.name in HARMLESS for other in others)


def _watch(layer: nn.Module, entered: list[Tensor]) -> Any:
    def record(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        entered.append((args[0] if args else named["input"]).detach())

    return layer.register_forward_pre_hook(record, with_kwargs=True)


def _floats(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        return [found for item in value.values() for found in _floats(item)]
    if isinstance(value, list | tuple):
        return [found for item in value for found in _floats(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return _floats(vars(value))
    return []
