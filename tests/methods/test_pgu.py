from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import log
from typing import Any

import numpy as np
import pytest
import torch
from tests.networks import ARCHITECTURES, GEOMETRIES, Calls
from tests.oracles.warp_loop import inputs, leading
from torch import Tensor, nn
from torch.nn import functional as F

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import InputError, WarpWarning
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.pgu import ProjectedGradient
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.symmetry.permutation import Permutation
from warp_unlearning.symmetry.rescaling import ChangeOfBasis


def loss_by_loop(output: Tensor, y: Tensor, offset: float, entropy_weight: float) -> float:
    total = 0.0
    for row, label in zip(output.tolist(), y.tolist(), strict=True):
        odds = np.exp(np.array(row) - max(row))
        p = odds / odds.sum()
        total += -log(1 - (p[label] - offset)) - entropy_weight * -sum(q * log(q) for q in p)
    return total / len(y)


def differentiable_loss(output: Tensor, y: Tensor, offset: float, entropy_weight: float) -> Tensor:
    p = torch.softmax(output, 1)
    return (-torch.log(1 - p[torch.arange(len(y)), y] + offset) + entropy_weight * (p * p.log()).sum(1)).mean()


@pytest.mark.parametrize(("offset", "entropy_weight"), [(0.05, 0.2), (0.3, 0.0), (1.0, 2.0)])
def test_the_loss_is_that_of_single_examples_and_finite_where_a_label_is_certain(
    kit: Any, offset: float, entropy_weight: float
) -> None:
    """On a layer that hands its inputs on as logits."""
    method = ProjectedGradient(offset=offset, entropy_weight=entropy_weight, energy=0.5, stop=False, batch_size=9)
    certain = torch.tensor([[800.0, 0.0, 0.0], [0.0, 800.0, 0.0]]).double(), torch.tensor([0, 0])
    points = kit.points(9, 4, inputs=3)
    for x, y, expected in (
        (3 * points.x, points.y, loss_by_loop(3 * points.x, points.y, offset, entropy_weight)),
        (*certain, (-log(offset) - log(1 + offset)) / 2),
    ):
        model = nn.Linear(3, 3, bias=False).double().eval()
        nn.init.eye_(model.weight)
        sets = {"forget": TensorExamples(x, y), "retain": points}
        update = next(method.updates(model, kit.task_of(model, **sets)))
        assert float(update.losses["forget"]) == pytest.approx(expected, rel=1e-9)


def projected_by_hand(
    kit: Any, model: nn.Module, task: Task, s: ProjectedGradient, paths: Sequence[str]
) -> list[dict[str, float]]:
    """W ← W − step (1 − P): for every group of every layer a dense projector beside the leading singular vectors of
    what the retained examples put into it.
    """
    chosen = torch.randperm(len(task.retain), generator=task.streams.generator("samples"))[: s.samples]
    projectors, rows = {}, []
    for path, columns in inputs(model, [task.retain.x[chosen]], paths, constant=False).items():
        bases = [leading(x, s.energy, None, None, s.rule) for x in columns]
        projectors[f"{path}.weight"] = torch.stack([torch.eye(len(b)).double() - b @ b.T for b in bases])
    weights = {name: model.get_parameter(name) for name in projectors}
    buffers = {name: torch.zeros_like(w) for name, w in weights.items()}
    for e in range(s.epochs):
        rate = s.lr * (s.last_lr / s.lr) ** (e / (s.epochs - 1))
        for index in kit.batches(len(task.forget), s.batch_size, task.streams.generator("forget", e)):
            x, y = task.forget.take(index)
            loss = differentiable_loss(model(x), y, s.offset, s.entropy_weight)
            rows.append({"forget": float(loss.detach())})
            gradients = torch.autograd.grad(loss, list(weights.values()))
            with torch.no_grad():
                for (name, w), g in zip(weights.items(), gradients, strict=True):
                    buffers[name] = s.momentum * buffers[name] + g + s.weight_decay * w
                    groups = len(projectors[name])
                    step = buffers[name].reshape(groups, len(w) // groups, -1) @ projectors[name]
                    w.sub_(rate * step.reshape(w.shape))
    return rows


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"rule": "energy", "energy": 0.9, "entropy_weight": 1.0},
        {"samples": 5, "energy": 0.8},
    ],
    ids=str,
)
def test_the_run_is_the_one_written_out(kit: Any, settings: dict[str, Any]) -> None:
    method = ProjectedGradient(
        **({"epochs": 4, "batch_size": 8, "energy": 0.7, "lr": 0.5, "last_lr": 0.1, "stop": False} | settings)
    )
    model = kit.trained()
    task, expected = kit.task_of(model), deepcopy(model).eval()
    updates = kit.run(method, model, task)
    rows = projected_by_hand(kit, expected, task, method, ("0", "3"))
    kit.assert_close(model, expected)
    kit.assert_updates(updates, rows, 2)
    assert set(updates[0].frozen) == {"1.weight", "1.bias", "3.bias"}
    assert all(bool(mask.all()) for u in updates for mask in u.frozen.values())


