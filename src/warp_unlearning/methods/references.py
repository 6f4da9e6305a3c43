"""What unlearning is measured against: retraining without the forgotten examples, and fine-tuning, the weakest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..data.examples import Examples
from ..errors import InputError, WarpError
from ..gpu.precision import Precision
from ..training.scoring import losses
from ..training.training import Recipe, Training
from ..training.update import Update, Updates
from .base import NormMode, Task, option, require


@dataclass(frozen=True, kw_only=True)
class Retrain:
    """Fresh random weights, trained on the retain set alone. No forget example is ever read.

    Layers whose parameters are all frozen (`requires_grad` off), as of a backbone trained elsewhere, stay as they are.
    """

    name: ClassVar[str] = "retrain"
    norm_mode: ClassVar[NormMode] = "train"
    reads_forget: ClassVar[bool] = False

    epochs: int = option(20, "passes over the retain set; use those of the original's training")
    batch_size: int = option(64, "examples a batch")
    lr: float = option(0.05, "learning rate at the start of a cosine schedule")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(5e-4, "weight decay of SGD")
    crop_padding: int = option(0, "pixels by which random crops may be shifted")
    flip: bool = option(False, "mirror images at random")
    precision: Precision = option("auto", "auto (bf16 on a GPU), float32 or bf16")
    fill: tuple[float, ...] = option((0.0,), "value of a black pixel, per channel, after normalisation")

    def __post_init__(self) -> None:
        require(self, positive=("lr",), shares=("momentum",), counts=("epochs", "batch_size"))
        require(self, not_negative=("weight_decay", "crop_padding"), choices={"precision": get_args(Precision)})

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """Put fresh weights into `model`, but for frozen layers, and train it on the retain set."""
        fixed = {n: t.clone() for n, t in frozen_state(model).items()}
        start = task.fresh(model, "initial weights")
        with torch.no_grad():
            tensors, fresh_tensors = (chain(each.parameters(), each.buffers()) for each in (model, start))
            for tensor, value in zip(tensors, fresh_tensors, strict=True):
                tensor.copy_(value)
        model.load_state_dict(fixed, strict=False)
        return _first_restarts(_training(self, model, task, fill=self.fill))


@dataclass(frozen=True, kw_only=True)
class RetrainBy:
    """Fresh weights, trained on the retain set by a function of the user, named by `spec`.

    `train(model, rows)` takes the untrained network and a `Dataset` of (x, y), and returns the trained network.
    """

    name: ClassVar[str] = "retrain"
    norm_mode: ClassVar[NormMode] = "train"
    reads_forget: ClassVar[bool] = False

    train: Callable[[nn.Module, Dataset[Any]], nn.Module] = option(
        None, "train(model, rows), which returns the model or changes it in place"
    )
    spec: str = option("your function", "FILE.py:train, for the record")

    def updates(self, model: nn.Module, task: Task) -> Updates:
        """Call the user's function; the whole training is one update."""
        start, rows = task.fresh(model, "initial weights").train(), _Rows(task.retain)
        try:
            trained = self.train(start, rows)
        except WarpError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.spec} failed: {type(error).__name__}: {error}; make it run by itself first"
            ) from error
        trained = start if trained is None else trained
        if not isinstance(trained, nn.Module) or trained.state_dict().keys() != model.state_dict().keys():
            raise InputError(f"{self.spec} returned a {type(trained).__name__}; return the network that it was given")
        model.load_state_dict(trained.state_dict())
        loss = losses(model, task.retain).mean()
        yield Update(step=1, total=1, epoch=0, ends_epoch=True, losses={"train": loss}, restarts=True)


class _Rows(Dataset[Any]):
    """Examples as the data set of single rows that a user's function takes."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.examples.take(torch.tensor([index]))
        return x[0], y[0]


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Trains the original further on the retain set alone. No forget example is ever read."""

    name: ClassVar[str] = "finetune"
    norm_mode: ClassVar[NormMode] = "train"
    reads_forget: ClassVar[bool] = False
    forgets: ClassVar[bool] = False

    epochs: int = option(5, "passes over the retain set")
    batch_size: int = option(128, "examples a batch")
    lr: float = option(0.01, "learning rate at the start of a cosine schedule")
    momentum: float = option(0.9, "momentum of SGD")
    weight_decay: float = option(5e-4, "weight decay of SGD")

    def __post_init__(self) -> None:
        require(self, positive=("lr",), shares=("momentum",), counts=("epochs", "batch_size"))
        require(self, not_negative=("weight_decay",))

    def updates(self, model: nn.Module, task: Task) -> Updates:
        return _training(self, model, task)


def frozen_state(model: nn.Module) -> dict[str, Tensor]:
    """All frozen parameters, and the buffers of layers whose own parameters are all frozen."""
    found = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
    for prefix, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own and not any(p.requires_grad for p in own):
            found |= {f"{prefix}.{n}" if prefix else n: b for n, b in module.named_buffers(recurse=False)}
    return found


def _training(settings: Retrain | Finetune, model: nn.Module, task: Task, **more: Any) -> Updates:
    """The updates of a training of `model` on the retain set, by a recipe with the method's settings."""
    recipe = Recipe(**{f.name: getattr(settings, f.name) for f in fields(Recipe) if hasattr(settings, f.name)})
    return Training(model, task.retain, recipe=recipe, streams=task.streams, compute=task.compute, **more).updates()


def _first_restarts(updates: Updates) -> Updates:
    """The same updates, the first marked as a restart.

    It leaves from fresh weights, so a defence must not take it for a step from the original that it may rescale.
    """
    move = None
    restarts = True
    while True:
        try:
            update = updates.send(move)
        except StopIteration:
            return
        move = yield replace(update, restarts=restarts)
        restarts = False
