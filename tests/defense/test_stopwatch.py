from __future__ import annotations

from time import perf_counter, sleep

import pytest
import torch

from warp_unlearning.defense.stopwatch import Stopwatch


def test_it_runs_from_when_it_is_made() -> None:
    before = perf_counter()
    watch = Stopwatch(torch.device("cpu"))
    made = perf_counter()
    sleep(0.02)
    asked = perf_counter()
    found = watch.seconds()
    assert asked - made <= found <= perf_counter() - before
    assert watch.seconds() > found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_a_gpu_was_given_before_does_not_count() -> None:
    torch.cuda.synchronize()
    torch.cuda._sleep(10**9)
    before = Stopwatch(torch.device("cuda"))
    torch.cuda._sleep(10**7)
    short = before.seconds()
    whole = Stopwatch(torch.device("cuda"))
    torch.cuda._sleep(10**9)
    assert short < whole.seconds() / 10
