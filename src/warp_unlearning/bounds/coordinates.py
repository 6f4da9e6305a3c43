"""Which coordinates of a model's gradient are looked at: a few positions in its trainable parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import InputError, nearest


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Positions in each flattened parameter, by name, in the order of the model; `available` were to choose from."""

    positions: dict[str, Tensor]
    shapes: dict[str, tuple[int, ...]]
    available: int

    def __len__(self) -> int:
        return sum(map(len, self.positions.values()))

    def label(self, index: int) -> str:
        """Coordinate `index` as a user writes it, such as fc.weight[3, 1]."""
        for name, held in self.positions.items():
            if index < len(held):
                place = torch.unravel_index(held[index], self.shapes[name])
                return f"{name}[{', '.join(str(int(i)) for i in place)}]"
            index -= len(held)
        raise IndexError(index)


def choose_coordinates(
    model: nn.Module, *, parameters: str | Sequence[str], count: int, generator: torch.Generator
) -> Coordinates:
    """`count` positions drawn without repetition, all where there are fewer.

    `parameters` is "all", "first" (the first weight and its bias), or names of trainable parameters.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise InputError("the model has no trainable parameter; there is no gradient to look at")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"coordinates is {count!r}; give a whole number of at least 1")
    chosen = {name: trained[name] for name in _names(trained, parameters)}
    available = sum(p.numel() for p in chosen.values())
    drawn = torch.randperm(available, generator=generator)[:count].sort().values
    positions, begin = {}, 0
    for name, p in chosen.items():
        inside = drawn[(drawn >= begin) & (drawn < begin + p.numel())] - begin
        if len(inside):
            positions[name] = inside
        begin += p.numel()
    return Coordinates(positions, {name: tuple(chosen[name].shape) for name in positions}, available)


def _names(trained: dict[str, nn.Parameter], wanted: str | Sequence[str]) -> list[str]:
    if wanted == "all":
        return list(trained)
    if wanted == "first":
        first = next((name for name, p in trained.items() if p.dim() > 1), next(iter(trained)))
        owner = first.rpartition(".")[0]
        return [name for name in trained if name.rpartition(".")[0] == owner]
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if not names:
        raise InputError("parameters is empty; give 'all', 'first' or names of trainable parameters")
    for name in names:
        if name not in trained:
            raise InputError(
                f"the model has no trainable parameter {name!r}; {nearest(str(name), [*trained, 'all', 'first'])}"
            )
    return [name for name in trained if name in names]
