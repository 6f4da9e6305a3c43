"""A results file of a reconstruction with simulated images and real statistics, and the images beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from warp_unlearning.attacks.reconstruction.blind import BlindGuess
from warp_unlearning.attacks.reconstruction.judge import assess

ATTACKS = {"ngp": {"inversion": 0.05}, "ngp + cob": {"inversion": 2.0, "canonical": 0.3}}
IMAGES = 6


def reconstruction_sample(*, images: int = IMAGES, seed: int = 22) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plain data in the form that the file has, and the arrays of its images. The noise of each attack is above."""
    generator = torch.Generator().manual_seed(seed)
    truth, decoys = (torch.rand(n, 1, 6, 6, generator=generator) for n in (images, 30))
    arrays = {"truth": _bytes(truth), "class-mean": _bytes(torch.full_like(truth, 0.5))}
    models = []
    for name, noises in ATTACKS.items():
        rows = list(range(images)) if name == "ngp" else list(range(max(images - 1, 1)))
        attacks = []
        for attack, noise in noises.items():
            drawn = truth[rows] + noise * torch.randn(len(rows), 1, 6, 6, generator=generator)
            array = f"found-{len(arrays) - 2}"
            attacks.append(_attack(attack, drawn.clamp(0, 1), truth[rows], decoys) | {"array": array})
            arrays[array] = _bytes(drawn)
        models.append(_model(name, rows, attacks))
    targets = [{"position": 8675309 + i, "label": 0, "class": f"class {i}"} for i in range(images)]
    data = {
        "schema_version": 1,
        "kind": "reconstruction",
        "date": "2026-01-02T03:04:05+00:00",
        "data": "digits",
        "level": 0.95,
        "counts": {"images": images, "models": 2, "forgotten together": 1, "probes": 1200, "decoys": 30},
        "targets": targets,
        "models": models,
        "settings": {"labels": "known", "seed": 3},
        "digests": {"models": {"original": "abc"}, "data": "def"},
        "versions": {"torch": "2"},
        "notes": ["a note on all"],
        "images_kept": True,
    }
    return data, arrays


def _attack(name: str, found: Tensor, truth: Tensor, decoys: Tensor) -> dict[str, Any]:
    labels = torch.zeros(len(truth), 1, dtype=torch.long)
    blind = {"class mean": torch.full_like(truth, 0.5), "prior alone": torch.full_like(truth, 0.1)}
    result = assess(
        found[:, None],
        truth[:, None],
        blind={key: BlindGuess(key, value) for key, value in blind.items()},
        labels=labels,
        decoys=(decoys, torch.zeros(len(decoys), dtype=torch.long)),
    )
    return {"name": name, **result.as_json(), "seconds": 1.5, "notes": [f"a note on {name}"]}


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
