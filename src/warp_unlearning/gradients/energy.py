"""The gradient energy of every example, eᵢ = ‖∇θ ℓᵢ‖² over the trainable parameters θ, without per-example gradients.

One forward pass records what enters the layers; one backward pass of Σᵢℓᵢ gives the gradients at their outputs, which
belong to single examples as long as no layer mixes examples; each layer's rule (`rules`) makes squared norms of both. A
parameter used several times counts with the sum of its uses, eᵢ ∋ ‖Σᵤ gᵢᵤ‖². The result is differentiable once:
Σᵢ vᵢeᵢ has the gradient 2 Σᵢ vᵢ Hᵢgᵢ. Parameters without a rule go through vmap(grad).

Null-space moves descend the energy of the forget set, certificates report it, and attacks search inputs by `alignment`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..errors import InputError
from ..gpu.graphs import Captured
from ..gpu.precision import math_attention
from .per_sample import Loss as Loss
from .per_sample import cross_entropy as cross_entropy
from .per_sample import gradients_by_vmap
from .tracing import Trace, TwiceDifferentiable, copy_with_same_parameters, squared_norms, traced, used_without_rules

# Examples of one pass on a CPU. More at once are no faster, and take more memory: a backward pass ends with one part
# before it begins the next.
_CPU_EXAMPLES = 32
_ENERGIES = ""  # The key of the energies among gradients by parameter name, none of which is empty.


def gradient_energy(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss = cross_entropy) -> Tensor:
    """‖∇θ ℓᵢ‖² of every example over all trainable parameters, shape (batch,), differentiable once in the parameters.

    `loss(model(x), y)` gives one loss for each example, and rows of x and y are examples. Batch norm and dropout must
    be in eval mode. The model is left as it was; without grad mode the result carries no graph.

    On a GPU all that stands for a convolution is computed in the precision of torch's convolutions, TF32 by default;
    `torch.backends.cudnn.allow_tf32 = False` makes it exact.

    >>> layer = nn.Linear(2, 2)
    >>> gradient_energy(layer, torch.ones(3, 2), torch.tensor([0, 1, 1])).shape
    torch.Size([3])
    """
    _check_batch(x, y)
    check_model(model)
    differentiable = torch.is_grad_enabled()
    with exact_derivatives(x):
        copy = copy_with_same_parameters(model)
        count = -(-len(x) // _CPU_EXAMPLES) if x.device.type == "cpu" else 1
        parts = zip(x.tensor_split(count), y.tensor_split(count), strict=True)
        energies = [_energy(model, copy, *part, loss=loss, differentiable=differentiable) for part in parts]
    energy = torch.cat(energies)
    return energy if differentiable else energy.detach()


def total_energy(model: nn.Module, x: Tensor, y: Tensor) -> float | None:
    """Σᵢ ‖∇ℓᵢ‖² over the batch; None where it cannot be measured, as by a layer's kind or a loss that is not finite."""
    try:
        with torch.no_grad():
            return float(gradient_energy(model, x, y).double().sum())
    except InputError:
        return None


def _energy(model: nn.Module, copy: nn.Module, x: Tensor, y: Tensor, *, loss: Loss, differentiable: bool) -> Tensor:
    """`gradient_energy` of one part of the batch: by rules, and by vmap(grad) for parameters used elsewhere too."""
    try:
        trace = traced(copy, x)
    except RuntimeError as error:
        raise _misfit(model, x, error) from error
    losses = _losses(trace, y, loss)
    total = losses.sum()
    trace.require_unchanged()
    reached = trace.output_gradients(total, differentiable=differentiable, retain=True)
    # A pass of its own, before which a model that changes in every pass must have been differentiated.
    elsewhere = used_without_rules(model, copy, trace, x, total)
    energy = squared_norms(reached, torch.zeros_like(losses), left_out=elsewhere)
    others = {name: p for name, p in copy.named_parameters() if id(p) in elsewhere}
    sums = torch.autograd.grad(total, list(others.values()), retain_graph=True, allow_unused=True) if others else ()
    used = {name: g for name, g in zip(others, sums, strict=True) if g is not None}
    if used:
        energy = energy + _energy_by_vmap(copy, x, y, {name: others[name] for name in used}, loss=loss, total=used)
    return energy


def energy_by_rules(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss) -> Tensor:
    """`gradient_energy` by rules alone and without checks: it reads no value back, so that a graph can capture it."""
    with exact_derivatives(x):
        trace = traced(copy_with_same_parameters(model), x)
        losses = loss(trace.output, y)
        reached = trace.output_gradients(losses.sum(), differentiable=True)
        return squared_norms(reached, torch.zeros_like(losses), left_out=set())


