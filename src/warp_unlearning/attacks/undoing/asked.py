"""A state that several pre-steps are asked about."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

from .protocol import Undo, Weights

T = TypeVar("T")


class Asked(Mapping[str, Tensor]):
    """A state of an unlearned model, with what was found out about it, each thing once.

    Any prepared pre-step takes it in place of a state dict. Its tensors must not be written to.
    """

    def __init__(self, state: Weights) -> None:
        self._state = state
        self._found: dict[Hashable, Any] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` finds; it is asked the first time alone."""
        if key not in self._found:
            self._found[key] = make()
        found: T = self._found[key]
        return found

    def after(self, undo: Undo) -> Asked:
        """The state that a prepared pre-step makes of this one."""
        return self.once(("after", undo), lambda: Asked(undo(self)))

    def is_same(self, other: Weights) -> bool:
        """Whether another state has the very tensors of this one: True says that it is this state, False nothing."""
        return self.keys() == other.keys() and all(self[name] is other[name] for name in self)


def asked(state: Weights) -> Asked:
    """The state as one that can be asked, or the one it is already."""
    return state if isinstance(state, Asked) else Asked(state)
