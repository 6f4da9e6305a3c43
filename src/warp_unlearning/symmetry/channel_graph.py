"""The channels of a network: which are tied, which are pinned and by what, and where each stands in the weights.

The network is traced as it is; inputs are batches, with examples along the first axis. A channel is free if nothing
pinned it; for `order`, a free channel may change places with those that stand in the same tensors as often as it does.
Shapes are not known: a Linear layer on an input of unknown rank that leads to BatchNorm1d of the same width is taken to
see (batch, features), not (batch, as many tokens as features, features).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from .channel_operations import Rule, item
from .channel_rules import FUNCTIONS, METHODS, MODULES
from .channel_trace import traced_graphs, unmovable_modules
from .channel_values import Call, Fixed, Number, Value
from .channel_walk import Kind, Use, Walk


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
    """The traced channels of `model` for moves of one kind."""

    def __init__(self, model: nn.Module, *, kind: Kind, through_norm: bool = True) -> None:
        graphs, read = traced_graphs(model)
        self._walk = Walk(kind, through_norm)
        unmovable = unmovable_modules(model, read)
        for graph in graphs:
            _follow(self._walk, graph, model, unmovable)
        _pin_ambiguous_splits(self._walk)
        self._without_rule = _without_rule(model, self._walk, unmovable)
        ties = self._walk.ties
        self.uses: tuple[Use, ...] = tuple(self._walk.uses)
        self.roots: Tensor = torch.tensor([ties.root(i) for i in range(len(ties))], dtype=torch.long)

    def free_channels(self) -> list[int]:
        """One channel of every class that may change, in the order they were met."""
        roots = dict.fromkeys(self._walk.ties.root(channel) for use in self.uses for channel in use.ids)
        return [root for root in roots if not self._walk.ties.reasons(root)]

    def exchangeable(self) -> list[list[int]]:
        """Free channels in sets within which any order is as good as any other; sets of one are left out."""
        lists: list[tuple[int, ...]] = [use.ids for use in self.uses]
        lists += [part for ids, count in self._walk.splits for part in _parts(ids, count)]
        occurs: dict[int, list[tuple[int, int]]] = {root: [] for root in self.free_channels()}
        for number, ids in enumerate(lists):
            for root, times in Counter(self._walk.ties.root(channel) for channel in ids).items():
                if root in occurs:
                    occurs[root].append((number, times))
        sets: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for root, where in occurs.items():
            sets.setdefault(tuple(where), []).append(root)
        return [members for members in sets.values() if len(members) > 1]

    def report(self) -> ChannelReport:
        """What is free and what is not."""
        kind, ties = self._walk.kind, self._walk.ties
        free = sum(map(len, self.exchangeable())) if kind == "order" else len(self.free_channels())
        pinned: list[PinnedChannels] = []
        for use in self.uses:
            stuck = [ties.reasons(channel) for channel in use.ids if ties.reasons(channel)]
            if use.axis == 0 and use.power == 1 and use.name.endswith("weight") and stuck:
                reasons = dict.fromkeys(reason for reasons in stuck for reason in reasons)
                pinned.append(PinnedChannels(use.name, len(stuck), tuple(reasons)))
        return ChannelReport(free, (*pinned, *self._without_rule))


def pinned(model: nn.Module, *, kind: Kind = "scale", through_norm: bool = True) -> ChannelReport:
    """What keeps the channels of `model` from being rescaled (or reordered), and how many are free."""
    return ChannelGraph(model, kind=kind, through_norm=through_norm).report()


def _follow(walk: Walk, graph: fx.Graph, model: nn.Module, unmovable: dict[str, str]) -> None:
    values: dict[fx.Node, Value] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = Fixed(f"input {node.target}")
        elif node.op == "get_attr":
            values[node] = Fixed(f"{node.target}, read by the network itself")
        elif node.op == "output":
            walk.unknown(Call("output", map_arg(node.args, values.__getitem__), {}))  # type: ignore[arg-type]
        else:
            values[node] = _result(walk, node, values, model, unmovable)


def _result(
    walk: Walk, node: fx.Node, values: dict[fx.Node, Value], model: nn.Module, unmovable: dict[str, str]
) -> Value:
    args: Any = map_arg(node.args, values.__getitem__)  # type: ignore[arg-type]
    named: Any = dict(map_arg(node.kwargs, values.__getitem__))  # type: ignore[arg-type]
    if not args and "input" in named:
        args = (named.pop("input"),)
    rule: Rule | None
    if node.op == "call_module":
        path = str(node.target)
        module = model.get_submodule(path)
        label = f"{type(module).__name__} {path}"
        reason = unmovable.get(path)
        call = Call(label if reason is None else f"{label}, which {reason}", args, named, path, module)
        rule = MODULES.get(type(module)) if reason is None else None
    elif node.op == "call_method":
        rule, call = METHODS.get(str(node.target)), Call(str(node.target), args, named)
    else:
        rule, call = FUNCTIONS.get(node.target), Call(getattr(node.target, "__name__", node.name), args, named)
        # Arithmetic on sizes; anything else that is made without tensors may be a tensor.
        if not call.tensors() and getattr(node.target, "__module__", "") in ("_operator", "math"):
            return Number() if rule is not item else item(walk, call)
    return walk.unknown(call) if rule is None or not call.tensors() else rule(walk, call)


def _without_rule(model: nn.Module, walk: Walk, unmovable: dict[str, str]) -> list[PinnedChannels]:
    """Weights that no use covers: their layer is not movable, has no rule, or is never called."""
    covered = {use.name for use in walk.uses}
    found = []
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        # The one slope of a PReLU belongs to no channel.
        if name in covered or leaf != "weight" or parameter.dim() == 0 or parameter.numel() == 1:
            continue
        why = unmovable.get(path, "has no rule or is never called")
        label = f"{type(model.get_submodule(path)).__name__} {path}".strip()
        found.append(PinnedChannels(name, len(parameter), (f"{label}, which {why}",)))
    return found


def _parts(ids: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    width = len(ids) // count
    return [ids[i * width : (i + 1) * width] for i in range(count)]


def _pin_ambiguous_splits(walk: Walk) -> None:
    """A list that holds one channel twice and is cut in parts does not say which part an entry may go to."""
    if walk.kind == "order":
        for ids, _ in walk.splits:
            if len({walk.ties.root(channel) for channel in ids}) < len(ids):
                walk.ties.pin(ids, "repeated channels that are split in groups")
