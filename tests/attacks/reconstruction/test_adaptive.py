from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from warp_unlearning.attacks.reconstruction import adaptive
from warp_unlearning.attacks.reconstruction.adaptive import invert_adaptively
from warp_unlearning.attacks.reconstruction.problem import Search
from warp_unlearning.attacks.reconstruction.reconstruct import reconstruct
from warp_unlearning.attacks.reconstruction.threat import Schedule
from warp_unlearning.attacks.undo.base import NotApplicable
from warp_unlearning.attacks.undo.channels import channels_of
from warp_unlearning.errors import InputError
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.rescaling import ChangeOfBasis


def scales_of(channels: Any, move: Any, model: nn.Module) -> torch.Tensor:
    found = torch.zeros(channels.free, dtype=torch.float64)
    for name, p in model.named_parameters():
        if p.dim() == 1 and name in channels.ends:
            classes = channels.ends[name][0]
            free = classes < channels.free
            found[classes[free]] = move.point(name, torch.ones_like(p))[free].detach()
    return found


@pytest.mark.parametrize("norm", [False, True])
def test_true_scales_at_the_true_image_give_the_weights_of_a_step_after_the_move(kit: Any, norm: bool) -> None:
    from copy import deepcopy

    model = kit.net(norm=norm)
    x, y = kit.digits(1)
    moved = deepcopy(model)
    move = ChangeOfBasis(spread=0.6).move(moved, generator=torch.Generator().manual_seed(5))
    apply_move(moved, move)
    after = kit.stepped(moved, x, y, rate=0.1)
    channels = channels_of(kit.threat(model, after, probes=kit.digits(3)).held)
    tau = scales_of(channels, move, model)
    assert float(tau.std()) > 0.1
    origin = {name: p.detach() for name, p in model.named_parameters()}
    found = adaptive._stepped(channels, origin, kit.gradient(model, x, y), tau, 0.1, "before")
    for name, p in after.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-9, atol=1e-11)
    reached = {name: p.detach()[None] for name, p in after.named_parameters()}
    near = adaptive._apart({name: v[None] for name, v in found.items()}, reached, 1)
    far = adaptive._apart({name: v[None] for name, v in origin.items()}, reached, 1)
    assert float(near) == pytest.approx(0, abs=1e-18)
    expected = sum(float((origin[n] - p.detach()).square().sum()) for n, p in after.named_parameters())
    assert float(far) == pytest.approx(expected)


def test_a_move_after_the_step_is_the_other_order(kit: Any) -> None:
    model = kit.net(norm=True)
    x, y = kit.digits(1)
    after = kit.stepped(model, x, y, rate=0.1)
    move = ChangeOfBasis(spread=0.6).move(after, generator=torch.Generator().manual_seed(5))
    apply_move(after, move)
    channels = channels_of(kit.threat(model, after, probes=kit.digits(3)).held)
    tau = scales_of(channels, move, model)
    origin = {name: p.detach() for name, p in model.named_parameters()}
    found = adaptive._stepped(channels, origin, kit.gradient(model, x, y), tau, 0.1, "after")
    for name, p in after.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-9, atol=1e-11)
    with pytest.raises(InputError, match="order is 'late'"):
        reconstruct(
            kit.threat(model, after, labels=y, probes=kit.digits(3), schedule=Schedule(1, 0.1)),
            attack="adaptive",
            order="late",
        )


def threat_of(kit: Any, *, rate: float = 0.5, spread: float = 0.0, **more: Any) -> Any:
    model = kit.net()
    x, y = kit.digits(1)
    start = kit.moved(model, spread=spread) if spread else model
    after = kit.stepped(start, x, y, rate=rate)
    return kit.threat(model, after, labels=y, probes=kit.digits(3), schedule=Schedule(1, rate), **more)


def test_without_a_move_an_attacker_who_knows_of_none_finds_the_image(kit: Any) -> None:
    from warp_unlearning.attacks.reconstruction.image_metrics import psnr

    threat = threat_of(kit)
    found = invert_adaptively(kit.problem([threat]), Search(restarts=1, iterations=200, tv=0.0), [threat], sigma=0.0)
    truth = kit.pixels().images(kit.digits(1)[0])
    assert float(psnr(found.images[0, 0], truth)) > 25
    # The distance is that of weights, measured by the steps that probes would cause.
    predicted = kit.stepped(threat.original, kit.pixels().inputs(found.images[0, 0]), threat.labels, rate=0.5)
    apart = energy(kit.difference(predicted, threat.unlearned))
    assert float(found.losses) == pytest.approx(apart / (0.25 * usual(kit, threat)), rel=1e-6)


