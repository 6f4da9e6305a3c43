"""What a shadow audit found, as plain data with a schema version: a row for each arm, with what it rests on."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.files import to_json
from ..runs.store import Store
from .arm_rows import arm_rows
from .shadow_plan import ShadowPlan
from .shadow_scores import arm_scores, original_scores

SCHEMA_VERSION = 2

THREAT = (
    "The attacker holds the unlearned models' answers for every audited example and its label, knows the data, the "
    "network, the training recipe, the unlearning method and its settings, and has trained shadow models the same way.",
    "In the pair audits the attacker also holds the weights of the original and of the unlearned model, and tries to "
    "undo a defence before attacking.",
    "The attacker does not know what a defence drew at random.",
)
NOT_TESTED = (
    "reconstruction of forgotten examples",
    "forget sets of other sizes or kinds, such as whole classes",
    "requests one after another",
    "other data, networks and training recipes than those named",
    "attackers who poison the training data or watch the training",
)


def shadow_results(plan: ShadowPlan, store: Store) -> dict[str, Any]:
    """The arms of the results; what the run itself knows (stages, failures, versions) is added by its caller."""
    found = [arm_scores(plan, store, i) for i in range(len(plan.settings.arms))]
    arms = arm_rows(plan.settings.arms, found, original_scores(plan, store))
    forget_size = int(np.mean([(row == 0).sum() for row in plan.design.part]))
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "shadow",
        "audited": {
            "shadows": plan.settings.shadows,
            "forget_sets": plan.settings.forget_sets,
            "points": plan.design.trained.shape[1],
            "forgotten_share": plan.settings.share,
            "forget_set_size": forget_size,
            "training_examples": int(plan.design.trained[0].sum()),
            "seed": plan.settings.seed,
        },
        "threat": list(THREAT),
        "not_tested": list(NOT_TESTED),
        "arms": to_json(arms),
    }
