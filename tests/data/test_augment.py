from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from warp_unlearning.data.augment import random_crop_flip

from warp_unlearning.errors import InputError

FILL = (-1.0, -2.0, -3.0)


def one_by_one(x: Tensor, *, padding: int, flip: bool, fill: Sequence[float], generator: torch.Generator) -> Tensor:
    """The same augmentation, one image and one channel at a time, by padding and slicing."""
    count, channels, height, width = x.shape
    shift = torch.randint(-padding, padding + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    out = torch.empty_like(x)
    for i in range(count):
        top, left = int(shift[0, i]) + padding, int(shift[1, i]) + padding
        for c in range(channels):
            padded = torch.full((height + 2 * padding, width + 2 * padding), fill[c])
            padded[padding : padding + height, padding : padding + width] = x[i, c]
            crop = padded[top : top + height, left : left + width]
            out[i, c] = crop.flip(1) if flip and mirrored[i] else crop
    return out


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(("shape", "padding"), [((64, 3, 6, 5), 2), ((64, 3, 4, 4), 0), ((32, 3, 2, 3), 5)])
def test_equals_padding_and_slicing_image_by_image(shape: tuple[int, ...], padding: int, flip: bool) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    got, expected = (
        f(x, padding=padding, flip=flip, fill=FILL, generator=torch.Generator().manual_seed(7))
        for f in (random_crop_flip, one_by_one)
    )
    assert torch.equal(got, expected)


def test_every_offset_and_both_mirrors_come_up_equally_often() -> None:
    x = torch.zeros(9000, 1, 3, 3)
    x[:, 0, 1] = torch.tensor([0.0, 1.0, 2.0])
    out = random_crop_flip(x, padding=1, flip=True, fill=(0.0,), generator=torch.Generator().manual_seed(0))
    patterns, times = torch.unique(out.reshape(9000, -1), dim=0, return_counts=True)
    assert len(patterns) == 18
    # Each is binomial(9000, 1/18), of standard deviation 22.
    assert int((times - 500).abs().max()) < 5 * 22


def test_the_batch_is_not_changed_and_draws_come_from_the_generator() -> None:
    x = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    a, b, c = (
        random_crop_flip(x, padding=2, flip=True, fill=FILL, generator=torch.Generator().manual_seed(s))
        for s in (1, 1, 2)
    )
    assert torch.equal(x, before)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_keeps_type_and_memory_layout_does_not_matter() -> None:
    x = torch.rand(8, 3, 4, 4).half()
    plain, last = (
        random_crop_flip(v, padding=1, flip=True, fill=FILL, generator=torch.Generator().manual_seed(1))
        for v in (x, x.contiguous(memory_format=torch.channels_last))
    )
    assert plain.dtype == torch.float16
    assert torch.equal(plain, last)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_draws_are_the_same_on_a_gpu() -> None:
    x = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    cpu, gpu = (
        random_crop_flip(v, padding=2, flip=True, fill=FILL, generator=torch.Generator().manual_seed(1))
        for v in (x, x.cuda())
    )
    assert torch.equal(cpu, gpu.cpu())


@pytest.mark.parametrize(
    ("shape", "padding", "message"),
    [((4, 2, 3, 3), 1, "one a channel"), ((4, 3), 1, "one a channel"), ((4, 3, 3, 3), -1, "negative")],
)
def test_what_cannot_be_cropped_is_refused(shape: tuple[int, ...], padding: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        random_crop_flip(torch.zeros(shape), padding=padding, flip=True, fill=FILL, generator=torch.Generator())
