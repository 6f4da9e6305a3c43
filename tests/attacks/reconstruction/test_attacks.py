from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning import ChangeOfBasis, Conjugate, unlearn
from warp_unlearning.attacks.reconstruction.attacks import (
    ATTACKS,
    closed_form_image,
    find_attack,
    invert,
    invert_adaptively,
    invert_jointly,
    stepped,
)
from warp_unlearning.attacks.reconstruction.metrics import psnr
from warp_unlearning.attacks.reconstruction.reconstruct import reconstruct
from warp_unlearning.attacks.reconstruction.search import Search
from warp_unlearning.attacks.reconstruction.targets import distances, read_targets, readings
from warp_unlearning.attacks.reconstruction.threat import Schedule
from warp_unlearning.attacks.undo.base import NotApplicable
from warp_unlearning.attacks.undo.channels import Channels, channels_of, rescaled
from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.moves import apply_move


def test_every_attack_has_its_name_a_line_and_a_way_to_read_that_exists() -> None:
    assert len(ATTACKS) == len({attack.about for attack in ATTACKS.values()})
    for name, found in ATTACKS.items():
        assert find_attack(name) is found
        assert found.name == name
        assert found.about
        assert "\n" not in found.about
        assert found.after in readings()


@pytest.mark.parametrize(("wrong", "meant"), [("invertion", "inversion"), ("cannonical", "canonical")])
def test_an_unknown_name_is_told_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"no attack '{wrong}'; did you mean '{meant}'"):
        find_attack(wrong)


class Remembered:
    """A symmetry, and the moves it drew."""

    def __init__(self, of: Any) -> None:
        self.of, self.moves = of, []

    def __deepcopy__(self, memo: dict[int, Any]) -> Remembered:
        return self

    @property
    def looks_at(self) -> Any:
        return self.of.looks_at

    def move(self, model: nn.Module, **more: Any) -> Any:
        self.moves.append(self.of.move(model, **more))
        return self.moves[-1]


def conjugated(kit: Any, model: nn.Module, x: Tensor, y: Tensor, spread: float) -> tuple[nn.Module, Any]:
    remembered = Remembered(ChangeOfBasis(law="lognormal", spread=spread))
    done = unlearn(
        model,
        forget=(x, y),
        retain=kit.digits(20, first=50),
        method=kit.Ascent(rate=1e-3),
        defense=Conjugate(remembered),
        defense_seed=4,
    )
    return done.model, remembered.moves[0]


def scales_of(channels: Channels, move: Any, model: nn.Module) -> Tensor:
    """τ of every free channel, read off what the move makes of weights that are all ones."""
    found = torch.zeros(channels.free, dtype=torch.float64)
    for name, value in model.named_parameters():
        if value.dim() == 1 and name in channels.ends:
            classes = channels.ends[name][0]
            free = classes < channels.free
            found[classes[free]] = move.point(name, torch.ones_like(value))[free].detach()
    return found


@pytest.mark.filterwarnings("ignore::warp_unlearning.errors.WarpWarning")
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_true_factors_at_the_true_image_are_the_difference_of_a_conjugated_step(
    kit: Any, norm: bool, spread: float
) -> None:
    model = kit.net(norm=norm)
    x, y = kit.digits(1)
    after, move = conjugated(kit, model, x, y, spread)
    threat = kit.threat(model, after, labels=y, probes=kit.digits(5))
    channels = channels_of(threat.held)
    tau = scales_of(channels, move, model)
    assert bool((tau > 0).all())
    assert float(tau.log().std()) > 0.1
    gradient, targets = kit.gradient(model, x, y), read_targets([threat], after="naive").values
    away = {}
    for power in (-2.0, -1.0, 0.0, 2.0):
        changed = rescaled(channels, gradient, channels.embedded(power * tau.log()))
        away[power] = float(distances({name: v[None, None] for name, v in changed.items()}, targets, "cosine"))
    assert away[-2.0] == pytest.approx(0, abs=1e-8)
    assert min(away[-1.0], away[0.0], away[2.0]) > 1e-3


