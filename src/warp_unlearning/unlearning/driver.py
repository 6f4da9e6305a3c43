"""`unlearn()`: drives a method update by update, and lets a defence move the weights in between."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral
from time import perf_counter

import torch
from torch import nn

from ..data.examples import Examples, as_examples
from ..defense.base import Defense, Session
from ..defense.certificate import Certificate, shortfalls
from ..defense.registry import as_defense
from ..errors import DivergedError, InputError, WarpWarning
from ..methods.protocol import Method, Task
from ..methods.registry import as_method
from ..models.modes import choose_device, draws_nothing, enter_mode
from ..models.own import check_network
from ..models.weights import model_digest
from ..randomness import LayerDraws, Streams
from ..symmetry.move import Move
from ..training.update import Update
from .checks import check_disjoint, check_examples
from .guard import Guard, restore_modes, training_modes
from .record import Deletion, DeletionRecord, describe, describe_defense, examples_digest, now, versions


@dataclass(frozen=True, eq=False)
class Unlearned:
    """What an unlearning leaves: the new model, a row of losses an update, what each teleport did, the time, and the
    record.
    """

    model: nn.Module
    history: list[dict[str, float]]
    teleports: list[Certificate]
    seconds: float
    record: DeletionRecord


def unlearn(
    model: nn.Module,
    *,
    forget: object,
    retain: object,
    method: str | Method,
    defense: str | Defense | None = None,
    validation: object | None = None,
    seed: int = 0,
    defense_seed: int | None = None,
    device: torch.device | str | None = None,
    on_update: Callable[[Update], None] | None = None,
) -> Unlearned:
    """Remove the influence of `forget` from a copy of `model`, which itself comes back bit-identical.

    `forget`, `retain` and `validation` are each a pair of tensors (x, y), a `Dataset` of such pairs, or a `DataLoader`.
    `method` is a name ("ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on", "retrain", "finetune", "langevin") or
    an object of `warp_unlearning.methods`. `defense` is None, a name ("warp", "fastwarp", "warp_guarded", "cob",
    "conjugate") or an object of `warp_unlearning.defense`. The same `seed` gives the same weights on the same machine.
    A defence draws from the operating system's entropy; `defense_seed` fixes it for experiments, and the record then
    says so.

    >>> from torch.nn import Linear
    >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    >>> result = unlearn(Linear(4, 2), forget=(x[:1], y[:1]), retain=(x[1:], y[1:]), method="ngp")
    >>> len(result.history)
    5
    """
    check_network(model)
    chosen = as_method(method)
    guarding = as_defense(defense)
    _check_seeds(seed, defense_seed)
    place = choose_device(str(device)) if device is not None else _device_of(model)
    working = working_copy(model, place)
    task = make_task(working, forget=forget, retain=retain, validation=validation, seed=seed)
    modes = training_modes(working)
    began = perf_counter()
    driven = _to_the_end(
        drive(working, task, chosen, defense=guarding, secret=Streams.secret(defense_seed), on_update=on_update)
    )
    seconds = perf_counter() - began
    restore_modes(working, modes)
    digests = model_digest(task.original), model_digest(working)
    if digests[0] == digests[1]:
        warnings.warn(
            f"{chosen.name} left the model bit-identical: nothing was forgotten. A method that chooses a checkpoint "
            "(scrub with rewind, pgu with stop) may have chosen the start",
            WarpWarning,
            stacklevel=2,
        )
    told = [] if guarding is None else shortfalls(driven.teleports)
    deletion = Deletion(
        requested=len(task.forget),
        retained=len(task.retain),
        forget_digest=examples_digest(task.forget),
        retain_digest=examples_digest(task.retain),
        original=digests[0],
        unlearned=digests[1],
        method=describe(chosen),
        defense=describe_defense(guarding),
        experiment_only=guarding is not None and defense_seed is not None,
        seed=seed,
        seconds=seconds,
        date=now(),
        versions=versions(),
        verdicts={"defense": told} if told else {},
    )
    return Unlearned(working, driven.history, driven.teleports, seconds, DeletionRecord((deletion,)))


def _check_seeds(seed: object, defense_seed: object) -> None:
    seeds = {"seed": seed} if defense_seed is None else {"seed": seed, "defense_seed": defense_seed}
    for name, value in seeds.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InputError(f"{name} is {value!r}; give a whole number")


def working_copy(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy on `device`, without gradients, that shares nothing with `model`."""
    copy = deepcopy(model).to(device)
    copy.zero_grad(set_to_none=True)
    return copy


def make_task(model: nn.Module, *, forget: object, retain: object, validation: object | None, seed: int) -> Task:
    """The checked task, on the device of `model`, with a frozen copy of it as `original`."""
    device = _device_of(model)
    given = {"forget": forget, "retain": retain, "validation": validation}
    sets: dict[str, Examples] = {
        what: as_examples(source, what=what).to(device)
        for what, source in given.items()
        if source is not None or what != "validation"
    }
    classes = check_examples(model, sets)
    check_disjoint(sets["forget"], sets["retain"])
    original = working_copy(model, device).requires_grad_(False).eval()
    return Task(sets["forget"], sets["retain"], sets.get("validation"), original, classes, Streams(seed, "unlearn"))


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
) -> Generator[Update, None, Driven]:
    """Update `model` in place, a step at a time, as `unlearn` does; so that many can be driven side by side.

    Nothing is checked beforehand. `on_update` is told of an update before the defence acts, and the update is yielded
    after that. Losses are read once in `interval` updates.
    """
    session = None if defense is None else defense.start(model, task, streams=secret)
    enter_mode(model, method.norm_mode)
    guard = Guard(model, interval=interval)
    quiet = task.repeater is not None and task.repeater.capture and draws_nothing(model)
    draws = LayerDraws(task.streams.number("layers"), device=_device_of(model), none=quiet)
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
            move = None if session is None else _between(session, update, guard)
            if move is not None:
                enter_mode(model, method.norm_mode)
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


def _between(session: Session, update: Update, guard: Guard) -> Move | None:
    """Let the defence act. Where it cannot, since weights are no longer finite, it is the method that diverged."""
    try:
        return session.between(update)
    except Exception:
        guard.flush()
        raise


def _to_the_end(steps: Generator[Update, None, Driven]) -> Driven:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Driven = end.value
            return found


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    if first is None:
        raise InputError("the model has no parameters; there is nothing to unlearn")
    return first.device