def right(model: nn.Module, examples: Any) -> float:
    with torch.no_grad():
        return sum(
            int(model(x.unsqueeze(0))[0].argmax()) == int(y) for x, y in zip(examples.x, examples.y, strict=True)
        ) / len(examples)


def brute_force_stop(start: nn.Module, task: Task) -> tuple[int, bool, nn.Module, float]:
    """When to stop, whether to go back then, the model to keep and the last gap, from a run with all models kept."""
    model = deepcopy(start).eval()
    updates = ProjectedGradient(**STOPPING, stop=False).updates(model, task)
    kept = [deepcopy(model), *(deepcopy(model) for update in updates if update.ends_epoch)]
    gaps = [right(m, task.forget) - right(m, task.validation) for m in kept]
    for e in range(1, len(kept)):
        if gaps[e] <= 0:
            back = abs(gaps[e - 1]) < abs(gaps[e])
            return e, back, kept[e - 1 if back else e], gaps[e]
    return len(kept) - 1, False, kept[-1], gaps[-1]


STOPPING: dict[str, Any] = {"epochs": 12, "batch_size": 11, "energy": 0.5, "lr": 0.5, "last_lr": 0.5}


def task_with_mistakes(kit: Any, start: nn.Module, wrong: int) -> Task:
    """A validation set of 22 examples, twice the forget set, of which the start gets so many wrong."""
    pool = kit.points(22, 8)
    y = deepcopy(start).eval()(pool.x).argmax(1)
    y[:wrong] = (y[:wrong] + 1) % 3
    return kit.task_of(start, validation=TensorExamples(pool.x, y))


def test_it_stops_where_a_search_over_all_epochs_would(kit: Any) -> None:
    """Validation sets of every accuracy, so that runs stop early and late, and keep either of the last two models."""
    start = kit.trained()
    outcomes = set()
    for wrong in range(23):
        task = task_with_mistakes(kit, start, wrong)
        stopped, went_back, expected, gap = brute_force_stop(start, task)
        model = deepcopy(start)
        assert len(kit.run(ProjectedGradient(**STOPPING), model, task)) == stopped
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), expected.state_dict().values(), strict=True)
        )
        outcomes.add((stopped, went_back, gap))
    assert {went_back for _, went_back, _ in outcomes} == {True, False}
    assert len({stopped for stopped, _, _ in outcomes}) >= 3
    assert 0 in {gap for _, _, gap in outcomes}


def test_the_weights_it_goes_back_to_follow_moves(kit: Any) -> None:
    start, order = kit.trained(), [1, 2, 3, 4, 5, 0]
    for wrong in range(23):
        task = task_with_mistakes(kit, start, wrong)
        stopped, went_back, expected, _ = brute_force_stop(start, task)
        if went_back and stopped > 1:
            break
    else:
        raise AssertionError("no case goes back after its first epoch")
    model = deepcopy(start)
    kit.run(ProjectedGradient(**STOPPING), model, task, move_after={stopped: kit.permutation(order)})
    torch.testing.assert_close(model[0].weight, expected[0].weight[order])
    torch.testing.assert_close(model[3].weight, expected[3].weight[:, order])


def test_it_runs_to_the_end_without_a_validation_set_or_where_the_forget_set_stays_better_known(kit: Any) -> None:
    model = kit.trained()
    assert len(kit.run(ProjectedGradient(epochs=3), kit.trained(), kit.task_of(model, validation=None))) == 3
    task = task_with_mistakes(kit, model, 20)
    start = deepcopy(model)
    assert len(kit.run(ProjectedGradient(epochs=3, batch_size=11, lr=1e-4, energy=0.5), model, task)) == 3
    assert not torch.equal(model[0].weight, start[0].weight)


