"""A results file of a real audit of two tiny networks: before and after forgetting by gradient ascent."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from warp_unlearning import audit_pair

FORGOTTEN, TEST = 120, 900


def pair_sample(*, seed: int = 21) -> dict[str, Any]:
    """Plain data in the form that the file has."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * FORGOTTEN + TEST, 8, generator=generator)
    # Labels at random can only be learned by heart.
    y = torch.randint(3, (len(x),), generator=generator)
    forget, retain, test = (
        (x[start:end], y[start:end])
        for start, end in ((0, FORGOTTEN), (FORGOTTEN, 2 * FORGOTTEN), (2 * FORGOTTEN, len(x)))
    )
    both = torch.cat([forget[0], retain[0]]), torch.cat([forget[1], retain[1]])
    original, retrained = _fitted(_network(generator), both), _fitted(_network(generator), retain)
    unlearned = _fitted(deepcopy(original), forget, rate=-0.05, steps=4)
    audit = audit_pair(
        original, unlearned, forget=forget, test=test, retain=retain, retrained=retrained, steps=("naive", "span")
    )
    return audit.as_json() | {"date": "2026-01-02T03:04:05+00:00"}


def _network(generator: torch.Generator) -> nn.Module:
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return network


def _fitted(network: nn.Module, data: tuple[Tensor, Tensor], *, rate: float = 0.3, steps: int = 300) -> nn.Module:
    """Plain gradient steps on all of the data; a negative rate climbs."""
    for _ in range(steps):
        gradients = torch.autograd.grad(cross_entropy(network(data[0]), data[1]), list(network.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                parameter -= rate * gradient
    return network
