from __future__ import annotations

import json

import torch

from warp_unlearning.attacks.reconstruction.reconstruction import Reconstruction


def test_plain_data_without_the_images() -> None:
    found = Reconstruction(
        attack="inversion",
        after="naive",
        images=torch.rand(2, 1, 1, 8, 8),
        losses=torch.tensor([0.25, 0.5]),
        restarts=torch.tensor([[0.25, 0.75], [0.5, float("inf")]]),
        labels=torch.tensor([[3], [4]]),
        threat=("The attacker holds two models.",),
        settings={"tv": 1e-3, "signed": True, "stages": None},
        notes=("labels were inferred",),
        seconds=1.5,
    )
    told = found.as_json()
    again = json.loads(json.dumps(told, allow_nan=False))
    assert "images" not in told
    assert again["losses"] == [0.25, 0.5]
    assert again["restarts"][0] == [0.25, 0.75]
    assert again["labels"] == [[3], [4]]
    assert again["threat"] == ["The attacker holds two models."]
    assert again["settings"] == {"tv": 1e-3, "signed": True, "stages": None}
    assert (again["attack"], again["after"], again["notes"], again["seconds"]) == (
        "inversion",
        "naive",
        ["labels were inferred"],
        1.5,
    )
