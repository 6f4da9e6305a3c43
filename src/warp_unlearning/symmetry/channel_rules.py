"""Which rule each module, function and tensor method follows; what is not listed pins all it touches."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import channel_layers as layers
from . import channel_operations as operations
from . import channel_shapes as shapes
from .channel_operations import Rule, homogeneous, over_positions, same_for_all
from .channel_values import Call, Tensorial, Value
from .channel_walk import Walk

# Modules that hold nothing a move could change, f(τx) = τ f(x).
_HOMOGENEOUS = (
    nn.ReLU, nn.LeakyReLU, nn.RReLU, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
_SAME_FOR_ALL = (
    nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Softsign, nn.Mish, nn.ReLU6,
    nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.LogSigmoid, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink,
    nn.Threshold, nn.Softmax, nn.LogSoftmax,
)  # fmt: skip
_HOMOGENEOUS_NAMES = (
    "relu", "relu_", "leaky_relu", "leaky_relu_", "rrelu", "abs", "neg", "dropout", "dropout1d", "dropout2d",
    "dropout3d", "alpha_dropout", "feature_alpha_dropout", "contiguous", "clone", "detach", "float", "double",
)  # fmt: skip
_SAME_FOR_ALL_NAMES = (
    "gelu", "silu", "sigmoid", "tanh", "elu", "selu", "celu", "softplus", "softsign", "mish", "relu6", "hardswish",
    "hardsigmoid", "hardtanh", "logsigmoid", "softmax", "log_softmax", "exp", "square", "clamp", "sigmoid_", "tanh_",
)  # fmt: skip
_POOLS = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")


def _layer(rule: Callable[[Walk, Call, Tensorial], Value]) -> Rule:
    def one_tensor(walk: Walk, call: Call) -> Value:
        tensors = call.tensors()
        return rule(walk, call, tensors[0]) if len(tensors) == 1 else walk.unknown(call)

    return one_tensor


def _pool_modules() -> dict[type[nn.Module], Rule]:
    names = ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
    return {getattr(nn, f"{name}{d}d"): over_positions(d) for name in names for d in (1, 2, 3)}


def _named_functions() -> dict[Any, Rule]:
    found: dict[Any, Rule] = {}
    rules: dict[str, Rule] = dict.fromkeys(_HOMOGENEOUS_NAMES, homogeneous)
    rules |= dict.fromkeys(_SAME_FOR_ALL_NAMES, same_for_all)
    rules |= {f"{pool}{d}d": over_positions(d) for pool in _POOLS for d in (1, 2, 3)}
    for name, rule in rules.items():
        for home in (torch, F):
            if hasattr(home, name):
                found[getattr(home, name)] = rule
    return found


MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys(_HOMOGENEOUS, homogeneous),
    **dict.fromkeys(_SAME_FOR_ALL, same_for_all),
    **_pool_modules(),
    nn.Flatten: shapes.flatten,
    nn.Linear: _layer(layers.linear_layer),
    nn.PReLU: _layer(layers.sloped_relu),
    nn.GroupNorm: _layer(layers.group_norm),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _layer(layers.convolution)),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _layer(layers.batch_norm)),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), _layer(layers.last_axis_norm)),
}

FUNCTIONS: dict[Any, Rule] = {
    **_named_functions(),
    operator.neg: homogeneous,
    **dict.fromkeys((operator.add, operator.iadd, torch.add, operator.sub, torch.sub), operations.addition),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul), operations.product),
    **dict.fromkeys((operator.truediv, torch.div), operations.quotient),
    **dict.fromkeys((torch.cat, torch.concat), operations.concatenation),
    **dict.fromkeys((torch.mean, torch.sum, torch.amax), shapes.over_axes),
    torch.flatten: shapes.flatten,
    torch.reshape: shapes.reshape,
    torch.transpose: shapes.transpose,
    torch.permute: shapes.permute,
    torch.chunk: shapes.chunk,
    getattr: operations.attribute,
    operator.getitem: operations.item,
}

METHODS: dict[str, Rule] = {
    **dict.fromkeys(_HOMOGENEOUS_NAMES, homogeneous),
    **dict.fromkeys(_SAME_FOR_ALL_NAMES, same_for_all),
    **dict.fromkeys(("add", "add_", "sub", "sub_"), operations.addition),
    **dict.fromkeys(("mul", "mul_"), operations.product),
    **dict.fromkeys(("div", "div_"), operations.quotient),
    **dict.fromkeys(("mean", "sum", "amax"), shapes.over_axes),
    **dict.fromkeys(("size", "dim"), operations.size),
    **dict.fromkeys(("view", "reshape"), shapes.reshape),
    "flatten": shapes.flatten,
    "transpose": shapes.transpose,
    "permute": shapes.permute,
    "chunk": shapes.chunk,
}
