"""The movable weights of a network as one vector, layer after layer, in rows: a row is what one output reads.

A network has tens of weight tensors, and what is done with each by itself is launched by itself. Sums, lengths and
inner products over all of them are one operation on the vector. The row of an output ends in its bias where that moves
with the weight, so that a layer's rows are what its input basis projects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor


@dataclass(frozen=True)
class Place:
    """Where a weight and the bias that moves with it lie: entries `begin` to `end` of the vector are `groups` blocks of
    rows of `d` entries.
    """

    weight: str
    bias: str | None
    shape: torch.Size
    groups: int
    d: int
    begin: int
    end: int

    def blocks(self, parts: Tensor) -> Tensor:
        """The rows in its part, (m, end − begin), of each of several vectors: a view of shape (m, groups, rows, d)."""
        rows = (self.end - self.begin) // (self.groups * self.d)
        return parts.view(len(parts), self.groups, rows, self.d)


class WeightRows:
    """The layout of a vector of n entries that holds the named weights, with the biases that move with them.

    `weights` gives for each weight its bias, or None, and its groups; `alone` are parameters that no layer's rows hold.
    All are computed with in the widest type among them.
    """

    def __init__(
        self, weights: Mapping[str, tuple[str | None, int]], alone: Sequence[str], like: Mapping[str, Tensor]
    ) -> None:
        self.places: list[Place] = []
        self.length = 0
        for weight, (bias, groups) in weights.items():
            self._add(weight, bias, like[weight], groups, like[weight].shape[1:].numel() + (bias is not None))
        for name in alone:
            self._add(name, None, like[name], 1, like[name].numel())
        self._lengths = [place.end - place.begin for place in self.places]
        self.names = [name for place in self.places for name in (place.weight, place.bias) if name is not None]
        self._types = {name: like[name].dtype for name in self.names}
        self.dtype = reduce(torch.promote_types, set(self._types.values()), torch.float32)

    def _add(self, name: str, bias: str | None, value: Tensor, groups: int, d: int) -> None:
        begin = self.length
        self.length += value.numel() + (len(value) if bias is not None else 0)
        self.places.append(Place(name, bias, value.shape, groups, d, begin, self.length))

    def parts(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """What lies at each place of vectors (..., n), views of shape (..., end − begin)."""
        return torch.split(vectors, self._lengths, dim=-1)

    @property
    def exact(self) -> bool:
        """Whether every named value has the type of the vector, so that none is rounded on its way back."""
        return all(kind == self.dtype for kind in self._types.values())

    def gathered(self, values: Mapping[str, Tensor]) -> Tensor:
        """The vector (n) of the named values."""
        parts = []
        with torch.no_grad():
            for place in self.places:
                value = values[place.weight]
                if place.bias is not None:
                    value = torch.cat([value.flatten(1), values[place.bias].unsqueeze(1).to(value)], dim=1)
                parts.append(value)
            # One call for tens of tensors; of one alone it would give the tensor itself.
            flat: Tensor = torch._C._nn.flatten_dense_tensors(parts) if len(parts) > 1 else parts[0].flatten().clone()
            return flat.to(self.dtype)

    def scattered(self, vector: Tensor) -> dict[str, Tensor]:
        """The named values of a vector (n), each in its own shape and type; views of it where types agree."""
        found: dict[str, Tensor] = {}
        for place, part in zip(self.places, self.parts(vector), strict=True):
            if place.bias is None:
                found[place.weight] = part.view(place.shape).to(self._types[place.weight])
                continue
            rows = part.view(place.shape[0], place.d)
            found[place.weight] = rows[:, :-1].reshape(place.shape).to(self._types[place.weight])
            found[place.bias] = rows[:, -1].to(self._types[place.bias])
        return found

    def scaled_(self, vectors: Tensor, numbers: Tensor) -> Tensor:
        """The vectors (..., n), in place, times one number for each place, (..., places): one operation a place is less
        than to lay the numbers out.
        """
        if self.places:
            torch._foreach_mul_(list(self.parts(vectors)), list(torch.split(numbers, 1, dim=-1)))
        return vectors
