"""Which parameters a forward pass uses, where, and what enters and leaves the layers that use them.

A use is one call of a layer that has a rule. During the call the layer's trainable parameters are replaced by views, so
that every other use of a parameter stands out in the graph: something other than such a view points to it. Where the
rule knows the nodes that will point to the parameters, no views are needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from ..errors import InputError
from ..modules import modules_by_path
from .ghost.applied import living
from .ghost.rule import GhostRule, Passing, rule_of
from .parameter_slots import copy_with_same_parameters

# The graph nodes by which leaves are given their gradients; nothing comes after them.
_AtLeaf: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


class Use(NamedTuple):
    """One call of a layer: its input, at which version of its memory, and where its output stands in the graph."""

    path: str
    layer: nn.Module
    rule: GhostRule
    parameters: dict[str, nn.Parameter]
    a: Tensor
    version: int
    output_shape: torch.Size
    output: GradientEdge


# The path of a layer, and the shapes of what enters and leaves it.
Shapes = tuple[str, torch.Size, torch.Size]


@dataclass
class Trace:
    """The uses of a forward pass in order, and the graph nodes that hand a parameter to one of them.

    While `shapes` is a list, calls add to it instead. `layers` are those whose calls are traced.
    """

    uses: list[Use] = field(default_factory=list)
    nodes: set[Node] = field(default_factory=set)
    passing: Passing = field(default_factory=Passing)
    shapes: list[Shapes] | None = None
    layers: list[nn.Module] = field(default_factory=list)

    def close(self) -> None:
        """Let the layers go, which refer to themselves by their calls: circles keep memory until they are found."""
        for layer in self.layers:
            del vars(layer)["forward"]
        self.layers.clear()


def traced_copy(model: nn.Module, trace: Trace) -> nn.Module:
    """A copy that shares the parameters and nothing that changes, and whose layers write their calls to `trace`."""
    copy = copy_with_same_parameters(model)
    by_rule: dict[GhostRule, list[nn.Module]] = {}
    for path, layer in modules_by_path(copy).items():
        rule = rule_of(layer) if layer._parameters else None
        trained = {} if rule is None else _trained(layer, rule)
        if rule is not None and trained:
            # Assignment by attribute is slow.
            vars(layer)["forward"] = partial(_traced_call, trace, path, layer, rule, trained, layer.forward)
            trace.layers.append(layer)
            by_rule.setdefault(rule, []).append(layer)
    for rule, layers in by_rule.items():
        rule.prepare(layers)
    return copy


def _trained(layer: nn.Module, rule: GhostRule) -> dict[str, nn.Parameter]:
    """The parameters that the rule answers for; others that a layer was given it does not use."""
    held = layer._parameters
    found = {}
    for name in rule.names:
        p = held.get(name)
        if p is not None and p.requires_grad:
            found[name] = p
    return found


def parameters_used_elsewhere(root: Node | None, trace: Trace) -> set[int]:
    """The ids of the parameters that the graph below `root` uses in any other way than by the uses in `trace`."""
    found: set[int] = set()
    seen: set[Node] = set()
    handing = trace.nodes | trace.passing.handing
    waiting: list[Any] = [root] if root is not None else []
    while waiting:
        node = waiting.pop()
        for child, _ in node.next_functions:
            if type(child) is _AtLeaf:
                if node not in handing:
                    found.add(id(child.variable))
            elif child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return found


def require_unchanged(uses: Iterable[Use]) -> None:
    """Refuse inputs that an in-place operation has written over since their layer read them."""
    for use in uses:
        if use.a._version != use.version:
            raise InputError(
                f"the input of {use.path or type(use.layer).__name__} is written over by a later in-place operation; "
                "use the operation that returns a tensor of its own, such as nn.ReLU(inplace=False)"
            )


def _traced_call(
    trace: Trace,
    path: str,
    layer: nn.Module,
    rule: GhostRule,
    trained: dict[str, nn.Parameter],
    forward: Any,
    *args: Any,
    **named: Any,
) -> Any:
    a = _only_input(args, named)
    if a is None or not _holds(layer, trained) or not torch.is_grad_enabled():
        return forward(*args, **named)
    a = living(a)
    if trace.shapes is not None:
        output = forward(a)
        trace.shapes.append((path, a.shape, output.shape))
        return output
    version = a._version
    if rule.hands_over(layer, a):
        output = rule.output(layer, forward, a, trace.passing)
        if output.grad_fn is not None:
            trace.nodes.add(output.grad_fn)
    else:
        output = _output_by_views(trace, layer, rule, trained, forward, a)
    # An in-place write to a view rewrites the history of its base, and the edge would lie outside the graph.
    output = output.clone() if output._is_view() else output
    node = cast(Node, output.grad_fn)
    trace.uses.append(Use(path, layer, rule, trained, a, version, output.shape, GradientEdge(node, output.output_nr)))
    return output


def _holds(layer: nn.Module, trained: dict[str, nn.Parameter]) -> bool:
    """Whether these are the layer's parameters; within `functional_call` it may have been given other tensors."""
    held = layer._parameters
    # Not by `all` and a generator, which takes longer to begin than the loop to end.
    for name, p in trained.items():  # noqa: SIM110
        if held.get(name) is not p:
            return False
    return True


def _output_by_views(
    trace: Trace, layer: nn.Module, rule: GhostRule, trained: dict[str, nn.Parameter], forward: Any, a: Tensor
) -> Tensor:
    views = {name: p.view_as(p) for name, p in trained.items()}
    # Assignment by attribute would refuse tensors that are no nn.Parameter.
    layer._parameters.update(views)  # type: ignore[arg-type]
    try:
        output = rule.output(layer, forward, a, trace.passing)
    finally:
        layer._parameters.update(trained)
    trace.nodes.update(view.grad_fn for view in views.values() if view.grad_fn is not None)
    return output


def _only_input(args: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
    if len(args) + len(named) != 1:
        return None
    a = args[0] if args else named.get("input")
    return a if isinstance(a, Tensor) else None