def test_a_network_without_linear_maps_is_refused(kit: Any, task: Task) -> None:
    scale = Calls(lambda m, x: x * m.factor, factor=nn.Parameter(torch.ones(5).double()))
    with pytest.raises(InputError, match="no Linear or Conv layer"):
        next(ProjectedGradient().updates(scale, task))


NETWORKS = {**GEOMETRIES, **{name: ARCHITECTURES[name] for name in ("mobile", "squeeze and excitation", "group norm")}}


def examples_for(shape: tuple[int, ...]) -> dict[str, Any]:
    x = torch.randn(30, *shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    y = torch.arange(30) % 3
    return {"forget": TensorExamples(x[:8], y[:8]), "retain": TensorExamples(x[8:], y[8:]), "validation": None}


@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_geometry_is_projected(kit: Any, name: str) -> None:
    build, shape = NETWORKS[name]
    torch.manual_seed(3)
    model = build().double().eval()
    task, expected = kit.task_of(model, **examples_for(shape)), deepcopy(model)
    method = ProjectedGradient(
        epochs=3, batch_size=4, energy=0.6, samples=12, lr=0.3, last_lr=0.1, momentum=0.5, weight_decay=0.1, stop=False
    )
    kit.run(method, model, task)
    paths = [path for path, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    projected_by_hand(kit, expected, task, method, paths)
    kit.assert_close(model, expected, tolerance=1e-9)
    assert all(not torch.equal(model.get_submodule(p).weight, task.original.get_submodule(p).weight) for p in paths)


def test_a_layer_that_retained_examples_never_reach_may_move(kit: Any) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    sets, before = examples_for((1, 6, 6)), deepcopy(model.double().eval())
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight.abs())
        model[0].bias.fill_(0.0)
    sets["retain"] = TensorExamples(-sets["retain"].x.abs(), sets["retain"].y)
    sets["forget"] = TensorExamples(sets["forget"].x.abs(), sets["forget"].y)
    task = kit.task_of(model, **sets)
    kit.run(ProjectedGradient(epochs=2), model, task)
    assert not torch.equal(model[2].weight, before[2].weight)
    torch.testing.assert_close(model(task.retain.x), task.original(task.retain.x))


@pytest.mark.parametrize("name", ["mobile", "strided"])
@pytest.mark.parametrize("symmetry", [Permutation(), ChangeOfBasis()], ids=lambda s: type(s).__name__)
def test_the_spans_of_groups_follow_moves(kit: Any, name: str, symmetry: Any) -> None:
    """With all energy kept the function on retained examples stays, whatever moves come between the updates."""
    build, shape = NETWORKS[name]
    torch.manual_seed(3)
    model = build().double().eval()
    sets = examples_for(shape)
    sets["retain"] = TensorExamples(sets["retain"].x[:1], sets["retain"].y[:1])
    task = kit.task_of(model, **sets)
    updates = ProjectedGradient(energy=1.0, epochs=6, lr=0.2, momentum=0.5).updates(model, task)
    moved = None
    for turn in range(6):
        updates.send(moved)
        moved = symmetry.move(model, generator=torch.Generator().manual_seed(turn))
        apply_move(model, moved)
    with torch.no_grad():
        torch.testing.assert_close(model(task.retain.x), task.original(task.retain.x), rtol=1e-8, atol=1e-8)
        assert (model(task.forget.x) - task.original(task.forget.x)).abs().max() > 1e-3


def test_layers_that_it_leaves_are_named(kit: Any) -> None:
    def way(m: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(m.first(m.words(x).mean(1)))
        return m.last(hidden + F.linear(hidden, m.first.weight))

    model = Calls(way, words=nn.Embedding(7, 5), first=nn.Linear(5, 5), last=nn.Linear(5, 3)).double().eval()
    x, y = torch.randint(0, 7, (30, 4)), torch.arange(30) % 3
    task = kit.task_of(model, forget=TensorExamples(x[:8], y[:8]), retain=TensorExamples(x[8:], y[8:]), validation=None)
    before = deepcopy(model.state_dict())
    with pytest.warns(WarpWarning, match=r"pgu leaves words\.weight, first\.weight as they are"):
        kit.run(ProjectedGradient(epochs=2, energy=0.5), model, task)
    assert [n for n, t in model.state_dict().items() if not torch.equal(t, before[n])] == ["last.weight"]
