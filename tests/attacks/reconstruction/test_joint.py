from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning import ChangeOfBasis, Conjugate, unlearn
from warp_unlearning.attacks.reconstruction import joint
from warp_unlearning.attacks.reconstruction.joint import invert_jointly
from warp_unlearning.attacks.reconstruction.matching import distances
from warp_unlearning.attacks.reconstruction.predicted import in_groups
from warp_unlearning.attacks.reconstruction.problem import Search
from warp_unlearning.attacks.reconstruction.reading import read_targets
from warp_unlearning.attacks.undo.base import Held, NotApplicable
from warp_unlearning.attacks.undo.channels import Channels, channels_of
from warp_unlearning.errors import InputError


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
    gradient = {name: g[None] for name, g in kit.gradient(model, x, y).items()}
    targets = read_targets([threat], after="naive").values
    away = {}
    for power in (-2.0, -1.0, 0.0, 2.0):
        changed = joint._with_factors(channels, gradient, power * tau.log()[None])
        away[power] = float(distances(in_groups(changed, 1), targets, "cosine"))
    assert away[-2.0] == pytest.approx(0, abs=1e-8)
    assert min(away[-1.0], away[0.0], away[2.0]) > 1e-3


def test_image_and_factors_together_match_a_conjugated_step_better_than_an_image(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    after, _ = conjugated(kit, model, x, y, 1.0)
    threat = kit.threat(model, after, labels=y, probes=kit.digits(5))
    problem, search = kit.problem([threat]), Search(restarts=1, iterations=150)
    with_factors = invert_jointly(problem, search, threat.held, pull=1e-4)
    fixed = invert_jointly(problem, search, threat.held, rate=1e-12)
    assert float(with_factors.losses) < 0.5 * float(fixed.losses)


def test_without_room_for_factors_it_is_plain_inversion(kit: Any) -> None:
    from warp_unlearning.attacks.reconstruction.inversion import invert

    threats, _ = kit.threats(kit.net(), [0, 1], probes=5)
    problem, search = kit.problem(threats), Search(restarts=1, iterations=20)
    plain, jointly = invert(problem, search), invert_jointly(problem, search, threats[0].held, rate=1e-12)
    torch.testing.assert_close(jointly.images, plain.images, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(jointly.losses, plain.losses, rtol=1e-5, atol=1e-9)


def test_the_pull_keeps_factors_near_one(kit: Any) -> None:
    model = kit.net()
    x, y = kit.digits(1)
    after, _ = conjugated(kit, model, x, y, 1.0)
    threat = kit.threat(model, after, labels=y, probes=kit.digits(5))
    problem, search = kit.problem([threat]), Search(restarts=1, iterations=60)
    loose, tight, narrow = (
        float(invert_jointly(problem, search, threat.held, **options).losses)
        for options in ({"pull": 1e-6}, {"pull": 1e4}, {"pull": 1.0, "spread": 1e-3})
    )
    fixed = float(invert_jointly(problem, search, threat.held, rate=1e-12).losses)
    assert loose < tight
    assert tight == pytest.approx(fixed, rel=0.2)
    assert narrow == pytest.approx(fixed, rel=0.2)


def test_a_network_without_free_channels_and_a_spread_of_nothing_are_refused(kit: Any) -> None:
    linear = kit.drawn(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    threats, _ = kit.threats(linear, [0], probes=5)
    with pytest.raises(NotApplicable, match="no channel"):
        invert_jointly(kit.problem(threats), Search(iterations=1), Held(linear, kit.digits(5)))
    threats, _ = kit.threats(kit.net(), [0], probes=5)
    for spread in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="spread"):
            invert_jointly(kit.problem(threats), Search(iterations=1), threats[0].held, spread=spread)
