"""How each job of a study is done, step by step, so that a GPU can work on many side by side."""

from __future__ import annotations

import gc
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

from ..attacks.membership.confidence import logit_confidence
from ..attacks.membership.pair_audit import audit_pair
from ..attacks.undoing.registry import pre_steps
from ..data.dataset import ImageData
from ..data.examples import TensorExamples
from ..data.load import load_data
from ..data.splits import IndexArray
from ..defense.registry import make_defense
from ..errors import DivergedError
from ..methods.protocol import Task
from ..methods.registry import make_method
from ..models.device import choose_device
from ..models.digest import model_digest
from ..models.registry import build_model, suggest_options
from ..randomness import Streams
from ..runs.job import Job, NoRoom, Steps, finished
from ..runs.store import Store
from ..training.precision import Precision, lay_out
from ..training.recipe import Recipe
from ..training.repeated import Repeater
from ..training.scoring import logits
from ..training.training import Training, check_finite
from ..unlearning.driver import Driven, drive, working_copy
from .cell_plan import Cell, CellPlan, is_paired
from .cell_settings import StudyArm
from .forget_energies import forget_energies
from .stored import array_bytes, weight_bytes, weights_of

WEIGHTS, SCORES, ABOUT = "model.safetensors", "scores.npz", "about.json"
_READ_EVERY = 100


