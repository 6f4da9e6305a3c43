"""Algorithms TAU and FastWARP written out from their printed equations, the slow and obvious way.

Torch alone, nothing of the package: patches by loops, singular vectors of the whole input matrix, dense projectors,
gradient energies one example at a time. Where the paper contradicts itself: samples are columns of X, halves in the
teleport loss and dispersion from θ_org, a teleport after updates S, 2S, …, the safeguard on other retained examples
than those of the bases, against their loss just before the teleport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Values = dict[str, Tensor]
Labelled = tuple[Tensor, Tensor]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _index(i: int, size: int, mode: str) -> int | None:
    """Which entry of an image stands at place i, where i may lie in the padding; None for a zero."""
    if 0 <= i < size:
        return i
    beyond = {"circular": i % size, "replicate": 0 if i < 0 else size - 1, "reflect": -i if i < 0 else 2 * size - 2 - i}
    return beyond.get(mode)


def patches(layer: Any, x: Tensor) -> Tensor:
    """What each group of a layer multiplies by its flattened weight, entry by entry: (groups, positions, d)."""
    if isinstance(layer, nn.Linear):
        return torch.stack(list(x.reshape(-1, x.shape[-1])))[None]
    axes = range(len(layer.kernel_size))
    images = x if x.dim() == len(axes) + 2 else x[None]
    reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    if isinstance(layer.padding, str):
        total = reach if layer.padding == "same" else [0 for _ in axes]
        before = [n // 2 for n in total]
    else:
        before, total = list(layer.padding), [2 * n for n in layer.padding]
    sizes = images.shape[2:]
    places = [range((sizes[a] + total[a] - reach[a] - 1) // layer.stride[a] + 1) for a in axes]
    nothing = x.new_zeros(images.shape[1])
    rows = []
    for image in images:
        for place in product(*places):
            taps = []
            for tap in product(*map(range, layer.kernel_size)):
                where = [place[a] * layer.stride[a] + tap[a] * layer.dilation[a] - before[a] for a in axes]
                at = [_index(where[a], sizes[a], layer.padding_mode) for a in axes]
                taps.append(nothing if None in at else image[(slice(None), *at)])
            rows.append(torch.stack(taps, 1).reshape(layer.groups, -1))
    return torch.stack(rows, 1)


def inputs(model: nn.Module, batches: Sequence[Tensor], paths: Sequence[str], *, constant: bool = True) -> Values:
    """X of each layer, (groups, d, N), over all batches; with the constant 1 of a bias."""
    seen: dict[str, list[Tensor]] = {path: [] for path in paths}

    def watch(path: str, module: nn.Module) -> Callable[..., None]:
        def record(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            rows = patches(module, args[0].detach().clone())
            if constant and module.bias is not None and module.bias.requires_grad:
                rows = torch.cat([rows, rows.new_ones(*rows.shape[:2], 1)], 2)
            seen[path].append(rows)

        return record

    layers = {path: model.get_submodule(path) for path in paths}
    handles = [layer.register_forward_pre_hook(watch(path, layer)) for path, layer in layers.items()]
    with torch.no_grad():
        for x in batches:
            model(x.clone())
    for handle in handles:
        handle.remove()
    return {path: torch.cat(rows, 1).mT for path, rows in seen.items()}


def leading(x: Tensor, energy: float, k: int | None, k_max: int | None, rule: str = "energy") -> Tensor:
    """The top left singular vectors of one X (d, N)."""
    left, values, _ = torch.linalg.svd(x, full_matrices=False)
    rank = int((values > 1e-11 * values[0]).sum())
    weights = values**2 if rule == "energy" else values
    if k is not None:
        rank = min(rank, k)
    elif energy < 1 and rank > 0:
        rank = next(n for n in range(1, len(values) + 1) if weights[:n].sum() >= energy * weights.sum())
    return left[:, : min(rank, k_max or rank)]


def tracked(x: Tensor, basis: Tensor, rounds: int) -> Tensor:
    """FastWARP: B ← qr(C B), `rounds` times."""
    covariance = x @ x.T
    for _ in range(rounds):
        basis = torch.linalg.qr(0.5 * (covariance + covariance.T) @ basis).Q[:, : basis.shape[1]]
    return basis


def gradient_energy(model: nn.Module, forget: Labelled) -> tuple[float, Values]:
    """½ Σᵢ ‖∇ℓᵢ‖² and its gradient, by double backward one example at a time."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total, slope = 0.0, {name: torch.zeros_like(p) for name, p in named.items()}
    for x, y in zip(*forget, strict=True):
        loss = F.cross_entropy(model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, list(named.values()), create_graph=True, allow_unused=True)
        energy = torch.stack([0.5 * g.square().sum() for g in gradients if g is not None]).sum()
        found = torch.autograd.grad(energy, list(named.values()), allow_unused=True)
        slope = {n: s if g is None else s + g for (n, s), g in zip(slope.items(), found, strict=True)}
        total += float(energy.detach())
    return total, slope


