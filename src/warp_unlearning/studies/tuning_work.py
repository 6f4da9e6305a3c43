"""How each job of a tuning is done: from what the store holds to the files of its result."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from ..data.dataset import ImageData
from ..data.examples import TensorExamples
from ..data.load import load_data
from ..data.splits import IndexArray
from ..defense.registry import make_defense
from ..errors import DivergedError, WarpWarning
from ..methods.registry import make_method
from ..models.device import choose_device
from ..randomness import Streams
from ..runs.job import Job
from ..runs.key import Key
from ..runs.store import Store
from ..training.recipe import Recipe
from ..training.scoring import logits
from ..training.training import Training, run_training
from ..unlearning.driver import unlearn
from .shadow_work import new_network
from .stored import weight_bytes, weights_of
from .tuning_design import TuningShadow
from .tuning_objectives import PARTS, membership_accuracy, objectives
from .tuning_plan import RETRAIN, TRAIN, TRIAL, TuningPlan, TuningTask, Unit

WEIGHTS, ABOUT = "model.safetensors", "about.json"


@dataclass(frozen=True, eq=False)
class TuningWork:
    """Does the jobs of a plan, the task behind each by the digest of its key; it can be sent to other processes, where
    the data are loaded once.
    """

    plan: TuningPlan
    tasks: Mapping[str, TuningTask]
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, job: Job, store: Store) -> Mapping[str, bytes]:
        """The files of the job's result."""
        task = self.tasks[job.key.digest]
        work = {TRAIN: self._train, RETRAIN: self._retrain, TRIAL: self._trial}[task.kind]
        return work(task, store)

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "tasks": self.tasks, "_kept": {}}

    def _train(self, task: TuningTask, store: Store) -> Mapping[str, bytes]:
        shadow = self._shadow(task.unit)
        model = self._trained(shadow.trained, Streams(self.plan.settings.seed, "shadow", shadow.number))
        return {WEIGHTS: weight_bytes(model.state_dict())}

    def _retrain(self, task: TuningTask, store: Store) -> Mapping[str, bytes]:
        shadow, part = self._shadow(task.unit), task.unit.part
        streams = Streams(self.plan.settings.seed, "retrained", shadow.number, part)
        model = self._trained(shadow.retained(part), streams)
        about = self._measure(model, task.unit)
        return {WEIGHTS: weight_bytes(model.state_dict()), ABOUT: _json(about)}

    def _trial(self, task: TuningTask, store: Store) -> Mapping[str, bytes]:
        assert task.arm is not None
        settings, shadow, arm = self.plan.settings, self._shadow(task.unit), task.arm
        train, retrain = self.plan.needs(task)
        oracle = json.loads(store.read(self.plan.key(retrain)).read(ABOUT))
        streams = Streams(settings.seed, "unlearn", shadow.number)
        try:
            with warnings.catch_warnings():
                # A method may choose the start; the objectives say what that is worth.
                warnings.simplefilter("ignore", WarpWarning)
                result = unlearn(
                    self._model(self.plan.key(train), store),
                    forget=self._points(shadow.forget[task.unit.part]),
                    retain=self._points(shadow.retained(task.unit.part)),
                    validation=self._points(shadow.validation),
                    method=make_method(arm.method, **arm.method_settings),
                    defense=None if arm.defense is None else make_defense(arm.defense, **arm.defense_settings),
                    seed=streams.number(task.unit.part),
                    defense_seed=None if arm.defense is None else streams.number("defense", task.unit.part),
                )
            found = self._measure(result.model, task.unit)
        except DivergedError as error:
            return {ABOUT: _json({"diverged": str(error)})}
        accuracies = {name: oracle["accuracy"][name] for name in PARTS}
        found["objectives"] = objectives(found["accuracy"], accuracies, found["mia"])
        return {ABOUT: _json(found)}

    def _measure(self, model: nn.Module, unit: Unit) -> dict[str, Any]:
        """Accuracies by part, and how well an attack tells forgotten points from unseen ones: of the validation part
        (`mia`), and of the held-out one, which the search does not see (`mia_held_out`).
        """
        shadow = self._shadow(unit)
        seed = Streams(self.plan.settings.seed, "tuning").number("membership", shadow.number, unit.part)
        parts = {
            "retain": shadow.retained_measured(unit.part),
            "forget": shadow.forget[unit.part],
            "validation": shadow.validation,
            "held_out": shadow.held_out,
        }
        said = {name: self._answers(model, index) for name, index in parts.items()}
        lost = {name: losses for name, (_, losses) in said.items()}
        return {
            "accuracy": {name: right for name, (right, _) in said.items()},
            "mia": membership_accuracy(lost["forget"], lost["validation"], seed=seed),
            "mia_held_out": membership_accuracy(lost["forget"], lost["held_out"], seed=seed),
        }

    def _answers(self, model: nn.Module, index: IndexArray) -> tuple[float, NDArray[np.float64]]:
        points = self._points(index)
        output = logits(model, points).double()
        losses = F.cross_entropy(output, points.y, reduction="none").cpu().numpy()
        if not np.isfinite(losses).all():
            raise DivergedError("the unlearned model's weights are finite, but its outputs are not", state={}, update=0)
        right = (output.argmax(1) == points.y).double().mean()
        return float(right), np.asarray(losses, dtype=np.float64)

    def _trained(self, index: IndexArray, streams: Streams) -> nn.Module:
        settings = self.plan.settings
        training = Training(
            new_network(settings.models, self._data, streams).to(self._device),
            self._points(index),
            recipe=Recipe(**settings.training),
            streams=streams,
            fill=self._data.fill,
        )
        run_training(training)
        return training.model

    def _model(self, key: Key, store: Store) -> nn.Module:
        model = new_network(self.plan.settings.models, self._data, Streams(0, "any"))
        model.load_state_dict(weights_of(store.read(key).read(WEIGHTS)))
        return model.to(self._device).eval()

    def _shadow(self, unit: Unit) -> TuningShadow:
        return self.plan.design[unit.shadow]

    def _points(self, index: IndexArray) -> TensorExamples:
        return self._data.train.select(torch.from_numpy(index)).to(self._device)

    @property
    def _device(self) -> torch.device:
        return choose_device(self.plan.settings.device)

    @property
    def _data(self) -> ImageData:
        if "data" not in self._kept:
            self._kept["data"] = load_data(**self.plan.settings.data)
        found: ImageData = self._kept["data"]
        return found


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True).encode()
