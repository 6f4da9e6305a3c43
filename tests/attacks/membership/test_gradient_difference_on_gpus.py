from copy import deepcopy

import numpy as np
import pytest
import torch

from warp_unlearning.attacks.membership.gradient_difference import gradient_difference
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import SmallResNet

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_scores_as_the_cpu_does() -> None:
    original = SmallResNet(width=8).eval()
    reinitialise(original, generator=torch.Generator().manual_seed(20))
    unlearned = deepcopy(original)
    generator = torch.Generator().manual_seed(21)
    with torch.no_grad():
        for p in unlearned.parameters():
            p += 0.01 * torch.randn(p.shape, generator=generator)
    x, y = torch.randn(120, 1, 8, 8, generator=generator), torch.randint(0, 10, (120,), generator=generator)
    sets = {"candidates": (x[:20], y[:20]), "background": (x[20:80], y[20:80]), "calibration": (x[80:], y[80:])}
    expected = gradient_difference(original, unlearned, **sets, relative_ridge=True)
    found = gradient_difference(original.cuda(), unlearned.cuda(), **sets, relative_ridge=True)
    np.testing.assert_allclose(found.statistic, expected.statistic, rtol=1e-3)
