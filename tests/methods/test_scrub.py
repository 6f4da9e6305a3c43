from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.utils.data import Dataset

from warp_unlearning.data.examples import DatasetExamples, TensorExamples
from warp_unlearning.errors import InputError
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.scrub import Scrub, divergence


def by_hand(kit: Any, model: nn.Module, task: Task, s: Scrub) -> list[dict[str, float]]:
    """Both phases of every epoch; rates by hand for four epochs: 0, .25, .5 are not past one half, .75 is."""
    optimizer = kit.SGD(model, s.momentum, s.weight_decay) if s.optimizer == "sgd" else kit.Adam(model, s.weight_decay)
    rows: list[dict[str, float]] = []

    def drift(x: Tensor) -> tuple[Tensor, Tensor]:
        output, t = model(x), s.temperature
        kl = kl_divergence(Categorical(logits=task.original(x) / t), Categorical(logits=output / t))
        return t * t * kl.mean(), output

    assert s.epochs == 4
    for e, rate in enumerate((1.0, 1.0, 1.0, 0.1)):
        if e < s.max_epochs:
            for index in kit.batches(len(task.forget), s.forget_batch_size, task.streams.generator("forget", e)):
                kl, _ = drift(task.forget.take(index).x)
                optimizer.step(-kl, s.lr * rate)
                rows.append({"forget_divergence": float(kl.detach())})
        for index in kit.batches(len(task.retain), s.retain_batch_size, task.streams.generator("retain", e)):
            x, y = task.retain.take(index)
            kl, output = drift(x)
            entropy = kit.cross_entropies(output, y).mean()
            optimizer.step(s.gamma * entropy + s.alpha * kl, s.lr * rate)
            rows.append({"retain": float(entropy.detach()), "retain_divergence": float(kl.detach())})
    return rows


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "alpha": 0.1, "gamma": 0.7, "max_epochs": 1},
    {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1, "max_epochs": 9},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_the_run_is_the_one_written_out(kit: Any, model: nn.Module, task: Task, options: dict[str, Any]) -> None:
    method = Scrub(
        **{"epochs": 4, "max_epochs": 2, "lr": 0.05, "retain_batch_size": 10, "forget_batch_size": 4} | options
    )
    expected = deepcopy(model).train()
    updates = kit.run(method, model, task)
    rows = by_hand(kit, expected, task, method)
    kit.assert_close(model, expected)
    assert [{n: float(v) for n, v in u.losses.items()} for u in updates] == [
        pytest.approx(r, rel=1e-8, abs=1e-12) for r in rows
    ]
    assert [u.step for u in updates] == list(range(1, len(rows) + 1))
    assert {u.total for u in updates} == {len(rows)}
    passes = [3 * (e < method.max_epochs) + 3 for e in range(4)]
    assert [u.epoch for u in updates] == [e for e, count in enumerate(passes) for _ in range(count)]
    assert [i for i, u in enumerate(updates, 1) if u.ends_epoch] == [sum(passes[: e + 1]) for e in range(4)]


REWINDING: dict[str, Any] = {"epochs": 5, "max_epochs": 3, "lr": 0.1, "temperature": 1.0, "weight_decay": 0.0}
REWINDING |= {"momentum": 0.0, "retain_batch_size": 27, "forget_batch_size": 4}


def mistakes(model: nn.Module, examples: TensorExamples) -> int:
    """Wrong answers in eval mode, one example at a time."""
    was, wrong = model.training, 0
    model.eval()
    with torch.no_grad():
        for x, y in zip(examples.x, examples.y, strict=True):
            wrong += int(model(x.unsqueeze(0))[0].argmax()) != int(y)
    model.train(was)
    return wrong


def checkpoints(kit: Any, task: Task) -> list[nn.Module]:
    """The model at the start and after every epoch of a run that does not rewind."""
    model = kit.trained().train()
    updates = Scrub(**REWINDING).updates(model, task)
    return [deepcopy(model), *(deepcopy(model) for update in updates if update.ends_epoch)]


def validation_with(kit: Any, model: nn.Module, wrong: int) -> TensorExamples:
    """11 examples of the forgotten classes 0 and 1, of which `model` gets so many wrong, and others of class 2."""
    model.eval()
    x = kit.points(60, 5).x
    with torch.no_grad():
        said = model(x).argmax(1)
    chosen = (said < 2).nonzero().flatten()[:11]
    assert len(chosen) == 11
    y = said[chosen].clone()
    y[:wrong] = 1 - y[:wrong]
    # Of class 2, all answered the opposite way, so that counting them would change the target.
    others = (said == 2 if wrong > 5 else said != 2).nonzero().flatten()[:20]
    return TensorExamples(
        torch.cat([x[chosen], x[others]]), torch.cat([y, torch.full((len(others),), 2, dtype=torch.int64)])
    )


