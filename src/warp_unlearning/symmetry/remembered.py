"""What a symmetry found out about the network it moves, kept for as long as that is built as it was.

Who reads which parameter, and captured graphs of its energies and of its layers' inputs, do not depend on the values of
the weights, and how many directions inputs need and how long a step may be do little. They hold while every module and
tensor is the same object in the same place, with the same settings; whatever else a module holds is compared by
identity. A network that changes in no such way and yet computes something else would not be seen.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from types import FunctionType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ..cuda_graphs import graphs_are_there
from ..errors import InputError
from ..gradients.captured_energy import CapturedEnergy
from ..module_tree import modules_by_path
from .captured_steps import WalksAgain
from .forget_energy import EagerEnergy, ForgetEnergy, ReplayedEnergy
from .null_scope import read_by_others
from .repeated_sample import RepeatedSample
from .sampled_moment import Asking, Replay

_ATOMS = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device, FunctionType})
# The first move may be the only one.
_CAPTURED_FROM = 2


class Remembered:
    """The memory of one symmetry. A copy of it is empty: it belongs to one network in one process."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._objects: list[ref[Any]] = []
        self._facts: tuple[Any, ...] | None = None
        self._working: ref[nn.Module] | None = None
        self._moves = 0
        self._misread: set[int] | None = None
        self._graph: CapturedEnergy | None = None
        self._refused = False
        self._sample = RepeatedSample()
        # The steps of its walks, for a symmetry that has them captured.
        self.walks = WalksAgain()
        # Whether every weight that acts on inputs was found to be of real numbers.
        self.real = False
        # How many directions the inputs of each weight needed, group by group, at the last move.
        self.ranks: dict[str, list[int]] = {}
        # How often the length of the last step was halved.
        self.halved = 0

    # What was seen of a network is no part of a symmetry's settings: with equal settings, symmetries are equal.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remembered)

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Remembered:
        return Remembered()

    def __reduce__(self) -> tuple[type[Remembered], tuple[()]]:
        return Remembered, ()

    def meet(self, model: nn.Module, x: Tensor, *, working: nn.Module | None = None) -> None:
        """Begin a move of `model`, as it stands, on inputs like `x`; forget all that another network showed. `working`
        is a copy that computes what it does with the same parameters.
        """
        objects, found = _objects_and_facts(model)
        facts = (tuple(x.shape[1:]), x.dtype, x.device, _precision(), found)
        same = len(self._objects) == len(objects)
        if not same or facts != self._facts or any(a() is not b for a, b in zip(self._objects, objects, strict=True)):
            self._forget()
            self._objects, self._facts = [ref(each) for each in objects], facts
        self._working = None if working is None else ref(working)
        self._moves += 1

    def misread(self, working: nn.Module, x: Tensor) -> set[int]:
        """Ids of the trainable parameters that something other than a Linear or Conv layer reads."""
        if self._misread is None:
            self._misread = read_by_others(working, x[:1])
        return self._misread

    @property
    def captured(self) -> bool:
        """Whether there is a graph of the network's energies."""
        return self._graph is not None and self._graph.captured

    def energy(self, eager: EagerEnergy) -> ForgetEnergy:
        """The same energy, on a GPU so that it becomes a captured graph, where that is possible and pays."""
        x, y = eager.forget
        if not graphs_are_there(x.device) or self._refused:
            return eager
        if self._graph is None:
            try:
                self._graph = CapturedEnergy(eager.model, x, y, loss_gradients=True)
            except (InputError, RuntimeError):
                # No rule for a layer, or something that only the energy itself can tell of.
                self._refused = True
                return eager
        if self._moves >= _CAPTURED_FROM:
            self.capture_energy()
        return eager if self._graph is None or not self._graph.suits(x, y) else ReplayedEnergy(self._graph, eager)

    def capture_energy(self) -> None:
        """Have graphs of the energies, for the moves to come, unless that is not possible."""
        if self._graph is None or self._graph.captured:
            return
        try:
            self._graph.capture()
        except InputError:
            # Of this batch, or of weights that are not finite: whoever asks for the energies is told.
            return
        except RuntimeError:
            # Values that the host looks at, or too little memory: operation by operation then.
            self._graph, self._refused = None, True

    def sample_of(self, working: nn.Module) -> Replay | None:
        """What samples the inputs of the network that is being moved by a captured graph, where that is possible and
        pays; None unless `working` is the copy of it that the move began with.
        """
        model = self._objects[0]() if self._objects else None
        if model is None or self._working is None or self._working() is not working:
            return None
        return partial(self._sample.replayed, model)

    def capture_sample(self, asking: Asking) -> None:
        """Have a graph that samples the inputs of the network that is being moved where the same is asked for, unless
        that is not possible.
        """
        model = self._objects[0]() if self._objects else None
        if model is not None:
            self._sample.capture(model, asking)

    def energy_now(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
        """Σᵢ ‖∇ℓᵢ‖² of the weights as they stand since the last move, float64, not read; None where no graph of `model`
        and such a batch was captured.
        """
        graph = self._graph
        if graph is None or not graph.captured or graph.model is not model or not graph.suits(x, y):
            return None
        return graph.replayed_energies(x, y).double().sum()


def _objects_and_facts(model: nn.Module) -> tuple[list[nn.Module | Tensor], list[Any]]:
    """The modules, parameters and buffers of a model, and all that is compared of them, one after the other."""
    objects: list[nn.Module | Tensor] = []
    facts: list[Any] = []
    seen: set[int] = set()
    for path, module in modules_by_path(model).items():
        objects.append(module)
        facts += (path, type(module))
        for key, value in vars(module).items():
            facts.append(key)
            _add_plain(value, facts)
        for tensors in (module._parameters, module._buffers):
            for tensor in tensors.values():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    objects.append(tensor)
                    facts += (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)
    return objects, facts


def _add_plain(value: Any, facts: list[Any]) -> None:
    """A value where it is a plain one, what a dictionary holds, by identity, or else which object it is."""
    kind = type(value)
    if kind in _ATOMS or (kind is tuple and _ATOMS.issuperset(map(type, value))):
        facts.append(value)
    elif isinstance(value, dict):
        facts.append(len(value))
        for key, part in value.items():
            facts += (key, id(part))
    else:
        facts.append(id(value))


def _precision() -> Hashable:
    switches = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    return tuple(switch.fp32_precision for switch in switches)
