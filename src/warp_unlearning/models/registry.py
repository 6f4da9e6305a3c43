"""Models by name: their options, and building one from a name and options."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from math import prod
from types import MappingProxyType

import torch
from torch import nn

from ..errors import InputError, nearest
from .mlp import MLP
from .option_checks import require_positive
from .reinitialise import reinitialise
from .resnet18 import ResNet18
from .small_conv import SmallConv
from .small_resnet import SmallResNet

MODELS: Mapping[str, type[nn.Module]] = MappingProxyType(
    {"mlp": MLP, "resnet18": ResNet18, "small_conv": SmallConv, "small_resnet": SmallResNet}
)


def build_model(name: str, *, generator: torch.Generator | None = None, **options: object) -> nn.Module:
    """The model `name` built from `options`, with weights drawn from `generator`, or from torch's own state.

    >>> type(build_model("mlp", inputs=4, classes=2)).__name__
    'MLP'
    """
    model = _model(name)
    known = model_options(name)
    for option in options:
        if option not in known:
            raise InputError(f"{name} has no option {option!r}; {nearest(option, known)}")
    missing = [option for option, default in known.items() if default is None and option not in options]
    if missing:
        raise InputError(f"{name} needs the option {missing[0]!r}; give it a value")
    if generator is None:
        return model(**options)
    with torch.random.fork_rng(devices=[]):
        built = model(**options)
    reinitialise(built, generator=generator)
    return built


def model_options(name: str) -> dict[str, object]:
    """The options of the model `name` and their defaults; None marks an option that must be given.

    >>> model_options("small_resnet")
    {'classes': 10, 'width': 16, 'in_channels': 1, 'stem_stride': 1}
    """
    parameters = signature(_model(name)).parameters.values()
    return {p.name: None if p.default is Parameter.empty else p.default for p in parameters}


def suggest_options(name: str, shape: tuple[int, ...], classes: int) -> dict[str, int]:
    """The options that make the model `name` fit one example of `shape` and this number of classes.

    >>> suggest_options("resnet18", (3, 32, 32), 10)
    {'in_channels': 3, 'classes': 10}
    """
    known = model_options(name)
    require_positive({"classes": classes, **{f"shape[{i}]": size for i, size in enumerate(shape)}})
    if "inputs" in known:
        return {"inputs": prod(shape), "classes": classes}
    if len(shape) != 3:
        raise InputError(
            f"{name} takes images (channels, height, width) and an example has shape {tuple(shape)}; "
            "reshape them or use the model 'mlp'"
        )
    options = {"in_channels": shape[0], "classes": classes}
    if "size" not in known:
        return options
    if shape[1] != shape[2]:
        raise InputError(f"{name} takes square images and an example has shape {tuple(shape)}; use another model")
    return options | {"size": shape[1]}


def _model(name: str) -> type[nn.Module]:
    if name not in MODELS:
        raise InputError(f"no model is called {name!r}; {nearest(name, MODELS)}")
    return MODELS[name]
