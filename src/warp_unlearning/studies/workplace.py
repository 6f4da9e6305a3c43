"""What the jobs of a study share on their device: data, a repeater for every lane, and when to let go of the rest."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..data.examples import TensorExamples
from ..data.preprocess import ImageData, load_data
from ..data.table import Index
from ..models.modes import choose_device
from ..training.precision import Precision
from ..training.repeated import Repeater

_LEAST_FREE = 0.3


@dataclass(eq=False)
class Workplace:
    """Data by the arguments of `load_data`, and a device by name. Sent to another process it is empty there, and data
    are loaded once.
    """

    source: Mapping[str, Any]
    device_name: str
    _repeaters: dict[tuple[int, Precision], Repeater] = field(default_factory=dict, init=False, repr=False)
    _frozen: bool = field(default=False, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Workplace, (self.source, self.device_name)

    @property
    def device(self) -> torch.device:
        """Where models are trained and unlearned."""
        return choose_device(self.device_name)

    @property
    def machine(self) -> str:
        """What models are trained and unlearned on."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type.upper()
        return f"{name}, torch {torch.__version__.partition('+')[0]}"

    @cached_property
    def data(self) -> ImageData:
        """The data set, in the host's memory."""
        return load_data(**self.source)

    @cached_property
    def train(self) -> TensorExamples:
        """All training examples, on the device."""
        return self._sent(self.data.train)

    @cached_property
    def test(self) -> TensorExamples:
        """All test examples, on the device."""
        return self._sent(self.data.test)

    def points(self, index: Index) -> TensorExamples:
        """Training examples by position, on the device."""
        return self.train.select(torch.from_numpy(index))

    def repeater(self, precision: Precision = "auto") -> Repeater:
        """One for every lane, whose graphs share their memory: they are replayed one after another."""
        device = self.device
        lane = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        if (lane, precision) not in self._repeaters:
            self._repeaters[lane, precision] = Repeater(device, precision, capture=True)
        return self._repeaters[lane, precision]

    def tidy(self) -> None:
        """Let go of what earlier jobs left: models in cycles, with their graphs, which must not be destroyed while
        others are captured or run, and memory that was kept for other streams, where little is left.
        """
        if self.device.type != "cuda":
            return
        gc.collect()
        if not self._frozen and len(self.train):
            # Modules and data are here to stay, and need not be looked through each time. No job has begun yet.
            gc.freeze()
            self._frozen = True
        free, whole = torch.cuda.mem_get_info(self.device)
        if free < _LEAST_FREE * whole:
            self.release()

    def share(self) -> None:
        """Wait for all lanes: what one of them made, or is about to let go of, others use."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def release(self) -> None:
        """Give memory that is kept for later back to the device."""
        if self.device.type == "cuda":
            self.share()
            torch.cuda.empty_cache()

    def _sent(self, examples: TensorExamples) -> TensorExamples:
        there = examples.to(self.device)
        self.share()
        return there
