"""On a GPU defended requests end where they end on the CPU, in lanes or alone."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from warp_unlearning import unlearn
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.defense.registry import make_defense
from warp_unlearning.gpu.graphs import Compute
from warp_unlearning.gpu.lanes import side_by_side
from warp_unlearning.methods import make_method
from warp_unlearning.methods.base import Task
from warp_unlearning.randomness import Streams
from warp_unlearning.unlearning.driver import drive

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")
METHOD = make_method("ngp", epochs=3, batch_size=64)


def problem() -> tuple[nn.Module, TensorExamples, TensorExamples]:
    x, y = (torch.from_numpy(part[200:400]) for part in load_digits(return_X_y=True))
    examples = TensorExamples((x / 8 - 1).reshape(-1, 1, 8, 8), y.long())
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    ).double()
    return model, examples.select(torch.arange(40)), examples.select(torch.arange(40, 200))


def far(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference relative to the largest entry of a tensor."""
    return max(float((one[n].cpu() - v.cpu()).abs().max() / v.abs().max().cpu()) for n, v in other.items())


@pytest.mark.parametrize("defense", ["warp", "fastwarp", "warp_guarded", "cob", "conjugate"])
def test_a_request_ends_as_on_the_cpu(defense: str) -> None:
    model, forget, retain = problem()
    ends = [
        unlearn(model, forget=forget, retain=retain, method=METHOD, defense=defense, defense_seed=1, device=device)
        for device in ("cpu", "cuda")
    ]
    assert [c.scale for c in ends[0].teleports] == [c.scale for c in ends[1].teleports]
    assert far(ends[1].model.state_dict(), ends[0].model.state_dict()) < 1e-8


@pytest.mark.parametrize("defense", [None, "warp", "fastwarp"])
def test_lanes_end_as_requests_alone(defense: str | None) -> None:
    model, forget, retain = problem()
    original = deepcopy(model).to(GPU).requires_grad_(False).eval()
    sets = [part.to(GPU) for part in (forget, retain)]

    def request(seed: int, compute: Compute, ends: dict[int, dict[str, Tensor]]) -> Iterator[object]:
        working = deepcopy(original).requires_grad_(True)
        task = Task(*sets, None, original, 10, Streams(seed, "lanes"), compute)
        guarding = None if defense is None else make_defense(defense)
        yield from drive(working, task, METHOD, defense=guarding, secret=Streams.secret(seed))
        torch.cuda.current_stream().synchronize()
        ends[seed] = working.state_dict()

    found: list[dict[int, dict[str, Tensor]]] = [{}, {}]
    for at_once, ends in zip((1, 4), found, strict=True):
        compute = Compute(GPU, "float32", capture=True)
        list(side_by_side([partial(request, i, compute, ends) for i in range(4)], at_once=at_once, device=GPU))
    for seed, end in found[0].items():
        assert far(found[1][seed], end) < 1e-8
