"""How each job of a tuning is done, step by step: from what the store holds to the files of its result."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from ..data.table import Index
from ..defense.registry import make_defense
from ..errors import DivergedError
from ..gpu.precision import lay_out
from ..methods.base import Task
from ..methods.registry import make_method
from ..randomness import Streams
from ..runs.jobs import Job, Steps
from ..runs.keys import Key
from ..runs.store import Store
from ..training.scoring import logits
from ..training.training import Recipe, Training, training_steps
from ..unlearning.driver import drive, working_copy
from .gpu_trouble import gpu_trouble
from .quietly import quietly
from .shadow_settings import Arm
from .shadow_work import new_network
from .stored import weight_bytes, weights_of
from .tuning_design import TuningShadow
from .tuning_objectives import PARTS, membership_accuracy, objectives
from .tuning_plan import RETRAIN, TRAIN, TRIAL, TuningPlan, TuningTask, Unit
from .workplace import Workplace

WEIGHTS, ABOUT = "model.safetensors", "about.json"


@dataclass(frozen=True, eq=False)
class TuningWork:
    """Does the jobs of a plan, the task behind each by the digest of its key, at a workplace that it may share with
    others.
    """

    plan: TuningPlan
    tasks: Mapping[str, TuningTask]
    place: Workplace

    def __call__(self, job: Job, store: Store) -> Steps:
        """Do a job, an update at a time; returns the files of its result."""
        task = self.tasks[job.key.digest]
        self.place.tidy()
        work = {TRAIN: self._train, RETRAIN: self._retrain, TRIAL: self._trial}[task.kind]
        with gpu_trouble(task.kind):
            return (yield from work(task, store))

    def _train(self, task: TuningTask, store: Store) -> Steps:
        shadow = self._shadow(task.unit)
        streams = Streams(self.plan.settings.seed, "shadow", shadow.number)
        model = yield from self._trained(shadow.trained, streams)
        return {WEIGHTS: weight_bytes(model.state_dict())}

    def _retrain(self, task: TuningTask, store: Store) -> Steps:
        shadow, part = self._shadow(task.unit), task.unit.part
        streams = Streams(self.plan.settings.seed, "retrained", shadow.number, part)
        model = yield from self._trained(shadow.retained(part), streams)
        about = self._measure(model, task.unit)
        return {WEIGHTS: weight_bytes(model.state_dict()), ABOUT: _json(about)}

    def _trial(self, task: TuningTask, store: Store) -> Steps:
        assert task.arm is not None
        train, retrain = self.plan.needs(task)
        oracle = json.loads(store.read(self.plan.key(retrain)).read(ABOUT))
        try:
            model = yield from self._unlearned(self._model(self.plan.key(train), store), task.arm, task.unit)
            found = self._measure(model, task.unit)
        except DivergedError as error:
            return {ABOUT: _json({"diverged": str(error)})}
        accuracies = {name: oracle["accuracy"][name] for name in PARTS}
        found["objectives"] = objectives(found["accuracy"], accuracies, found["mia"])
        return {ABOUT: _json(found)}

    def _unlearned(self, original: nn.Module, arm: Arm, unit: Unit) -> Generator[object, None, nn.Module]:
        shadow, device = self._shadow(unit), self.place.device
        streams = Streams(self.plan.settings.seed, "unlearn", shadow.number)
        model = working_copy(original, device)
        task = Task(
            self.place.points(shadow.forget[unit.part]),
            self.place.points(shadow.retained(unit.part)),
            self.place.points(shadow.validation),
            working_copy(original, device).requires_grad_(False).eval(),
            len(self.place.data.classes),
            Streams(streams.number(unit.part), "unlearn"),
            self.place.compute(),
        )
        yield from quietly(
            drive(
                model,
                task,
                make_method(arm.method, **arm.method_settings),
                defense=None if arm.defense is None else make_defense(arm.defense, **arm.defense_settings),
                secret=Streams.secret(streams.number("defense", unit.part)),
            )
        )
        return model.eval()

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

    def _answers(self, model: nn.Module, index: Index) -> tuple[float, NDArray[np.float64]]:
        points = self.place.points(index)
        output = logits(model, points).double()
        losses = F.cross_entropy(output, points.y, reduction="none").cpu().numpy()
        if not np.isfinite(losses).all():
            raise DivergedError("the unlearned model's weights are finite, but its outputs are not", state={}, update=0)
        right = (output.argmax(1) == points.y).double().mean()
        return float(right), np.asarray(losses, dtype=np.float64)

    def _trained(self, index: Index, streams: Streams) -> Generator[object, None, nn.Module]:
        settings = self.plan.settings
        training = Training(
            new_network(settings.models, self.place.data, streams).to(self.place.device),
            self.place.points(index),
            recipe=Recipe(**settings.training),
            streams=streams,
            fill=self.place.data.fill,
            compute=self.place.compute(settings.training.get("precision", "auto")),
        )
        yield from training_steps(training)
        return training.model

    def _model(self, key: Key, store: Store) -> nn.Module:
        model = new_network(self.plan.settings.models, self.place.data, Streams(0, "any"))
        model.load_state_dict(weights_of(store.read(key).read(WEIGHTS)))
        return lay_out(model.to(self.place.device)).eval()

    def _shadow(self, unit: Unit) -> TuningShadow:
        return self.plan.design[unit.shadow]


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True).encode()
