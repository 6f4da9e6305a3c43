import pytest
import torch
import torch.nn.functional as F
from torch import nn

from warp_unlearning.attacks.membership.gradient_rows import ComputedRows, DifferenceRows, HeldRows, held
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.errors import DataError


def problem() -> tuple[nn.Module, TensorExamples]:
    generator = torch.Generator().manual_seed(20)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    return model, TensorExamples(x, torch.arange(7) % 3)


def test_a_row_is_the_flattened_gradient_of_its_example() -> None:
    model, examples = problem()
    next(model.parameters()).requires_grad_(False)
    found = ComputedRows(model, examples, "background", "original").part(2, 6)
    trained = [p for p in model.parameters() if p.requires_grad]
    for row, i in enumerate(range(2, 6)):
        loss = F.cross_entropy(model(examples.x[i : i + 1]), examples.y[i : i + 1])
        truth = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
        torch.testing.assert_close(found[row], truth, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_held_rows_are_the_computed_ones(batch_size: int) -> None:
    model, examples = problem()
    rows = ComputedRows(model, examples, "background", "original")
    kept = held(rows, batch_size=batch_size)
    assert len(kept) == len(rows) == 7
    torch.testing.assert_close(kept.part(1, 5), rows.part(1, 5), rtol=1e-13, atol=1e-15)
    assert not kept.rows.requires_grad


def test_a_difference_does_not_change_what_is_held() -> None:
    model, examples = problem()
    rows = ComputedRows(model, examples, "background", "unlearned")
    kept = HeldRows(torch.ones(7, 43, dtype=torch.float64))
    torch.testing.assert_close(DifferenceRows(rows, kept).part(0, 3), rows.part(0, 3) - 1)
    assert torch.equal(kept.rows, torch.ones(7, 43, dtype=torch.float64))


def test_a_gradient_that_is_not_finite_is_named() -> None:
    model, examples = problem()
    examples.x[4] = torch.nan
    with pytest.raises(DataError, match="row 4 of the background set at the unlearned model is not finite"):
        ComputedRows(model, examples, "background", "unlearned").part(3, 7)
    with pytest.raises(DataError, match="no rows"):
        held(HeldRows(torch.empty(0, 3)), batch_size=2)
