"""How each job of a study is done, step by step, so that a GPU can work on many side by side."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..attacks.membership.pair_audit import PairAuditor
from ..attacks.undo import pre_steps
from ..data.examples import TensorExamples
from ..data.table import Index
from ..defense.registry import make_defense
from ..errors import DivergedError
from ..gpu.precision import lay_out
from ..methods.base import Task
from ..methods.registry import make_method
from ..models.networks import build_model, suggest_options
from ..models.weights import model_digest
from ..randomness import Streams
from ..runs.jobs import Job, Steps
from ..runs.store import Store
from ..training.scoring import logit_confidence, logits
from ..training.training import Recipe, Training, training_steps
from ..unlearning.driver import Driven, drive, working_copy
from .cell_plan import Cell, CellPlan, is_paired
from .cell_settings import StudyArm
from .forget_energies import forget_energies
from .gpu_trouble import gpu_trouble
from .half import as_half
from .quietly import quietly
from .stored import array_bytes, weight_bytes, weights_of
from .workplace import Workplace

WEIGHTS, SCORES, ABOUT = "model.safetensors", "scores.npz", "about.json"
_READ_EVERY = 100


@dataclass(frozen=True, eq=False)
class CellWork:
    """Does the jobs of a plan; it can be sent to other processes, where the data are loaded once."""

    plan: CellPlan
    defense_seed: int
    _place: Workplace = field(init=False, repr=False)
    _kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        settings = self.plan.settings
        object.__setattr__(self, "_place", Workplace(settings.data, settings.device))

    def __call__(self, job: Job, store: Store) -> Steps:
        """Do a job, an update at a time; returns the files of its result."""
        cell = self.plan.cells[job.key.digest]
        self._place.tidy()
        done: Steps = getattr(self, f"_{cell.kind}")(cell, store)
        with gpu_trouble(str(cell)):
            return (yield from done)

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "defense_seed": self.defense_seed, "_place": self._place, "_kept": {}}

    def _original(self, cell: Cell, store: Store) -> Steps:
        settings = self.plan.settings
        streams = Streams(settings.seed, "study shadow", settings.first_shadow + cell.shadow)
        training = Training(
            self._network(streams).to(self._place.device),
            self._place.points(self.plan.trained(cell.shadow)),
            recipe=Recipe(**settings.training),
            streams=streams,
            fill=self._place.data.fill,
            compute=self._place.compute(settings.training.get("precision", "auto")),
        )
        yield from training_steps(training)
        return {WEIGHTS: weight_bytes(training.model.state_dict())}

    def _scores(self, cell: Cell, store: Store) -> Steps:
        yield None
        model = self._model(cell.shadow, store)
        found = self._confidence(model)
        accuracies = {"test": self._accuracy(model, self._place.test)}
        return {
            SCORES: array_bytes(found),
            ABOUT: _json({"accuracy": accuracies, "original": self._digest(cell.shadow)}),
        }

    def _cell(self, cell: Cell, store: Store) -> Steps:
        arm = next(arm for arm in self.plan.settings.arms if arm.name == cell.arm)
        original = self._model(cell.shadow, store)
        model = working_copy(original, self._place.device)
        task = self._task(original, cell)
        began = perf_counter()
        try:
            driven = yield from self._unlearn(model, task, arm, cell)
        except DivergedError as error:
            return {ABOUT: _json({"diverged": str(error), "original": self._digest(cell.shadow)})}
        # Beside other lanes the time says more of those than of this arm.
        seconds = None if self._place.device.type == "cuda" else perf_counter() - began
        model.eval()
        forgotten = self._audited_among(self.plan.forgotten(cell.shadow, cell.part))
        energies = forget_energies(model, self._place.points(forgotten)).astype(np.float32)
        found = self._confidence(model) | {"energy": energies}
        about: dict[str, Any] = {
            "seconds": seconds,
            "updates": len(driven.history),
            "made_on": self._place.machine,
            "original": self._digest(cell.shadow),
            "accuracy": {
                "forget": self._accuracy(model, task.forget),
                "retain": self._accuracy(model, task.retain),
                "test": self._accuracy(model, self._place.test),
            },
            "moved": _distance(model, original),
            "teleports": teleports_made(driven),
        }
        yield None
        if is_paired(self.plan.settings, cell.shadow, cell.part):
            about["pair"] = self._pair(original, model, arm, cell)
        return {SCORES: array_bytes(found), ABOUT: _json(about)}

    def _unlearn(self, model: nn.Module, task: Task, arm: StudyArm, cell: Cell) -> Generator[object, None, Driven]:
        number = self.plan.settings.first_shadow + cell.shadow
        secret = Streams.secret(self.defense_seed).of("study defense", number, cell.part, arm.method)
        driven = yield from quietly(
            drive(
                model,
                task,
                make_method(arm.method, **arm.method_settings),
                defense=None if arm.defense is None else make_defense(arm.defense, **arm.defense_settings),
                secret=secret,
                interval=_READ_EVERY,
            )
        )
        return driven

    def _task(self, original: nn.Module, cell: Cell) -> Task:
        settings, plan = self.plan.settings, self.plan
        return Task(
            self._place.points(plan.forgotten(cell.shadow, cell.part)),
            self._place.points(plan.retained(cell.shadow, cell.part)),
            self._place.points(plan.division.validation),
            working_copy(original, self._place.device).requires_grad_(False).eval(),
            len(self._place.data.classes),
            Streams(settings.seed, "study unlearn", settings.first_shadow + cell.shadow, cell.part),
            self._place.compute(),
        )

    def _pair(self, original: nn.Module, model: nn.Module, arm: StudyArm, cell: Cell) -> dict[str, Any]:
        steps = ("naive",) if arm.defense is None else tuple(pre_steps())
        try:
            audit = self._auditor(original, cell).audit(model, steps=steps)
        except torch.OutOfMemoryError:
            # Another process took what had been free; what is free this time may be less, and is enough.
            self._place.release()
            audit = self._auditor(original, cell).audit(model, steps=steps)
        # An audit takes most of the memory there is, and other processes may wait for some.
        self._place.release()
        return audit.as_json()

    def _auditor(self, original: nn.Module, cell: Cell) -> PairAuditor:
        """The auditor of a forget set; the last is kept, since all arms have their models of this set audited."""
        key = ("auditor", cell.shadow, cell.part)
        if key not in self._kept:
            for old in [k for k in self._kept if isinstance(k, tuple) and k[0] == "auditor"]:
                del self._kept[old]
            count = self.plan.settings.pair_examples
            pick = np.random.default_rng(Streams(self.plan.settings.seed, "study pair").number(cell.shadow))

            def some(index: Index, most: int) -> TensorExamples:
                return self._place.points(np.sort(pick.permutation(index)[:most]))

            self._kept[key] = PairAuditor(
                original,
                forget=some(self.plan.forgotten(cell.shadow, cell.part), count),
                test=some(self.plan.never(cell.shadow), 2 * count),
                retain=some(self.plan.retained(cell.shadow, cell.part), 2048),
                background=count,
                seed=self.plan.settings.seed,
            )
        found: PairAuditor = self._kept[key]
        return found

    def _confidence(self, model: nn.Module) -> dict[str, NDArray[np.generic]]:
        """Logit confidences of the audited points, in float16: rounded by at most 2**-11 of their size, 0.008 at 16,
        where models of different shadows differ by about 1.
        """
        points = self._place.points(self.plan.division.audited)
        output = logits(model, points).double().cpu().numpy()
        return {"confidence": as_half(logit_confidence(output, points.y.cpu().numpy()))}

    def _accuracy(self, model: nn.Module, examples: Any) -> float:
        right = logits(model, examples).argmax(1) == examples.y
        return float(right.double().mean())

    def _audited_among(self, index: Index) -> Index:
        return np.intersect1d(self.plan.division.audited, index)

    def _network(self, streams: Streams) -> nn.Module:
        settings, data = self.plan.settings, self._place.data
        options = {**suggest_options(settings.network, data.shape, len(data.classes)), **settings.network_options}
        return build_model(settings.network, generator=streams.generator("weights"), **options)

    def _model(self, shadow: int, store: Store) -> nn.Module:
        """The original of a shadow; the last few are kept, since all its cells start from it."""
        key = ("original", shadow)
        if key not in self._kept:
            for old in [k for k in self._kept if isinstance(k, tuple) and k[0] == "original"][:-_KEPT_ORIGINALS]:
                self._place.share()
                del self._kept[old]
            model = self._network(Streams(0, "any"))
            model.load_state_dict(weights_of(store.read(self.plan.key(Cell("original", shadow))).read(WEIGHTS)))
            self._kept["digest", shadow] = model_digest(model)
            self._kept[key] = lay_out(model.to(self._place.device)).eval()
            self._place.share()
        kept: nn.Module = self._kept[key]
        return deepcopy(kept)

    def _digest(self, shadow: int) -> str:
        """The digest of an original that is loaded, or was."""
        return str(self._kept["digest", shadow])


_KEPT_ORIGINALS = 32


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


@torch.no_grad()
def _distance(model: nn.Module, original: nn.Module) -> float:
    """‖θ − θ_org‖ over all parameters."""
    differences = [a - b for a, b in zip(model.parameters(), original.parameters(), strict=True)]
    return float(torch.stack(torch._foreach_norm(differences)).square().sum().sqrt())


def teleports_made(driven: Driven) -> dict[str, Any]:
    """How many teleports there were, how many of them were taken back, and what each changed; of losses the mean
    before and after, of examples to forget and of retained ones that it had not seen.
    """
    made = driven.teleports
    return {
        "count": len(made),
        "taken_back": sum(c.scale == 0 for c in made),
        "seconds": [c.seconds for c in made],
        "energy_before": [c.energy_before for c in made],
        "energy_after": [c.energy_after for c in made],
        "moved": [c.moved for c in made],
        "forget_loss": [None if c.forget is None else [c.forget.loss_before, c.forget.loss_after] for c in made],
        "retain_loss": [None if c.held_out is None else [c.held_out.loss_before, c.held_out.loss_after] for c in made],
    }
