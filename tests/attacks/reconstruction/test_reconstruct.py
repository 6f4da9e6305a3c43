from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning import ChangeOfBasis, Conjugate, reconstruct, unlearn
from warp_unlearning.attacks.reconstruction.attacks import ATTACKS
from warp_unlearning.attacks.reconstruction.metrics import psnr
from warp_unlearning.attacks.reconstruction.search import Search
from warp_unlearning.attacks.reconstruction.threat import Schedule
from warp_unlearning.errors import InputError, WarpError

SHORT = Search(restarts=2, iterations=12)


def decibels(found: Any, truth: Tensor) -> Tensor:
    return psnr(found.images.flatten(0, 1), truth.flatten(0, 1))


@pytest.mark.parametrize("norm", [False, True])
def test_one_step_on_one_example_gives_it_away(kit: Any, norm: bool) -> None:
    threats, truth = kit.threats(kit.net(norm=norm, dtype=torch.float32), [0, 1, 2, 3])
    found = reconstruct(threats, search=Search(restarts=1, iterations=250))
    assert found.images.shape == (4, 1, 1, 8, 8)
    assert int((decibels(found, truth) > 25).sum()) >= 3
    assert found.labels.tolist() == [t.labels.tolist() for t in threats]


def test_differencing_finds_it_too(kit: Any) -> None:
    threats, truth = kit.threats(kit.net(), [0, 1])
    found = reconstruct(threats, attack="differencing", search=Search(restarts=1, iterations=300, tv=0.0, signed=False))
    assert float(decibels(found, truth).min()) > 25


def test_a_change_of_basis_hides_it_from_naive_and_not_from_canonical(kit: Any) -> None:
    model = kit.net(norm=True)
    threats, images = [], []
    for i in range(2):
        x, y = kit.digits(1, first=i)
        after = kit.moved(kit.stepped(model, x, y, rate=1e-2), seed=i)
        threats.append(kit.threat(model, after, labels=y, probes=kit.digits(30, first=200)))
        images.append(kit.pixels().images(x))
    search, truth = Search(restarts=1, iterations=250), torch.stack(images)
    naive, canonical = (reconstruct(threats, attack=name, search=search) for name in ("inversion", "canonical"))
    assert float(decibels(naive, truth).max()) < 15
    assert float(decibels(canonical, truth).min()) > 20
    same = reconstruct(threats, attack="inversion", after="canonical", search=search)
    assert same.after == "canonical"
    torch.testing.assert_close(same.images, canonical.images)


def of_one_layer(kit: Any, defense: str | None, *, probes: bool = True) -> tuple[list[Any], Tensor]:
    """Threats of a fully connected network, after `unlearn` with or without a defence, and the images."""
    model = kit.mlp()
    threats, images = [], []
    for i in range(2):
        x, y = kit.digits(1, first=i)
        done = unlearn(
            model,
            forget=(x, y),
            retain=kit.digits(20, first=50),
            method=kit.Ascent(rate=0.05),
            defense=None if defense is None else Conjugate(ChangeOfBasis(law="lognormal", spread=1.5)),
            defense_seed=None if defense is None else 2,
        )
        held = {"probes": kit.digits(5, first=90)} if probes else {}
        threats.append(kit.threat(model, done.model, labels=y, **held))
        images.append(kit.pixels().images(x))
    return threats, torch.stack(images)


@pytest.mark.parametrize("defense", [None, "conjugate"])
@pytest.mark.parametrize("probes", [True, False], ids=["probes", "no probes"])
def test_a_fully_connected_first_layer_is_the_image(kit: Any, defense: str | None, probes: bool) -> None:
    threats, truth = of_one_layer(kit, defense, probes=probes)
    found = reconstruct(threats, attack="input-layer", search=SHORT)
    torch.testing.assert_close(found.images, truth, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.losses, torch.zeros(2).double(), atol=1e-6, rtol=0)
    assert any("first layer" in note for note in found.notes)


