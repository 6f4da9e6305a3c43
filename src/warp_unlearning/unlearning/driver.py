"""`unlearn()`: drives a method update by update, lets a defence move the weights in between, and judges the result."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ..data.examples import Examples, TensorExamples
from ..data.files import to_json
from ..defense.base import Defense
from ..defense.certificate import Certificate, shortfalls
from ..defense.registry import as_defense
from ..errors import DivergedError, InputError, WarpError, WarpWarning
from ..methods.base import Method, Task
from ..methods.references import Retrain, RetrainBy, frozen_state
from ..methods.registry import as_method
from ..models.fresh import kept_buffers
from ..models.modes import choose_device, draws_nothing, enter_mode, norm_mode
from ..models.own import Logits, failed, unwrap
from ..models.weights import model_digest, save_weights
from ..modules import modes_of, restore_modes
from ..randomness import LayerDraws, Streams, whole
from ..stats.verdict import Verdict
from ..training.update import Update
from .checks import as_sets, check_disjoint, check_examples, check_precision, device_of, network_for
from .guard import Collapse, Guard, generators_kept, rows_to_watch
from .judge import judge_models, word_of
from .record import Deletion, DeletionRecord, describe, describe_defense, examples_digest, now, versions

Untrained = nn.Module | Callable[[], nn.Module] | None


@dataclass(frozen=True, eq=False, repr=False)
class Unlearned:
    """The new model, the record, the verdict, a row of losses an update, what each teleport did, and the time.

    `before` and `after` are the shares of right answers of the original and the new model on "forgotten" rows, "unseen"
    test rows of their classes, all "test" rows, and those of the classes "kept", where some are gone; None where there
    are no such rows.
    """

    model: nn.Module
    record: DeletionRecord
    verdict: Verdict
    history: list[dict[str, float]]
    teleports: list[Certificate]
    seconds: float
    before: Mapping[str, float | None]
    after: Mapping[str, float | None]

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
        return f"<pre>{escape(chr(10).join((repr(self), *self.verdict.lines)))}</pre>"


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
    stored: torch.dtype | None = None,
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
    `defense_seed` fixes it for experiments, and the record then says so. `stored` is the type in which the weights will
    be kept, to which they are rounded before they are judged. `progress` shows how far it is on stderr.

    >>> from torch.nn import Linear
    >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    >>> result = unlearn(Linear(4, 2), forget=(x[:1], y[:1]), retain=(x[1:], y[1:]), method="ngp")
    >>> len(result.history)
    5
    """
    check_precision(model)
    chosen, guarding, seed, word = as_method(method, options), as_defense(defense), whole(seed), word_of(drawn)
    defense_seed = None if defense_seed is None else whole(defense_seed, "defense_seed")
    if on_update is not None and not callable(on_update):
        raise InputError(f"on_update is a {type(on_update).__name__}; give a function that takes an update")
    if stored is not None and not (isinstance(stored, torch.dtype) and stored.is_floating_point):
        raise InputError(f"stored is {stored!r}; give a floating-point type, such as torch.bfloat16")
    place = device_of(model) if device is None else choose_device(str(device))
    given = as_sets(forget=forget, retain=retain, validation=validation, test=test)
    sets = {what: examples.to(place) for what, examples in given.items()}
    working = network_for(working_copy(model, place), sets["forget"])
    task = make_task(working, **sets, untrained=untrained, seed=seed)
    _check_training(working, task.retain, chosen)
    ours = _trained_anew(working, chosen, untrained)
    modes, began = modes_of(working), perf_counter()
    steps = drive(
        working,
        task,
        chosen,
        defense=guarding,
        secret=Streams.secret(defense_seed),
        on_update=on_update,
        watch=rows_to_watch(task, sets.get("validation", sets.get("test"))),
    )
    driven = _to_the_end(steps, show=chosen.name if progress else "")
    seconds = perf_counter() - began
    restore_modes(modes)
    state = working.state_dict()
    if stored is not None:
        for tensor in (t for t in state.values() if t.is_floating_point()):
            tensor.copy_(tensor.to(stored))
    by = chosen.spec if isinstance(chosen, RetrainBy) else None
    if ours:
        word = "the untrained network that was given" if by is None and untrained is not None else by
    try:
        verdict, before, after = judge_models(
            task.original,
            working,
            forget=task.forget,
            retain=task.retain,
            test=sets.get("test"),
            drawn=bool(drawn),
            ours=ours,
            word=word,
            seed=seed,
        )
    except WarpError as error:
        state = {name: tensor.detach().clone() for name, tensor in state.items()}
        raise DivergedError(f"the result cannot be judged: {error}", state=state, update=len(driven.history)) from error
    notes = [] if guarding is None else shortfalls(driven.teleports)
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
        verdicts={"defense": notes} if notes else {},
        request={"how": "examples", "rows": len(task.forget), "copies": 0, "drawn": bool(drawn)},
        threads=torch.get_num_threads(),
        device=str(place),
        verdict=to_json(verdict.as_json()),
        recipe="ours" if isinstance(chosen, Retrain) else by,
    )
    warning = f"the unlearning by {chosen.name} {verdict.sentence}" if verdict.exit == 1 else ""
    if deletion.original == deletion.unlearned:
        may = "a method that chooses a checkpoint (scrub with rewind, pgu with stop) may have chosen the start"
        warning = f"{chosen.name} left the model bit-identical, so nothing was forgotten: {may}"
    if warning:
        warnings.warn(warning, WarpWarning, stacklevel=2)
    changed, record = working if isinstance(model, Logits) else unwrap(working), DeletionRecord((deletion,))
    return Unlearned(changed, record, verdict, driven.history, driven.teleports, seconds, before, after)


