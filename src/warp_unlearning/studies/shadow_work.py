"""How each job of a shadow audit is done: from what the store holds to the files of its result."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..attacks.membership.pair_audit import audit_pair
from ..attacks.undo import pre_steps
from ..data.examples import TensorExamples
from ..data.preprocess import ImageData, load_data
from ..data.table import Index
from ..defense.registry import make_defense
from ..errors import WarpWarning
from ..methods.registry import make_method
from ..models.modes import choose_device
from ..models.networks import build_model, suggest_options
from ..models.own import load_builder
from ..randomness import Streams
from ..runs.jobs import Job, Steps
from ..runs.keys import Key
from ..runs.store import Store
from ..training.scoring import accuracy, logit_confidence, logits
from ..training.training import Recipe, Training, run_training
from ..unlearning.driver import updated
from .forget_energies import forget_energies
from .shadow_plan import ORIGINAL, ShadowPlan, Task, forgotten, retained
from .shadow_settings import ShadowSettings
from .stored import array_bytes, weight_bytes, weights_of

WEIGHTS, SCORES, ABOUT = "model.safetensors", "scores.npz", "about.json"


@dataclass(frozen=True, eq=False)
class ShadowWork:
    """Does the jobs of a plan; it can be sent to other processes, where the data are loaded once."""

    plan: ShadowPlan
    defense_seed: int = field(repr=False)
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, job: Job, store: Store) -> Steps:
        """Do a job, in one step; returns the files of its result."""
        yield None
        task = self.plan.tasks[job.key.digest]
        done: Mapping[str, bytes] = getattr(self, f"_{task.kind}")(task, store)
        return done

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "defense_seed": self.defense_seed, "_kept": {}}

    def _train(self, task: Task, store: Store) -> Mapping[str, bytes]:
        settings = self.plan.settings
        streams = Streams(settings.seed, "shadow", task.shadow)
        training = Training(
            self._network(streams).to(self._device),
            self._points(np.flatnonzero(self.plan.design.trained[task.shadow])),
            recipe=Recipe(**settings.training),
            streams=streams,
            fill=self._data.fill,
        )
        run_training(training)
        return {WEIGHTS: weight_bytes(training.model.state_dict())}

    def _unlearn(self, task: Task, store: Store) -> Mapping[str, bytes]:
        settings, design = self.plan.settings, self.plan.design
        arm = settings.arms[task.arm]
        with warnings.catch_warnings():
            # A method may choose the start; its scores say so.
            warnings.simplefilter("ignore", WarpWarning)
            model = updated(
                self._model(self.plan.key(Task("train", task.shadow)), store),
                forget=self._points(forgotten(design, task.shadow, task.part)),
                retain=self._points(retained(design, task.shadow, task.part)),
                validation=self._held_out[0],
                method=make_method(arm.method, **arm.method_settings),
                defense=None if arm.defense is None else make_defense(arm.defense, **arm.defense_settings),
                seed=Streams(settings.seed, "unlearn", task.shadow).number(task.part),
                defense_seed=Streams.secret(self.defense_seed).number(str(task)) if arm.defense is not None else None,
            )
        return {WEIGHTS: weight_bytes(model.state_dict())}

    def _score(self, task: Task, store: Store) -> Mapping[str, bytes]:
        kind = "train" if task.arm == ORIGINAL else "unlearn"
        model = self._model(self.plan.key(Task(kind, task.shadow, task.part, task.arm)), store)
        points = self._points(np.arange(len(self._data.train)))
        output = logits(model, points).double().cpu().numpy()
        found: dict[str, NDArray[np.generic]] = {
            "confidence": logit_confidence(output, points.y.cpu().numpy()).astype(np.float32),
            "correct": output.argmax(1) == points.y.cpu().numpy(),
            "test_accuracy": np.array(accuracy(model, self._held_out[1])),
        }
        if task.arm != ORIGINAL:
            index = forgotten(self.plan.design, task.shadow, task.part)
            found["energy"] = forget_energies(model, self._points(index))
        return {SCORES: array_bytes(found)}

    def _pair(self, task: Task, store: Store) -> Mapping[str, bytes]:
        settings, design = self.plan.settings, self.plan.design
        audit = audit_pair(
            self._model(self.plan.key(Task("train", task.shadow)), store),
            self._model(self.plan.key(Task("unlearn", task.shadow, task.part, task.arm)), store),
            forget=self._points(forgotten(design, task.shadow, task.part)),
            test=self._points(np.flatnonzero(~design.trained[task.shadow])),
            retain=self._points(retained(design, task.shadow, task.part)),
            steps=("naive",) if settings.arms[task.arm].defense is None else tuple(pre_steps()),
            seed=settings.seed,
        )
        return {ABOUT: json.dumps(audit.as_json(), sort_keys=True).encode()}

    @property
    def _device(self) -> torch.device:
        return choose_device(self.plan.settings.device)

    @property
    def _data(self) -> ImageData:
        if "data" not in self._kept:
            self._kept["data"] = load_data(**self.plan.settings.data)
        found: ImageData = self._kept["data"]
        return found

    @property
    def _held_out(self) -> tuple[TensorExamples, TensorExamples]:
        """Test examples in two halves: for methods that choose a checkpoint, and for the accuracy that is reported."""
        if "held out" not in self._kept:
            generator = Streams(self.plan.settings.seed, "shadow audit").generator("held out")
            order = torch.randperm(len(self._data.test), generator=generator)
            parts = torch.split(order, [len(order) // 2, len(order) - len(order) // 2])
            self._kept["held out"] = tuple(
                self._data.test.select(part.sort().values).to(self._device) for part in parts
            )
        found: tuple[TensorExamples, TensorExamples] = self._kept["held out"]
        return found

    def _points(self, index: Index) -> TensorExamples:
        return self._data.train.select(torch.from_numpy(index)).to(self._device)

    def _network(self, streams: Streams) -> nn.Module:
        return new_network(self.plan.settings, self._data, streams)

    def _model(self, key: Key, store: Store) -> nn.Module:
        model = self._network(Streams(0, "any"))
        model.load_state_dict(weights_of(store.read(key).read(WEIGHTS)))
        return model.to(self._device).eval()


def new_network(settings: ShadowSettings, data: ImageData, streams: Streams) -> nn.Module:
    """The network of the settings with fresh weights from the stream "weights"."""
    if settings.network_file is not None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(streams.number("weights"))
            return load_builder(settings.network_file)(**settings.network_options)
    options = {**suggest_options(settings.network, data.shape, len(data.classes)), **settings.network_options}
    return build_model(settings.network, generator=streams.generator("weights"), **options)