def test_many_targets_are_searched_for_as_one_at_a_time(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1, 2], probes=4, schedule=Schedule(1, 1e-3))
    for attack in ("inversion", "differencing", "scale-free", "input-layer", "joint", "adaptive"):
        together, by_two, alone = (
            reconstruct(threats, attack=attack, search=SHORT, seed=3, at_once=n) for n in (None, 2, 1)
        )
        for other in (by_two, alone):
            torch.testing.assert_close(other.images, together.images, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(other.restarts, together.restarts, rtol=1e-6, atol=1e-9)
        first = reconstruct(threats[0], attack=attack, search=SHORT, seed=3)
        torch.testing.assert_close(first.images, together.images[:1], rtol=1e-6, atol=1e-6)


def test_the_best_restart_is_returned_and_equal_seeds_give_equal_images(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    search = Search(restarts=4, iterations=12)
    found = reconstruct(threats, search=search, seed=3)
    assert found.restarts.shape == (2, 4)
    assert torch.equal(found.losses, found.restarts.min(1).values)
    single = reconstruct(threats, search=Search(restarts=1, iterations=12), seed=3)
    torch.testing.assert_close(single.losses, found.restarts[:, 0], rtol=1e-6, atol=1e-9)
    assert torch.equal(found.images, reconstruct(threats, search=search, seed=3).images)
    assert not torch.allclose(found.images, reconstruct(threats, search=search, seed=4).images)


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_every_attack_runs_and_leaves_the_models_alone(kit: Any, attack: str) -> None:
    model = kit.net(norm=True, width=3, dtype=torch.float32).train()
    x, y = kit.digits(1, dtype=torch.float32)
    after = kit.stepped(model.eval(), x, y, rate=0.1)
    model.train()
    threat = kit.threat(
        model,
        after,
        labels=y,
        probes=kit.digits(100, first=200, dtype=torch.float32),
        schedule=Schedule(2, 0.05),
        generator=kit.generator(),
    )
    before = [deepcopy(m.state_dict()) for m in (model, after)]
    found = reconstruct(threat, attack=attack, search=Search(restarts=1, iterations=4))
    assert found.attack == attack
    assert bool(found.losses.isfinite().all())
    assert 0 <= float(found.images.min()) <= float(found.images.max()) <= 1
    for m, state in zip((model, after), before, strict=True):
        assert all(torch.equal(v, state[n]) for n, v in m.state_dict().items())
        assert all(p.grad is None and p.requires_grad for p in m.parameters())
    assert model.training
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert told["settings"]["seed"] == 0
    assert told["settings"]["search"]["iterations"] == 4
    assert found.threat == threat.lines()


def test_two_examples_forgotten_together(kit: Any) -> None:
    model = kit.net(dtype=torch.float32, width=12)
    x, y = kit.digits(2, dtype=torch.float32)
    threat = kit.threat(model, kit.stepped(model, x, y), labels=y, count=2)
    found = reconstruct(threat, search=Search(restarts=2, iterations=400))
    assert found.images.shape == (1, 2, 1, 8, 8)
    assert float(psnr(found.images[0], kit.pixels().images(x)).min()) > 20


def test_labels_are_inferred_from_the_last_layer(kit: Any) -> None:
    model = kit.net()
    threats, _ = kit.threats(model, [0, 1, 2])
    blind = [kit.threat(model, t.unlearned) for t in threats]
    found = reconstruct(blind, search=SHORT)
    told = reconstruct(threats, search=SHORT)
    assert torch.equal(found.labels, told.labels)
    torch.testing.assert_close(found.images, told.images)
    assert any("inferred from the last layer" in note for note in found.notes)
    assert not told.notes


@pytest.mark.parametrize("hidden", [False, True])
def test_without_a_last_linear_layer_every_class_is_tried(kit: Any, hidden: bool) -> None:
    def build() -> nn.Module:
        if hidden:
            body: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Unflatten(1, (32, 1, 1))]
            return nn.Sequential(*body, nn.Conv2d(32, 10, 1), nn.Flatten())
        return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 10, 8), nn.Flatten())

    model = kit.drawn(build)
    threats, _ = kit.threats(model, [0, 3])
    blind = [kit.threat(model, t.unlearned) for t in threats]
    found = reconstruct(blind, search=Search(restarts=1, iterations=60))
    assert found.restarts.shape == (2, 10)
    assert found.labels.tolist() == [t.labels.tolist() for t in threats]
    assert any("all 10 were tried" in note for note in found.notes)


