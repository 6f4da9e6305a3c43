from __future__ import annotations

import pytest
import torch
from torch import Tensor

from warp_unlearning.symmetry.weight_rows import WeightRows


def values() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"conv": (6, 2, 3, 1), "conv_bias": (6,), "fc": (3, 5), "alone": (4,)}
    return {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}


def layout(given: dict[str, Tensor]) -> WeightRows:
    return WeightRows({"conv": ("conv_bias", 2), "fc": (None, 1)}, ["alone"], given)


def test_a_row_is_what_one_output_reads_with_its_bias_last() -> None:
    given = values()
    rows = layout(given)
    assert rows.names == ["conv", "conv_bias", "fc", "alone"]
    vector = rows.gathered(given)
    assert vector.shape == (rows.length,) == (6 * 7 + 15 + 4,)
    conv, fc, alone = rows.places
    found = conv.blocks(rows.parts(torch.stack([vector, 2 * vector]))[0])
    assert found.shape == (2, 2, 3, 7)
    for group in range(2):
        for copy in range(2):
            for row in range(3):
                own = 3 * group + row
                expected = torch.cat([given["conv"][own].flatten(), given["conv_bias"][own : own + 1]]) * (1 + copy)
                assert torch.equal(found[copy, group, row], expected)
    assert torch.equal(fc.blocks(rows.parts(vector.unsqueeze(0))[1])[0, 0], given["fc"])
    assert torch.equal(vector[alone.begin : alone.end], given["alone"])


@pytest.mark.parametrize("bias", [None, "conv_bias"])
def test_the_vector_of_one_weight_is_no_view_of_it(bias: str | None) -> None:
    given = values()
    before = given["conv"].clone()
    vector = WeightRows({"conv": (bias, 2)}, [], given).gathered(given)
    given["conv"].zero_()
    rows = vector.reshape(6, -1)[:, :6]
    assert torch.equal(rows, before.flatten(1))


def test_weights_with_channels_last_in_memory_are_read_in_the_order_of_their_entries() -> None:
    given = values()
    turned = given | {"conv": given["conv"].contiguous(memory_format=torch.channels_last)}
    assert torch.equal(layout(given).gathered(given), layout(turned).gathered(turned))


def test_blocks_are_where_the_vector_is() -> None:
    given = values()
    rows = layout(given)
    vector = rows.gathered(given).unsqueeze(0)
    rows.places[1].blocks(rows.parts(vector)[1]).zero_()
    back = rows.scattered(vector[0])
    assert not bool(back.pop("fc").any())
    assert all(torch.equal(value, given[name]) for name, value in back.items())
    assert rows.exact
    assert not layout(given | {"fc": given["fc"].double()}).exact


def test_what_is_gathered_comes_back_in_its_own_shape_and_type() -> None:
    given = values()
    given["fc"] = given["fc"].double() + 1e-12
    rows = layout(given)
    assert rows.dtype == torch.float64
    back = rows.scattered(rows.gathered(given))
    assert list(back) == rows.names
    assert all(back[name].dtype == given[name].dtype and torch.equal(back[name], given[name]) for name in given)


@pytest.mark.parametrize("kind", [torch.float32, torch.bool])
def test_vectors_are_scaled_by_one_number_a_place(kind: torch.dtype) -> None:
    rows = layout(values())
    numbers = torch.tensor([[1.0, 2.0, 3.0], [0.0, 5.0, 0.0]]).to(kind)
    given = torch.randn(2, rows.length, generator=torch.Generator().manual_seed(0))
    expected = given * torch.repeat_interleave(numbers, torch.tensor([42, 15, 4]), dim=1)
    found = rows.scaled_(given, numbers)
    assert found is given
    assert torch.equal(found, expected)