def _length(values: Mapping[str, Tensor]) -> float:
    return float(torch.cat([value.flatten() for value in values.values()]).norm()) if values else 0.0


class Teleport:
    """The teleports of one run: line 4 to 9 of Algorithm TAU, with FastWARP's bases where `rounds` is given.

    A step is `eta` times the projected gradient, or `step_size` times the length of θ_org in the weights that move and
    that data reach; β is `beta`, or `dispersion` times the ratio of the projected gradients of the two terms.
    """

    def __init__(
        self,
        *,
        energy: float = 0.99,
        k: int | None = None,
        k_max: int | None = None,
        rule: str = "energy",
        rounds: int | None = None,
        steps: int = 1,
        eta: float | None = None,
        step_size: float = 0.05,
        beta: float | None = None,
        dispersion: float = 0.5,
        protect: str = "retain",
        batch_norm: str = "freeze",
    ) -> None:
        self.energy, self.k, self.k_max, self.rule, self.rounds = energy, k, k_max, rule, rounds
        self.steps, self.eta, self.step_size, self.beta, self.dispersion = steps, eta, step_size, beta, dispersion
        self.protect, self.batch_norm = protect, batch_norm
        self.bases: dict[str, list[Tensor]] = {}

    def __call__(self, model: nn.Module, retain: Sequence[Tensor], forget: Labelled, origin: Values) -> None:
        """Move the weights in place."""
        projectors = self._projectors(model, [*retain, forget[0]] if self.protect == "both" else retain)
        parameters = dict(model.named_parameters())
        moving = {name: parameters[name] for names in projectors for name in names}
        given = {name: origin[name].clone() for name in moving}
        length = self.step_size * _length(_projected(given, {n: reached for n, (_, reached) in projectors.items()}))
        dense = {names: matrix for names, (matrix, _) in projectors.items()}
        for _ in range(self.steps):
            _, slope = gradient_energy(model, forget)
            with torch.no_grad():
                descent = _projected({name: slope[name] for name in moving}, dense)
                away = _projected({name: p - given[name] for name, p in moving.items()}, dense)
                beta = self.beta
                if beta is None:
                    beta = self.dispersion * _length(descent) / _length(away) if _length(away) > 0 else 0.0
                gradient = {name: descent[name] - beta * away[name] for name in moving}
                size = _length(gradient)
                eta = self.eta if self.eta is not None else length / size
                for name, p in moving.items():
                    p -= eta * gradient[name]

    def _projectors(self, model: nn.Module, batches: Sequence[Tensor]) -> dict[tuple[str, ...], tuple[Tensor, Tensor]]:
        """By the parameters of a layer: (I − B Bᵀ) of each of its groups, and a projector on what is reached."""
        found = {}
        paths = [
            path
            for path, layer in model.named_modules()
            if isinstance(layer, (nn.Linear, *CONVOLUTIONS)) and layer.weight.requires_grad
        ]
        for path, x in inputs(model, batches, paths).items():
            layer = model.get_submodule(path)
            constant = layer.bias is not None and layer.bias.requires_grad
            names = (f"{path}.weight", f"{path}.bias") if constant else (f"{path}.weight",)
            self._add(found, names, x)
        if self.batch_norm == "project":
            for path, x in _features(model, batches).items():
                self._add(found, (f"{path}.weight",), x)
                self._add(found, (f"{path}.bias",), x)
        return found

    def _add(self, found: dict[tuple[str, ...], tuple[Tensor, Tensor]], names: tuple[str, ...], x: Tensor) -> None:
        before = self.bases.get(names[0])
        if before is None or self.rounds is None:
            bases = [leading(group, self.energy, self.k, self.k_max, self.rule) for group in x]
        else:
            bases = [tracked(group, basis, self.rounds) for group, basis in zip(x, before, strict=True)]
        self.bases[names[0]] = bases
        reached = torch.stack([torch.diag((group != 0).any(1).to(x)) for group in x])
        if sum(basis.shape[1] for basis in bases) < int(reached.sum()):
            complements = torch.stack([torch.eye(x.shape[1]).to(x) - basis @ basis.T for basis in bases])
            found[names] = complements @ reached, reached


