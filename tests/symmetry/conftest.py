"""What null-space moves are checked against: inputs, projectors and gradients, each found the slow and obvious way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.symmetry import captured_sample, repeated_sample
from warp_unlearning.symmetry.move import Move, Translation, apply_move
from warp_unlearning.symmetry.sampled_moment import SampledMoment
from warp_unlearning.symmetry.symmetry import Probe

Named = dict[str, Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Kit:
    """Oracles for networks in float64 and eval mode."""

    normal = staticmethod(normal)

    @staticmethod
    def built(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
        """The network, its weights drawn from the seed, its batch norms not at their initial values."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = make().double()
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                    nn.init.normal_(module.weight, 1.0, 0.3)
                    nn.init.normal_(module.bias, 0.0, 0.3)
                    nn.init.normal_(module.running_mean, 0.0, 0.3)
                    nn.init.uniform_(module.running_var, 0.5, 2.0)
        return model.eval()

    @staticmethod
    def convolutional() -> nn.Sequential:
        """Groups, stride, dilation and batch norm, for images (4, 5, 5); the rectifier leaves some coordinates of some
        inputs dead.
        """
        return nn.Sequential(
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 5, 2, dilation=2, padding=1, bias=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(45, 3),
        )

    @staticmethod
    def generator(seed: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    @staticmethod
    def probe(
        *retain: Tensor, forget: tuple[Tensor, Tensor] | None = None, reference: nn.Module | None = None
    ) -> Probe:
        return Probe(retain, forget, None if reference is None else reference.state_dict())

    @staticmethod
    def moved(model: nn.Module, move: Move) -> nn.Module:
        copy = deepcopy(model)
        apply_move(copy, move)
        return copy

    @staticmethod
    def shifted(model: nn.Module, shifts: Named) -> nn.Module:
        return Kit.moved(model, Translation(shifts))

    @staticmethod
    def inputs(model: nn.Module, path: str, batches: Sequence[Tensor]) -> Tensor:
        """What enters one layer, as rows (groups, positions, d): a convolution with one-hot kernels copies patches."""
        layer = model.get_submodule(path)
        seen: list[Tensor] = []
        handle = layer.register_forward_pre_hook(lambda module, args: seen.append(_rows(module, args[0].clone())))
        with torch.no_grad():
            for x in batches:
                model(x)
        handle.remove()
        return torch.cat(seen, dim=1)

    @staticmethod
    def complement(rows: Tensor, *, constant: bool, energy: float = 1.0) -> Tensor:
        """The d×d projector beside the leading right singular vectors of each group, and beside what is never
        reached, shape (groups, d, d).
        """
        if constant:
            rows = torch.cat([rows, rows.new_ones(*rows.shape[:2], 1)], dim=2)
        found = []
        for group in rows:
            alive = torch.diag((group != 0).any(0).to(group))
            _, values, right = torch.linalg.svd(group, full_matrices=False)
            share = values.square().cumsum(0) / values.square().sum()
            rank = int((values > 1e-10 * values[0]).sum()) if energy == 1 else int((share < energy).sum()) + 1
            found.append((torch.eye(len(alive), dtype=alive.dtype) - right[:rank].T @ right[:rank]) @ alive)
        return torch.stack(found)

    @staticmethod
    def projected(gradient: Tensor, projector: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Each row of [gradient bias] times the projector of its group."""
        rows = gradient.flatten(1)
        if bias is not None:
            rows = torch.cat([rows, bias.unsqueeze(1)], dim=1)
        parts = torch.cat([part @ p for part, p in zip(rows.chunk(len(projector)), projector, strict=True)])
        if bias is None:
            return parts.reshape(gradient.shape), None
        return parts[:, :-1].reshape(gradient.shape), parts[:, -1]

    @staticmethod
    def energy(model: nn.Module, x: Tensor, y: Tensor) -> float:
        """Σᵢ ‖∇ℓᵢ‖² over trainable parameters, one example at a time."""
        return float(torch.stack(_energies(model, x, y)).detach().sum())

    @staticmethod
    def energy_slope(model: nn.Module, x: Tensor, y: Tensor) -> Named:
        """∇ ½ Σᵢ ‖∇ℓᵢ‖² by double backward, one example at a time."""
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        total = {n: torch.zeros_like(p) for n, p in named.items()}
        for energy in _energies(model, x, y):
            found = torch.autograd.grad(0.5 * energy, list(named.values()), allow_unused=True)
            total = {n: t if g is None else t + g for (n, t), g in zip(total.items(), found, strict=True)}
        return total

    @staticmethod
    def beside(
        model: nn.Module, values: Named, batches: Sequence[Tensor], *, energy: float = 1.0, only: Sequence[str] = ()
    ) -> Named:
        """The named values of every Linear and Conv layer, or of those whose paths are given, each layer's [W b]
        projected by its own d×d projector; nothing else.
        """
        found: Named = {}
        for path, layer in model.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d) and (not only or path in only):
                bias = None if layer.bias is None else values[f"{path}.bias"]
                projector = Kit.complement(Kit.inputs(model, path, batches), constant=bias is not None, energy=energy)
                found[f"{path}.weight"], shifted = Kit.projected(values[f"{path}.weight"], projector, bias)
                if shifted is not None:
                    found[f"{path}.bias"] = shifted
        return found

    @staticmethod
    def reached(model: nn.Module, values: Named, batches: Sequence[Tensor]) -> Named:
        """The named values with zeros where the input of their layer is always zero."""
        found: Named = {}
        for name, value in values.items():
            path, _, leaf = name.rpartition(".")
            if leaf == "weight" and value.dim() > 1:
                alive = (Kit.inputs(model, path, batches) != 0).any(1)
                rows = value.reshape(len(alive), -1, value[0].numel()) * alive.unsqueeze(1)
                value = rows.reshape(value.shape)
            found[name] = value
        return found

    @staticmethod
    def norm(values: Named) -> float:
        return float(torch.cat([v.flatten() for v in values.values()]).norm()) if values else 0.0


def _rows(layer: nn.Module, x: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return x.reshape(1, -1, x.shape[-1])
    convolve = F.conv2d if isinstance(layer, nn.Conv2d) else F.conv1d
    d = layer.weight[0].numel()
    copies = torch.eye(d, dtype=x.dtype).reshape(d, *layer.weight.shape[1:])
    parts = [
        convolve(part, copies, None, layer.stride, layer.padding, layer.dilation)  # type: ignore[operator]
        for part in x.chunk(layer.groups, dim=1)
    ]
    return torch.stack([part.movedim(1, -1).reshape(-1, d) for part in parts])


def _energies(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for i in range(len(y)):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
        found.append(sum(g.square().sum() for g in gradients if g is not None))
    return found  # type: ignore[return-value]


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit


class Rerun:
    """A stand-in for a captured graph of samples, on any device: a replay does the work again and writes what comes out
    of it where the first outcome lies, which holds nothing before. Nothing may be drawn meanwhile.
    """

    def __init__(self, make: Callable[[], dict[str, SampledMoment]], *, pool: Any = None) -> None:
        self._make, self.replays = make, 0
        self.output = self._made()
        self.spoil()

    def replay(self) -> dict[str, SampledMoment]:
        self.replays += 1
        found = self._made()
        assert list(found) == list(self.output)
        for name, sample in found.items():
            for old, new in zip(self.tensors(self.output[name]), self.tensors(sample), strict=True):
                old.copy_(new)
        return self.output

    def spoil(self) -> None:
        """Write over all that a replay gave."""
        for sample in self.output.values():
            for tensor in self.tensors(sample):
                tensor.fill_(torch.nan)

    @staticmethod
    def tensors(sample: SampledMoment) -> list[Tensor]:
        found = [sample.total, *sample._some, *(rows for rows, _ in sample._every)]
        return found if sample.stray is None else [*found, sample.stray]

    def _made(self) -> dict[str, SampledMoment]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "rand", _drawn)
            return self._make()


def _drawn(*_: object, **__: object) -> NoReturn:
    raise AssertionError("captured work draws numbers")


@pytest.fixture
def reruns(monkeypatch: pytest.MonkeyPatch) -> list[Rerun]:
    """Samples are captured wherever they are taken; the stand-ins for their graphs, one after the other."""
    made: list[Rerun] = []

    @contextmanager
    def stream(device: torch.device, *, purpose: str = "") -> Iterator[None]:
        yield

    monkeypatch.setattr(captured_sample, "capturable_stream", stream)
    monkeypatch.setattr(captured_sample, "CudaGraph", lambda make: (made.append(Rerun(make)), made[-1])[1])
    monkeypatch.setattr(repeated_sample, "_may_be_captured", lambda x: True)
    return made
