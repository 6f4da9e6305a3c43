from __future__ import annotations

from typing import Any

import torch
from torch import nn

from warp_unlearning import unlearn
from warp_unlearning.methods.protocol import Task
from warp_unlearning.methods.retrain import Retrain, frozen_state
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.symmetry.moves import apply_move
from warp_unlearning.training.recipe import Recipe
from warp_unlearning.training.training import Training, run_training


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_it_is_a_training_from_fresh_weights_on_the_retain_set(kit: Any, model: nn.Module, task: Task) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
    updates = kit.run(Retrain(**settings), model, task)
    expected = kit.network()
    reinitialise(expected, generator=task.streams.generator("initial weights"))
    run_training(Training(expected, task.retain, recipe=Recipe(**settings), streams=task.streams))
    assert same(model, expected)
    assert len(updates) == 12
    assert not Retrain.reads_forget


def test_neither_the_old_weights_nor_the_forget_set_matter(kit: Any, task: Task) -> None:
    models = [kit.network(), kit.network(5)]
    kit.run(Retrain(epochs=2), models[0], task)
    kit.run(Retrain(epochs=2), models[1], kit.task(models[1], forget=kit.points(4, 99)))
    assert same(*models)


def test_augmentation_settings_arrive(kit: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = [SmallResNet(classes=3, width=4, in_channels=2) for _ in range(3)]
    examples = type(kit.points(1, 0))(
        torch.randn(12, 2, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    )
    task = kit.task(models[0], retain=examples)
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 6, "crop_padding": 2, "flip": True}
    kit.run(Retrain(fill=(1.0, -2.0), **settings), models[0], task)
    reinitialise(models[1], generator=task.streams.generator("initial weights"))
    run_training(Training(models[1], examples, recipe=Recipe(**settings), streams=task.streams, fill=(1.0, -2.0)))
    kit.run(Retrain(fill=(0.0, 0.0), **settings), models[2], task)
    assert same(models[0], models[1])
    assert not same(models[0], models[2])


def test_layers_frozen_beforehand_stay_as_they_are() -> None:
    layers = [torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)]
    model = torch.nn.Sequential(*layers)
    for layer in layers[:2]:
        layer.requires_grad_(False)
    layers[1].running_mean.fill_(3.0)
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    before = {n: t.clone() for n, t in model.state_dict().items()}
    after = unlearn(
        model, forget=(x[:4], y[:4]), retain=(x[4:], y[4:]), method=Retrain(epochs=1, batch_size=64)
    ).model.state_dict()
    assert torch.equal(after["0.weight"], before["0.weight"])
    assert torch.equal(after["1.weight"], before["1.weight"])
    assert not torch.equal(after["2.weight"], before["2.weight"])


def test_frozen_state_holds_buffers_of_frozen_layers_alone() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2))
    model[0].requires_grad_(False)
    assert set(frozen_state(model)) == {
        f"0.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_the_first_update_alone_says_that_it_starts_from_fresh_weights(kit: Any, model: nn.Module, task: Task) -> None:
    updates = kit.run(Retrain(epochs=2, batch_size=8), model, task)
    assert [update.restarts for update in updates] == [True, *[False] * 7]
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 8}
    reference = kit.network()
    expected = list(Training(reference, task.retain, recipe=Recipe(**settings), streams=task.streams).updates())
    for found, other in zip(updates, expected, strict=True):
        assert not other.restarts
        assert (found.step, found.of, found.epoch, found.ends_epoch) == (
            other.step,
            other.of,
            other.epoch,
            other.ends_epoch,
        )


def test_moves_reach_the_training_inside(kit: Any, task: Task) -> None:
    """Permuted after its third update, momentum included, it ends as the permuted result of the run left alone."""
    still, moved = kit.network(), kit.network()
    move = kit.permutation([3, 1, 0, 2, 5, 4])
    kit.run(Retrain(epochs=2, batch_size=8), still, task)
    kit.run(Retrain(epochs=2, batch_size=8), moved, task, move_after={3: move})
    apply_move(still, move)
    kit.assert_close(moved, still, tolerance=1e-9)
