from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.attacks.reconstruction.threat import Schedule
from warp_unlearning.errors import InputError, WarpError


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"rate": 0.0},
        {"rate": -1.0},
        {"rate": float("nan")},
        {"ascent": 0.0},
    ],
)
def test_a_schedule_that_takes_no_step_up_is_refused(wrong: dict[str, float]) -> None:
    settings: dict[str, Any] = {"steps": 2, "rate": 0.1, **wrong}
    with pytest.raises(InputError, match=r"the schedule has .* (positive rates|rate for each)"):
        Schedule(**settings)


def test_rates_may_differ_by_step(kit: Any) -> None:
    falling = Schedule(3, (0.3, 0.2, 0.1))
    assert falling.rates == (0.3, 0.2, 0.1)
    assert Schedule(2, 0.5).rates == (0.5, 0.5)
    assert "3 steps of 0.3 to 0.1" in "\n".join(kit.threat(kit.net(), kit.net(seed=21), schedule=falling).lines())
    with pytest.raises(InputError, match="2 steps and 3 rates"):
        Schedule(2, (0.3, 0.2, 0.1))


def test_identical_models_are_nothing_to_attack(kit: Any) -> None:
    model = kit.net()
    with pytest.raises(InputError, match="identical"):
        kit.threat(model, deepcopy(model))


@pytest.mark.parametrize("which", ["original", "unlearned"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(kit: Any, which: str, value: float) -> None:
    models = {"original": kit.net(norm=True), "unlearned": kit.net(norm=True, seed=21)}
    models[which].norm.running_var.data[1] = value
    with pytest.raises(InputError, match=rf"norm.running_var.*{which}.*NaN or infinity"):
        kit.threat(models["original"], models["unlearned"])


def test_what_is_held_needs_probes_and_is_made_once(kit: Any) -> None:
    with pytest.raises(InputError, match="needs probes"):
        kit.threat(kit.net(), kit.net(seed=21)).held
    threat = kit.threat(kit.net(), kit.net(seed=21), probes=kit.digits(3))
    assert threat.held is threat.held
    assert torch.equal(threat.held.x, kit.digits(3)[0])
    assert threat.device == torch.device("cpu")


def test_every_line_says_what_the_attacker_holds(kit: Any) -> None:
    pair = kit.net(), kit.net(seed=21)
    bare = "\n".join(kit.threat(*pair).lines())
    assert "one forgotten example and infers its label" in bare
    assert "no probe data" in bare
    assert "no generator" in bare
    assert "an unknown method, and does not know whether there was a defence" in bare
    full = "\n".join(
        kit.threat(
            *pair,
            count=2,
            labels=torch.tensor([3, 4]),
            probes=kit.digits(7),
            generator=kit.generator(),
            method="ngp",
            settings={"lr": 0.01},
            schedule=Schedule(3, 0.25),
            defense="cob",
        ).lines()
    )
    assert "2 examples forgotten together and is told their labels" in full
    assert "7 probe examples" in full
    assert "has a generator" in full
    assert "ngp (lr=0.01), 3 steps of 0.25 with weight 1 on what is forgotten, and expects the defence cob." in full
    assert "does not know what a defence drew" in full


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"labels": torch.tensor(3)}, r"labels have shape \(\) for 1 forgotten"),
        ({"labels": torch.tensor([3, 4])}, r"labels have shape \(2,\) for 1 forgotten"),
        ({"labels": torch.tensor([3.0])}, "labels have type torch.float32"),
        ({"labels": 3}, "labels are a int"),
        ({"count": 0}, "0 examples"),
        ({"generator": nn.Linear(2, 2)}, "without stages"),
        ({"probes": (torch.zeros(3, 1, 7, 8), torch.zeros(3).long())}, r"a probe has shape \(1, 7, 8\)"),
    ],
)
def test_what_does_not_fit_the_models_is_refused(kit: Any, wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(WarpError, match=match):
        kit.threat(kit.net(), kit.net(seed=21), **wrong)


def test_two_architectures_are_refused(kit: Any) -> None:
    for other, match in (
        (kit.mlp(), "one architecture"),
        (kit.net(width=5), "shape"),
        (kit.net(dtype=torch.float32), "type"),
    ):
        with pytest.raises(InputError, match=match):
            kit.threat(kit.net(), other)
