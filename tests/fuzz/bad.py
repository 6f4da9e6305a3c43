"""What people put in the wrong place, as expressions by what it should have been. Those after a ? may give a result;
any other must be refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

import warp_unlearning

VALUES = Path(__file__).with_name("bad_values.txt")
ROWS, FEATURES, CLASSES, NAN = 24, 4, 3, float("nan")
KINDS = (DataLoader, Subset, TensorDataset, WeightedRandomSampler, SimpleNamespace, warp_unlearning, np)  # of VALUES


def made(expression: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(expression.removeprefix("?").strip(), globals())


def x(n: int = ROWS, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(seed))


def y(n: int = ROWS) -> torch.Tensor:
    return torch.arange(n) % CLASSES


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))


class Own(Dataset):  # type: ignore[type-arg]
    def __init__(self, item: Callable[[int], Any], count: Any = ROWS) -> None:
        self.item, self.count = item, count

    def __getitem__(self, i: int) -> Any:
        return self.item(i)

    def __len__(self) -> Any:
        return self.count


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, count: int = ROWS) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return zip(x(self.count), y(self.count), strict=True)


class Net(nn.Module):
    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.change = network(), change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(self.inner(x))


def put(values: torch.Tensor, value: Any) -> torch.Tensor:
    changed = values.clone()
    changed[7] = value
    return changed


def typed(kind: torch.dtype, value: float | None = None) -> nn.Module:
    made = network()
    for layer in (made[0], made[2]):
        weight = layer.weight.data if value is None else torch.full_like(layer.weight, value)
        layer.weight = nn.Parameter(weight.to(kind), requires_grad=kind.is_floating_point or kind.is_complex)
    return made


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(network(), {nn.Linear})


def state(value: Any, name: str = "0.weight") -> dict[Any, Any]:
    return {**network().state_dict(), name: value}


def fail(*_: Any) -> Any:
    raise RuntimeError("first line\nsecond line " + "of many words " * 60)


def full(*_: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has a total capacity of")


def _pools() -> dict[str, list[str]]:
    texts = re.findall(r"^(\w+):(.*(?:\n .*)*)", VALUES.read_text(), re.MULTILINE)
    found = {name: [" ".join(one.split()) for one in text.split(";") if one.strip()] for name, text in texts}
    found["sets"], found["seeds_or_none"] = found["examples"][1:], found["seeds"][1:]
    found["asked"] = [*found["rows"], *found["masks"]]
    found["references"] = [*found["networks"][1:], *found["more_references"]]
    return found


POOLS = _pools()
