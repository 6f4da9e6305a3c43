"""Remove training examples from a PyTorch model, hide the trace of the removal, and measure what an attacker still
sees.

Public names are imported when first used, so that importing the package, and `warp --help`, stay fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from .attacks.membership.audit import Audit as Audit
    from .attacks.membership.gradient_difference import gradient_difference as gradient_difference
    from .attacks.membership.pair_audit import PairAudit as PairAudit
    from .attacks.membership.pair_audit import audit_pair as audit_pair
    from .attacks.membership.shadow_audit import shadow_audit as shadow_audit
    from .attacks.membership.shadow_design import shadow_design as shadow_design
    from .attacks.reconstruction.reconstruct import Reconstruction as Reconstruction
    from .attacks.reconstruction.reconstruct import reconstruct as reconstruct
    from .attacks.reconstruction.threat import Threat as Threat
    from .bounds.floor import reconstruction_floor as reconstruction_floor
    from .bounds.report import ReconstructionFloor as ReconstructionFloor
    from .conformance import check_method as check_method
    from .defense.certificate import Certificate as Certificate
    from .defense.conjugate import Conjugate as Conjugate
    from .defense.teleporter import teleport as teleport
    from .defense.warp import Warp as Warp
    from .errors import WarpError as WarpError
    from .gradients.energy import gradient_energy as gradient_energy
    from .stats.langevin import langevin_epsilon as langevin_epsilon
    from .stats.langevin import langevin_noise as langevin_noise
    from .stats.verdict import Verdict as Verdict
    from .symmetry.attention import AttentionBasis as AttentionBasis
    from .symmetry.base import Compose as Compose
    from .symmetry.null_space import NullSpace as NullSpace
    from .symmetry.null_space import TrackedNullSpace as TrackedNullSpace
    from .symmetry.permutation import Permutation as Permutation
    from .symmetry.rescaling import ChangeOfBasis as ChangeOfBasis
    from .unlearning import DeletionRecord as DeletionRecord
    from .unlearning import Unlearned as Unlearned
    from .unlearning import check_model as check_model
    from .unlearning import compare as compare
    from .unlearning import unlearn as unlearn

_HOMES = {
    "AttentionBasis": "symmetry.attention",
    "Audit": "attacks.membership.audit",
    "Certificate": "defense.certificate",
    "ChangeOfBasis": "symmetry.rescaling",
    "Compose": "symmetry.base",
    "Conjugate": "defense.conjugate",
    "DeletionRecord": "unlearning",
    "NullSpace": "symmetry.null_space",
    "PairAudit": "attacks.membership.pair_audit",
    "Permutation": "symmetry.permutation",
    "Reconstruction": "attacks.reconstruction.reconstruct",
    "ReconstructionFloor": "bounds.report",
    "Threat": "attacks.reconstruction.threat",
    "TrackedNullSpace": "symmetry.null_space",
    "Unlearned": "unlearning",
    "Verdict": "stats.verdict",
    "Warp": "defense.warp",
    "WarpError": "errors",
    "audit_pair": "attacks.membership.pair_audit",
    "check_method": "conformance",
    "check_model": "unlearning",
    "compare": "unlearning",
    "gradient_difference": "attacks.membership.gradient_difference",
    "gradient_energy": "gradients.energy",
    "langevin_epsilon": "stats.langevin",
    "langevin_noise": "stats.langevin",
    "reconstruct": "attacks.reconstruction.reconstruct",
    "reconstruction_floor": "bounds.floor",
    "shadow_audit": "attacks.membership.shadow_audit",
    "shadow_design": "attacks.membership.shadow_design",
    "teleport": "defense.teleporter",
    "unlearn": "unlearning",
}

__all__ = [
    "AttentionBasis",
    "Audit",
    "Certificate",
    "ChangeOfBasis",
    "Compose",
    "Conjugate",
    "DeletionRecord",
    "NullSpace",
    "PairAudit",
    "Permutation",
    "Reconstruction",
    "ReconstructionFloor",
    "Threat",
    "TrackedNullSpace",
    "Unlearned",
    "Verdict",
    "Warp",
    "WarpError",
    "audit_pair",
    "check_method",
    "check_model",
    "compare",
    "gradient_difference",
    "gradient_energy",
    "langevin_epsilon",
    "langevin_noise",
    "reconstruct",
    "reconstruction_floor",
    "shadow_audit",
    "shadow_design",
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
