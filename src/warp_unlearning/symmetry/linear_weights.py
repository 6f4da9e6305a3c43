"""The weights of a network that act as linear maps on what enters their layers, and the bias that goes with each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import lcm

from torch import Tensor, nn

from ..module_tree import modules_by_path

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d)


@dataclass(frozen=True, eq=False)
class LinearWeight:
    """One weight of Linear, Conv1d or Conv2d layers, with all the layers that share it.

    `bias` is the bias added to its output, where there is one and it is the same in all of them and is no other
    layer's. `groups` is the number of equal consecutive blocks of rows that may see different inputs; d is the length
    of such a row, without a constant for the bias.
    """

    name: str
    tensor: Tensor
    bias: str | None
    groups: int
    layers: tuple[nn.Module, ...]

    @property
    def d(self) -> int:
        """Coordinates of an input."""
        return self.tensor[0].numel()


def linear_weights(model: nn.Module) -> Iterator[LinearWeight]:
    """Each weight whose every owner is a Linear, Conv1d or Conv2d that computes what its class does.

    A weight that is computed from others at every call (a parametrisation) has no name of its own and is left out, and
    so is one that another kind of layer shares (an embedding tied to the output layer).
    """
    modules = modules_by_path(model)
    names, owners = _names_and_owners(modules)
    seen: set[int] = set()
    for module in modules.values():
        # Few modules are linear, and an attribute that a module does not have takes long to find missing.
        if not isinstance(module, _LINEAR) or not _acts_linearly(module):
            continue
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or id(weight) not in names or id(weight) in seen:
            continue
        seen.add(id(weight))
        layers = owners[id(weight)]
        if all(_acts_linearly(layer) and layer.weight is weight for layer in layers):
            groups = lcm(*(getattr(layer, "groups", 1) for layer in layers))
            yield LinearWeight(names[id(weight)], weight, _common_bias(layers, names, owners), groups, tuple(layers))


def _acts_linearly(module: nn.Module) -> bool:
    known = next((kind for kind in _LINEAR if isinstance(module, kind)), None)
    return known is not None and all(
        name not in vars(module) and getattr(type(module), name, None) is getattr(known, name, None)
        for name in ("forward", "_conv_forward")
    )


def _names_and_owners(modules: Mapping[str, nn.Module]) -> tuple[dict[int, str], dict[int, list[nn.Module]]]:
    """The first name of each tensor, that of a parameter where it has one, and the modules that hold it, by its id."""
    names: dict[int, str] = {}
    of_buffers: dict[int, str] = {}
    owners: dict[int, list[nn.Module]] = {}
    for path, module in modules.items():
        start = f"{path}." if path else ""
        for found, tensors in ((names, module._parameters), (of_buffers, module._buffers)):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                found.setdefault(id(tensor), start + name)
                holders = owners.setdefault(id(tensor), [])
                if not holders or holders[-1] is not module:
                    holders.append(module)
    return of_buffers | names, owners


def _common_bias(layers: list[nn.Module], names: dict[int, str], owners: dict[int, list[nn.Module]]) -> str | None:
    bias = layers[0].bias
    if bias is None or any(layer.bias is not bias for layer in layers):
        return None
    return names.get(id(bias)) if all(owner in layers for owner in owners.get(id(bias), [])) else None