def energy(values: Any) -> float:
    return sum(float(v.square().sum()) for v in values.values())


def usual(kit: Any, threat: Any) -> float:
    """The mean energy of a probe's gradient, by a loop."""
    x, y = threat.probes
    return sum(energy(kit.gradient(threat.original, x[i : i + 1], y[i : i + 1])) for i in range(len(y))) / len(y)


def test_the_sign_of_a_loss_that_was_lowered(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    after = kit.stepped(model, x, y, rate=-0.5)
    threat = kit.threat(
        model, after, labels=y, ascent=False, probes=kit.digits(3), schedule=Schedule(2, 0.125, ascent=2.0)
    )
    assert adaptive._step(threat) == pytest.approx(-0.5)
    problem = kit.problem([threat])
    found = invert_adaptively(problem, Search(restarts=1, iterations=60, tv=0.0), [threat], sigma=0.0)
    nothing = energy(kit.difference(model, after)) / (0.25 * usual(kit, threat))
    assert float(found.losses) < 0.2 * nothing


def test_scales_are_fitted_and_stay_within_three_deviations(kit: Any, monkeypatch: Any) -> None:
    threat = threat_of(kit, spread=0.6)
    seen: list[torch.Tensor] = []
    stepped = adaptive.descend

    def spy(variables: Any, objective: Any, **more: Any) -> Any:
        def watched(values: Any) -> Any:
            seen.append(values["tau"].detach().clone() if "tau" in values else torch.ones(1))
            return objective(values)

        assert list(variables) == (["image", "tau"] if more.get("in_turn") else ["image"])
        return stepped(variables, watched, **more)

    monkeypatch.setattr(adaptive, "descend", spy)
    losses = {}
    for sigma in (0.0, 0.1, 0.8):
        seen.clear()
        search = Search(restarts=1, iterations=80)
        losses[sigma] = float(invert_adaptively(kit.problem([threat]), search, [threat], sigma=sigma, rate=0.02).losses)
        tau = torch.cat([t.flatten() for t in seen])
        assert float(tau.min()) >= max(0.05, 1 - 3 * sigma) - 1e-12
        assert float(tau.max()) <= 1 + 3 * sigma + 1e-12
        if sigma == 0.1:
            assert float(tau.min()) == pytest.approx(0.7)
    assert losses[0.8] < losses[0.1] < losses[0.0]


def test_two_threats_are_fitted_to_their_own_weights(kit: Any) -> None:
    model = kit.net()
    threats = []
    for i in range(2):
        x, y = kit.digits(1, first=i)
        threats.append(
            kit.threat(
                model,
                kit.stepped(kit.moved(model, seed=i), x, y, rate=0.5),
                labels=y,
                probes=kit.digits(3),
                schedule=Schedule(1, 0.5),
            )
        )
    search = Search(restarts=2, iterations=10)
    both = invert_adaptively(kit.problem(threats, restarts=2), search, threats)
    first = invert_adaptively(kit.problem(threats[:1], restarts=2), search, threats[:1])
    torch.testing.assert_close(both.images[:1], first.images, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(both.losses[:1], first.losses, rtol=1e-6, atol=1e-12)
    assert not torch.allclose(both.losses[0], both.losses[1], rtol=1e-3)


def test_what_it_must_know_and_values_that_make_no_law(kit: Any) -> None:
    threat = threat_of(kit)
    for sigma in (-0.1, float("nan")):
        with pytest.raises(InputError, match="sigma"):
            invert_adaptively(kit.problem([threat]), Search(iterations=1), [threat], sigma=sigma)
    plain, _ = kit.threats(kit.net(), [0], probes=3)
    with pytest.raises(InputError, match="schedule"):
        invert_adaptively(kit.problem(plain), Search(iterations=1), plain)
    bare, _ = kit.threats(kit.net(), [0], schedule=Schedule(1, 1e-3))
    with pytest.raises(InputError, match="needs probes"):
        invert_adaptively(kit.problem(bare), Search(iterations=1), bare)
    linear = kit.drawn(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    pinned, _ = kit.threats(linear, [0], probes=3, schedule=Schedule(1, 1e-3))
    with pytest.raises(NotApplicable, match="no channel"):
        invert_adaptively(kit.problem(pinned), Search(iterations=1), pinned)
