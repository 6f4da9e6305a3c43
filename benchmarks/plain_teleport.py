"""The plainest null-space move, to compare others with: singular values of `F.unfold`ed inputs layer by layer, or the
printed B ← orth(X Xᵀ B), and gradient energies by `vmap`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

ENERGY, STEP = 0.99, 0.05
CHUNK = 8  # examples whose gradients `vmap` holds at once
Examples = tuple[Tensor, Tensor]


@torch.no_grad()
def plain_bases(model: nn.Module, batches: tuple[Tensor, ...], before: dict[str, Tensor]) -> dict[str, Tensor]:
    """By layer a basis (d, k) of its inputs, from all of them at once; orth(X Xᵀ B) where there is a B before."""
    found = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        rows: list[Tensor] = []

        def keep(layer: nn.Module, args: tuple[Tensor, ...], rows: list[Tensor] = rows) -> None:
            x = args[0]
            if isinstance(layer, nn.Conv2d):
                x = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride).mT.flatten(0, 1)
            rows.append(x if layer.bias is None else F.pad(x, (0, 1), value=1.0))

        handle = layer.register_forward_pre_hook(keep)
        for x in batches:
            model(x)
        handle.remove()
        inputs = torch.cat(rows)
        if name in before:
            found[name] = torch.linalg.qr(inputs.mT @ (inputs @ before[name])).Q
        else:
            _, values, directions = torch.linalg.svd(inputs, full_matrices=False)
            share = values.square().cumsum(0) / values.square().sum()
            found[name] = directions[: int((share < ENERGY).sum()) + 1].mT.contiguous()
    return found


def plain_shifts(model: nn.Module, forget: Examples, bases: dict[str, Tensor]) -> dict[str, Tensor]:
    """One step down the sum of squared gradient norms, beside the bases."""
    state = {name: value.detach() for name, value in model.state_dict().items()}
    weights = {name: state.pop(name) for name, _ in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, {**weights, **state}, (x[None],)), y[None])

    def energy(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        return sum((g.square().sum() for g in each.values()), start=torch.zeros((), device=x.device))

    slope = {name: torch.zeros_like(w) for name, w in weights.items()}
    for x, y in zip(*(part.split(CHUNK) for part in forget), strict=True):
        for name, value in grad(energy)(weights, x, y).items():
            slope[name] += value
    shifts = {}
    for layer, basis in bases.items():
        names = [name for name in (f"{layer}.weight", f"{layer}.bias") if name in weights]
        rows = torch.cat(
            [slope[name].flatten(1) if slope[name].dim() > 1 else slope[name][:, None] for name in names], 1
        )
        parts = (rows - (rows @ basis) @ basis.mT).split([rows.shape[1] - len(names) + 1, 1][: len(names)], 1)
        shifts |= {name: -part.reshape(weights[name].shape) for name, part in zip(names, parts, strict=True)}
    length = STEP * torch.stack([weights[name].norm() for name in shifts]).norm()
    return {n: s * (length / torch.stack([s.norm() for s in shifts.values()]).norm()) for n, s in shifts.items()}
