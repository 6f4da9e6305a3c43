"""`unlearn()`: drives a method update by update, lets a defence move the weights in between, and judges the result."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..data.examples import Examples, TensorExamples, as_examples
from ..data.files import to_json
from ..defense.base import Defense
from ..defense.certificate import Certificate, shortfalls
from ..defense.registry import as_defense
from ..errors import DivergedError, InputError, WarpError, WarpWarning
from ..methods.protocol import Method, Task
from ..methods.registry import as_method
from ..methods.retrain import Retrain, RetrainBy, frozen_state
from ..models.fresh import kept_buffers
from ..models.modes import choose_device, draws_nothing, enter_mode, norm_mode
from ..models.own import Logits, failed, unwrap
from ..models.weights import model_digest, save_weights
from ..module_tree import modes_of, restore_modes
from ..randomness import LayerDraws, Streams, whole
from ..stats.verdict import Verdict
from ..training.update import Update
from .checks import check_disjoint, check_examples, check_precision, device_of, network_for
from .guard import Collapse, Guard, generators_kept, rows_to_watch
from .judge import check_drawn, html_table, judge_models
from .record import Deletion, DeletionRecord, describe, describe_defense, examples_digest, now, versions

Untrained = nn.Module | Callable[[], nn.Module] | None


@dataclass(frozen=True, eq=False, repr=False)
class Unlearned:
    """The new model, the record, the verdict, a row of losses an update, what each teleport did, and the time."""

    model: nn.Module
    record: DeletionRecord
    verdict: Verdict
    history: list[dict[str, float]]
    teleports: list[Certificate]
    seconds: float

    def rows(self) -> list[dict[str, float]]:
        """A plain row of losses for each update, as a `pandas.DataFrame` takes them."""
        return [dict(row) for row in self.history]

    def save(self, path: Path | str) -> None:
        """Write the weights to `path` (.safetensors), with the record in the header, whole or not at all."""
        save_weights(Path(path), self.model, header={"record": self.record.as_json()})

    def __repr__(self) -> str:
        done = self.record.deletions[-1]
        how = done.method["name"] + (f" + {done.defense['name']}" if done.defense else "")
        rows = f"{done.requested:,} rows forgotten, {done.retained:,} kept"
        return f"Unlearned({how}: {rows}, {len(self.history)} updates, {self.seconds:.1f} s; {self.verdict.sentence})"

    def _repr_html_(self) -> str:
        done = self.record.deletions[-1]
        head = ["method", "defence", "forgotten", "kept", "updates", "seconds"]
        defense = done.defense["name"] if done.defense else "none"
        counts = [f"{n:,}" for n in (done.requested, done.retained, len(self.history))]
        return html_table(head, [[done.method["name"], defense, *counts, f"{self.seconds:.1f}"]], self.verdict)


def unlearn(
    model: nn.Module,
    *,
    forget: object,
    retain: object,
    method: str | Method,
    options: Mapping[str, Any] | None = None,
    defense: str | Defense | None = None,
    test: object | None = None,
    validation: object | None = None,
    untrained: Untrained = None,
    drawn: bool | str = False,
    seed: int = 0,
    defense_seed: int | None = None,
    device: torch.device | str | None = None,
    on_update: Callable[[Update], None] | None = None,
    progress: bool = False,
) -> Unlearned:
    """Remove the influence of `forget` from a copy of `model`, which itself comes back bit-identical, and judge it.

    `forget`, `retain`, `validation` and `test` are each a pair of tensors (x, y), a `Dataset` of such pairs, or a
    `DataLoader`. `method` is a name ("ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on", "retrain", "finetune",
    "langevin", or a plug-in's) or FILE.py:Class, both with `options`, or an object of `warp_unlearning.methods`.
    `defense` is None, a name ("warp", "fastwarp", "warp_guarded", "cob", "conjugate") or an object of
    `warp_unlearning.defense`. `test` are rows that the model never saw, which the verdict needs; `drawn` says that the
    rows to forget were drawn at random within their classes, and as a text who says so. `untrained` is a new network of
    the same architecture, or what builds one, for methods that start from one where its layers cannot be reset. The
    same `seed` gives the same weights on the same machine. A defence draws from the operating system's entropy;
    `defense_seed` fixes it for experiments, and the record then says so. `progress` shows how far it is on stderr.

    >>> from torch.nn import Linear
    >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    >>> result = unlearn(Linear(4, 2), forget=(x[:1], y[:1]), retain=(x[1:], y[1:]), method="ngp")
    >>> len(result.history)
    5
    """
    check_precision(model)
    chosen, guarding, seed = as_method(method, options), as_defense(defense), whole(seed)
    defense_seed = None if defense_seed is None else whole(defense_seed, "defense_seed")
    check_drawn(drawn)
    if on_update is not None and not callable(on_update):
        raise InputError(f"on_update is a {type(on_update).__name__}; give a function that takes an update")
    place = device_of(model) if device is None else choose_device(str(device))
    forget = as_examples(forget, what="forget")
    working = network_for(working_copy(model, place), forget)
    task = make_task(working, forget=forget, retain=retain, validation=validation, untrained=untrained, seed=seed)
    _check_training(working, task.retain, chosen)
    unseen = None if test is None else as_examples(test, what="test").to(place)
    if unseen is not None:
        check_examples(working, {"test": unseen})
    ours = isinstance(chosen, Retrain | RetrainBy) and not frozen_state(working)
    if ours and untrained is None and (kept := kept_buffers(working)):
        ours = False
        warnings.warn(
            f"retraining keeps the buffer {kept[0]}, which nothing resets and which may hold what was learned: give "
            "`untrained`, or the result is judged like that of any other method",
            WarpWarning,
            stacklevel=2,
        )
    modes = modes_of(working)
    began = perf_counter()
    steps = drive(
        working,
        task,
        chosen,
        defense=guarding,
        secret=Streams.secret(defense_seed),
        on_update=_progress(chosen.name, on_update) if progress else on_update,
        watch=rows_to_watch(task, task.validation or unseen),
    )
    driven = _to_the_end(steps)
    seconds = perf_counter() - began
    restore_modes(modes)
    by = chosen.spec if isinstance(chosen, RetrainBy) else None
    word = by or (drawn if isinstance(drawn, str) else None)
    if word is None and untrained is not None and isinstance(chosen, Retrain):
        word = "the untrained network that was given"
    try:
        verdict = judge_models(
            task.original,
            working,
            forget=task.forget,
            retain=task.retain,
            test=unseen,
            drawn=bool(drawn),
            ours=ours,
            word=word,
            seed=seed,
        )
    except WarpError as error:
        state = {n: t.detach().clone() for n, t in working.state_dict().items()}
        raise DivergedError(f"the result cannot be judged: {error}", state=state, update=len(driven.history)) from error
    told = [] if guarding is None else shortfalls(driven.teleports)
    deletion = Deletion(
        requested=len(task.forget),
        retained=len(task.retain),
        forget_digest=examples_digest(task.forget),
        retain_digest=examples_digest(task.retain),
        original=model_digest(task.original),
        unlearned=model_digest(working),
        method=describe(chosen),
        defense=describe_defense(guarding),
        experiment_only=guarding is not None and defense_seed is not None,
        seed=seed,
        seconds=seconds,
        date=now(),
        versions=versions(),
        verdicts={"defense": told} if told else {},
        request={"how": "examples", "rows": len(task.forget), "copies": 0, "drawn": bool(drawn)},
        threads=torch.get_num_threads(),
        device=str(place),
        verdict=to_json(verdict.as_json()),
        recipe="ours" if isinstance(chosen, Retrain) else by,
    )
    if deletion.original == deletion.unlearned:
        warnings.warn(
            f"{chosen.name} left the model bit-identical: nothing was forgotten. A method that chooses a checkpoint "
            "(scrub with rewind, pgu with stop) may have chosen the start",
            WarpWarning,
            stacklevel=2,
        )
    elif verdict.exit == 1:
        warnings.warn(f"the unlearning by {chosen.name} {verdict.sentence}", WarpWarning, stacklevel=2)
    changed = working if isinstance(model, Logits) else unwrap(working)
    return Unlearned(changed, DeletionRecord((deletion,)), verdict, driven.history, driven.teleports, seconds)


def _progress(name: str, on_update: Callable[[Update], None] | None) -> Callable[[Update], None]:
    began, shown = perf_counter(), -1

    def show(update: Update) -> None:
        nonlocal shown
        tenth = 10 * update.step // update.of
        if tenth > shown:
            shown = tenth
            sys.stderr.write(f"{name}: update {update.step} of {update.of}, {perf_counter() - began:.1f} s\n")
        if on_update is not None:
            on_update(update)

    return show


def working_copy(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy on `device`, without gradients, that shares nothing with `model`."""
    copy = deepcopy(model).to(device)
    copy.zero_grad(set_to_none=True)
    return copy


def make_task(
    model: nn.Module,
    *,
    forget: object,
    retain: object,
    validation: object | None,
    untrained: Untrained = None,
    seed: int,
) -> Task:
    """The checked task, on the device of `model`, with a frozen copy of it as `original`."""
    device = device_of(model)
    given = {"forget": forget, "retain": retain} | ({} if validation is None else {"validation": validation})
    sets: dict[str, Examples] = {what: as_examples(x, what=what).to(device) for what, x in given.items()}
    classes = check_examples(model, sets)
    check_disjoint(sets["forget"], sets["retain"])
    original = working_copy(model, device).requires_grad_(False).eval()
    streams = Streams(seed, "unlearn")
    return Task(sets["forget"], sets["retain"], sets.get("validation"), original, classes, streams, untrained=untrained)


@dataclass(frozen=True, eq=False)
class Driven:
    """What is left of a method that has been driven to its end, beside the model."""

    history: list[dict[str, float]]
    teleports: list[Certificate]


def drive(
    model: nn.Module,
    task: Task,
    method: Method,
    *,
    defense: Defense | None = None,
    secret: Streams,
    on_update: Callable[[Update], None] | None = None,
    interval: int = 10,
    watch: TensorExamples | None = None,
) -> Generator[Update, None, Driven]:
    """Update `model` in place, a step at a time, as `unlearn` does; so that many can be driven side by side.

    Nothing is checked beforehand. `on_update` is told of an update before the defence acts, and the update is yielded
    after that. Losses are read once in `interval` updates. The accuracy on `watch` may not collapse.
    """
    collapse = None if watch is None else Collapse(model, watch)
    session = None if defense is None else defense.start(model, task, streams=secret)
    enter_mode(model, method.norm_mode)
    guard = Guard(model, interval=interval)
    quiet = task.repeater is not None and task.repeater.capture and draws_nothing(model)
    draws = LayerDraws(task.streams.number("layers"), device=device_of(model), none=quiet)
    updates = method.updates(model, task)
    move = None
    try:
        while True:
            try:
                with draws:
                    update = updates.send(move)
            except StopIteration:
                break
            guard.watch(update)
            if on_update is not None:
                on_update(update)
            try:
                move = None if session is None else session.between(update)
            except Exception:
                guard.flush()  # Where a defence fails on weights that are not finite, the method diverged.
                raise
            if move is not None:
                enter_mode(model, method.norm_mode)
            if collapse is not None:
                collapse.watch(update)
            yield update
        guard.flush()
    except DivergedError as error:
        if session is not None:
            error.state = dict(session.brought_back(error.state))
        raise
    if session is not None:
        session.finish()
    model.zero_grad(set_to_none=True)
    return Driven(guard.history, [] if session is None else list(session.certificates))


def expected_seconds(
    model: nn.Module,
    *,
    forget: object,
    retain: object,
    validation: object | None,
    method: Method,
    untrained: Untrained = None,
    seed: int = 0,
) -> float:
    """About how long the updates of a method take, from the first five on a copy; teleports come on top."""
    working = working_copy(model, device_of(model))
    task = make_task(working, forget=forget, retain=retain, validation=validation, untrained=untrained, seed=seed)
    times, of = [perf_counter()], 0
    for update in islice(drive(working, task, method, secret=Streams.secret()), 5):
        of = update.of
        times.append(perf_counter())
    # The first update also waits for what is prepared once.
    first, rest = times[1] - times[0], (times[-1] - times[1]) / max(1, len(times) - 2)
    return first + rest * (of - 1)


def updated(
    model: nn.Module,
    *,
    forget: object,
    retain: object,
    method: Method,
    validation: object | None = None,
    defense: Defense | None = None,
    seed: int = 0,
    defense_seed: int | None = None,
) -> nn.Module:
    """The model that `unlearn` makes, in eval mode, neither stopped where it collapses nor judged: for studies, which
    measure many models together.
    """
    working = working_copy(model, device_of(model))
    task = make_task(working, forget=forget, retain=retain, validation=validation, seed=seed)
    _to_the_end(drive(working, task, method, defense=defense, secret=Streams.secret(defense_seed)))
    return working.eval()


def _to_the_end(steps: Generator[Update, None, Driven]) -> Driven:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Driven = end.value
            return found
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise failed(error, "updated") from error


def _check_training(model: nn.Module, examples: Examples, method: Method) -> None:
    """One batch forward and backward, in eval mode, so that a network that cannot be trained is refused at the door."""
    sizes = [n for name, n in vars(method).items() if "batch" in name and isinstance(n, int)]
    batch = examples.take(torch.arange(min(max(sizes, default=256), len(examples))))
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise InputError("the model has no trainable parameter, so nothing can be forgotten; call its requires_grad_()")
    try:
        with generators_kept(batch.y.device), norm_mode(model, "eval"):
            loss = F.cross_entropy(model(batch.x.clone()), batch.y)
            torch.autograd.grad(loss, weights, allow_unused=True)
    except Exception as error:
        raise failed(error, f"given a batch of {len(batch.y)} to learn from") from error
    if not bool(loss.isfinite()):
        raise InputError(
            f"the model's loss on the first {len(batch.y)} retained examples is {float(loss)}; its weights are damaged "
            "or its outputs are not finite for a whole batch"
        )
