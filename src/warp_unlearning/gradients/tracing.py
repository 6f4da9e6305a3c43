"""One forward pass over a batch, with the uses of layers that have ghost rules on record.

A use is one call of such a layer. During the call the layer's parameters are replaced by views, so that every other use
of a parameter stands out in the graph: something other than such a view points to it. `energy` and `per_sample` make a
trace of each batch, and apply each use's rule to its input and its output gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from ..errors import InputError

# The two others register their rules.
from . import rules_conv, rules_norm  # noqa: F401
from .rules import GhostRule, Phase, rule_of

# The graph nodes by which leaves are given their gradients; nothing comes after them.
_LeafNode: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


class Use(NamedTuple):
    """One call of the layer at `path`: its rule, its trained parameters by their names in the layer, its input `a` at
    which `version` of its memory, and where its `output` stands in the graph.
    """

    path: str
    layer: nn.Module
    rule: GhostRule
    parameters: dict[str, nn.Parameter]
    a: Tensor
    version: int
    output_shape: torch.Size
    output: GradientEdge


# A use, the layer's name of a parameter, and the gradient at the output.
Share = tuple[Use, str, Tensor]


@dataclass(eq=False)
class Trace:
    """The output of a pass, the uses of layers in order, and the graph nodes that hand a parameter to one of them. The
    phase is what its layers look at in a backward pass.
    """

    output: Tensor
    uses: list[Use] = field(default_factory=list)
    nodes: set[Node] = field(default_factory=set)
    phase: Phase = field(default_factory=Phase)

    def output_gradients(
        self, total: Tensor, *, differentiable: bool, retain: bool = False
    ) -> list[tuple[Use, Tensor]]:
        """Differentiate `total` at the outputs of all uses; returns the uses it depends on, with their gradients."""
        edges = [use.output for use in self.uses]
        if not edges:
            return []
        keep = differentiable or retain
        self.phase.outputs_only = True
        try:
            grads = torch.autograd.grad(total, edges, create_graph=differentiable, retain_graph=keep, allow_unused=True)
        finally:
            self.phase.outputs_only = False
        return [(use, g) for use, g in zip(self.uses, grads, strict=True) if g is not None]

    def require_unchanged(self) -> None:
        """Refuse inputs that an in-place operation has written over since their layer read them."""
        for use in self.uses:
            if use.a._version != use.version:
                raise InputError(
                    f"the input of {use.path or type(use.layer).__name__} is written over by a later in-place "
                    "operation; use the operation that returns a new tensor, such as nn.ReLU(inplace=False)"
                )


# For every model, by the shapes of its uses, the indices of those uses whose first axis is not the batch.
_MIXED: WeakKeyDictionary[nn.Module, dict[Hashable, tuple[int, ...]]] = WeakKeyDictionary()


def used_without_rules(model: nn.Module, copy: nn.Module, trace: Trace, x: Tensor, total: Tensor) -> set[int]:
    """Ids of the parameters that `total` depends on in other ways than by uses whose rows belong to single examples:
    rules would give a wrong gradient for them.

    The first axis of a layer's input and output is the batch if it alone differs in a pass over one example. That is
    computed once for as long as the model lives and the same layers are used on the same shapes.
    """
    uses, cache = trace.uses, _MIXED.setdefault(model, {})
    key = (x.shape, *[(use.path, type(use.layer), use.a.shape, use.output_shape) for use in uses])
    if key not in cache:
        single_uses = traced(copy, x[:1].detach()).uses
        same_layers = [use.path for use in uses] == [use.path for use in single_uses]
        pairs = enumerate(zip(uses, single_uses, strict=True)) if same_layers else ()
        batched = {
            index
            for index, (use, single) in pairs
            if _is_batch_of(use.a.shape, single.a.shape, len(x))
            and _is_batch_of(use.output_shape, single.output_shape, len(x))
        }
        cache[key] = tuple(index for index in range(len(uses)) if index not in batched)
    mixed = {id(p) for index in cache[key] for p in uses[index].parameters.values()}
    return mixed | parameters_used_elsewhere(total.grad_fn, trace.nodes)


def _is_batch_of(shape: torch.Size, single: torch.Size, batch: int) -> bool:
    """Whether `shape` is that of `batch` examples, if `single` is that of one."""
    return single[:1] == (1,) and shape == (batch, *single[1:])


def traced(copy: nn.Module, x: Tensor, *, inputs_only: bool = False) -> Trace:
    """Run `copy`, a copy of a model that is the caller's own, over x, and record the uses of layers with rules.

    With `inputs_only` parameters are constants to layers whose inputs have a gradient history.
    """
    # GPUs convolve faster where channels run fastest.
    if x.is_cuda and x.dim() == 4:
        try:
            return _traced(copy, x.clone(memory_format=torch.channels_last), inputs_only)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # The model takes views that this layout does not have, or fails in any.
            x = x.contiguous()
    return _traced(copy, x.clone(), inputs_only)


def _traced(copy: nn.Module, x: Tensor, inputs_only: bool) -> Trace:
    """Run `copy` over x, and record each call of a layer that has a ghost rule and trained parameters."""
    trace = Trace(x)
    layers = []
    try:
        for path, layer in copy.named_modules():
            rule = rule_of(layer) if layer._parameters else None
            if rule is not None:
                known = {name: p for name, p in layer._parameters.items() if p is not None and name in rule.names}
                trained = {name: p for name, p in known.items() if p.requires_grad}
                if trained:
                    call = partial(_traced_call, trace, path, layer, rule, trained, layer.forward, inputs_only)
                    layer.__dict__["forward"] = call
                    layers.append(layer)
        with TwiceDifferentiable():
            trace.output = copy(x)
    finally:
        # The calls refer to their layers: such circles would keep memory until they are found.
        for layer in layers:
            del layer.__dict__["forward"]
    return trace


def _traced_call(
    trace: Trace,
    path: str,
    layer: nn.Module,
    rule: GhostRule,
    trained: dict[str, nn.Parameter],
    forward: Callable[..., Any],
    inputs_only: bool,
    *args: Any,
    **named: Any,
) -> Any:
    """Call `forward` and record the use in `trace`; or only call it, where it is given more than one input tensor."""
    inputs = [*args, *(value for name, value in named.items() if name == "input")]
    a = inputs[0] if len(args) + len(named) == len(inputs) == 1 and isinstance(inputs[0], Tensor) else None
    # Within `functional_call` a layer may have other tensors than its parameters.
    replaced = any(layer._parameters.get(name) is not p for name, p in trained.items())
    if a is None or replaced or not torch.is_grad_enabled():
        return forward(*args, **named)
    # A tensor that a transform such as torch.func.grad has left behind stands for another.
    a = torch._C._functorch.unwrap_if_dead(a)
    version = a._version
    with parameters_as_views([layer], trace.nodes, constant=inputs_only and a.requires_grad):
        output = rule.output(layer, forward, a, trace.phase)
    # An in-place write to a view rewrites the history of its base, and the edge would lie outside the graph.
    output = output.clone() if output._is_view() else output
    edge = GradientEdge(cast(Node, output.grad_fn), output.output_nr)
    trace.uses.append(Use(path, layer, rule, trained, a, version, output.shape, edge))
    return output


@contextmanager
def parameters_as_views(modules: Iterable[nn.Module], nodes: set[Node], *, constant: bool = False) -> Iterator[None]:
    """Within the block, replace the modules' own parameters by views, whose graph nodes are added to `nodes`, so that
    these uses can be distinguished from all others; or by constants.
    """
    modules = list(modules)
    own = [p for module in modules for p in module._parameters.values() if p is not None]
    views = {id(p): p.detach() if constant else p.view_as(p) for p in own}
    nodes.update(view.grad_fn for view in views.values() if view.grad_fn is not None)
    with parameters_replaced(modules, views):
        yield


def parameters_used_elsewhere(root: Node | None, nodes: set[Node]) -> set[int]:
    """Walk the graph below `root`. Returns the ids of the parameters that a node other than `nodes` points to."""
    elsewhere: set[int] = set()
    visited: set[Node] = set()
    queue: list[Any] = [root] if root is not None else []
    while queue:
        node = queue.pop()
        for child, _ in node.next_functions:
            if type(child) is _LeafNode:
                if node not in nodes:
                    elsewhere.add(id(child.variable))
            elif child is not None and child not in visited:
                visited.add(child)
                queue.append(child)
    return elsewhere


def squared_norms(reached: Sequence[tuple[Use, Tensor]], zero: Tensor, *, left_out: set[int]) -> Tensor:
    """Σ ‖∂ℓᵢ/∂θ‖² over the parameters of the uses but those left out, added to `zero` (batch,)."""
    shares = shares_by_parameter(reached)
    energy = zero
    for use, g in reached:
        names = [name for name, p in use.parameters.items() if id(p) not in left_out and len(shares[id(p)]) == 1]
        if names:
            energy = energy + use.rule.squared_norm(use.layer, names, use.a, g)
    for key, repeated in shares.items():
        if len(repeated) > 1 and key not in left_out:
            energy = energy + sum_of_uses(repeated).flatten(1).square().sum(1)
    return energy


def shares_by_parameter(reached: Sequence[tuple[Use, Tensor]]) -> dict[int, list[Share]]:
    """All uses of each parameter, by its id: the gradient of one that is used twice is a sum over its uses."""
    shares: dict[int, list[Share]] = {}
    for use, g in reached:
        for name, p in use.parameters.items():
            shares.setdefault(id(p), []).append((use, name, g))
    return shares


def sum_of_uses(shares: Sequence[Share]) -> Tensor:
    """The gradient of a parameter by all of its uses, shape (batch, *parameter)."""
    use, name, g = shares[0]
    total = use.rule.gradient(use.layer, name, use.a, g)
    for use, name, g in shares[1:]:
        total = total + use.rule.gradient(use.layer, name, use.a, g)
    return total


def copy_with_same_parameters(model: nn.Module) -> nn.Module:
    """A copy that shares the parameters with `model`, and nothing else that a forward pass could change.

    Statistics of batch norms in eval mode are shared too: they are only read.
    """
    shared: dict[int, Any] = {}
    for module in model.modules():
        shared.update((id(p), p) for p in module._parameters.values() if p is not None)
        if isinstance(module, _BatchNorm) and not module.training:
            shared.update((id(buffer), buffer) for buffer in module._buffers.values() if buffer is not None)
    try:
        return deepcopy(model, shared)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied: {error}; keep nothing in it that has a gradient history"
        ) from error


@contextmanager
def parameters_replaced(modules: Iterable[nn.Module], values: Mapping[int, Tensor]) -> Iterator[None]:
    """Within the block, let the modules compute with `values` in place of their own parameters, by the ids of these.

    `torch.func.functional_call` leaves its replacement behind in a module that is a child twice (torch 2.13).
    """
    places = [
        (module._parameters, name, p)
        for module in modules
        for name, p in module._parameters.items()
        if p is not None and id(p) in values
    ]
    try:
        for slots, name, p in places:
            # Assignment by attribute would refuse tensors that are no nn.Parameter.
            slots[name] = cast(nn.Parameter, values[id(p)])
        yield
    finally:
        for slots, name, p in places:
            slots[name] = p


class TwiceDifferentiable(TorchFunctionMode):
    """Within the block, hardsigmoid is computed by a clamp: torch 2.13 has no second derivative of it.

    With `layer_norm`, layer norms are computed in two steps, normalisation and affine map: a backward pass through
    vmap(grad) of a layer norm with trained scale is wrong, for the mean and deviation kept for the scale's gradient
    carry no history.
    """

    def __init__(self, *, layer_norm: bool = False) -> None:
        super().__init__()
        self._replacements: dict[Any, Callable[..., Tensor]] = {F.hardsigmoid: _hardsigmoid_by_relu6}
        if layer_norm:
            self._replacements |= dict.fromkeys((F.layer_norm, torch.layer_norm), _layer_norm_then_affine)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the replacement of `func`, or `func` itself where it has none."""
        function: Callable[..., Any] = self._replacements.get(func, func)
        return function(*args, **(kwargs or {}))


def _hardsigmoid_by_relu6(input: Tensor, inplace: bool = False) -> Tensor:  # noqa: A002
    """`F.hardsigmoid`; the derivative of relu6 is 0 at both ends, as its own is."""
    return F.relu6(input + 3) / 6


def _layer_norm_then_affine(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """`F.layer_norm` as a normalisation and an affine map."""
    output = F.layer_norm(input, list(normalized_shape), eps=eps)
    output = output if weight is None else output * weight
    return output if bias is None else output + bias
