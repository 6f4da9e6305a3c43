"""Networks that draw nothing at random, which many are: then torch's global generators need no looking after."""

from __future__ import annotations

from torch import nn

_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.ReLU,
    nn.Flatten,
    nn.Identity,
    nn.Sequential,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)
_OURS = __name__.rpartition(".")[0]


def draws_nothing(model: nn.Module) -> bool:
    """Whether every module is one of a few layers without randomness, or a network of this package, whose own code has
    none outside its layers. Of any other module it is not known.
    """
    return all(type(module) in _LAYERS or type(module).__module__.startswith(_OURS) for module in model.modules())
