"""Remove training examples from a PyTorch model, hide the trace of the removal, and measure what an attacker still
sees.

Public names are imported when first used, so that importing the package, and `warp --help`, stay fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from .conformance import check_method as check_method
    from .defense.conjugate import Conjugate as Conjugate
    from .defense.teleport import teleport as teleport
    from .defense.warp import Warp as Warp
    from .errors import WarpError as WarpError
    from .evaluation import compare as compare
    from .gradients.energy import gradient_energy as gradient_energy
    from .stats.langevin import langevin_epsilon as langevin_epsilon
    from .stats.langevin import langevin_noise as langevin_noise
    from .symmetry.attention_basis import AttentionBasis as AttentionBasis
    from .symmetry.certificate import Certificate as Certificate
    from .symmetry.change_of_basis import ChangeOfBasis as ChangeOfBasis
    from .symmetry.compose import Compose as Compose
    from .symmetry.null_space import NullSpace as NullSpace
    from .symmetry.permutation import Permutation as Permutation
    from .symmetry.tracked_null_space import TrackedNullSpace as TrackedNullSpace
    from .unlearning import Unlearned as Unlearned
    from .unlearning import unlearn as unlearn

_HOMES = {
    "AttentionBasis": "symmetry.attention_basis",
    "Certificate": "symmetry.certificate",
    "ChangeOfBasis": "symmetry.change_of_basis",
    "Compose": "symmetry.compose",
    "Conjugate": "defense.conjugate",
    "NullSpace": "symmetry.null_space",
    "Permutation": "symmetry.permutation",
    "TrackedNullSpace": "symmetry.tracked_null_space",
    "Unlearned": "unlearning",
    "Warp": "defense.warp",
    "WarpError": "errors",
    "check_method": "conformance",
    "compare": "evaluation",
    "gradient_energy": "gradients.energy",
    "langevin_epsilon": "stats.langevin",
    "langevin_noise": "stats.langevin",
    "teleport": "defense.teleport",
    "unlearn": "unlearning",
}

__all__ = [
    "AttentionBasis",
    "Certificate",
    "ChangeOfBasis",
    "Compose",
    "Conjugate",
    "NullSpace",
    "Permutation",
    "TrackedNullSpace",
    "Unlearned",
    "Warp",
    "WarpError",
    "check_method",
    "compare",
    "gradient_energy",
    "langevin_epsilon",
    "langevin_noise",
    "teleport",
    "unlearn",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
