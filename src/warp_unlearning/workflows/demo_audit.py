"""The audit of the demo: shadow models on digits, six methods alone and with WARP, and the report of what leaked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ShadowConfig, resolve_as
from ..report.page import write_report
from ..runs.local import run_local
from .audit_shadow import RESULTS, ShadowRequest, carry_out, prepare_shadows

# A network small enough for 768 unlearnings in minutes, trained long enough to know some digits by heart.
SETTINGS = ("model.name=mlp", "model.options={hidden: [64]}", "shadows=16", "forget_sets=4", "device=cpu")


@dataclass(frozen=True)
class DemoAudit:
    """The results, and where their report is."""

    results: dict[str, Any]
    report: Path


def audit_demo(folder: Path, report: Path, *, seed: int, say: Callable[[str], None]) -> DemoAudit:
    """Audit below `folder`, on all cores, and write the report."""
    config = resolve_as(ShadowConfig, overrides=[*SETTINGS, f"seed={seed}", f"defense_seed={seed}"])
    prepared = prepare_shadows(ShadowRequest(config, folder))
    say(
        f"training {config.shadows} shadow networks, forgetting {config.forget_sets} sets of each by "
        f"{', '.join(config.methods)}, alone and with {', '.join(config.defenses)}, and attacking them all: "
        f"{len(prepared.plan.jobs):,} jobs ..."
    )
    results = carry_out(prepared, run_local)
    return DemoAudit(results, write_report(folder / RESULTS, out=report).page)
