"""How fast models are trained here, beside a plain loop in the same run.

Seconds of an update, one model's share of the time where several run at once:

- plain: a DataLoader with workers and augmentation on the CPU, float32, one operation after another, one model;
- eager: data on the device, the precision of the device, one operation after another, one model;
- captured: the same as one graph with faster layers (`FastLayers`), where there is a GPU;
- fleet N: the same for N models at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

from ..data.examples import TensorExamples
from ..gpu.graphs import Compute
from ..gpu.lanes import side_by_side
from ..randomness import Streams
from ..training.scoring import accuracy
from ..training.training import Recipe, Training

_WARM_UP = 10


@dataclass(frozen=True, eq=False)
class Workload:
    """What is trained: a network by seed, on examples that lie on the device, by a recipe. `fill` pads crops."""

    network: Callable[[int], nn.Module]
    examples: TensorExamples
    recipe: Recipe
    fill: tuple[float, ...]

    @property
    def device(self) -> torch.device:
        """Where the examples are."""
        return self.examples.x.device

    @property
    def updates_a_model(self) -> int:
        """Updates of a whole training."""
        return self.recipe.epochs * -(-len(self.examples) // self.recipe.batch_size)

    def training(self, seed: int, recipe: Recipe, *, capture: bool) -> Training:
        """A training of one model."""
        return Training(
            self.network(seed).to(self.device),
            self.examples,
            recipe=recipe,
            streams=Streams(seed, "speed"),
            fill=self.fill,
            compute=Compute(self.device, recipe.precision, capture=capture),
        )


@dataclass(frozen=True)
class Speed:
    """`utilisation` is the share of the measured matrix rate that the products of an update use."""

    name: str
    seconds_an_update: float
    seconds_a_model: float
    utilisation: float


def training_speeds(work: Workload, *, at_once: Sequence[int], workers: int, plain_updates: int) -> list[Speed]:
    """The plain loop, one model after another, and fleets of each size."""
    rate, needed = matrix_rate(work.device), update_operations(work)

    def speed(name: str, seconds: float) -> Speed:
        return Speed(name, seconds, seconds * work.updates_a_model, needed / seconds / rate)

    found = [
        speed("plain", plain_update_seconds(work, updates=plain_updates, workers=workers)),
        speed("eager", fleet_update_seconds(work, at_once=1, capture=False)),
    ]
    if work.device.type == "cuda":
        found.append(speed("captured", fleet_update_seconds(work, at_once=1, capture=True)))
    return found + [speed(f"fleet {n}", fleet_update_seconds(work, at_once=n, capture=True)) for n in at_once]


def plain_update_seconds(work: Workload, *, updates: int, workers: int) -> float:
    """Seconds of an update of the plain loop, after a few to warm up."""
    device, recipe = work.device, work.recipe
    loader = DataLoader(
        _Augmented(work.examples.x.cpu(), work.examples.y.cpu(), recipe),
        batch_size=recipe.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )
    model = work.network(0).to(device).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    done, began = 0, 0.0
    while True:
        for x, y in loader:
            if done == _WARM_UP:
                began = now(device)
            if done == _WARM_UP + updates:
                return (now(device) - began) / updates
            loss = F.cross_entropy(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1


class _Augmented(Dataset[tuple[Tensor, int]]):
    """Images cropped and mirrored one by one on the CPU, as loaders commonly do."""

    def __init__(self, x: Tensor, y: Tensor, recipe: Recipe) -> None:
        self._padding, self._flip = recipe.crop_padding, recipe.flip
        self._x = F.pad(x, (self._padding,) * 4) if self._padding else x
        self._y = y

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._x[index]
        if self._padding:
            top, left = torch.randint(0, 2 * self._padding + 1, (2,)).tolist()
            size = image.shape[-1] - 2 * self._padding
            image = image[:, top : top + size, left : left + size]
        if self._flip and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, int(self._y[index])


def fleet_update_seconds(work: Workload, *, at_once: int, capture: bool, epochs: int = 1) -> float:
    """Seconds of an update of one model where so many run at once: all the time over all the updates, after the first
    epoch of each.
    """
    device = work.device
    recipe = Recipe(**{**vars(work.recipe), "epochs": epochs + 1})
    ready: list[float] = []
    counted = 0

    def train(seed: int) -> Generator[object, None, None]:
        nonlocal counted
        for update in work.training(seed, recipe, capture=capture).updates():
            counted += len(ready) == at_once
            if update.epoch == 0 and update.ends_epoch:
                ready.append(now(device))
            yield update

    for _ in side_by_side([partial(train, seed) for seed in range(at_once)], at_once=at_once, device=device):
        pass
    return (now(device) - ready[-1]) / counted


@dataclass(frozen=True)
class Trained:
    """Whole trainings: all their time, and the test accuracy of each."""

    seconds: float
    accuracies: tuple[float, ...]


def train_fleet(
    work: Workload,
    test: TensorExamples,
    *,
    count: int,
    at_once: int,
    first_seed: int = 0,
    capture: bool = True,
) -> Trained:
    """Train `count` models, `at_once` of them at a time."""

    def train(seed: int) -> Generator[object, None, float]:
        training = work.training(seed, work.recipe, capture=capture)
        yield from training.updates()
        return accuracy(training.model, test)

    began = now(work.device)
    makers = [partial(train, first_seed + i) for i in range(count)]
    found = dict(side_by_side(makers, at_once=at_once, device=work.device))
    return Trained(now(work.device) - began, tuple(found[i] for i in range(count)))


def matrix_rate(device: torch.device) -> float:
    """Floating-point operations a second of large matrix products, in bf16 on a GPU and in float32 elsewhere."""
    gpu = device.type == "cuda"
    size, kind = (8192, torch.bfloat16) if gpu else (1024, torch.float32)
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(kind) for _ in range(2))
    seconds = []
    for _ in range(12):
        began = now(device)
        torch.mm(a, b)
        seconds.append(now(device) - began)
    return float(2 * size**3 / median(seconds[2:]))


def update_operations(work: Workload) -> int:
    """Floating-point operations of the products of one update, forward and backward."""
    model = work.network(0).to(work.device).train()
    x, y = work.examples.take(torch.arange(min(work.recipe.batch_size, len(work.examples))))
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def now(device: torch.device) -> float:
    """The time, after all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
