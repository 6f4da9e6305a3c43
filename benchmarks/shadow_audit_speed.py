"""Seconds and peak memory of a shadow audit of the paper's size: 64 shadows × 10 forget sets, 50,000 points.

python benchmarks/shadow_audit_speed.py [--shadows 64] [--forget-sets 10] [--points 50000] [--seed 20]
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from warp_unlearning.attacks.membership.shadow_audit import shadow_audit
from warp_unlearning.attacks.membership.shadow_design import shadow_design


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shadows", type=int, default=64)
    options.add_argument("--forget-sets", type=int, default=10)
    options.add_argument("--points", type=int, default=50_000)
    options.add_argument("--seed", type=int, default=20)
    given = options.parse_args()
    generator = np.random.default_rng(given.seed)
    design = shadow_design(given.points, shadows=given.shadows, forget_sets=given.forget_sets, generator=generator)
    forgotten, never, groups = design.forgotten, design.never, design.groups
    scores = generator.standard_normal(forgotten.shape, dtype=np.float32)
    scores += np.float32(0.5) * forgotten
    print(f"{scores.shape[0]} models x {scores.shape[1]} points; before the audit {peak():.2f} GB")
    started = time.perf_counter()
    audit = shadow_audit(scores, forgotten=forgotten, never=never, groups=groups)
    report("scores", started)
    report(f"AUC {audit.auc:.4f}", started)
    report(f"TPR at 0.1 % {audit.tpr(0.001):.4f}", started)
    report(f"balanced accuracy {audit.balanced_accuracy:.4f}", started)
    report(f"interval {audit.interval()}", started)
    report(f"{audit.rate(0.0001)}", started)


def report(what: str, started: float) -> None:
    print(f"{what}: {time.perf_counter() - started:.1f} s after the start, peak {peak():.2f} GB", flush=True)


def peak() -> float:
    """The largest resident set of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
