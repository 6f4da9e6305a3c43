"""How often the 95 % intervals of a shadow audit hold the truth, over simulated audits.

The truth is the mean over an independent, larger set of simulated audits of the same law and the same number of
shadows: what an attack with so many shadows finds on average. Points, designs and noise are drawn anew for every audit.
Run as

    PYTHONPATH=. python benchmarks/shadow_audit_coverage.py --shadows 16 --seed 20 [--law NAME ...] [--paired]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from tests.oracles.simulated_shadows import ShadowLaw, SimulatedShadows, simulate_shadows

from warp_unlearning.attacks.membership.audit import Audit
from warp_unlearning.attacks.membership.shadow_audit import shadow_audit
from warp_unlearning.stats.intervals import Estimate, proportion

LAWS = {
    "null, siblings 0": ShadowLaw(sibling_correlation=0.0),
    "null, siblings 0.5": ShadowLaw(sibling_correlation=0.5),
    "null, siblings 0.9": ShadowLaw(sibling_correlation=0.9),
    "null, shadows move together": ShadowLaw(sibling_correlation=0.9, shadow_effect=1.0),
    "weak": ShadowLaw(signal=0.3),
    "middle": ShadowLaw(signal=1.0),
    "middle, siblings 0.9": ShadowLaw(signal=1.0, sibling_correlation=0.9),
    "middle, 2000 points": ShadowLaw(signal=1.0, points=2000),
    "middle, shadows move together": ShadowLaw(signal=1.0, sibling_correlation=0.9, shadow_effect=0.5),
    "strong": ShadowLaw(signal=2.0),
    "strong, 2000 points": ShadowLaw(signal=2.0, points=2000),
    "strong, shadows move together": ShadowLaw(signal=2.0, shadow_effect=0.5),
    "strong, 2000 points, together": ShadowLaw(signal=2.0, shadow_effect=0.2, points=2000),
    "heavy tail": ShadowLaw(signal=0.5, tail=1.5),
    "heavy tail, together": ShadowLaw(signal=1.0, tail=1.5, shadow_effect=0.3),
    "uneven scales": ShadowLaw(signal=1.0, scale_spread=0.8),
}
RATES = (0.01, 0.05)


def audited(found: SimulatedShadows) -> Audit:
    design = found.design
    return shadow_audit(found.scores, forgotten=design.forgotten, never=design.never, groups=design.groups)


def audits(law: ShadowLaw, seed: int, stream: int, count: int, paired: bool) -> Iterator[list[Audit]]:
    """An audit and, where asked, one of the same shadows with half the signal: what a defence might do."""
    laws = [law, replace(law, signal=law.signal / 2)] if paired and law.signal else [law]
    for number in range(count):
        yield [audited(simulate_shadows(one, np.random.default_rng([seed, stream, number]))) for one in laws]


def values(base: Audit, *others: Audit) -> list[float]:
    return [base.auc, *(base.tpr(rate) for rate in RATES), *(base.auc - other.auc for other in others)]


def intervals(base: Audit, *others: Audit) -> list[Estimate]:
    found = [base.interval(), *(base.interval(fpr=rate) for rate in RATES)]
    for other in others:
        paired = base.compare(other)
        # Where no reduction is stated nothing is claimed of it.
        found += [paired.difference, paired.reduction or Estimate(0.0, -np.inf, np.inf)]
    return found


def coverage(law: ShadowLaw, *, seed: int, count: int, truth: int, paired: bool) -> None:
    started = time.perf_counter()
    expected = np.mean([values(*pair) for pair in audits(law, seed, 1, truth, paired)], axis=0)
    found = [intervals(*pair) for pair in audits(law, seed, 0, count, paired)]
    names = ["AUC", *(f"TPR at {100 * rate:g} %" for rate in RATES), "difference of AUC", "reduction"]
    truths = [*expected, *(expected[3:] / (expected[0] - 0.5))]
    for column, (name, truly) in enumerate(zip(names, truths, strict=False)):
        low, high, value = np.array([[row[column].low, row[column].high, row[column].value] for row in found]).T
        held = proportion(int(np.count_nonzero((low <= truly) & (truly <= high))), count)
        print(
            f"  {name:18s} expected {truly:.4f}  mean {value.mean():.4f}  sd {value.std():.4f}"
            f"  half width {np.median(high - low) / 2:.4f}  holds {held}"
            f"  too high {np.mean(low > truly):.3f}  too low {np.mean(high < truly):.3f}"
        )
    print(f"  {time.perf_counter() - started:.0f} s", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shadows", type=int, nargs="+", default=[16, 64])
    options.add_argument("--seed", type=int, default=20)
    options.add_argument("--law", nargs="+", choices=list(LAWS), default=list(LAWS))
    options.add_argument("--audits", type=int, default=1000)
    options.add_argument("--truth", type=int, default=2000)
    options.add_argument("--paired", action="store_true", help="also the difference to an audit with half the signal")
    given = options.parse_args()
    for shadows in given.shadows:
        for name in given.law:
            print(f"{name}, {shadows} shadows, seed {given.seed}")
            law = replace(LAWS[name], shadows=shadows)
            coverage(law, seed=given.seed, count=given.audits, truth=given.truth, paired=given.paired)


if __name__ == "__main__":
    main()
