from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.defense.step_length import Match, StepLength
from warp_unlearning.models.small_resnet import SmallResNet
from warp_unlearning.symmetry.change_of_basis import ChangeOfBasis
from warp_unlearning.symmetry.compose import Compose
from warp_unlearning.symmetry.head_map import HeadMap
from warp_unlearning.symmetry.move import ChannelMove, Move
from warp_unlearning.symmetry.permutation import Permutation


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return SmallResNet(width=4, classes=3).double()


def mixing(model: nn.Module, generator: torch.Generator) -> Move:
    """Blocks of rows of the last layer through dense matrices: more than a rescaling of entries."""
    matrices = torch.randn(1, 3, 3, generator=generator, dtype=torch.float64) + 3 * torch.eye(3)
    return ChannelMove({"fc.weight": (HeadMap(0, matrices),), "fc.bias": (HeadMap(0, matrices),)})


def moves(model: nn.Module) -> dict[str, Move]:
    generator = torch.Generator().manual_seed(1)
    return {
        "rescaled": ChangeOfBasis().move(model, generator=generator),
        "reordered": Permutation().move(model, generator=generator),
        "both": Compose(ChangeOfBasis(), Permutation()).move(model, generator=generator),
        "mixed": mixing(model, generator),
    }


@pytest.mark.parametrize("kind", ["rescaled", "reordered", "both", "mixed"])
@pytest.mark.parametrize("match", ["length", "effect"])
def test_the_scaled_step_has_the_plain_one_s_length_or_its_effect(kind: str, match: Match) -> None:
    model = network()
    back = moves(model)[kind].inverse()
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(2)
    steps = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters.values()]
    factor = StepLength(back, parameters, match).factor(steps)
    plain = torch.cat([back.covector(n, d).flatten() for n, d in zip(parameters, steps, strict=True)])
    zero = [back.point(n, torch.zeros_like(d)) for n, d in zip(parameters, steps, strict=True)]
    pairs = zip(parameters, steps, zero, strict=True)
    taken = factor * torch.cat([(back.point(n, d) - z).flatten() for n, d, z in pairs])
    if match == "length":
        torch.testing.assert_close(taken.norm(), plain.norm())
    else:
        torch.testing.assert_close(taken @ plain, plain @ plain)


def test_a_permutation_needs_no_scaling() -> None:
    model = network()
    parameters = dict(model.named_parameters())
    steps = [torch.ones_like(p) for p in parameters.values()]
    for match in ("length", "effect"):
        factor = StepLength(moves(model)["reordered"].inverse(), parameters, match).factor(steps)  # type: ignore[arg-type]
        assert float(factor) == pytest.approx(1.0)


def test_where_there_is_no_step_nothing_is_scaled() -> None:
    model = network()
    parameters = dict(model.named_parameters())
    nothing = [torch.zeros_like(p) for p in parameters.values()]
    for match in ("length", "effect"):
        assert float(StepLength(moves(model)["rescaled"], parameters, match).factor(nothing)) == 1.0  # type: ignore[arg-type]
