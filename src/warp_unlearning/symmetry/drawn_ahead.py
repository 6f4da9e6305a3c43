"""Random numbers that are drawn before the work that asks for them: captured work draws none itself."""

from __future__ import annotations

import torch
from torch import Tensor


class DrawnAhead:
    """Uniform numbers of [0, 1) on one device, handed out part by part to a pass that asks for the same each time.

    They lie where they lay in every pass, so that captured work finds new ones there. A first pass is given zeros, and
    shows how many there have to be. Tables that passes read are held on to, for captured work reads them where they lie
    too.
    """

    def __init__(self, device: torch.device) -> None:
        self._numbers = torch.zeros(0, device=device)
        self._taken = 0
        self._tables: dict[int, Tensor] = {}

    def begin(self) -> None:
        """Start a pass: hand out from the first number on."""
        self._taken = 0

    def provide(self) -> None:
        """Have room for as many numbers as the last pass asked for."""
        self._numbers = self._numbers.new_zeros(self._taken)

    @property
    def used_up(self) -> bool:
        """Whether the last pass asked for as many numbers as there are."""
        return self._taken == len(self._numbers)

    def draw(self, generator: torch.Generator) -> None:
        """All numbers anew, by one call; `generator` is one of their device."""
        self._numbers.uniform_(generator=generator)

    def uniform(self, rows: int, columns: int) -> Tensor:
        """The next of them, (rows, columns), not to be written to; zeros where there are too few."""
        begin, self._taken = self._taken, self._taken + rows * columns
        if self._taken > len(self._numbers):
            return self._numbers.new_zeros(rows, columns)
        return self._numbers[begin : self._taken].view(rows, columns)

    def hold(self, *tables: Tensor) -> None:
        """Keep tables in memory for as long as the numbers."""
        self._tables |= {id(table): table for table in tables}
