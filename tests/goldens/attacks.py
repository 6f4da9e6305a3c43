"""Numbers of image attacks, of the steps that undo a defence, and of the bounds, in float64.

`tests/test_attack_goldens.py` compares them. `python tests/goldens/attacks.py` records them; recorded from f0bb349.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from warp_unlearning import ChangeOfBasis, Threat, reconstruct, reconstruction_floor
from warp_unlearning.attacks.reconstruction.search import Search
from warp_unlearning.attacks.reconstruction.targets import read_targets, readings
from warp_unlearning.attacks.reconstruction.threat import Schedule
from warp_unlearning.data.preprocess import Pixels
from warp_unlearning.models.generator import StageList
from warp_unlearning.symmetry.moves import apply_move

_spec = spec_from_file_location("make", Path(__file__).with_name("make.py"))
assert _spec is not None
assert _spec.loader is not None
make = module_from_spec(_spec)
_spec.loader.exec_module(make)
FILE = Path(__file__).with_name("attacks.npz")
RATE = 1e-3
SEARCH = Search(restarts=2, iterations=20)
ATTACKS = (
    *("differencing", "inversion", "filtered", "generative", "adaptive", "canonical", "span", "filter", "conservation"),
    *("scale-free", "input-layer", "joint"),
)
CASES = [f"{network}/{count}" for network in ("mlp", "conv") for count in (1, 2)]


def found(case: str) -> dict[str, Tensor]:
    """For a network and so many images forgotten together: the losses of every attack, and what every way to read the
    difference of moved models leaves of it, on a few fixed directions; for one image the bounds too.
    """
    network, count = case.split("/")
    model, together = make._trained(network).eval(), int(count)
    plain, moved = ([_threat(model, first, together, move=move) for first in (0, 20)] for move in (False, True))
    values: dict[str, Tensor] = {}
    for name in ATTACKS:
        if name != "input-layer" or together == 1:
            values[name] = reconstruct(plain, attack=name, search=SEARCH).restarts
    values["labels"] = reconstruct(
        [_threat(model, 0, together, move=True, labelled=False)], attack="span", search=SEARCH
    ).restarts
    for name in readings():
        values[f"reading {name}"] = _sketch(read_targets(moved, after=name).values)
    if together == 1:
        for seen in ("teleported", "conjugated"):
            floor = reconstruction_floor(model, data=make._digits(), seen=seen, draws=50, coordinates=64, components=2)
            json = sorted(make.numbers(asdict(floor)))
            values[f"bounds {seen}"] = torch.tensor([value for _, value in json], dtype=torch.float64)
    return values


def _threat(model: nn.Module, first: int, count: int, *, move: bool, labelled: bool = True) -> Threat:
    x, y = (part[first : first + count] for part in make._digits())
    after = deepcopy(model)
    nn.functional.cross_entropy(after(x), y).backward()
    with torch.no_grad():
        for parameter in after.parameters():
            parameter += RATE * parameter.grad
            parameter.grad = None
    if move:
        apply_move(after, ChangeOfBasis(spread=0.3).move(after, generator=torch.Generator().manual_seed(first)))
    return Threat(
        model,
        after,
        Pixels((1, 8, 8), (0.5,), (0.5,)),
        labels=y if labelled else None,
        count=count,
        probes=tuple(part[60:180] for part in make._digits()),
        generator=_generator(),
        schedule=Schedule(1, RATE),
    )


def _generator(made: list[StageList] = []) -> StageList:  # noqa: B006, one for all threats
    if not made:
        draw = np.random.RandomState(1)
        stages = [nn.Sequential(nn.Linear(5, 24), nn.Softplus()), nn.Sequential(nn.Linear(24, 64), nn.Sigmoid())]
        stages[1].append(nn.Unflatten(1, (1, 8, 8)))
        for stage in stages:
            for parameter in stage.double().parameters():
                parameter.data.copy_(torch.from_numpy(draw.normal(size=tuple(parameter.shape))))
        made.append(StageList(stages, (5,), (1, 8, 8)))
    return made[0]


def _sketch(values: dict[str, Tensor]) -> Tensor:
    draw = np.random.RandomState(2)
    parts = [
        torch.stack([v.flatten(1) @ torch.from_numpy(draw.normal(size=(v[0].numel(), 4)))]).sum(0)
        for _, v in sorted(values.items())
    ]
    return torch.stack(parts).sum(0)


def _all() -> Iterator[tuple[str, np.ndarray]]:
    for case in CASES:
        for name, value in found(case).items():
            yield f"{case}/{name}", value.numpy()


if __name__ == "__main__":
    np.savez_compressed(FILE, **dict(_all()))
