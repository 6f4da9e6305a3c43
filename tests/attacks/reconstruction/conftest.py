"""Digits, small networks, and unlearnings of them whose every step is written out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.attacks.reconstruction.search import Found, Search, SearchProblem
from warp_unlearning.attacks.reconstruction.targets import read_targets
from warp_unlearning.attacks.reconstruction.threat import Threat
from warp_unlearning.data.preprocess import Pixels, load_data, pixels_of
from warp_unlearning.methods.base import Task
from warp_unlearning.models.generator import StageList
from warp_unlearning.randomness import Streams
from warp_unlearning.symmetry.moves import Move, apply_move
from warp_unlearning.symmetry.rescaling import ChangeOfBasis
from warp_unlearning.training.update import Update

Named = dict[str, Tensor]


class ConvNet(nn.Module):
    """Two convolutions with ReLU, with or without batch norm, and a classifier on all positions."""

    def __init__(self, *, norm: bool, width: int = 6, classes: int = 10) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.head = nn.Linear(64 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(F.relu(self.norm(self.first(x))))).flatten(1))


@dataclass(frozen=True)
class Ascent:
    """A method that takes plain steps up the loss of what is forgotten."""

    name: ClassVar[str] = "ascent"
    rate: float = 1e-3
    steps: int = 1
    norm_mode: str = "eval"

    def updates(self, model: nn.Module, task: Task) -> Generator[Update, Move | None, None]:
        x, y = task.forget.take(torch.arange(len(task.forget)))
        for step in range(1, self.steps + 1):
            climb(model, x.to(next(model.parameters())), y, rate=self.rate)
            yield Update(step, self.steps, 1, step == self.steps, {})


def climb(model: nn.Module, x: Tensor, y: Tensor, *, rate: float) -> None:
    named = list(model.parameters())
    with torch.enable_grad():
        slopes = torch.autograd.grad(F.cross_entropy(model(x), y), named)
    with torch.no_grad():
        for p, g in zip(named, slopes, strict=True):
            p.add_(rate * g)


@dataclass(frozen=True, eq=False)
class Recorded(SearchProblem):
    """A problem that keeps the values that each of its searches comes through."""

    paths: list[list[Named]] = field(default_factory=list)

    def minimise(self, variables: Any, loss: Any, *, in_turn: bool = False) -> Found:
        self.paths.append([])

        def noted(values: Mapping[str, Tensor]) -> Tensor:
            self.paths[-1].append({name: v.detach().clone() for name, v in values.items()})
            return loss(values)

        return super().minimise(variables, noted, in_turn=in_turn)


class ByClass:
    """Draws a flat image as bright as its label, wherever the latent points."""

    latent, image_shape, classes = (3,), (1, 8, 8), 10

    class Stage(nn.Module):
        def forward(self, features: Tensor, condition: Tensor) -> Tensor:
            return (condition[:, None, None, None] / 10 + 0 * features[:, :1, None, None]).expand(-1, 1, 8, 8)

    def __init__(self) -> None:
        self.stages = [self.Stage()]

    def condition(self, latents: Tensor, labels: Tensor) -> Tensor:
        return labels.to(latents.dtype)


class Kit:
    """What the tests of this room share."""

    Ascent, ByClass = Ascent, ByClass

    @staticmethod
    @lru_cache
    def pixels() -> Pixels:
        return pixels_of(load_data())

    @staticmethod
    def digits(count: int, *, first: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Inputs as a model takes them, and labels."""
        data = load_data()
        return data.train.x[first : first + count].to(dtype), data.train.y[first : first + count]

    @staticmethod
    def drawn(build: Callable[[], nn.Module], *, seed: int = 20, dtype: torch.dtype = torch.float64) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return build().to(dtype).eval()

    @staticmethod
    def net(*, seed: int = 20, norm: bool = False, width: int = 6, dtype: torch.dtype = torch.float64) -> nn.Module:
        model = Kit.drawn(lambda: ConvNet(norm=norm, width=width), seed=seed, dtype=dtype)
        if norm:
            generator = torch.Generator().manual_seed(seed)
            state = model.state_dict()
            for name in ("norm.running_var", "norm.weight"):
                state[name].copy_(0.5 + torch.rand(width, generator=generator))
            for name in ("norm.running_mean", "norm.bias"):
                state[name].copy_(0.3 * torch.randn(width, generator=generator))
        return model

    @staticmethod
    def mlp(*, seed: int = 20, bias: bool = True, dtype: torch.dtype = torch.float64) -> nn.Module:
        return Kit.drawn(
            lambda: nn.Sequential(
                nn.Flatten(), nn.Linear(64, 12, bias=bias), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 10)
            ),
            seed=seed,
            dtype=dtype,
        )

    @staticmethod
    def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Named:
        named = dict(model.named_parameters())
        slopes = torch.autograd.grad(F.cross_entropy(model(x), y), list(named.values()), allow_unused=True)
        return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), slopes, strict=True)}

    @staticmethod
    def stepped(
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        rate: float = 1e-3,
        steps: int = 1,
        ascent: float = 1.0,
        descent: float = 0.0,
        retain: tuple[Tensor, Tensor] | None = None,
    ) -> nn.Module:
        """θ ← θ + rate (ascent g_f − descent g_r), so many times, on a copy."""
        model = deepcopy(model)
        for _ in range(steps):
            up, down = Kit.gradient(model, x, y), Kit.gradient(model, *retain) if retain is not None else None
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.add_(rate * (ascent * up[name] - (descent * down[name] if down is not None else 0)))
        return model

    @staticmethod
    def moved(model: nn.Module, *, spread: float = 0.8, law: Any = "uniform", seed: int = 0) -> nn.Module:
        copy = deepcopy(model)
        symmetry = ChangeOfBasis(spread=spread, law=law)
        apply_move(copy, symmetry.move(copy, generator=torch.Generator().manual_seed(seed)))
        return copy

    @staticmethod
    def difference(before: nn.Module, after: nn.Module) -> Named:
        theirs = dict(after.named_parameters())
        return {name: (theirs[name] - p).detach() for name, p in before.named_parameters()}

    @staticmethod
    def cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
        a, b = (torch.cat([values[name].detach().flatten() for name in one]) for values in (one, other))
        return float(a @ b / (a.norm() * b.norm()))

    @staticmethod
    def threat(original: nn.Module, unlearned: nn.Module, **more: Any) -> Threat:
        return Threat(original, unlearned, Kit.pixels(), **more)

    @staticmethod
    def threats(
        model: nn.Module, indices: list[int], *, rate: float = 1e-3, probes: int = 0, **more: Any
    ) -> tuple[list[Threat], Tensor]:
        """One threat for each digit forgotten by one step, and the images."""
        kind = next(model.parameters()).dtype
        held = {"probes": Kit.digits(probes, first=200, dtype=kind)} if probes else {}
        found, truth = [], []
        for i in indices:
            x, y = Kit.digits(1, first=i, dtype=kind)
            found.append(Kit.threat(model, Kit.stepped(model, x, y, rate=rate), labels=y, **held, **more))
            truth.append(Kit.pixels().images(x))
        return found, torch.stack(truth)

    @staticmethod
    def problem(
        threats: list[Threat], *, search: Search | None = None, distance: Any = "cosine", seed: int = 0, **more: Any
    ) -> Recorded:
        search = Search(restarts=1) if search is None else search
        targets = read_targets(threats, after="naive", distance=distance)
        labels = torch.stack([t.labels for t in threats if t.labels is not None])[:, None].repeat(1, search.restarts, 1)
        return Recorded(threats[0].original, threats, targets, labels, search, Streams(seed, "reconstruct"), **more)

    @staticmethod
    def generator(*, seed: int = 20, latent: int = 5, dtype: torch.dtype = torch.float32) -> StageList:
        """Three stages to digits."""
        stages = Kit.drawn(
            lambda: nn.ModuleList(
                [
                    nn.Sequential(nn.Linear(latent, 24), nn.Softplus()),
                    nn.Sequential(nn.Linear(24, 32), nn.Tanh()),
                    nn.Sequential(nn.Linear(32, 64), nn.Unflatten(1, (1, 8, 8)), nn.Sigmoid()),
                ]
            ),
            seed=seed,
            dtype=dtype,
        )
        for p in stages.parameters():
            p.requires_grad_(False)
        return StageList(list(stages), (latent,), (1, 8, 8))


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit
