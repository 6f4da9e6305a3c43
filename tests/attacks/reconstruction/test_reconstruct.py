from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning import ChangeOfBasis, Conjugate, reconstruct, unlearn
from warp_unlearning.attacks.reconstruction.attacks import attacks
from warp_unlearning.attacks.reconstruction.image_metrics import psnr
from warp_unlearning.attacks.reconstruction.matching import distances
from warp_unlearning.attacks.reconstruction.predicted import Predictor, in_groups
from warp_unlearning.attacks.reconstruction.problem import Search
from warp_unlearning.attacks.reconstruction.reading import read_targets
from warp_unlearning.attacks.reconstruction.reconstruct import targets_at_once
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
    assert any("first layer" in note for note in found.notes)


def test_losses_of_images_in_closed_form_are_those_images_own(kit: Any) -> None:
    threats, _ = of_one_layer(kit, "conjugate")
    found = reconstruct(threats, attack="input-layer", search=SHORT)
    torch.testing.assert_close(found.losses, torch.zeros(2).double(), atol=1e-6, rtol=0)


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


def test_many_targets_through_a_generator_are_searched_for_as_one_at_a_time(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(dtype=torch.float32), [0, 1, 2], generator=kit.generator())
    together, alone = (reconstruct(threats, attack="generative", search=SHORT, at_once=n) for n in (None, 1))
    torch.testing.assert_close(alone.images, together.images, rtol=1e-3, atol=1e-3)


def test_equal_seeds_give_equal_images_and_others_do_not(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0])
    one, same, other = (reconstruct(threats, search=SHORT, seed=s) for s in (3, 3, 4))
    assert torch.equal(one.images, same.images)
    assert not torch.allclose(one.images, other.images)


def test_the_best_restart_is_returned(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    found = reconstruct(threats, search=Search(restarts=4, iterations=12), seed=3)
    assert found.restarts.shape == (2, 4)
    assert torch.equal(found.losses, found.restarts.min(1).values)
    single = reconstruct(threats, search=Search(restarts=1, iterations=12), seed=3)
    torch.testing.assert_close(single.losses, found.restarts[:, 0], rtol=1e-6, atol=1e-9)


PIXELS = ["inversion", "differencing", "filtered", "canonical", "span", "scale-free", "input-layer", "unrolled"]


@pytest.mark.parametrize("attack", PIXELS)
@pytest.mark.parametrize("build", ["net", "no rules"])
def test_losses_are_the_distances_of_the_images(kit: Any, attack: str, build: str) -> None:
    class Scaled(nn.Module):
        """A scale that no layer owns, so that cosines need the updates."""

        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale = kit.ConvNet(norm=False), nn.Parameter(torch.linspace(0.5, 1.5, 8))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x * self.scale)

    if build == "no rules" and attack in ("canonical", "input-layer"):
        pytest.skip("an input that is rescaled by a weight leaves these nothing to read")
    model = kit.net() if build == "net" else kit.drawn(Scaled)
    threats, _ = kit.threats(model, [0, 1], rate=0.2, probes=100, schedule=Schedule(2, 0.1))
    found = reconstruct(threats, attack=attack, search=SHORT)
    distance = "euclidean" if attack == "differencing" else "cosine"
    targets = read_targets(threats, after=found.after, distance=distance)
    schedule = Schedule(2, 0.1) if attack == "unrolled" else None
    predictor = Predictor(model, list(targets.values), schedule)
    updates = predictor(kit.pixels().inputs(found.images), found.labels)
    again = distances(in_groups(updates, 2), targets.values, targets.distance).flatten().detach()
    torch.testing.assert_close(found.losses, again, rtol=1e-6, atol=1e-9)
    assert 0 <= float(found.images.min()) <= float(found.images.max()) <= 1


@pytest.mark.parametrize("attack", list(attacks()))
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


def test_labels_of_several_that_cannot_be_inferred_are_asked_for(kit: Any) -> None:
    model = kit.drawn(lambda: nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()))
    x, y = kit.digits(2)
    with pytest.raises(InputError, match="give them in the threat"):
        reconstruct(kit.threat(model, kit.stepped(model, x, y), count=2), search=SHORT)


@pytest.mark.parametrize("descent", [0.0, 0.5])
@pytest.mark.parametrize("steps", [1, 3])
def test_unrolled_steps_match_at_the_truth_and_better_than_one_step(kit: Any, steps: int, descent: float) -> None:
    model, retain = kit.net(), kit.digits(6, first=200)
    x, y = kit.digits(1)
    schedule = Schedule(steps, 0.4, descent=descent)
    after = kit.stepped(model, x, y, rate=0.4, steps=steps, descent=descent, retain=retain)
    threat = kit.threat(model, after, labels=y, probes=retain, schedule=schedule)
    search = Search(restarts=1, iterations=150, tv=0.0)
    one, all_of = (reconstruct(threat, attack=name, search=search) for name in ("inversion", "unrolled"))
    if steps > 1 or descent:
        assert float(all_of.losses) < 0.5 * float(one.losses)
        assert float(decibels(all_of, kit.pixels().images(x)[None]) - decibels(one, kit.pixels().images(x)[None])) > 1
    else:
        torch.testing.assert_close(all_of.images, one.images, rtol=1e-6, atol=1e-6)


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


