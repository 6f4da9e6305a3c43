from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.utils.data import Dataset

from warp_unlearning.data.examples import DatasetExamples, TensorExamples, taken
from warp_unlearning.methods.teacher import Teacher, divergence


def normal(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None)
@given(st.floats(0.25, 8), st.integers(0, 1000))
def test_divergence_is_that_of_torch_distributions(temperature: float, seed: int) -> None:
    teacher, student = normal(6, 4, seed=seed), normal(6, 4, seed=seed + 1)
    each = kl_divergence(Categorical(logits=teacher / temperature), Categorical(logits=student / temperature))
    found = divergence(teacher, student, temperature=temperature)
    torch.testing.assert_close(found, temperature**2 * each.mean())


def test_divergence_is_directed_and_zero_at_the_teacher() -> None:
    a, b = normal(6, 4), normal(6, 4, seed=1)
    assert float(divergence(a, a)) == pytest.approx(0, abs=1e-12)
    assert abs(float(divergence(a, b)) - float(divergence(b, a))) > 1e-2


class Jittered(Dataset[tuple[Tensor, int]]):
    """Gives another input each time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.asked += 1
        return torch.full((3,), float(i + 10 * self.asked), dtype=torch.float64), 0


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 2).double(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)


def test_tensors_are_read_once() -> None:
    model = Counted().eval()
    examples = TensorExamples(normal(5, 3), torch.zeros(5, dtype=torch.int64))
    teacher = Teacher(model, examples)
    index = torch.tensor([4, 0, 0])
    torch.testing.assert_close(taken(teacher(index, examples.x[index])), model.layer(examples.x[index]).detach())
    assert model.calls == 1


def test_a_dataset_is_answered_for_the_inputs_it_gave() -> None:
    model, dataset = Counted().eval(), Jittered()
    teacher = Teacher(model, DatasetExamples(dataset, torch.zeros(5, dtype=torch.int64), torch.device("cpu")))
    assert dataset.asked == 0
    x = normal(2, 3)
    found = taken(teacher(torch.tensor([1, 3]), x))
    torch.testing.assert_close(found, model.layer(x).detach())
    assert not found.requires_grad
