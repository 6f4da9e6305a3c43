"""The channels of a network: which are tied, which are pinned and by what, and where each stands in the weights.

The network is traced by torch.fx in eval mode and in train mode, since its forward may differ there (by an auxiliary
head, say), and a move must keep both. Inputs are batches, with examples along the first axis. A channel is free if
nothing pinned it; for `order`, a free channel may change places with those that stand in the same tensors as often as
it does. Shapes are not known: a Linear layer on an input of unknown rank that leads to BatchNorm1d of the same width is
taken to see (batch, features), not (batch, as many tokens as features, features).

`ChangeOfBasis` and `Permutation` draw their moves from it.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from ..errors import InputError
from ..modules import modes_of, restore_modes
from .channel_rules import FUNCTIONS, METHODS, MODULES
from .channels import Call, Fixed, Ids, Kind, Number, Use, Value, Walk


@dataclass(frozen=True)
class PinnedChannels:
    """Channels that a state tensor holds and that must stay, and the operations that pinned them."""

    tensor: str
    count: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class ChannelReport:
    """How many channels are free, and what pinned the others; the latter by the layer that makes them."""

    free: int
    pinned: tuple[PinnedChannels, ...]


class ChannelGraph:
    """The traced channels of `model` for moves of one kind: their `uses` in the weights, and `roots`, their classes."""

    def __init__(self, model: nn.Module, *, kind: Kind, through_norm: bool = True) -> None:
        # In eval and in train mode: both walks add to one state, so that a move keeps both.
        graphs, read_tensors = _trace_both_modes(model)
        self._walk = walk = Walk(kind, through_norm)
        unmovable = _unmovable_modules(model, read_tensors)
        for graph in graphs:
            _follow(walk, graph, model, unmovable)
        if kind == "order":
            for ids, _ in walk.splits:
                if len({walk.root(channel) for channel in ids}) < len(ids):
                    # A channel in two groups at once cannot change places within each of them alone.
                    walk.pin(ids, "repeated channels that are split in groups")
        self._uncovered = _uncovered_weights(model, walk, unmovable)
        self.uses: tuple[Use, ...] = tuple(walk.uses)
        self.roots: Tensor = torch.tensor(walk.roots(), dtype=torch.long)

    def channels(self, use: Use) -> Tensor:
        """The class of the channel of each entry of a use."""
        return self.roots[list(use.ids)]

    def free_channels(self) -> list[int]:
        """One channel of every class of tied channels that nothing pinned, in the order of the walk."""
        roots = dict.fromkeys(self._walk.root(channel) for use in self.uses for channel in use.ids)
        return [root for root in roots if not self._walk.reasons(root)]

    def exchangeable(self) -> list[list[int]]:
        """Sets of free channels that may change places, as they stand in the same tensors equally often."""
        lists: list[Ids] = [use.ids for use in self.uses]
        for ids, count in self._walk.splits:
            width = len(ids) // count
            lists += [ids[i * width : (i + 1) * width] for i in range(count)]
        occurrences: dict[int, list[tuple[int, int]]] = {root: [] for root in self.free_channels()}
        # How often each channel stands in each list: those of one pattern are exchangeable.
        for number, ids in enumerate(lists):
            for root, count in Counter(self._walk.root(channel) for channel in ids).items():
                if root in occurrences:
                    occurrences[root].append((number, count))
        sets: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for root, pattern in occurrences.items():
            sets.setdefault(tuple(pattern), []).append(root)
        return [members for members in sets.values() if len(members) > 1]

    def report(self) -> ChannelReport:
        """Count the free channels, and list the pinned ones with the operations that pinned them."""
        free = sum(map(len, self.exchangeable())) if self._walk.kind == "order" else len(self.free_channels())
        pinned: list[PinnedChannels] = []
        for use in self.uses:
            reasons_of_pinned = [reasons for channel in use.ids if (reasons := self._walk.reasons(channel))]
            if use.axis == 0 and use.power == 1 and use.name.endswith("weight") and reasons_of_pinned:
                reasons = tuple(dict.fromkeys(chain.from_iterable(reasons_of_pinned)))
                pinned.append(PinnedChannels(use.name, len(reasons_of_pinned), reasons))
        return ChannelReport(free, (*pinned, *self._uncovered))


def _follow(walk: Walk, graph: fx.Graph, model: nn.Module, unmovable: dict[str, str]) -> None:
    """Apply the rule of every operation of a traced network in turn; the rules add to `walk`."""
    values: dict[fx.Node, Value] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = Fixed(f"input {node.target}")
        elif node.op == "get_attr":
            values[node] = Fixed(f"{node.target}, read by the network itself")
        elif node.op == "output":
            walk.unknown(Call("output", map_arg(node.args, values.__getitem__), {}))  # type: ignore[arg-type]
        else:
            values[node] = _value_of(walk, node, values, model, unmovable)


def _value_of(
    walk: Walk, node: fx.Node, values: dict[fx.Node, Value], model: nn.Module, unmovable: dict[str, str]
) -> Value:
    """What an operation returns, by the rule of its module, method or function; without one it pins all that it reads.

    `values` holds what earlier operations returned; `unmovable` is as of `_unmovable_modules`.
    """
    args: Any = map_arg(node.args, values.__getitem__)  # type: ignore[arg-type]
    named: Any = dict(map_arg(node.kwargs, values.__getitem__))  # type: ignore[arg-type]
    if not args and "input" in named:
        args = (named.pop("input"),)
    if node.op == "call_module":
        path = str(node.target)
        module = model.get_submodule(path)
        label, reason = f"{type(module).__name__} {path}", unmovable.get(path)
        call = Call(label if reason is None else f"{label}, which {reason}", args, named, path, module)
        rule = MODULES.get(type(module)) if reason is None else None
    elif node.op == "call_method":
        rule, call = METHODS.get(str(node.target)), Call(str(node.target), args, named)
    else:
        rule, call = FUNCTIONS.get(node.target), Call(getattr(node.target, "__name__", node.name), args, named)
        # Arithmetic on sizes; anything else that is made without tensors may be a tensor.
        if not call.tensors() and getattr(node.target, "__module__", "") in ("_operator", "math"):
            return FUNCTIONS[operator.getitem](walk, call) if node.target is operator.getitem else Number()
    return walk.unknown(call) if rule is None or not call.tensors() else rule(walk, call)


def _uncovered_weights(model: nn.Module, walk: Walk, unmovable: dict[str, str]) -> list[PinnedChannels]:
    """Weights that no use covers: their layer is not movable, has no rule, or is never called."""
    covered = {use.name for use in walk.uses}
    uncovered = []
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        # The one slope of a PReLU belongs to no channel.
        if name in covered or leaf != "weight" or parameter.dim() == 0 or parameter.numel() == 1:
            continue
        reason = unmovable.get(path, "has no rule or is never called")
        label = f"{type(model.get_submodule(path)).__name__} {path}".strip()
        uncovered.append(PinnedChannels(name, len(parameter), (f"{label}, which {reason}",)))
    return uncovered


class _Tracer(fx.Tracer):
    """A tracer that collects the ids of tensors read outside of the layers that own them: these must not move."""

    def __init__(self) -> None:
        super().__init__()
        self.read_tensors: set[int] = set()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Note a tensor that the traced code reads by attribute; fx calls this at every such read."""
        if isinstance(attr_val, Tensor):
            self.read_tensors.add(id(attr_val))
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_arg(self, a: Any) -> Any:
        """Refuse a constant computed from weights, which would not follow them; fx calls this for every argument."""
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and a.requires_grad:
            raise ValueError("it computes a tensor from its weights outside its layers")
        return super().create_arg(a)