def _trained_anew(model: nn.Module, method: Method, untrained: Untrained) -> bool:
    """Whether the method trains all weights from a fresh start, so that nothing of the forgotten rows can be left."""
    if not isinstance(method, Retrain | RetrainBy) or frozen_state(model):
        return False
    kept = kept_buffers(model) if untrained is None else []
    if kept:
        warnings.warn(
            f"retraining keeps the buffer {kept[0]}, which may hold what was learned, so the result is judged like any "
            "other method's; give `untrained`",
            WarpWarning,
            stacklevel=3,
        )
    return not kept


def working_copy(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy on `device`, without gradients, that shares nothing with `model`."""
    copy = deepcopy(model).to(device)
    copy.zero_grad(set_to_none=True)
    return copy


def make_task(
    model: nn.Module, *, forget: object, retain: object, untrained: Untrained = None, seed: int, **others: object
) -> Task:
    """The checked task, on the device of `model`, with a frozen copy of it as `original`.

    Of `others`, `validation` belongs to the task; a `test` set is only checked.
    """
    device = device_of(model)
    sets = {what: e.to(device) for what, e in as_sets(forget=forget, retain=retain, **others).items()}
    classes = check_examples(model, sets)
    check_disjoint(sets["forget"], sets["retain"])
    original = working_copy(model, device).requires_grad_(False).eval()
    streams = Streams(seed, "unlearn")
    return Task(sets["forget"], sets["retain"], sets.get("validation"), original, classes, streams, untrained=untrained)


class Driven(NamedTuple):
    """A row of losses an update, and what each teleport did."""

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
    """Update `model` in place, a step at a time, as `unlearn` does, so that many models can be driven side by side.

    Nothing is checked beforehand. `on_update` sees an update before the defence acts, the caller after that. Losses are
    read once in `interval` updates. A collapse of the accuracy on `watch` stops the run.
    """
    collapse = None if watch is None else Collapse(model, watch)
    session = None if defense is None else defense.start(model, task, streams=secret)
    enter_mode(model, method.norm_mode)
    guard = Guard(model, interval=interval)
    quiet = task.compute is not None and task.compute.capture and draws_nothing(model)
    draws = LayerDraws(task.streams.number("layers"), device=device_of(model), none=quiet)
    updates, move = method.updates(model, task), None
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


def expected_seconds(model: nn.Module, *, method: Method, **given: Any) -> float:
    """About how long the updates of a method take, from the first five on a copy; teleports come on top.

    `given` are the sets and the untrained network, as `make_task` takes them.
    """
    working = working_copy(model, device_of(model))
    task = make_task(working, **{"seed": 0, **given})
    times, total = [perf_counter()], 0
    for update in islice(drive(working, task, method, secret=Streams.secret()), 5):
        total = update.total
        times.append(perf_counter())
    # The first update also waits for what is prepared once.
    first, rest = times[1] - times[0], (times[-1] - times[1]) / max(1, len(times) - 2)
    return first + rest * (total - 1)


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
    """The model that `unlearn` makes, in eval mode, neither stopped where it collapses nor judged: for studies."""
    working = working_copy(model, device_of(model))
    task = make_task(working, forget=forget, retain=retain, validation=validation, seed=seed)
    _to_the_end(drive(working, task, method, defense=defense, secret=Streams.secret(defense_seed)))
    return working.eval()


def _to_the_end(steps: Generator[Update, None, Driven], *, show: str = "") -> Driven:
    """Drive to the end; with `show`, a name, write each tenth of the way to stderr."""
    began, shown = perf_counter(), -1
    while True:
        try:
            update = next(steps)
        except StopIteration as end:
            found: Driven = end.value
            return found
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise failed(error, "updated") from error
        if show and 10 * update.step // update.total > shown:
            shown = 10 * update.step // update.total
            sys.stderr.write(f"{show}: update {update.step} of {update.total}, {perf_counter() - began:.1f} s\n")


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
        n = len(batch.y)
        raise InputError(
            f"the model's loss on the first {n} retained examples is {float(loss)}; its weights are damaged"
        )
