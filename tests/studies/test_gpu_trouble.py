from __future__ import annotations

import pytest
import torch

from warp_unlearning.runs.jobs import NoRoom, Unfit
from warp_unlearning.studies.gpu_trouble import gpu_trouble


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["torch", "device", "cusolver", "cublas"],
)
def test_want_of_memory_is_no_room(error: RuntimeError) -> None:
    with pytest.raises(NoRoom, match="the GPU has no room for a cell beside what else"), gpu_trouble("a cell"):
        raise error


def test_a_device_that_failed_makes_its_process_unfit() -> None:
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nSearch for more")
    with (
        pytest.raises(Unfit, match=r"failed during a cell.*illegal memory access was encountered$"),
        gpu_trouble("a cell"),
    ):
        raise error


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_other_errors_stay_what_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, gpu_trouble("a cell"):
        raise error
    assert caught.value is error
