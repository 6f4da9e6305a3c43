from __future__ import annotations

from hashlib import sha256

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from warp_unlearning.errors import WeightsError
from warp_unlearning.models.networks import SmallResNet
from warp_unlearning.models.weights import model_digest

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def test_digest_is_the_sha256_of_sorted_entries() -> None:
    state = {"b": torch.tensor([1, 2], dtype=torch.int16), "a": torch.tensor(1.5)}
    stream = (
        b"('a', 'torch.float32', ())\n" + b"\x00\x00\xc0\x3f" + b"('b', 'torch.int16', (2,))\n" + b"\x01\x00\x02\x00"
    )
    assert model_digest(state) == sha256(stream).hexdigest()


def test_a_model_has_the_digest_of_its_state_dict() -> None:
    model = SmallResNet(width=2)
    assert model_digest(model) == model_digest(model.state_dict())


@settings(max_examples=50, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 4), max_size=3),
    position=st.integers(0, 10**6),
    bit=st.integers(0, 7),
)
def test_any_flipped_bit_changes_the_digest(dtype: torch.dtype, shape: list[int], position: int, bit: int) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    raw = tensor.reshape(-1).view(torch.uint8)
    before = model_digest({"kept": torch.ones(2), "w": tensor})
    if dtype == torch.bool:
        bit = 0
    raw[position % len(raw)] ^= 1 << bit
    assert model_digest({"kept": torch.ones(2), "w": tensor}) != before


def test_name_type_shape_and_sign_of_zero_all_count() -> None:
    zero = torch.zeros(4)
    states = [
        {"w": zero},
        {"v": zero},
        {"w": zero, "v": zero},
        {"w": zero.reshape(2, 2)},
        {"w": zero.int()},
        {"w": -zero},
        {"w": zero[:3]},
        {"w": zero[:0]},
    ]
    assert len({model_digest(state) for state in states}) == len(states)


def test_order_and_memory_layout_do_not_count() -> None:
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    plain = model_digest({"a": x, "b": x + 1})
    assert model_digest({"b": x + 1, "a": x.to(memory_format=torch.channels_last)}) == plain
    assert model_digest({"a": x.mT.contiguous().mT, "b": nn.Parameter(x + 1)}) == plain


def test_lazily_conjugated_and_negated_numbers_count_as_what_they_are() -> None:
    z = torch.tensor([1 + 2j])
    assert model_digest({"z": z.conj()}) == model_digest({"z": torch.tensor([1 - 2j])})
    assert model_digest({"z": z.conj().imag}) == model_digest({"z": torch.tensor([-2.0])})


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(WeightsError, match="'w' in the state dict is a float"):
        model_digest({"w": 1.0})  # type: ignore[dict-item]
