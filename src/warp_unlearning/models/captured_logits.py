"""The logits of one model for inputs of one shape, again and again on a GPU, as one captured graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..cuda_graphs import CudaGraph, capturable_stream
from ..errors import InputError
from ..kernels.one_pixel_convolution import VectorLayers
from ..module_tree import modules_by_path

_WARM_UP = 1


class CapturedLogits:
    """What `model` gives for inputs like `x`, in the mode and precision of this moment.

    In-place changes of weights and buffers are seen; where one lies elsewhere in memory, `suits` says so. What the
    model does must not depend on values: a graph repeats the operations that the first inputs led to.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        if not x.is_cuda:
            raise InputError(f"x is on {x.device}; graphs are captured on CUDA devices, call the model elsewhere")
        self._model, self._x = model, x.clone()
        self._places = _places(model)
        with capturable_stream(x.device), torch.no_grad(), VectorLayers():
            # What libraries allocate and choose at the first calls must not be captured.
            for _ in range(_WARM_UP):
                model(self._x)
            self._graph: CudaGraph[Tensor] = CudaGraph(lambda: model(self._x))

    def suits(self, x: Tensor) -> bool:
        """Whether inputs are like those that were captured, and the model lies where it lay."""
        alike = (x.shape, x.dtype, x.device) == (self._x.shape, self._x.dtype, self._x.device)
        return alike and _places(self._model) == self._places

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of inputs that suit."""
        self._x.copy_(x)
        return self._graph.replay().clone()


def _places(model: nn.Module) -> list[int | bool | None]:
    """The mode of every module, and where each of its tensors lies."""
    found: list[int | bool | None] = []
    for module in modules_by_path(model).values():
        found.append(module.training)
        for tensors in (module._parameters, module._buffers):
            found += [None if tensor is None else tensor.data_ptr() for tensor in tensors.values()]
    return found
