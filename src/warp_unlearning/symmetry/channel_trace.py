"""The operations of a network, by torch.fx, in eval mode and in train mode, and the weights it reads by itself.

A network may take another way in train mode (an auxiliary head, say), and a move must keep that one too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from ..errors import InputError


class _Tracer(fx.Tracer):
    """Notes each tensor that the network's own code reads: its layer computes with it out of our sight."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if isinstance(attr_val, Tensor):
            self.read.add(id(attr_val))
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and a.requires_grad:
            raise ValueError("it computes a tensor from its weights outside its layers")
        return super().create_arg(a)


def traced_graphs(model: nn.Module) -> tuple[list[fx.Graph], set[int]]:
    """The graphs in both modes, and the identities of tensors read outside the layers they belong to.

    The model is left as it was.
    """
    lazy = [name for name, value in model.named_parameters() if isinstance(value, nn.UninitializedParameter)]
    if lazy:
        raise InputError(f"{lazy[0]} has no values yet; call the model once on a batch, then move it")
    before = [(module, module.training) for module in model.modules()]
    attributes = set(vars(model))
    read: set[int] = set()
    graphs = []
    try:
        for training in (False, True):
            model.train(training)
            tracer = _Tracer()
            graphs.append(tracer.trace(model))
            read |= tracer.read
    except Exception as error:
        raise InputError(
            f"{type(model).__name__} cannot be traced by torch.fx ({error}), so its channels are not known; "
            "write its forward without branches or loops that depend on tensors, or use a symmetry that needs no trace"
        ) from error
    finally:
        for module, training in before:
            module.training = training
        # fx keeps constants as attributes of the model it traces.
        for name in set(vars(model)) - attributes:
            delattr(model, name)
    return graphs, read


def unmovable_modules(model: nn.Module, read: set[int]) -> dict[str, str]:
    """Modules whose tensors must stay, by path, with the reason: tensors shared with another name, read outside the
    module, or not plain parameters, and forward hooks, which may do anything.
    """
    owners: dict[int, set[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None and value.numel():
                owners.setdefault(value.untyped_storage().data_ptr(), set()).add(f"{path}.{name}")
    found: dict[str, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        tensors = [v for v in (*module._parameters.values(), *module._buffers.values()) if v is not None]
        if module._forward_hooks or module._forward_pre_hooks:
            found[path] = "has forward hooks"
        elif isinstance(vars(module).get("weight"), Tensor):
            found[path] = "has a weight computed from others"
        elif any(id(v) in read for v in tensors):
            found[path] = "has weights that the network reads by itself"
        elif any(v.numel() and len(owners[v.untyped_storage().data_ptr()]) > 1 for v in tensors):
            found[path] = "shares its weights with another name"
    return found
