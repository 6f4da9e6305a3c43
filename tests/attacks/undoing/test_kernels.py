from __future__ import annotations

import torch

from warp_unlearning.attacks.undoing.kernels import directions, kernel_lengths, kernels


def test_kernels_are_what_one_channel_adds_to_another() -> None:
    for shape in ((3,), (3, 2), (3, 2, 5), (3, 2, 5, 4)):
        value = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        found, lengths = directions(value, value.dim()), kernel_lengths(value, value.dim())
        assert lengths.shape == shape[:2]
        for place in torch.cartesian_prod(*(torch.arange(n) for n in shape[:2])).reshape(-1, len(shape[:2])).tolist():
            kernel = value[tuple(place)]
            torch.testing.assert_close(lengths[tuple(place)], kernel.square().sum().sqrt())
            torch.testing.assert_close(found[tuple(place)], kernel / kernel.square().sum().sqrt())


def test_stacks_are_taken_one_by_one() -> None:
    stack = torch.randn(4, 3, 2, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(kernels(stack, 3), stack)
    one = torch.stack([directions(value, 3) for value in stack])
    torch.testing.assert_close(directions(stack, 3), one)
    assert kernel_lengths(stack[..., 0], 2).shape == (4, 3, 2)


def test_kernels_of_zeros_stay_zero() -> None:
    for kind in (torch.float32, torch.float64):
        assert torch.equal(directions(torch.zeros(2, 2, 3, 3, dtype=kind), 4), torch.zeros(2, 2, 3, 3, dtype=kind))
