"""What tests of symmetries share: networks and numbers in float64, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


class Kit:
    """Networks in float64 and eval mode."""

    @staticmethod
    def normal(*shape: int, seed: int = 0) -> Tensor:
        """Normal numbers."""
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    @staticmethod
    def built(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
        """The network, its weights drawn from the seed, its batch norms not at their initial values."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = make().double()
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                    nn.init.normal_(module.weight, 1.0, 0.3)
                    nn.init.normal_(module.bias, 0.0, 0.3)
                    nn.init.normal_(module.running_mean, 0.0, 0.3)
                    nn.init.uniform_(module.running_var, 0.5, 2.0)
        return model.eval()


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """Shared by all."""
    return Kit
