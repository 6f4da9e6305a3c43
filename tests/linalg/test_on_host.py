from __future__ import annotations

import torch

from warp_unlearning.linalg.on_host import on_host


def test_every_tensor_comes_back_in_its_shape_and_order() -> None:
    given = [
        torch.arange(6).reshape(2, 3),
        torch.tensor(True),
        torch.empty(0, 2),
        torch.tensor([0.1], dtype=torch.float32),
    ]
    found = on_host(given)
    assert [tuple(f.shape) for f in found] == [(2, 3), (), (0, 2), (1,)]
    for tensor, brought in zip(given, found, strict=True):
        assert brought.dtype == torch.float64
        assert torch.equal(brought, tensor.double())
    assert on_host([]) == []


def test_types_between_each_other_do_not_change_the_order() -> None:
    given = [torch.tensor(1.5), torch.tensor([2, 3]), torch.tensor([4.25], dtype=torch.float64), torch.tensor([[5.5]])]
    assert [part.tolist() for part in on_host(given)] == [1.5, [2.0, 3.0], [4.25], [[5.5]]]