def parameters_without_rules(model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss) -> list[str]:
    """The names of the trainable parameters whose energy goes through vmap(grad), at least in part."""
    with exact_derivatives(x):
        copy = copy_with_same_parameters(model)
        trace = traced(copy, x)
        elsewhere = used_without_rules(model, copy, trace, x, loss(trace.output, y).sum())
    return [name for name, p in model.named_parameters() if id(p) in elsewhere]


class EnergyGradient:
    """Energies eᵢ = ‖∇θ ℓᵢ‖², shape (batch,), and ∂Σᵢeᵢ/∂θ by name, for `model` as it stands in memory.

    Launching its thousand small operations takes longer than a GPU needs to do them. So there the second batch of a
    shape is captured as a graph, which later ones replay, if every trainable parameter is used in layers that have a
    rule. In-place changes of weights are seen, and new tensors in their places lead to another capture. What the model
    does must not depend on values.
    """

    def __init__(self, model: nn.Module, *, loss: Loss = cross_entropy) -> None:
        self.model, self._loss = model, loss
        # The computation of the last call, and the shapes, tensor addresses and modes that it was prepared for.
        self._prepared_for: Hashable = None
        self._captured: Captured | None = None

    def __call__(
        self, x: Tensor, y: Tensor, *, names: Collection[str] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute all eᵢ = ‖∇θ ℓᵢ‖² and the gradient of their sum at the trainable parameters, or those in `names`.

        The gradient is zero where the loss does not depend on a parameter.
        """
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad and (names is None or n in names)}
        addresses = (tensor.data_ptr() for tensor in (*self.model.parameters(), *self.model.buffers()))
        modes = (module.training for module in self.model.modules())
        situation = x.shape, x.dtype, x.device, y.shape, y.dtype, (*addresses,), (*modes,), (*trained,)
        if self._captured is None or situation != self._prepared_for:
            by_rules = x.is_cuda and not parameters_without_rules(self.model, x, y, loss=self._loss)
            self._prepared_for = situation
            self._captured = Captured(partial(self._computed, trained), x.device, enabled=by_rules)
        gradient = self._captured(x, y)
        energies = gradient.pop(_ENERGIES)
        if not bool(energies.isfinite().all()):
            bad = int((~energies.isfinite()).nonzero()[0])
            raise InputError(
                f"the energy of example {bad} is {energies[bad].item()}; repair the weights or the example"
            )
        return energies, gradient

    def _computed(self, trained: dict[str, nn.Parameter], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The gradient of Σᵢeᵢ by parameter name, and under `_ENERGIES` the energies: what may be captured."""
        # Checks read values, which a graph cannot.
        energy = energy_by_rules if x.is_cuda and torch.cuda.is_current_stream_capturing() else gradient_energy
        with torch.enable_grad():
            energies = energy(self.model, x, y, loss=self._loss)
            values = list(trained.values())
            gradients = torch.autograd.grad(energies.sum(), values, materialize_grads=True) if values else ()
        return {_ENERGIES: energies, **dict(zip(trained, gradients, strict=True))}


def can_align(model: nn.Module, x: Tensor, y: Tensor, *, names: Collection[str]) -> bool:
    """Whether `alignment` covers the parameters in `names`: each is used in one layer alone, which has a rule."""
    if set(names) & set(parameters_without_rules(model, x, y, loss=cross_entropy)):
        return False
    with torch.enable_grad():
        trace = traced(copy_with_same_parameters(model), x)
    names_by_id = {id(p): name for name, p in model.named_parameters()}
    used = [names_by_id[id(p)] for use in trace.uses for p in use.parameters.values()]
    return all(used.count(name) == 1 for name in names)


def alignment(model: nn.Module, x: Tensor, y: Tensor, *, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """⟨gᵢ, tᵢ⟩ and ‖gᵢ‖² over the parameters that `directions` (batch, *parameter) name, shapes (batch,), for the
    cross-entropy gradients gᵢ: what a search for an input by its gradient minimises. Differentiable once in x.

    Every parameter needs a rule; `can_align` checks that.
    """
    with exact_derivatives(x):
        trace = traced(copy_with_same_parameters(model), x, inputs_only=x.requires_grad)
        trace.require_unchanged()
        losses = cross_entropy(trace.output, y)
        reached = trace.output_gradients(losses.sum(), differentiable=True)
        names = {id(p): name for name, p in model.named_parameters()}
        left_out = {key for key, name in names.items() if name not in directions}
        zero = torch.zeros_like(losses)
        products = [
            use.rule.alignment(use.layer, layer_name, use.a, g, directions[names[id(p)]])
            for use, g in reached
            for layer_name, p in use.parameters.items()
            if id(p) not in left_out
        ]
        return torch.stack([zero, *products]).sum(0), squared_norms(reached, zero, left_out=left_out)


@contextmanager
def exact_derivatives(x: Tensor) -> Iterator[None]:
    """Gradients on, no autocast, and no fused attention, which cannot be differentiated twice."""
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False), math_attention():
        yield


def _energy_by_vmap(
    copy: nn.Module,
    x: Tensor,
    y: Tensor,
    parameters: Mapping[str, nn.Parameter],
    *,
    loss: Loss,
    total: Mapping[str, Tensor],
) -> Tensor:
    """‖∂ℓᵢ/∂θ‖² over `parameters`; refused where these gradients do not sum to `total`, ∂Σᵢℓᵢ/∂θ."""
    try:
        with TwiceDifferentiable(layer_norm=True):
            gradients, _ = gradients_by_vmap(copy, x.clone(), y, parameters, loss=loss)
    except RuntimeError as error:
        names = ", ".join(list(parameters)[:3]) + (", ..." if len(parameters) > 3 else "")
        raise InputError(
            f"{names} belong to no layer with a rule, and vmap(grad) fails: {error}; "
            "freeze them with requires_grad_(False), or register a rule for their layer"
        ) from error
    rows = {name: each.reshape(len(x), -1) for name, each in gradients.items()}
    for name, each in rows.items():
        scale = float(each.detach().norm(dim=1).sum())
        tolerance = 1e3 * torch.finfo(each.dtype).eps * each.shape[1] ** 0.5
        if not float((each.detach().sum(0) - total[name].flatten()).norm()) <= tolerance * scale:
            raise InputError(
                f"the per-example gradients of {name} do not sum to the batch's, so examples influence each other or "
                "its layer cannot be called functionally; freeze it with requires_grad_(False), or register a rule"
            )
    return torch.stack([each.square().sum(1) for each in rows.values()]).sum(0)


def _check_batch(x: Tensor, y: Tensor) -> None:
    """Refuse inputs without examples, without a label for each, or with numbers that are not finite."""
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y) or len(x) == 0:
        raise InputError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; give at least one example, and a label for each"
        )
    if x.is_meta or y.is_meta:
        raise InputError("the examples are on the device meta and hold no numbers; give their values")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        bad = int((~x.isfinite().reshape(len(x), -1).all(1)).nonzero()[0])
        raise InputError(f"x holds a NaN or infinite number in example {bad}; remove that example or repair its values")