@pytest.fixture
def mistaken(kit: Any) -> tuple[list[nn.Module], list[int], Task]:
    """All checkpoints and their mistakes on the forget set."""
    task = kit.task_of(kit.trained())
    kept = checkpoints(kit, task)
    return kept, [mistakes(m, task.forget) for m in kept], task


def test_rewind_returns_the_checkpoint_closest_in_error(
    kit: Any, mistaken: tuple[list[nn.Module], list[int], Task]
) -> None:
    """Against all checkpoints and errors by brute force, for a target at and next to the error of each checkpoint."""
    kept, errors, task = mistaken
    assert len(set(errors)) >= 4, errors
    chosen = set()
    for target in range(12):
        validation = validation_with(kit, kept[-1], target)
        best = min(range(len(kept)), key=lambda i: (abs(errors[i] - target), -i))
        model = kit.trained()
        kit.run(
            Scrub(rewind=True, **REWINDING),
            model,
            kit.task_of(task.original, forget=task.forget, validation=validation),
        )
        assert all(
            torch.equal(a, b)
            for a, b in zip(model.state_dict().values(), kept[best].state_dict().values(), strict=True)
        )
        chosen.add(best)
    assert 0 in chosen
    assert len(chosen) >= 4


def test_checkpoints_follow_moves(kit: Any, mistaken: tuple[list[nn.Module], list[int], Task]) -> None:
    kept, errors, task = mistaken
    early = next(i for i in range(1, len(kept) - 1) if errors[i] not in errors[:i] + errors[i + 1 :])
    validation = validation_with(kit, kept[-1], errors[early])
    task = kit.task_of(task.original, forget=task.forget, validation=validation)
    model, plain = kit.trained(), kept[early]
    orders = {2: [1, 2, 3, 4, 5, 0], 8: [3, 1, 0, 2, 5, 4], 14: [5, 4, 3, 2, 1, 0]}
    moves = {step: kit.permutation(order) for step, order in orders.items()}
    updates = kit.run(Scrub(rewind=True, **REWINDING), model, task, move_after=moves)
    assert len(updates) == 14
    assert not torch.allclose(model[0].weight, plain[0].weight)
    for step in (14, 8, 2):
        back = moves[step].inverse()
        for name, value in model.state_dict().items():
            value.copy_(back.point(name, value).clone())
    kit.assert_close(model, plain)


def test_rewind_needs_validation_examples_of_the_forgotten_classes(kit: Any, model: nn.Module) -> None:
    with pytest.raises(InputError, match="needs a validation set"):
        next(Scrub(rewind=True).updates(model, kit.task_of(model, validation=None)))
    task = kit.task_of(model, validation=kit.points(5, 3, classes=(2,)))
    with pytest.raises(InputError, match="forgotten classes"):
        next(Scrub(rewind=True).updates(model, task))
    next(Scrub(rewind=False).updates(model, task))


@settings(deadline=None)
@given(st.floats(0.25, 8), st.integers(0, 1000))
def test_divergence_is_that_of_torch_distributions(temperature: float, seed: int) -> None:
    teacher, student = 3 * torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    each = kl_divergence(Categorical(logits=teacher / temperature), Categorical(logits=student / temperature))
    found = divergence(teacher, student, temperature=temperature)
    torch.testing.assert_close(found, temperature**2 * each.mean())


class Jittered(Dataset[tuple[Tensor, Tensor]]):
    """Another input each time it is read, as an augmented one."""

    def __init__(self, examples: TensorExamples) -> None:
        self.examples = examples
        self.draws = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x = self.examples.x[i]
        return x + torch.randn(x.shape, generator=self.draws, dtype=x.dtype), self.examples.y[i]


def test_the_teacher_answers_for_the_inputs_that_an_augmented_dataset_gave(kit: Any, model: nn.Module) -> None:
    """With no forget pass and a step of next to no length the student answers like the teacher, input by input."""
    task = kit.task_of(model)
    retain = DatasetExamples(Jittered(task.retain), task.retain.y, torch.device("cpu"))
    model.eval()
    method = Scrub(epochs=2, lr=1e-12, retain_batch_size=8, max_epochs=1)
    updates = method.updates(model, kit.task_of(model, retain=retain))
    drifts = [float(u.losses["retain_divergence"]) for u in updates if "retain_divergence" in u.losses]
    assert len(drifts) == 8
    assert max(drifts) < 1e-9
