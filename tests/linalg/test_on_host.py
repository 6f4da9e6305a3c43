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
