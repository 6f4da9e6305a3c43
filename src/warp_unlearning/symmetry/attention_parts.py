"""What of a transformer can move, and where it stands in the weights.

A part is a set of channels that one group of tensors makes and another reads, with nothing else in between but what
commutes with its kind of map:

- heads: made ← M made, read ← M⁻ᵀ read, with a d×d matrix M for every head. Queries and keys meet in Q Kᵀ alone;
  values and the columns of the output layer in W_o V alone, as softmax weights mix tokens and not channels.
- norms: made ← τ made, read ← read / τ, one factor a channel. The affine map of a norm and the linear layers behind it.
- units: made and read in another order. An activation that acts on every unit alike lies in between; it need not be
  homogeneous, so that there are no factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

Kind = Literal["heads", "norms", "units"]


@dataclass(frozen=True)
class Place:
    """Where channels stand: along `axis` of the tensor `name`, from entry `start` on."""

    name: str
    axis: int
    start: int = 0


@dataclass(frozen=True)
class Part:
    """Channels that may move together: `groups` heads of `width`, or one group.

    `home` is the path of a module inside which they are made and read; `pinned` says why they stay.
    """

    kind: Kind
    label: str
    home: str
    groups: int
    width: int
    made: tuple[Place, ...]
    read: tuple[Place, ...]
    pinned: str | None = None

    @property
    def channels(self) -> int:
        """How many channels there are."""
        return self.groups * self.width

    @property
    def places(self) -> tuple[Place, ...]:
        """Where they stand."""
        return self.made + self.read


def joined(path: str, name: str) -> str:
    """The path of a child; the root has the empty path."""
    return f"{path}.{name}" if path else name


def described(path: str, module: nn.Module) -> str:
    """A module as reports name it."""
    return f"{type(module).__name__} {path}".strip()


def child(module: nn.Module, path: str, kind: type[nn.Module] = nn.Module) -> Any:
    """The submodule at `path` if it is there and a `kind`, or None."""
    found: Any = module
    for name in path.split("."):
        found = found._modules.get(name) if isinstance(found, nn.Module) else None
    return found if isinstance(found, kind) else None


def rows(path: str, layer: Any) -> tuple[Place, ...]:
    """The channels that a linear layer makes."""
    bias = () if layer.bias is None else (Place(joined(path, "bias"), 0),)
    return (Place(joined(path, "weight"), 0), *bias)


def columns(path: str) -> tuple[Place, ...]:
    """The channels that a linear layer reads."""
    return (Place(joined(path, "weight"), 1),)


def head_parts(
    path: str,
    module: nn.Module,
    *,
    heads: int,
    width: int,
    query: tuple[Place, ...],
    key: tuple[Place, ...],
    value: tuple[Place, ...],
    output: tuple[Place, ...],
    pins: Sequence[str | None] = (None, None),
) -> list[Part]:
    """Queries with keys, values with output; `pins` says of each why it stays, if it does."""
    name = described(path, module)
    return [
        Part("heads", f"queries and keys of {name}", path, heads, width, query, key, pins[0]),
        Part("heads", f"values and output of {name}", path, heads, width, value, output, pins[1]),
    ]


def norm_part(home: str, path: str, norm: Any, readers: tuple[Place, ...], *, pin: str | None = None) -> list[Part]:
    """The output of a norm, which `readers` read; nothing where there is no norm."""
    if norm is None or isinstance(norm, nn.Identity):
        return []
    name = described(path, norm)
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        pin = f"{name}, which is neither LayerNorm nor RMSNorm"
    elif norm.weight is None or len(norm.normalized_shape) != 1:
        pin = f"{name}, which has no weight for every channel"
    made = tuple(Place(joined(path, n), 0) for n in ("weight", "bias") if getattr(norm, n, None) is not None)
    width = getattr(norm, "normalized_shape", (0,))[-1]
    return [Part("norms", f"output of {name}", home, 1, width, made, readers, pin)]


def unit_part(home: str, first: str, makes: Any, second: str, reads: Any) -> list[Part]:
    """The hidden units of two linear layers."""
    if makes is None or reads is None:
        return []
    pin = None
    if makes.out_features != reads.in_features:
        pin = (
            f"{second} reads {reads.in_features} channels of the {makes.out_features} that {first} makes (gated units)"
        )
    label = f"units of {described(first, makes)}"
    return [Part("units", label, home, 1, makes.out_features, rows(first, makes), columns(second), pin)]
