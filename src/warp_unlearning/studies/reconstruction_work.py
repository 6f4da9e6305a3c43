"""How each job of a study of reconstruction is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from ..attacks.reconstruction.threat import Threat
from ..data.files import to_json
from ..data.preprocess import load_data
from ..gpu.precision import lay_out
from ..models.generator import ConvGenerator
from ..runs.jobs import Job, Steps
from ..runs.store import Store
from ..training.training import check_finite
from .gpu_trouble import gpu_trouble
from .reconstruction_images import Pictures, pictures_of
from .reconstruction_models import (
    ImageArm,
    chosen_targets,
    model_training,
    new_model,
    new_prior,
    prior_training,
    threats_of,
)
from .reconstruction_plan import MODEL, PRIOR, ImageCell, ReconstructionPlan
from .reconstruction_rows import attack_row
from .stored import weight_bytes, weights_of

WEIGHTS, FOUND = "model.safetensors", "row.json"


@dataclass(frozen=True, eq=False)
class ReconstructionWork:
    """Does the jobs of a plan; it can be sent to other processes, where data and models are loaded once."""

    plan: ReconstructionPlan
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, job: Job, store: Store) -> Steps:
        """Do a job, an update of a training at a time, a row in one step; returns the files of its result."""
        with gpu_trouble(self.plan.told(job.key)):
            if job.key.kind == MODEL:
                return (yield from self._train_model())
            if job.key.kind == PRIOR:
                return (yield from self._train_prior())
            yield None
            return self._row(self.plan.cells[job.key.digest], store)

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "_kept": {}}

    def _train_model(self) -> Steps:
        settings = self.plan.settings
        model = new_model(self._pictures, settings)
        if settings.trained:
            training = model_training(model, self._pictures, settings)
            losses = []
            for update in training.updates():
                losses.append(update.losses["train"])
                if update.ends_epoch:
                    check_finite(losses, training, update.step)
                    losses.clear()
                yield None
            model = training.model
        return {WEIGHTS: weight_bytes(model.state_dict())}

    def _train_prior(self) -> Steps:
        generator = new_prior(self._pictures, self.plan.settings)
        for _ in prior_training(generator, self._pictures, self.plan.settings).updates():
            yield None
        return {WEIGHTS: weight_bytes(generator.state_dict())}

    def _row(self, cell: ImageCell, store: Store) -> Mapping[str, bytes]:
        settings, pictures = self.plan.settings, self._pictures
        threats = self._threats(cell.arm, store)
        if cell.attack.generative:
            prior = self._prior(store)
            threats = [replace(threat, generator=prior) for threat in threats]
        truth = pictures.learned.images[self._targets(store)]
        row = attack_row(threats, cell.attack, truth, pictures, settings) | dict(cell.about)
        return {FOUND: json.dumps(to_json(row), sort_keys=True).encode()}

    def _threats(self, arm: ImageArm, store: Store) -> list[Threat]:
        """Those of an arm; kept until another arm is asked for."""
        if "threats" not in self._kept or self._kept["threats"][0] != arm:
            # Models that forgot under the other arm go before those of this one come.
            self._kept.pop("threats", None)
            targets = self._targets(store)
            made = threats_of(self._model(store), self._pictures, targets, arm, self.plan.settings)
            self._kept["threats"] = arm, made
        found: list[Threat] = self._kept["threats"][1]
        return found

    def _targets(self, store: Store) -> Tensor:
        return chosen_targets(self._model(store), self._pictures, self.plan.settings)

    def _model(self, store: Store) -> nn.Module:
        if "model" not in self._kept:
            model = new_model(self._pictures, self.plan.settings)
            model.load_state_dict(weights_of(store.read(self.plan.model).read(WEIGHTS)))
            self._kept["model"] = lay_out(model).eval()
        found: nn.Module = self._kept["model"]
        return found

    def _prior(self, store: Store) -> ConvGenerator:
        if "prior" not in self._kept:
            assert self.plan.prior is not None
            generator = new_prior(self._pictures, self.plan.settings)
            generator.load_state_dict(weights_of(store.read(self.plan.prior).read(WEIGHTS)))
            lay_out(generator)
            self._kept["prior"] = generator.eval()
        found: ConvGenerator = self._kept["prior"]
        return found

    @property
    def _pictures(self) -> Pictures:
        if "pictures" not in self._kept:
            self._kept["pictures"] = pictures_of(load_data(**self.plan.settings.data), self.plan.settings)
        found: Pictures = self._kept["pictures"]
        return found
