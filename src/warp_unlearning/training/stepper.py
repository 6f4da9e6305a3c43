"""One optimizer step after another, under an optional constraint; `Stepper.carry` lets momentum follow a teleport.
Every training and every method takes its steps with one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import InputError, WeightsError
from ..gpu.graphs import Number as Number
from ..symmetry.moves import MomentumReset, Move
from .constraints import Constraint

OptimizerName = Literal["sgd", "adam"]


class Stepper:
    """Gradients, optional clipping, optimizer step and constraint, for the trainable parameters of one model.

    `only` restricts it to the parameters of those names. The `constraint` limits whole steps, momentum and weight decay
    included; `max_norm` clips every gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        only: Container[str] | None = None,
        optimizer: OptimizerName = "sgd",
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        constraint: Constraint | None = None,
        max_norm: float | None = None,
    ) -> None:
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad and (only is None or n in only)]
        if not trained:
            raise InputError("the model has no trainable parameter; set requires_grad on those that may change")
        self.names, self.parameters = [n for n, _ in trained], [p for _, p in trained]
        self.optimizer = _optimizer(self.parameters, optimizer, momentum, weight_decay)
        self.constraint = constraint
        self.max_norm = max_norm
        self._before = [torch.empty_like(p) for p in self.parameters] if constraint else []

    def step(
        self, loss: Tensor, *, lr: Number, through: Constraint | None = None, max_norm: float | None = None
    ) -> None:
        """Descend `loss` once. Where the step is to be captured, `lr` is a tensor without axes on the GPU.

        `through` limits the gradient of this step, not what momentum and weight decay do; `max_norm` then clips it.
        """
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else _laid_out_as(parameter, gradient)
        self._take_step(lr, through, max_norm)

    def step_along(self, gradients: Mapping[str, Tensor], *, lr: Number) -> None:
        """Descend along `gradients`, by parameter name, as if a loss had given them."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            parameter.grad = _laid_out_as(parameter, gradients[name])
        self._take_step(lr)

    @torch.no_grad()
    def _take_step(self, lr: Number, through: Constraint | None = None, max_norm: float | None = None) -> None:
        """Step along the gradients in `parameter.grad`, limited by `through` and `max_norm` beforehand."""
        # In half precision a projection would leave in the gradient what it must remove.
        with torch.autocast(self.parameters[0].device.type, enabled=False):
            if through is not None:
                self._limit_gradients(through)
            if max_norm is not None:
                nn.utils.clip_grad_norm_(self.parameters, max_norm)
            self._apply_optimizer(lr)

    def _apply_optimizer(self, lr: Number) -> None:
        """Clip as the stepper always does, let the optimizer step, and undo what the constraint forbids of that."""
        if self.max_norm is not None:
            if self.constraint is not None:
                self._limit_gradients(self.constraint)
            nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.constraint is None:
            self.optimizer.step()
            return
        torch._foreach_copy_(self._before, list[Tensor](self.parameters))
        self.optimizer.step()
        for name, after, before in zip(self.names, self.parameters, self._before, strict=True):
            limited = self.constraint.limit(name, after, before)
            if limited is not after:
                after.copy_(limited)

    def _limit_gradients(self, constraint: Constraint) -> None:
        """Replace each gradient by the part of it that the constraint allows."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.grad is not None:
                parameter.grad = _laid_out_as(parameter, constraint.limit_gradient(name, parameter.grad))

    @torch.no_grad()
    def carry(self, move: Move | None) -> None:
        """Transform the optimizer state, and the constraint, by a move that was made to the weights. Momentum sums
        gradients, so it is a covector, and so is the root of Adam's second moment. A `MomentumReset` clears the state.
        """
        if move is None:
            return
        if isinstance(move, MomentumReset):
            # In place, since a captured step refers to these tensors by their addresses.
            for value in (v for state in self.optimizer.state.values() for v in state.values()):
                if isinstance(value, Tensor):
                    value.zero_()
        else:
            self._carry_moments(move)
        if self.constraint is not None:
            self.constraint.carry(move)

    def _carry_moments(self, move: Move) -> None:
        """Transform SGD's momentum, or Adam's two moments, in place."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            state = self.optimizer.state.get(parameter, {})
            for key in ("momentum_buffer", "exp_avg"):
                if state.get(key) is not None:
                    state[key].copy_(move.covector(name, state[key]))
            if "exp_avg_sq" in state:
                state["exp_avg_sq"].copy_(move.covector(name, state["exp_avg_sq"].sqrt()).square())

    def state(self) -> dict[str, Tensor]:
        """Copies of the optimizer's tensors by "key.parameter", to be saved beside the weights."""
        return {
            f"{key}.{name}": value.clone()
            for name, parameter in zip(self.names, self.parameters, strict=True)
            for key, value in self.optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the optimizer from what `state` returned."""
        parameters = dict(zip(self.names, self.parameters, strict=True))
        for full_name, value in state.items():
            key, name = full_name.split(".", 1)
            parameter = parameters[name]
            # Fused optimizers require state in the parameter's memory layout, and step counters on its device.
            same_shape = value.shape == parameter.shape
            value = torch.empty_like(parameter).copy_(value) if same_shape else value.to(parameter.device, copy=True)
            self.optimizer.state[parameter][key] = value


def checkpoint(model: nn.Module, stepper: Stepper, epoch: int) -> dict[str, Tensor]:
    """Weights, optimizer state and epoch of a run, to be saved."""
    weights = {f"weights/{name}": value.clone() for name, value in model.state_dict().items()}
    optimizer = {f"optimizer/{name}": value for name, value in stepper.state().items()}
    return weights | optimizer | {"epoch": torch.tensor(epoch)}


def restore(model: nn.Module, stepper: Stepper, state: Mapping[str, Tensor]) -> int:
    """Restore weights and optimizer state from what `checkpoint` returned; returns the epoch."""
    if "epoch" not in state:
        raise WeightsError("the checkpoint has no epoch; it is not one of a training. Delete it to start anew")
    weights, optimizer = (
        {n.removeprefix(p): t for n, t in state.items() if n.startswith(p)} for p in ("weights/", "optimizer/")
    )
    model.load_state_dict(weights)
    stepper.load_state(optimizer)
    return int(state["epoch"])


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with its parameter's strides, which fused optimizers want, also where an axis has length 1."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _optimizer(
    parameters: list[nn.Parameter], name: str, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The optimizer `name`, fused where torch can, and with its counters on a GPU so that steps can be captured."""
    fused = parameters[0].device.type in ("cpu", "cuda")
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.0, momentum=momentum, weight_decay=weight_decay, fused=fused)
    if name == "adam":
        capturable = parameters[0].device.type == "cuda"
        return torch.optim.Adam(parameters, lr=0.0, weight_decay=weight_decay, fused=fused, capturable=capturable)
    raise InputError(f"unknown optimizer {name!r}; known: sgd, adam")
