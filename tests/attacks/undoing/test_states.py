from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.undoing import Held, difference, make_pre_step, undone_model
from warp_unlearning.attacks.undoing.states import at_length_of, checked_state, length
from warp_unlearning.errors import InputError


def test_differences_are_of_parameters_in_float64(kit) -> None:
    model = kit.residual().float()
    state = {name: value + 1 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    found = difference(model, state)
    assert set(found) == {name for name, _ in model.named_parameters()}
    for value in found.values():
        assert value.dtype == torch.float64
        torch.testing.assert_close(value, torch.ones_like(value), rtol=0, atol=1e-6)


def test_an_undone_model_is_the_original_with_another_state(kit) -> None:
    model = kit.residual().float().train()
    state = {name: 2 * value.double() for name, value in model.state_dict().items() if value.is_floating_point()}
    found = undone_model(model, state)
    assert found.training
    assert found is not model
    for name, value in found.state_dict().items():
        expected = model.state_dict()[name]
        assert value.dtype == expected.dtype
        assert torch.equal(value, 2 * expected if value.is_floating_point() else expected)
    with pytest.raises(InputError, match="'other'"):
        undone_model(model, {"other": torch.zeros(1)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("stem.weight"), "lacks 'stem.weight'"),
        (lambda s: s.update({"stem.weight": torch.zeros(1)}), "shape"),
        (lambda s: s.update({"stem.bias": s["stem.bias"] * torch.nan}), "NaN"),
    ],
)
def test_states_that_do_not_fit_are_refused(kit, change, message) -> None:
    model = kit.residual()
    state = dict(model.state_dict())
    change(state)
    for use in (lambda: difference(model, state), lambda: checked_state(kit.held(model), state)):
        with pytest.raises(InputError, match=message):
            use()


def test_shared_parameters_keep_one_value(kit) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(torch.relu(self.one(x))))

    model = Tied().double()
    held = Held(model, kit.points(6, shape=(4,), classes=3))
    other = undone_model(model, {name: 1.1 * value for name, value in model.state_dict().items()})
    undone = make_pre_step("span").prepared(held)(other.state_dict())
    assert torch.equal(undone["one.weight"], undone["two.weight"])
    loaded = undone_model(model, undone)
    assert torch.equal(loaded.one.weight, undone["one.weight"])


def test_lengths() -> None:
    given = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}
    assert float(length(given)) == 5
    assert float(length(at_length_of({"a": torch.tensor([0.1])}, given))) == pytest.approx(5)
    assert float(length(at_length_of({"a": torch.zeros(1)}, given))) == 0