def test_settings_tell_every_rate_and_default(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0], probes=3, schedule=Schedule(1, 1e-3))
    search = Search(restarts=1, iterations=2, rate=0.07)
    settings = reconstruct(threats, attack="adaptive", search=search, rate=0.02, sigma=0.4).settings
    told = json.dumps(dict(settings))
    assert "0.07" in told
    assert "0.02" in told
    assert "0.4" in told
    assert "0.8" in json.dumps(dict(reconstruct(threats, attack="adaptive", search=search).settings))


@pytest.mark.parametrize(
    ("attack", "options", "match"),
    [
        ("inversion", {"sigma": 1}, "no option 'sigma'"),
        ("joint", {"sigmma": 1}, "sigmma"),
        ("adaptive", {"spread": 1}, "spread"),
        ("generative", {"stage": 1}, "stage"),
        ("filtered", {"energy": 0.5}, "no option 'energy'"),
        ("adaptive", {"sigma": -1}, "sigma"),
        ("joint", {"spread": 0.0}, "spread"),
        ("generative", {"stages": 9}, "9 feature maps"),
        ("joint", {"problem": None}, "problem"),
    ],
)
def test_options_that_an_attack_does_not_have_are_refused(
    kit: Any, attack: str, options: dict[str, Any], match: str
) -> None:
    model = kit.net(dtype=torch.float32)
    threats, _ = kit.threats(model, [0], probes=100, schedule=Schedule(1, 1e-3), generator=kit.generator())
    with pytest.raises(InputError, match=match):
        reconstruct(threats, attack=attack, search=SHORT, **options)


def test_what_is_missing_or_wrong_is_one_clear_error(kit: Any) -> None:
    model = kit.net()
    threats, _ = kit.threats(model, [0, 1], probes=5)
    bare, _ = kit.threats(model, [0], schedule=Schedule(1, 1e-3))
    wrong = kit.threat(model, threats[0].unlearned, labels=torch.tensor([10]))
    ending = kit.drawn(lambda: nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()))
    x, y = kit.digits(2)
    two = kit.threat(ending, kit.stepped(ending, x, y), count=2)
    for given, options, match in (
        (threats, {"attack": "inversoin"}, "did you mean 'inversion'"),
        (threats, {"after": "canonica"}, "did you mean 'canonical'"),
        (threats, {"attack": "adaptive"}, "schedule"),
        (threats, {"attack": "adaptive", "after": "canonical"}, "compares weights and reads no difference"),
        (threats, {"attack": "generative"}, "generator"),
        (threats, {"attack": "filtered"}, "asks for 100 probes and there are 5"),
        (threats, {"at_once": 0}, "at_once"),
        ([], {}, "no threat"),
        (wrong, {}, "a label is 10 and the model has 10 classes"),
        (two, {}, "give them in the threat"),
        *((bare, {"attack": name}, "needs probes") for name in ("adaptive", "joint", "canonical", "filtered", "span")),
    ):
        with pytest.raises(WarpError, match=match):
            reconstruct(given, search=SHORT, **options)


def test_threats_that_have_nothing_in_common_are_not_attacked_together(kit: Any) -> None:
    model = kit.net()
    (first, second), _ = kit.threats(model, [0, 1], schedule=Schedule(2, 1e-3), probes=3)
    others = {
        "original": kit.threats(kit.net(), [0])[0][0],
        "labels": kit.threat(model, second.unlearned),
        "ascent": kit.threat(model, second.unlearned, labels=second.labels, ascent=False),
        "count": kit.threat(model, second.unlearned, labels=torch.tensor([1, 2]), count=2),
    }
    for name, other in others.items():
        with pytest.raises(InputError, match=r"together must .*" + name):
            reconstruct([first, other], search=SHORT)


def test_models_that_give_no_logits_or_take_other_images_are_refused(kit: Any) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = kit.net()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.net(x)}

    one, other = Wrapped(), Wrapped()
    with torch.no_grad():
        other.net.head.bias.add_(1)
    with pytest.raises(InputError, match="returns a dict"):
        reconstruct(kit.threat(one, other, labels=torch.tensor([1])), search=SHORT)
