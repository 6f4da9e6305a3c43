"""What `gradient_energy` refuses: before it computes anything, or as soon as it has read what it must know."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..errors import InputError
from ..modules import modules_by_path, tensor_of

# The types in which gradients can be squared.
_FINE = (torch.float32, torch.float64)


def check_batch(x: Tensor, y: Tensor) -> Callable[[], None]:
    """Refuse a batch that is empty or whose parts differ in length; what is returned refuses inputs not finite."""
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y) or len(x) == 0:
        raise InputError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; give at least one example, and a label for each"
        )
    if x.is_meta or y.is_meta:
        raise InputError("the examples are on the device meta and hold no numbers; give their values")
    all_finite = finite_later(x.detach().sum()) if x.is_floating_point() else _yes

    def refuse() -> None:
        # Sums of large numbers overflow.
        if not all_finite() and not bool(x.isfinite().all()):
            bad = int((~x.isfinite().flatten(1).all(1)).nonzero()[0]) if x.dim() > 1 else 0
            raise InputError(
                f"x holds a NaN or infinite number in example {bad}; remove that example or repair its values"
            )

    return refuse


def finite_later(number: Tensor) -> Callable[[], bool]:
    """Begin to read a number; what is returned says whether it is finite.

    It waits for the number alone, not for work that a GPU was given after it.
    """
    read = number.detach().to("cpu", non_blocking=number.is_cuda)
    known = torch.cuda.Event() if number.is_cuda else None  # type: ignore[no-untyped-call]
    if known is not None:
        known.record(torch.cuda.current_stream(number.device))

    def is_finite() -> bool:
        if known is not None:
            known.synchronize()
        return math.isfinite(read.item())

    return is_finite


def _yes() -> bool:
    return True


def check_model(model: nn.Module) -> None:
    """Refuse weights that gradients cannot be squared in, and layers that mix examples or draw at random."""
    trained = False
    for path, layer in modules_by_path(model).items():
        kind: Any = type(layer)
        if _may_be_refused(kind):
            _check_layer(path or type(model).__name__, layer)
        for name, p in layer._parameters.items():
            if p is not None and p.requires_grad:
                trained = True
                if p.dtype not in _FINE:
                    where = f"{path}.{name}".lstrip(".")
                    raise InputError(
                        f"{where} has type {p.dtype}, too coarse for squared gradients; use `model.float()`"
                    )
    if not trained:
        raise InputError(f"{type(model).__name__} has no trainable parameter; set requires_grad_(True) on some")


def misfit(model: nn.Module, x: Tensor, error: RuntimeError) -> RuntimeError | InputError:
    """What to raise where the model failed on x: the types, if they differ, and else the error itself."""
    kinds = {p.dtype for p in model.parameters()}
    if not x.is_floating_point() or x.dtype in kinds or isinstance(error, torch.OutOfMemoryError):
        return error
    others = ", ".join(sorted(str(kind) for kind in kinds))
    return InputError(f"x has type {x.dtype} and the weights {others}; give both one type, as in `x.float()`")


def check_losses(losses: Tensor, batch: int) -> None:
    """Refuse a loss that is not one number for each example, or that does not depend on a parameter."""
    if losses.shape != (batch,):
        raise InputError(
            f"the loss has shape {tuple(losses.shape)} for {batch} examples; give one that returns a number for each, "
            'such as F.cross_entropy with reduction="none"'
        )
    if not losses.requires_grad:
        raise InputError("the loss depends on no trainable parameter; unfreeze one that the model uses")


def check_finite(losses: Tensor, total: Tensor) -> Callable[[], None]:
    """Begin to look whether all losses are finite; what is returned refuses them if not. `total` is their sum."""
    all_finite = finite_later(total)

    def refuse() -> None:
        # Sums of large numbers overflow.
        if not all_finite() and not bool(losses.isfinite().all()):
            bad = int((~losses.detach().isfinite()).nonzero()[0])
            raise InputError(f"the loss of example {bad} is {losses[bad].item()}; repair the weights or the example")

    return refuse


@lru_cache(maxsize=128)
def _may_be_refused(kind: type[nn.Module]) -> bool:
    return issubclass(kind, (_BatchNorm, _DropoutNd, nn.Embedding, nn.EmbeddingBag))


def _check_layer(path: str, layer: nn.Module) -> None:
    if isinstance(layer, _BatchNorm):
        if layer.training:
            raise InputError(f"batch norm {path} is in train mode, where examples mix; call `model.eval()` first")
        if tensor_of(layer, "running_mean") is None:
            raise InputError(f"batch norm {path} keeps no running statistics, so examples mix; use GroupNorm instead")
    if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
        raise InputError(f"dropout {path} is in train mode with p = {layer.p}; call `model.eval()` first")
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        raise InputError(f"embedding {path} has max_norm {layer.max_norm} and changes its weights; set it to None")
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.scale_grad_by_freq:
        raise InputError(f"embedding {path} scales by the batch's frequencies; set scale_grad_by_freq to False")