@dataclass(frozen=True, eq=False)
class CellWork:
    """Does the jobs of a plan; it can be sent to other processes, where the data are loaded once."""

    plan: CellPlan
    defense_seed: int
    _kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, job: Job, store: Store) -> Mapping[str, bytes]:
        """The files of the job's result, all at once."""
        return finished(self.steps(job, store))

    def steps(self, job: Job, store: Store) -> Steps:
        """The same, an update at a time."""
        cell = self.plan.cells[job.key.digest]
        self._tidy()
        try:
            done: Steps = getattr(self, f"_{cell.kind}")(cell, store)
            return (yield from done)
        except torch.OutOfMemoryError as error:
            raise NoRoom(f"the GPU has no room for {cell} beside what else runs there: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "defense_seed": self.defense_seed, "_kept": {}}

    def _original(self, cell: Cell, store: Store) -> Steps:
        settings = self.plan.settings
        streams = Streams(settings.seed, "study shadow", settings.first_shadow + cell.shadow)
        training = Training(
            self._network(streams).to(self._device),
            self._points(self.plan.trained(cell.shadow)),
            recipe=Recipe(**settings.training),
            streams=streams,
            fill=self._data.fill,
            repeater=self._repeater(settings.training.get("precision", "auto")),
        )
        losses = []
        for update in training.updates():
            losses.append(update.losses["train"])
            if update.ends_epoch and (update.epoch % 10 == 9 or update.step == update.of):
                check_finite(losses, training, update.step)
                losses.clear()
            yield None
        return {WEIGHTS: weight_bytes(training.model.state_dict())}

    def _scores(self, cell: Cell, store: Store) -> Steps:
        yield None
        model = self._model(cell.shadow, store)
        found = self._confidence(model)
        accuracies = {"test": self._accuracy(model, self._test)}
        return {
            SCORES: array_bytes(found),
            ABOUT: _json({"accuracy": accuracies, "original": self._digest(cell.shadow)}),
        }

    def _cell(self, cell: Cell, store: Store) -> Steps:
        arm = next(arm for arm in self.plan.settings.arms if arm.name == cell.arm)
        original = self._model(cell.shadow, store)
        model = working_copy(original, self._device)
        task = self._task(original, cell)
        began = perf_counter()
        try:
            driven = yield from self._unlearn(model, task, arm, cell)
        except DivergedError as error:
            return {ABOUT: _json({"diverged": str(error), "original": self._digest(cell.shadow)})}
        # Beside other lanes the time says more of those than of this arm.
        seconds = None if self._device.type == "cuda" else perf_counter() - began
        model.eval()
        forgotten = self._audited_among(self.plan.forgotten(cell.shadow, cell.part))
        found = self._confidence(model) | {"energy": forget_energies(model, self._points(forgotten))}
        about: dict[str, Any] = {
            "seconds": seconds,
            "updates": len(driven.history),
            "original": self._digest(cell.shadow),
            "accuracy": {
                "forget": self._accuracy(model, task.forget),
                "retain": self._accuracy(model, task.retain),
                "test": self._accuracy(model, self._test),
            },
            "moved": _distance(model, original),
            "teleports": _teleports(driven),
        }
        yield None
        if is_paired(self.plan.settings, cell.shadow, cell.part):
            about["pair"] = self._pair(original, model, task, arm, cell)
        return {SCORES: array_bytes(found), ABOUT: _json(about)}

    def _unlearn(self, model: nn.Module, task: Task, arm: StudyArm, cell: Cell) -> Generator[object, None, Driven]:
        number = self.plan.settings.first_shadow + cell.shadow
        entropy = Streams(self.defense_seed, "study defense").generator(number, cell.part, arm.method)
        driven = yield from drive(
            model,
            task,
            make_method(arm.method, **arm.method_settings),
            defense=None if arm.defense is None else make_defense(arm.defense, **arm.defense_settings),
            entropy=entropy,
            interval=_READ_EVERY,
        )
        return driven

    def _task(self, original: nn.Module, cell: Cell) -> Task:
        settings, plan = self.plan.settings, self.plan
        return Task(
            self._points(plan.forgotten(cell.shadow, cell.part)),
            self._points(plan.retained(cell.shadow, cell.part)),
            self._points(plan.division.validation),
            working_copy(original, self._device).requires_grad_(False).eval(),
            len(self._data.classes),
            Streams(settings.seed, "study unlearn", settings.first_shadow + cell.shadow, cell.part),
            self._repeater(),
        )

    def _repeater(self, precision: Precision = "auto") -> Repeater:
        """One for every lane, whose graphs share their memory: they are replayed one after another."""
        device = self._device
        lane = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        key = ("repeater", lane, precision)
        if key not in self._kept:
            self._kept[key] = Repeater(device, precision, capture=True)
        found: Repeater = self._kept[key]
        return found

    def _pair(self, original: nn.Module, model: nn.Module, task: Task, arm: StudyArm, cell: Cell) -> dict[str, Any]:
        count = self.plan.settings.pair_examples
        pick = np.random.default_rng(Streams(self.plan.settings.seed, "study pair").number(cell.shadow))

        def some(index: IndexArray, most: int) -> TensorExamples:
            return self._points(np.sort(pick.permutation(index)[:most]))

        audit = audit_pair(
            original,
            model,
            forget=some(self.plan.forgotten(cell.shadow, cell.part), count),
            test=some(self.plan.never(cell.shadow), 2 * count),
            retain=some(self.plan.retained(cell.shadow, cell.part), 2048),
            background=count,
            steps=("naive",) if arm.defense is None else tuple(pre_steps()),
            seed=self.plan.settings.seed,
        )
        return audit.as_json()

    def _confidence(self, model: nn.Module) -> dict[str, NDArray[np.generic]]:
        points = self._points(self.plan.division.audited)
        output = logits(model, points, batch_size=self._at_once).double().cpu().numpy()
        y = points.y.cpu().numpy()
        return {
            "confidence": logit_confidence(output, y).astype(np.float32),
            "correct": output.argmax(1) == y,
        }

    def _accuracy(self, model: nn.Module, examples: Any) -> float:
        right = logits(model, examples, batch_size=self._at_once).argmax(1) == examples.y
        return float(right.double().mean())

    def _audited_among(self, index: IndexArray) -> IndexArray:
        return np.intersect1d(self.plan.division.audited, index)

    @property
    def _at_once(self) -> int:
        return 4096 if self._device.type == "cuda" else 512

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
    def _test(self) -> TensorExamples:
        if "test" not in self._kept:
            self._kept["test"] = self._data.test.to(self._device)
            self._share()
        found: TensorExamples = self._kept["test"]
        return found

    def _points(self, index: IndexArray) -> TensorExamples:
        if "train" not in self._kept:
            self._kept["train"] = self._data.train.to(self._device)
            self._share()
        found: TensorExamples = self._kept["train"].select(torch.from_numpy(index))
        return found

    def _network(self, streams: Streams) -> nn.Module:
        settings, data = self.plan.settings, self._data
        options = {**suggest_options(settings.network, data.shape, len(data.classes)), **settings.network_options}
        return build_model(settings.network, generator=streams.generator("weights"), **options)

    def _model(self, shadow: int, store: Store) -> nn.Module:
        """The original of a shadow; the last few are kept, since all its cells start from it."""
        key = ("original", shadow)
        if key not in self._kept:
            for old in [k for k in self._kept if isinstance(k, tuple) and k[0] == "original"][:-_KEPT_ORIGINALS]:
                self._share()
                del self._kept[old]
            model = self._network(Streams(0, "any"))
            model.load_state_dict(weights_of(store.read(self.plan.key(Cell("original", shadow))).read(WEIGHTS)))
            self._kept["digest", shadow] = model_digest(model)
            self._kept[key] = lay_out(model.to(self._device)).eval()
            self._share()
        kept: nn.Module = self._kept[key]
        return deepcopy(kept)

    def _digest(self, shadow: int) -> str:
        """The digest of an original that is loaded, or was."""
        return str(self._kept["digest", shadow])

    def _tidy(self) -> None:
        """Let go of what earlier jobs left: models in cycles, with their graphs, which must not be destroyed while
        others are captured or run, and memory that was kept for other streams, where little is left.
        """
        if self._device.type != "cuda":
            return
        gc.collect()
        free, whole = torch.cuda.mem_get_info(self._device)
        if free < _LEAST_FREE * whole:
            self._share()
            torch.cuda.empty_cache()
        if "frozen" not in self._kept and "data" in self._kept:
            # Modules and data are here to stay, and need not be looked through each time.
            gc.freeze()
            self._kept["frozen"] = True

    def _share(self) -> None:
        """Wait for all lanes: what one of them made, or is about to let go of, others use."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


_KEPT_ORIGINALS = 32
_LEAST_FREE = 0.3


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


@torch.no_grad()
def _distance(model: nn.Module, original: nn.Module) -> float:
    """‖θ − θ_org‖ over all parameters."""
    differences = [a - b for a, b in zip(model.parameters(), original.parameters(), strict=True)]
    return float(torch.stack(torch._foreach_norm(differences)).square().sum().sqrt())


def _teleports(driven: Driven) -> dict[str, Any]:
    """How many teleports there were, how many of them were taken back, and what each changed."""
    made = driven.teleports
    return {
        "count": len(made),
        "taken_back": sum(c.scale == 0 for c in made),
        "seconds": [c.seconds for c in made],
        "energy_before": [c.energy_before for c in made],
        "energy_after": [c.energy_after for c in made],
        "moved": [c.moved for c in made],
    }
