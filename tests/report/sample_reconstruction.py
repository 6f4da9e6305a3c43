"""A results file of a reconstruction with simulated images and real statistics, and the images beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from warp_unlearning.attacks.reconstruction.blind import BlindGuess
from warp_unlearning.attacks.reconstruction.judge import BeyondPrior, adjusted_p, assess, beyond_prior
from warp_unlearning.data.files import to_json
from warp_unlearning.stats.verdict import Verdict

ATTACKS = {"ngp": {"inversion": 0.05}, "ngp + cob": {"inversion": 2.0, "canonical": 0.3}}
IMAGES = 6


def reconstruction_sample(*, images: int = IMAGES, seed: int = 22) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plain data in the form that the file has, and the arrays of its images. The noise of each attack is above."""
    generator = torch.Generator().manual_seed(seed)
    truth, decoys = (torch.rand(n, 1, 6, 6, generator=generator) for n in (images, 30))
    arrays = {"truth": _bytes(truth), "class-mean": _bytes(torch.full_like(truth, 0.5))}
    models, claims = [], []
    for name, noises in ATTACKS.items():
        rows = list(range(images)) if name == "ngp" else list(range(max(images - 1, 1)))
        attacks, evidence = [], {}
        for attack, noise in noises.items():
            drawn = truth[rows] + noise * torch.randn(len(rows), 1, 6, 6, generator=generator)
            array = f"found-{len(arrays) - 2}"
            plain, evidence[attack] = _attack(attack, drawn.clamp(0, 1), truth[rows], decoys)
            attacks.append(plain | {"array": array})
            arrays[array] = _bytes(drawn)
        for attack, p in zip(attacks, adjusted_p(evidence).values(), strict=True):
            attack["adjusted_p"] = p
        models.append(_model(name, rows, attacks))
        claims.append(beyond_prior(evidence, about=name))
    targets = [{"position": 8675309 + i, "label": i} for i in range(images)]
    data = {
        "schema_version": 2,
        "kind": "reconstruction",
        "date": "2026-01-02T03:04:05+00:00",
        "data": "digits",
        "level": 0.95,
        "counts": {"images": images, "models": 2, "forgotten together": 1, "probes": 1200, "decoys": 30},
        "classes": [f"class {i}" for i in range(images)],
        "targets": targets,
        "verdict": to_json(Verdict(tuple(claims), (), "drawn", (), images, 30).as_json()),
        "models": models,
        "settings": {"labels": "known", "seed": 3},
        "digests": {"models": {"original": "abc"}, "data": "def"},
        "versions": {"torch": "2"},
        "notes": ["a note on all"],
        "images_kept": True,
    }
    return data, arrays


def _attack(name: str, found: Tensor, truth: Tensor, decoys: Tensor) -> tuple[dict[str, Any], BeyondPrior]:
    labels = torch.zeros(len(truth), 1, dtype=torch.long)
    blind = {"class mean": torch.full_like(truth, 0.5), "prior alone": torch.full_like(truth, 0.1)}
    result = assess(
        found[:, None],
        truth[:, None],
        blind={key: BlindGuess(key, value) for key, value in blind.items()},
        labels=labels,
        decoys=(decoys, torch.zeros(len(decoys), dtype=torch.long)),
    )
    plain = {"name": name, **result.as_json(), "beyond": result.beyond.as_json()}
    plain |= {"after": "the difference", "labels": [[0]] * len(truth), "losses": [0.1] * len(truth), "settings": {}}
    plain |= {"restarts": [[0.1]] * len(truth), "seconds": 1.5, "notes": [f"a note on {name}"]}
    return plain, result.beyond


def _model(name: str, rows: list[int], attacks: list[dict[str, Any]]) -> dict[str, Any]:
    hidden = "cob" in name
    return {
        "name": name,
        "paths": ["/secret/place"],
        "method": "ngp",
        "method_settings": {"lr": 0.01},
        "defense": "cob" if hidden else "none",
        "rows": rows,
        "threat": ["The attacker holds both models.", f"The attacker expects {'cob' if hidden else 'no defence'}."],
        "attacks": attacks,
        "not_tried": {"adaptive": "no step is known"} if hidden else {},
        "notes": [f"a note on {name}"],
    }


def _bytes(images: Tensor) -> Any:
    return (images.clamp(0, 1) * 255).round().numpy().astype(np.uint8)
