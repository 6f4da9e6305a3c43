"""Small networks in float64 for attackers who undo a defence, and moves of them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warp_unlearning.attacks.undo.base import Held
from warp_unlearning.symmetry.base import Symmetry
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.rescaling import ChangeOfBasis

Inner = Literal["plain", "grouped", "depthwise"]
Norm = Literal["none", "affine", "bare"]


class Residual(nn.Module):
    """A stem, a residual block whose inner layer may be grouped, and a classifier on means or on all positions."""

    def __init__(self, width: int, norm: Norm, inner: Inner, flat: bool) -> None:
        super().__init__()
        groups = {"plain": 1, "grouped": 2, "depthwise": 2 * width}[inner]
        self.stem = nn.Conv2d(2, width, 3, padding=1)
        self.first = nn.Conv2d(width, 2 * width, 3, padding=1, bias=norm == "none")
        self.inner = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=groups)
        self.last = nn.Conv2d(2 * width, width, 1)
        widths = (width, 2 * width, width)
        norms = [nn.Identity() if norm == "none" else nn.BatchNorm2d(c, affine=norm == "affine") for c in widths]
        self.norms = nn.ModuleList(norms)
        self.flat = flat
        self.head = nn.Linear(width * (16 if flat else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        stream = F.relu(self.norms[0](self.stem(x)))
        inside = F.relu(self.inner(F.relu(self.norms[1](self.first(stream)))))
        stream = F.relu(stream + self.norms[2](self.last(inside)))
        out: Tensor = self.head(stream.flatten(1) if self.flat else stream.mean((2, 3)))
        return out


class Kit:
    """What the tests of this room share."""

    @staticmethod
    def normal(*shape: int, seed: int = 0) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    @staticmethod
    def residual(
        seed: int = 0, *, width: int = 4, norm: Norm = "affine", inner: Inner = "plain", flat: bool = False
    ) -> nn.Module:
        return Kit.settled(Residual(width, norm, inner, flat), seed)

    @staticmethod
    def settled(model: nn.Module, seed: int = 0) -> nn.Module:
        """The network in float64 and eval mode, every number of its state drawn from the seed."""
        generator = torch.Generator().manual_seed(seed)
        model.double()
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
                if name.endswith("running_var"):
                    drawn = drawn.exp()
                elif value.dim() > 1:
                    drawn = drawn * (2 / value[0].numel()) ** 0.5
                elif name.startswith("norm") and name.endswith("weight"):
                    drawn = 1 + 0.3 * drawn
                else:
                    drawn = 0.5 * drawn
                value.copy_(drawn)
        return model.eval()

    @staticmethod
    def points(
        count: int, *, shape: tuple[int, ...] = (2, 4, 4), classes: int = 4, seed: int = 1
    ) -> tuple[Tensor, Tensor]:
        return Kit.normal(count, *shape, seed=seed), torch.arange(count) % classes

    @staticmethod
    def held(model: nn.Module, count: int = 24) -> Held:
        return Held(model, Kit.points(count))

    @staticmethod
    def moved(model: nn.Module, *symmetries: Symmetry, seed: int = 0) -> nn.Module:
        copy, generator = deepcopy(model), torch.Generator().manual_seed(seed)
        for symmetry in symmetries:
            apply_move(copy, symmetry.move(copy, generator=generator))
        return copy

    @staticmethod
    def gradient(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        named = dict(model.named_parameters())
        loss = F.cross_entropy(model(x), y)
        return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))

    @staticmethod
    def stepped(model: nn.Module, step: Mapping[str, Tensor], length: float) -> nn.Module:
        """The network a step of that length along `step`."""
        copy = deepcopy(model)
        factor = length / Kit.norm(step)
        with torch.no_grad():
            for name, p in copy.named_parameters():
                p.add_(factor * step[name])
        return copy

    @staticmethod
    def conjugated(
        model: nn.Module, gradient: Mapping[str, Tensor], *, spread: float, seed: int = 0
    ) -> dict[str, Tensor]:
        """T⁻¹T⁻ᵀ g: a gradient as a step in a moved basis shows it in the original's coordinates."""
        symmetry = ChangeOfBasis(law="lognormal", spread=spread)
        move = symmetry.move(model, generator=torch.Generator().manual_seed(seed))
        back = move.inverse()
        return {name: back.point(name, move.covector(name, g)) for name, g in gradient.items()}

    @staticmethod
    def require_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
        for name, value in expected.items():
            assert torch.equal(found[name], value), name

    @staticmethod
    def norm(values: Mapping[str, Tensor]) -> float:
        return float(torch.cat([v.flatten() for v in values.values()]).norm())

    @staticmethod
    def cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
        a, b = (torch.cat([values[name].flatten() for name in one]) for values in (one, other))
        return float(F.cosine_similarity(a, b, dim=0))


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit
