"""The four numbers that a search makes small, from what an unlearned and a retrained model say.

    (⅓|Δ retain|, ⅓|Δ forget|, ⅓|Δ validation|, 1 − indiscernibility)

Δ is the difference of accuracies, unlearned minus retrained, so the retrained model is an oracle that whoever unlearns
does not have. indiscernibility = 1 − |mia − ½| / ½ with mia the mean accuracy of a logistic regression of membership on
the loss of an example: forgotten ones against as many of the validation part. Losses are brought to mean 0 and
deviation 1 first: the penalty of the regression would else hide differences between losses that are all small.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..errors import InputError

PARTS = ("retain", "forget", "validation")
NAMES = ("retain gap", "forget gap", "validation gap", "membership")
SPLITS = 10
FEWEST = 10
"""Examples of each kind below which a split of the attack would test hardly any."""

Objectives = tuple[float, float, float, float]


def objectives(unlearned: Mapping[str, float], retrained: Mapping[str, float], mia: float) -> Objectives:
    """The four objectives of one unlearned model; accuracies by the names of `PARTS`.

    >>> retrained = {"retain": 1.0, "forget": 0.9, "validation": 0.9}
    >>> objectives({"retain": 1.0, "forget": 0.9, "validation": 0.9}, retrained, 0.75)
    (0.0, 0.0, 0.0, 0.5)
    """
    retain, forget, validation = (abs(unlearned[part] - retrained[part]) / 3 for part in PARTS)
    return retain, forget, validation, 1 - indiscernibility(mia)


def indiscernibility(mia: float) -> float:
    """1 where an attack guesses, 0 where it is always right or always wrong.

    >>> indiscernibility(0.75)
    0.5
    """
    return 1 - abs(mia - 0.5) / 0.5


def norm(found: Objectives) -> float:
    """The Euclidean norm, by which the chosen trial is the smallest.

    >>> norm((0.0, 0.3, 0.0, 0.4))
    0.5
    """
    return hypot(*found)


def mean_objectives(found: list[Objectives]) -> Objectives:
    """The mean of each over several models."""
    retain, forget, validation, membership = np.mean(np.asarray(found, dtype=np.float64), axis=0).tolist()
    return retain, forget, validation, membership


def membership_accuracy(forgotten: NDArray[np.float64], unseen: NDArray[np.float64], *, seed: int) -> float:
    """The mean accuracy over 10 stratified splits, a tenth tested, of telling forgotten from unseen examples by their
    losses. Of the larger set as many are drawn as the smaller has, so that guessing is right half of the time.
    """
    count = min(len(forgotten), len(unseen))
    if count < FEWEST:
        raise InputError(
            f"there are {len(forgotten)} forgotten and {len(unseen)} unseen examples to compare; at least {FEWEST} of "
            "each are needed: forget a larger fraction, or leave more points to the tuning"
        )
    generator = np.random.default_rng(seed)
    both = [part[np.sort(generator.permutation(len(part))[:count])] for part in (forgotten, unseen)]
    x, y = np.concatenate(both)[:, None], np.repeat([1, 0], count)
    splits = StratifiedShuffleSplit(n_splits=SPLITS, random_state=seed % 2**32)
    attack = make_pipeline(StandardScaler(), LogisticRegression())
    return float(cross_val_score(attack, x, y, cv=splits, scoring="accuracy").mean())
