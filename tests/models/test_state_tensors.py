from __future__ import annotations

import pytest
import torch
from torch import nn

from warp_unlearning.errors import WeightsError
from warp_unlearning.models.weights import check_finite, host_copy, plain_tensors, tensors_of


def test_the_tensors_of_a_model_are_its_own_memory_without_gradients() -> None:
    layer = nn.Linear(2, 2)
    tensors = tensors_of(layer)
    assert list(tensors) == ["weight", "bias"]
    assert tensors["weight"].data_ptr() == layer.weight.data_ptr()
    assert not plain_tensors({"w": layer.weight}, source="here")["w"].requires_grad


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"w": [1.0]}, "'w' in here is a list"),
        ({3: torch.ones(1)}, "3 in here is a Tensor, no named tensor"),
        ({"w": torch.ones(2, 2).to_sparse()}, "'w' in here is no dense tensor"),
        ({"w": torch.ones(2, device="meta")}, "'w' in here is no dense tensor"),
        ({}, "here holds no weights"),
    ],
)
def test_what_a_weight_file_cannot_hold_is_refused(state: dict[str, object], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        plain_tensors(state, source="here")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_entries_that_are_not_finite_are_counted_and_refused(value: float, dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, value, value]).to(dtype)
    with pytest.raises(WeightsError, match="'w' in here has 2 entries that are not finite"):
        check_finite({"fine": torch.ones(1), "w": tensor}, source="here")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_finite_entries_pass(dtype: torch.dtype) -> None:
    check_finite({"w": torch.ones(3).to(dtype)}, source="here")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1 + 2j]).conj().imag,
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.arange(3.0).expand(2, 3),
        torch.tensor(2.0),
    ],
)
def test_a_host_copy_has_the_values_in_order_in_memory_of_its_own(tensor: torch.Tensor) -> None:
    copy = host_copy(tensor)
    assert copy.stride() == torch.empty(tensor.shape).stride()
    assert not copy.is_conj()
    assert not copy.is_neg()
    assert copy.tolist() == tensor.tolist()
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
