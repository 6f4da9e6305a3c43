from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from warp_unlearning.conformance import planted_leak
from warp_unlearning.conformance.planted_leak import Check
from warp_unlearning.stats.intervals import Estimate

CHECKS = (
    Check("a model", "confidence", "a leak", Estimate(0.95, 0.9, 0.98), True),
    Check("another", "U-LiRA", "no leak", Estimate(0.7, 0.6, 0.8), False),
)


def test_the_self_test_says_what_failed(warp: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def answering(checks: tuple[Check, ...]) -> Callable[..., tuple[Check, ...]]:
        def selftest(seed: int, *, watch: Callable[[Check], None]) -> tuple[Check, ...]:
            for check in checks:
                watch(check)
            return checks

        return selftest

    monkeypatch.setattr(planted_leak, "selftest", answering(CHECKS))
    answer = warp("selftest")
    assert answer.code == 1
    assert answer.out.splitlines() == [
        "holds: a model, confidence: max(AUC, 1 - AUC) 0.950 [0.900, 0.980]; expected a leak",
        "DOES NOT HOLD: another, U-LiRA: max(AUC, 1 - AUC) 0.700 [0.600, 0.800]; expected no leak",
        "1 of 2 checks hold",
    ]
    assert json.loads(warp("selftest", "--json").out)["checks"][1]["holds"] is False
    monkeypatch.setattr(planted_leak, "selftest", answering(CHECKS[:1]))
    assert warp("selftest").code == 0