def _features(model: nn.Module, batches: Sequence[Tensor]) -> Values:
    """The channels' features of each batch norm, (1, channels, N)."""
    seen: dict[str, list[Tensor]] = {}
    norms = {path: module for path, module in model.named_modules() if isinstance(module, NORMS)}
    handles = [
        norm.register_forward_pre_hook(
            lambda _, args, path=path: seen.setdefault(path, []).append(args[0].clone().transpose(0, 1).flatten(1))
        )
        for path, norm in norms.items()
    ]
    with torch.no_grad():
        for x in batches:
            model(x.clone())
    for handle in handles:
        handle.remove()
    return {path: torch.cat(parts, 1)[None] for path, parts in seen.items()}


def _projected(values: Mapping[str, Tensor], projectors: Mapping[tuple[str, ...], Tensor]) -> Values:
    """Each row of [W b] of each layer times the projector of its group."""
    found: Values = {}
    for names, matrices in projectors.items():
        own = [values[name] for name in names]
        d = matrices.shape[1] - len(own) + 1
        rows = torch.cat([own[0].reshape(-1, d), *(bias.reshape(-1, 1) for bias in own[1:])], 1)
        parts = torch.cat([part @ m for part, m in zip(rows.chunk(len(matrices)), matrices, strict=True)])
        found[names[0]] = parts[:, :d].reshape(own[0].shape)
        if len(names) > 1:
            found[names[1]] = parts[:, d].reshape(own[1].shape)
    return found


def loss(model: nn.Module, examples: Labelled) -> float:
    """The mean cross-entropy."""
    with torch.no_grad():
        return float(F.cross_entropy(model(examples[0]), examples[1]))


def forget_gradient(model: nn.Module, examples: Labelled) -> float:
    """‖∇ ℓ_f‖ over trainable parameters, of the mean loss."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(F.cross_entropy(model(examples[0]), examples[1]), parameters, allow_unused=True)
    return float(torch.stack([g.square().sum() for g in gradients if g is not None]).sum().sqrt())


def tau(
    model: nn.Module,
    updates: Iterator[object],
    teleport: Teleport,
    *,
    every: int | None,
    threshold: float | None,
    tolerance: float,
    view: Callable[[int], tuple[Sequence[Tensor], Labelled, Labelled]],
    gradient_batch: Callable[[int], Labelled] | None = None,
) -> list[bool]:
    """Algorithm TAU in place; returns of each teleport whether it was kept.

    Each item of `updates` is one outer update of the model, made when it is asked for. `view(k)` gives what teleport k
    looks at: retain batches, forget examples, and judges; `gradient_batch(t)` the forget examples whose gradient is
    measured after update t = 1, 2, …. Batch norm is in eval mode but for the updates.
    """
    origin = {name: p.detach().clone() for name, p in model.named_parameters()}
    kept: list[bool] = []
    for t, _ in enumerate(updates, start=1):
        modes = {module: module.training for module in model.modules()}
        model.eval()
        due = every is not None and t % every == 0
        if not due and threshold is not None and gradient_batch is not None:
            due = forget_gradient(model, gradient_batch(t)) > threshold
        if due:
            retain, forget, judges = view(len(kept))
            start, allowed = (
                {n: p.detach().clone() for n, p in model.named_parameters()},
                loss(model, judges) + tolerance,
            )
            teleport(model, retain, forget, origin)
            kept.append(loss(model, judges) <= allowed)
            if not kept[-1]:
                with torch.no_grad():
                    for name, p in model.named_parameters():
                        p.copy_(start[name])
        for module, training in modes.items():
            module.training = training
    return kept
