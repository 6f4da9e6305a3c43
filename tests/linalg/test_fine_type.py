from __future__ import annotations

import pytest
import torch

from warp_unlearning.linalg.fine_type import fine, fine_type, like


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_nothing_is_computed_in_a_type_coarser_than_float32(given: torch.dtype, expected: torch.dtype) -> None:
    assert fine_type(given) == expected
    tensor = torch.arange(4).to(given)
    assert fine(tensor).dtype == expected
    assert torch.equal(fine(tensor), torch.arange(4).to(expected))
    assert (fine(tensor) is tensor) == (given == expected)


def test_a_tensor_is_brought_where_another_is() -> None:
    given, other = torch.arange(3.0), torch.ones(2, dtype=torch.float64)
    assert like(given, torch.zeros(1)) is given
    assert torch.equal(like(given, other), given.double())
    assert like(given, other.to("meta")).device.type == "meta"