def check_model(model: nn.Module) -> None:
    """Refuse weights that gradients cannot be squared in, and layers that mix examples or draw at random."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, p in trained.items():
        if p.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{name} has type {p.dtype}, too coarse for squared gradients; use `model.float()`")
    for path, layer in model.named_modules():
        _check_layer(path or type(model).__name__, layer)
    if not trained:
        raise InputError(f"{type(model).__name__} has no trainable parameter; set requires_grad_(True) on some")


def _check_layer(path: str, layer: nn.Module) -> None:
    """Refuse a layer by which examples influence each other, or that draws at random or changes its weights."""
    if isinstance(layer, _BatchNorm) and layer.training:
        raise InputError(f"batch norm {path} is in train mode, where examples mix; call `model.eval()` first")
    if isinstance(layer, _BatchNorm) and layer.running_mean is None:
        raise InputError(f"batch norm {path} keeps no running statistics, so examples mix; use GroupNorm instead")
    if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
        raise InputError(f"dropout {path} is in train mode with p = {layer.p}; call `model.eval()` first")
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        raise InputError(f"embedding {path} has max_norm {layer.max_norm} and changes its weights; set it to None")
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.scale_grad_by_freq:
        raise InputError(f"embedding {path} scales by the batch's frequencies; set scale_grad_by_freq to False")


def _misfit(model: nn.Module, x: Tensor, error: RuntimeError) -> RuntimeError | InputError:
    """An error about the types of x and the weights where they differ, and else the model's own."""
    kinds = {p.dtype for p in model.parameters()}
    if not x.is_floating_point() or x.dtype in kinds or isinstance(error, torch.OutOfMemoryError):
        return error
    others = ", ".join(sorted(str(kind) for kind in kinds))
    return InputError(f"x has type {x.dtype} and the weights {others}; give both one type, as in `x.float()`")


def _losses(trace: Trace, y: Tensor, loss: Loss) -> Tensor:
    """The loss of every example, all of them finite."""
    try:
        losses = loss(trace.output, y)
    except IndexError as error:
        raise InputError(
            f"the labels {int(y.min())} to {int(y.max())} do not fit an output of shape {tuple(trace.output.shape)}: "
            f"{error}"
        ) from error
    if losses.shape != y.shape[:1]:
        raise InputError(
            f"the loss has shape {tuple(losses.shape)} for {len(y)} examples; give one that returns a number for each, "
            'such as F.cross_entropy with reduction="none"'
        )
    if not losses.requires_grad:
        raise InputError("the loss depends on no trainable parameter; unfreeze one that the model uses")
    if not bool(losses.isfinite().all()):
        bad = int((~losses.detach().isfinite()).nonzero()[0])
        raise InputError(f"the loss of example {bad} is {losses[bad].item()}; repair the weights or the example")
    return losses
