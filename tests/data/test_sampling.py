from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.data.sampling import batch_shape, endless, epoch

COUNTS = st.integers(1, 400)


@given(count=COUNTS, size=COUNTS)
def test_batches_have_one_shape_and_leave_few_examples_out(count: int, size: int) -> None:
    batches, length = batch_shape(count, size)
    drawn = list(epoch(count, size, generator=torch.Generator().manual_seed(0)))
    assert [len(b) for b in drawn] == [length] * batches
    assert 1 <= length <= max(size, 1)
    everything = torch.cat(drawn)
    assert len(everything.unique()) == len(everything)
    assert count - len(everything) < max(-(-count // size), 2)
    assert int(everything.min()) >= 0
    assert int(everything.max()) < count


@given(count=st.integers(2, 400), size=st.integers(2, 400))
def test_no_batch_of_one_unless_asked_for(count: int, size: int) -> None:
    assert batch_shape(count, size)[1] >= 2


def test_an_endless_order_shuffles_each_pass_anew() -> None:
    order = endless(40, 8, generator=torch.Generator().manual_seed(0))
    passes = [torch.cat([next(order) for _ in range(5)]) for _ in range(3)]
    assert all(len(p.unique()) == 40 for p in passes)
    assert not torch.equal(passes[0], passes[1])
    assert not torch.equal(passes[1], passes[2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_order_is_the_same_on_a_gpu() -> None:
    here, there = (list(epoch(100, 8, generator=torch.Generator().manual_seed(3), device=d)) for d in ("cpu", "cuda"))
    assert all(batch.is_cuda for batch in there)
    assert torch.equal(torch.stack(here), torch.stack(there).cpu())