def _trace_both_modes(model: nn.Module) -> tuple[list[fx.Graph], set[int]]:
    """Trace the model in both modes; returns the graphs and the ids of tensors read outside of their layers."""
    lazy = [name for name, value in model.named_parameters() if isinstance(value, nn.UninitializedParameter)]
    if lazy:
        raise InputError(f"{lazy[0]} has no values yet; call the model once on a batch, then move it")
    modes = modes_of(model)
    attributes = set(vars(model))
    read_tensors: set[int] = set()
    graphs = []
    try:
        for training in (False, True):
            model.train(training)
            tracer = _Tracer()
            graphs.append(tracer.trace(model))
            read_tensors |= tracer.read_tensors
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot be traced by torch.fx ({error}), so its channels are not known; "
            "write its forward without branches or loops that depend on tensors, or use a symmetry that needs no trace"
        ) from error
    finally:
        restore_modes(modes)
        # fx keeps constants as attributes of the model it traces.
        for name in set(vars(model)) - attributes:
            delattr(model, name)
    return graphs, read_tensors


def _unmovable_modules(model: nn.Module, read_tensors: set[int]) -> dict[str, str]:
    """Modules whose tensors must stay, by path, with the reason: tensors shared with another name, read outside the
    module, or not plain parameters, and forward hooks, which may do anything.
    """
    tensors_by_path = {
        path: {n: v for n, v in (*module._parameters.items(), *module._buffers.items()) if v is not None}
        for path, module in model.named_modules(remove_duplicate=False)
    }
    owners: dict[int, set[str]] = {}
    for path, tensors in tensors_by_path.items():
        for name, value in tensors.items():
            if value.numel():
                owners.setdefault(value.untyped_storage().data_ptr(), set()).add(f"{path}.{name}")
    reasons: dict[str, str] = {}
    for path, tensors in tensors_by_path.items():
        module = model.get_submodule(path)
        if module._forward_hooks or module._forward_pre_hooks:
            reasons[path] = "has forward hooks"
        elif isinstance(vars(module).get("weight"), Tensor):
            reasons[path] = "has a weight computed from others"
        elif any(id(v) in read_tensors for v in tensors.values()):
            reasons[path] = "has weights that the network reads by itself"
        elif any(v.numel() and len(owners[v.untyped_storage().data_ptr()]) > 1 for v in tensors.values()):
            reasons[path] = "shares its weights with another name"
    return reasons