def test_image_and_factors_together_match_a_conjugated_step_better_than_an_image(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    after, _ = conjugated(kit, model, x, y, 1.0)
    threat = kit.threat(model, after, labels=y, probes=kit.digits(5))
    problem = kit.problem([threat], search=Search(restarts=1, iterations=150))
    fitted, fixed = invert_jointly(problem, pull=1e-4), invert_jointly(problem, rate=1e-12)
    assert float(fitted.losses) < 0.5 * float(fixed.losses)


def test_without_room_for_factors_it_is_plain_inversion(kit: Any) -> None:
    threats, _ = kit.threats(kit.net(), [0, 1], probes=5)
    problem = kit.problem(threats, search=Search(restarts=1, iterations=20))
    plain, jointly = invert(problem), invert_jointly(problem, rate=1e-12)
    torch.testing.assert_close(jointly.images, plain.images, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(jointly.losses, plain.losses, rtol=1e-5, atol=1e-9)


def test_the_pull_keeps_factors_near_one(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    after, _ = conjugated(kit, model, x, y, 1.0)
    threat = kit.threat(model, after, labels=y, probes=kit.digits(5))
    problem = kit.problem([threat], search=Search(restarts=1, iterations=60))
    loose, tight, narrow = (
        float(invert_jointly(problem, **options).losses)
        for options in ({"pull": 1e-6}, {"pull": 1e4}, {"pull": 1.0, "spread": 1e-3})
    )
    fixed = float(invert_jointly(problem, rate=1e-12).losses)
    assert loose < tight
    assert tight == pytest.approx(fixed, rel=0.2)
    assert narrow == pytest.approx(fixed, rel=0.2)


def test_a_network_without_free_channels_and_a_spread_of_nothing_are_refused(kit: Any) -> None:
    linear = kit.drawn(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    threats, _ = kit.threats(linear, [0], probes=5)
    with pytest.raises(NotApplicable, match="no channel"):
        invert_jointly(kit.problem(threats))
    threats, _ = kit.threats(kit.net(), [0], probes=5)
    for spread in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="spread"):
            invert_jointly(kit.problem(threats), spread=spread)


def threat_of(kit: Any, *, rate: float = 0.5, spread: float = 0.0, **more: Any) -> Any:
    model = kit.net()
    x, y = kit.digits(1)
    start = kit.moved(model, spread=spread) if spread else model
    after = kit.stepped(start, x, y, rate=rate)
    return kit.threat(model, after, labels=y, probes=kit.digits(3), schedule=Schedule(1, rate), **more)


def energy(values: Any) -> float:
    return sum(float(v.square().sum()) for v in values.values())


def usual(kit: Any, threat: Any) -> float:
    """The mean energy of a probe's gradient, by a loop."""
    x, y = threat.probes
    return sum(energy(kit.gradient(threat.original, x[i : i + 1], y[i : i + 1])) for i in range(len(y))) / len(y)


def test_values_beyond_an_image_are_clamped(kit: Any) -> None:
    model = kit.mlp()
    x, y = kit.digits(1)
    threat = kit.threat(model, kit.stepped(model, 10 * x, y, rate=0.05), probes=kit.digits(5))
    found = closed_form_image(threat)
    torch.testing.assert_close(found, kit.pixels().images(10 * x)[0].clamp(0, 1), atol=1e-8, rtol=0)


@pytest.mark.parametrize("build", ["net", "no bias", "pooled"])
def test_networks_whose_first_layer_does_not_hold_the_image_give_none(kit: Any, build: str) -> None:
    model = {
        "net": kit.net,
        "no bias": lambda: kit.mlp(bias=False),
        "pooled": lambda: kit.drawn(lambda: nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 10))),
    }[build]()
    x, y = kit.digits(1)
    assert closed_form_image(kit.threat(model, kit.stepped(model, x, y), probes=kit.digits(5))) is None


class Fixed(nn.Module):
    """Something without weights before the first layer, as the normalisation inside of many networks."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.head = how, nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = {"normalised": (x - 0.3) / 0.7, "mirrored": x.flip(-1)}[self.how]
        return self.head(x.flatten(1))


@pytest.mark.parametrize("how", ["normalised", "mirrored"])
def test_what_enters_the_first_layer_is_not_taken_for_the_image(kit: Any, how: str) -> None:
    model = kit.drawn(lambda: Fixed(how))
    x, y = kit.digits(1)
    found = closed_form_image(kit.threat(model, kit.stepped(model, x, y, rate=0.05), probes=kit.digits(5)))
    if found is not None:
        torch.testing.assert_close(found, kit.pixels().images(x)[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("order", ["before", "after"])
def test_true_scales_at_the_true_image_give_the_unlearned_weights(kit: Any, norm: bool, order: Any) -> None:
    model = kit.net(norm=norm)
    x, y = kit.digits(1)
    after = deepcopy(model) if order == "before" else kit.stepped(model, x, y, rate=0.1)
    move = ChangeOfBasis(spread=0.6).move(after, generator=torch.Generator().manual_seed(5))
    apply_move(after, move)
    after = kit.stepped(after, x, y, rate=0.1) if order == "before" else after
    channels = channels_of(kit.threat(model, after, probes=kit.digits(3)).held)
    tau = scales_of(channels, move, model)
    assert float(tau.std()) > 0.1
    origin = {name: p.detach() for name, p in model.named_parameters()}
    found = stepped(channels, origin, kit.gradient(model, x, y), tau, step=0.1, order=order)
    for name, p in after.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-9, atol=1e-11)


def test_the_defender_moves_before_the_step_by_default(kit: Any) -> None:
    problem = kit.problem([threat_of(kit, spread=0.6)], search=Search(restarts=1, iterations=5))
    by_default, before, after = (invert_adaptively(problem, **o) for o in ({}, {"order": "before"}, {"order": "after"}))
    assert torch.equal(by_default.losses, before.losses)
    assert not torch.allclose(after.losses, before.losses)


@pytest.mark.parametrize("ascent", [True, False])
def test_an_attacker_who_expects_no_move_finds_the_image(kit: Any, ascent: bool) -> None:
    # A loss that was lowered turns the sign of the step.
    model, rate = kit.net(), 0.5 if ascent else -0.5
    x, y = kit.digits(1)
    after = kit.stepped(model, x, y, rate=rate)
    schedule = Schedule(1, 0.5) if ascent else Schedule(2, 0.125, ascent=2.0)
    threat = kit.threat(model, after, labels=y, ascent=ascent, probes=kit.digits(3), schedule=schedule)
    search = Search(restarts=1, iterations=200, tv=0.0)
    found = invert_adaptively(kit.problem([threat], search=search), sigma=0.0)
    assert float(psnr(found.images[0, 0], kit.pixels().images(x))) > 25
    # The distance is that of weights, measured by the steps that probes would cause.
    predicted = kit.stepped(model, kit.pixels().inputs(found.images[0, 0]), y, rate=rate)
    apart = energy(kit.difference(predicted, after))
    assert float(found.losses) == pytest.approx(apart / (0.25 * usual(kit, threat)), rel=1e-6)


def test_scales_are_fitted_and_stay_within_three_deviations(kit: Any) -> None:
    losses = {}
    for sigma in (0.0, 0.1, 0.8):
        problem = kit.problem([threat_of(kit, spread=0.6)], search=Search(restarts=1, iterations=80))
        losses[sigma] = float(invert_adaptively(problem, sigma=sigma, order="after", rate=0.02).losses)
        if sigma:
            tau = torch.stack([values["tau"] for values in problem.paths[0]])
            assert max(0.05, 1 - 3 * sigma) - 1e-12 <= float(tau.min()) <= float(tau.max()) <= 1 + 3 * sigma + 1e-12
        if sigma == 0.1:
            assert float(tau.min()) == pytest.approx(0.7)
    assert losses[0.8] < losses[0.1] < losses[0.0]


def test_what_it_must_know_and_values_that_make_no_law(kit: Any) -> None:
    threat = threat_of(kit)
    for sigma in (-0.1, float("nan")):
        with pytest.raises(InputError, match="sigma"):
            invert_adaptively(kit.problem([threat]), sigma=sigma)
    with pytest.raises(InputError, match="order is 'late'"):
        reconstruct(threat, attack="adaptive", order="late")
    linear = kit.drawn(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    pinned, _ = kit.threats(linear, [0], probes=3, schedule=Schedule(1, 1e-3))
    with pytest.raises(NotApplicable, match="no channel"):
        invert_adaptively(kit.problem(pinned))


@pytest.mark.parametrize("rate", [0.05, -0.05])
@pytest.mark.parametrize("steps", [1, 4])
def test_rows_over_biases_are_the_image(kit: Any, steps: int, rate: float) -> None:
    model = kit.mlp()
    for i in range(3):
        x, y = kit.digits(1, first=i)
        after = kit.stepped(model, x, y, rate=rate, steps=steps)
        threat = kit.threat(model, after, ascent=rate > 0, probes=kit.digits(5, first=90))
        torch.testing.assert_close(closed_form_image(threat), kit.pixels().images(x)[0], atol=1e-8, rtol=0)


def test_a_reading_is_named_after_the_attack() -> None:
    found = find_attack("generative@filtered")
    assert (found.name, found.after, found.run) == ("generative", "filtered", ATTACKS["generative"].run)
    assert find_attack("generative", after="filtered") == found
    with pytest.raises(InputError, match="leave after='span' out"):
        find_attack("generative@filtered", after="span")
    with pytest.raises(InputError, match="did you mean 'filtered'"):
        find_attack("generative@filtred")