@pytest.mark.parametrize("attack", ["adaptive", "joint", "canonical", "filtered", "span"])
def test_attacks_that_need_probes_say_so(kit: Any, attack: str) -> None:
    threats, _ = kit.threats(kit.net(), [0], schedule=Schedule(1, 1e-3))
    with pytest.raises(InputError, match="needs probes"):
        reconstruct(threats, attack=attack, search=SHORT)


def test_what_is_missing_or_wrong_is_one_clear_error(kit: Any) -> None:
    model = kit.net()
    threats, _ = kit.threats(model, [0, 1], probes=5)
    with pytest.raises(InputError, match="did you mean 'inversion'"):
        reconstruct(threats, attack="inversoin")
    with pytest.raises(InputError, match="did you mean 'canonical'"):
        reconstruct(threats, after="canonica", search=SHORT)
    with pytest.raises(InputError, match="schedule"):
        reconstruct(threats, attack="unrolled", search=SHORT)
    with pytest.raises(InputError, match="schedule"):
        reconstruct(threats, attack="adaptive", search=SHORT)
    with pytest.raises(InputError, match="generator"):
        reconstruct(threats, attack="generative", search=SHORT)
    with pytest.raises(InputError, match="asks for 100 probes and there are 5"):
        reconstruct(threats, attack="filtered", search=SHORT)
    with pytest.raises(InputError, match="no threat"):
        reconstruct([])
    for at_once in (0, -1):
        with pytest.raises(InputError, match="at_once"):
            reconstruct(threats, search=SHORT, at_once=at_once)


def test_a_generator_of_another_size_is_refused(kit: Any) -> None:
    wrong = kit.generator()
    object.__setattr__(wrong, "image_shape", (1, 7, 7))
    threats, _ = kit.threats(kit.net(dtype=torch.float32), [0], generator=wrong)
    with pytest.raises(InputError, match=r"1×7×7 and those looked for are 1×8×8"):
        reconstruct(threats, attack="generative", search=SHORT)


@pytest.mark.parametrize("label", [10, -1])
def test_a_label_that_no_class_has_is_refused(kit: Any, label: int) -> None:
    model = kit.net()
    threats, _ = kit.threats(model, [0])
    wrong = kit.threat(model, threats[0].unlearned, labels=torch.tensor([label]))
    with pytest.raises(WarpError, match="label"):
        reconstruct(wrong, search=SHORT)


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


def test_a_schedule_is_never_taken_for_that_of_another_threat(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    threats = [
        kit.threat(model, kit.stepped(model, x, y, rate=r, steps=n), labels=y, probes=kit.digits(3), schedule=s)
        for r, n, s in ((0.1, 2, Schedule(2, 0.1)), (0.6, 3, Schedule(3, 0.6)))
    ]
    try:
        both = reconstruct(threats, attack="unrolled", search=SHORT, at_once=1)
    except InputError as error:
        assert "schedule" in str(error)  # noqa: PT017
        return
    predictor = Predictor(model, list(dict(model.named_parameters())), threats[1].schedule)
    target = read_targets(threats[1:], after="naive").values
    updates = predictor(kit.pixels().inputs(both.images[1:]), both.labels[1:])
    again = distances(in_groups(updates, 1), target, "cosine").flatten().detach()
    torch.testing.assert_close(both.losses[1:], again, rtol=1e-6, atol=1e-9)


def test_unrolled_repeats_ascent_alone(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    down = kit.threat(model, kit.stepped(model, x, y, rate=-0.1), labels=y, ascent=False, schedule=Schedule(2, 0.1))
    with pytest.raises(InputError, match="repeats gradient ascent"):
        reconstruct(down, attack="unrolled", search=SHORT)
    lowered = reconstruct(down, search=Search(restarts=1, iterations=150))
    assert float(decibels(lowered, kit.pixels().images(x)[None])) > 25


def test_a_scalar_parameter_is_no_obstacle(kit: Any) -> None:
    class Heated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.heat = kit.ConvNet(norm=False), nn.Parameter(torch.tensor(0.7))

        def forward(self, x: Tensor) -> Tensor:
            return self.heat * self.net(x)

    threats, truth = kit.threats(kit.drawn(Heated), [0])
    for attack in ("inversion", "scale-free"):
        assert reconstruct(threats, attack=attack, search=SHORT).images.shape == truth.shape


def test_how_many_fit_in_memory_is_at_least_one_and_fewer_for_more_restarts(kit: Any) -> None:
    model = kit.net()
    predictor = Predictor(model, list(dict(model.named_parameters())))
    numbers = sum(p.numel() for p in model.parameters())
    assert targets_at_once(model, predictor, 1) == 2**28 // (12 * numbers)
    assert targets_at_once(model, predictor, 100) < targets_at_once(model, predictor, 1)
    assert targets_at_once(model, predictor, 10**9) == 1


def test_steps_are_watched_with_all_targets_at_once(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1])
    told: list[tuple[int, ...]] = []
    reconstruct(threats, search=Search(restarts=3, iterations=5), watch=lambda step, losses: told.append(losses.shape))
    assert told == [(6,)] * 5


def test_what_an_attack_does_not_read_cannot_be_chosen(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0], probes=3, schedule=Schedule(1, 1e-3))
    with pytest.raises(InputError, match="compares weights and reads no difference"):
        reconstruct(threats, attack="adaptive", after="canonical", search=SHORT)


@pytest.mark.parametrize("wrong", [{"iterations": 3.0}, {"restarts": True}, {"rate": float("inf")}])
def test_searches_are_of_whole_numbers_and_finite_rates(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="whole numbers"):
        Search(**wrong)


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
