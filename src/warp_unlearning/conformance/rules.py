"""The rules every method keeps, each a function that says how a method broke it, or returns None.

The moves between updates are those of the package's symmetries, exact for batch norm in train and in eval mode:
channels in a random order, or rescaled by factors that no batch norm has to follow.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..data.examples import Batch, Examples, TensorExamples
from ..defense.certificate import Certificate
from ..errors import WarpWarning
from ..methods.base import Method, Task
from ..models.modes import batch_norms
from ..models.weights import model_digest
from ..randomness import Streams
from ..symmetry.moves import Move, apply_move
from ..symmetry.permutation import Permutation
from ..symmetry.rescaling import ChangeOfBasis
from ..training.update import Update
from ..unlearning.driver import Unlearned, unlearn
from .problem import Problem

TOLERANCE = 1e-7  # relative, in float64, after many updates that each add rounding
PERMUTATION, RESCALING = Permutation(), ChangeOfBasis(through_norm=False)


AfterUpdate = Callable[[nn.Module, Task, Update], Move | None]
AtOneEnd = Callable[[nn.Module, Task], None]


@dataclass(eq=False)
class Spy:
    """A defence that watches a method, and moves the weights if it is told to.

    `after_update` is called after every update; a move that it returns is applied to the weights and handed to the
    method. `at_start` is called before the first update, `at_end` after the last. A spy serves one run.
    """

    name: ClassVar[str] = "spy"
    certificates: ClassVar[Sequence[Certificate]] = ()
    after_update: AfterUpdate = lambda model, task, update: None
    at_start: AtOneEnd = lambda model, task: None
    at_end: AtOneEnd = lambda model, task: None

    def start(self, model: nn.Module, task: Task, *, streams: Streams) -> Spy:
        """Call `at_start`; the spy is its own session."""
        self._model, self._task = model, task
        self.at_start(model, task)
        return self

    def between(self, update: Update) -> Move | None:
        """Call `after_update`, and apply the move if there is one."""
        move = self.after_update(self._model, self._task, update)
        if move is not None:
            apply_move(self._model, move)
        return move

    def finish(self) -> None:
        """Call `at_end`."""
        self.at_end(self._model, self._task)

    def brought_back(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The state as it is."""
        return state


def original_untouched(method: Method, problem: Problem) -> str | None:
    """The model that is given comes back bit-identical, in the same modes."""
    before = _condition(problem.original)
    _run(method, problem)
    changed = [what for what, value in _condition(problem.original).items() if value != before[what]]
    return f"{', '.join(changed)} of the given model changed" if changed else None


def teacher_frozen(method: Method, problem: Problem) -> str | None:
    """`task.original` stays bit-identical and in eval mode, and gathers no gradient, at every update."""
    before = model_digest(problem.original)
    found: list[str] = []

    def after_update(model: nn.Module, task: Task, update: Update) -> None:
        if any(module.training for module in task.original.modules()):
            found.append(f"update {update.step}: task.original was put into train mode")
        if model_digest(task.original) != before:
            found.append(f"update {update.step}: the weights or statistics of task.original changed")
        if any(p.grad is not None for p in task.original.parameters()):
            found.append(f"update {update.step}: task.original holds a gradient")

    _run(method, problem, Spy(after_update))
    return found[0] if found else None


def frozen_weights_stay(method: Method, problem: Problem) -> str | None:
    """What an update declares frozen is bit-identical before and after it, also where channels are permuted in
    between. A method that declares `masks = True` must declare frozen entries.
    """
    previous: dict[str, Tensor] = {}
    found: list[str] = []
    declared: list[int] = []
    draws = Streams(0, "frozen").generator("moves")

    def remember(model: nn.Module, task: Task, move: Move | None = None) -> None:
        previous.update({n: (move.point(n, p) if move else p).detach().clone() for n, p in model.named_parameters()})

    def after_update(model: nn.Module, task: Task, update: Update) -> Move | None:
        declared.extend([update.step] if update.frozen else [])
        for name, value in model.named_parameters():
            mask = update.frozen.get(name)
            if mask is not None and not torch.equal(value[mask], previous[name][mask]):
                moved = int((value[mask] != previous[name][mask]).sum())
                found.append(f"update {update.step} moved {moved} frozen entries of {name}")
        move = PERMUTATION.move(model, generator=draws) if update.step % 3 == 0 else None
        remember(model, task, move)
        return move

    _run(method, problem, Spy(after_update, at_start=remember))
    if getattr(method, "masks", False) and not declared:
        return "masks is True, but no update declares what is frozen"
    return found[0] if found else None


def norm_mode_kept(method: Method, problem: Problem) -> str | None:
    """Batch norm is in the declared mode at every update and in every differentiated pass between two; running
    statistics change in train mode only.
    """
    found: list[str] = []
    training = method.norm_mode == "train"
    start = _statistics(problem.original)
    last: dict[str, Tensor] = {}

    def watch(norm: nn.Module, args: object) -> None:
        # Before the first update a method may look at the model in eval mode, to find a mask say.
        if last and torch.is_grad_enabled() and norm.training != training:
            found.append(f"a pass was differentiated with batch norm not in {method.norm_mode} mode")

    def after_update(model: nn.Module, task: Task, update: Update) -> None:
        if any(norm.training != training for norm in batch_norms(model)):
            found.append(f"update {update.step}: batch norm is not in {method.norm_mode} mode")
        last.update(_statistics(model))

    def at_start(model: nn.Module, task: Task) -> None:
        for norm in batch_norms(model):
            norm.register_forward_pre_hook(watch)

    result = _run(method, problem, Spy(after_update, at_start=at_start))
    changed = any(not torch.equal(last[n], start[n]) for n in start)
    if found:
        return found[0]
    if training and not changed:
        return "norm_mode is train, but the running statistics never changed"
    if not training and (changed or any(not torch.equal(t, start[n]) for n, t in _statistics(result.model).items())):
        return "norm_mode is eval, but the running statistics changed"
    return None


def seed_decides(method: Method, problem: Problem) -> str | None:
    """The same seed gives the same weights, also of a network with dropout, whatever state torch's global generator is
    in, which is left as it was.
    """
    digests = []
    dropping = replace(problem, original=nn.Sequential(problem.original, nn.Dropout(0.2)))
    for other in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(other)
            state = torch.get_rng_state()
            digests.append(model_digest(_run(method, dropping).model))
            if not torch.equal(state, torch.get_rng_state()):
                return "torch's global random generator was used"
    return None if digests[0] == digests[1] else "two runs with the same seed gave different weights"


def start_move_followed(method: Method, problem: Problem) -> str | None:
    """Channels permuted before the first update leave every loss as it was: state in weight coordinates is taken from
    the model that is updated, not from `task.original`. A method that declares `adds_noise = True` is not checked,
    since noise drawn for the weights in their order falls on others.
    """
    if getattr(method, "adds_noise", False):
        return None
    move = PERMUTATION.move(problem.original, generator=Streams(0, "start").generator("moves"))
    moved = _run(method, problem, Spy(at_start=lambda model, task: apply_move(model, move))).history
    different = _first_difference(_run(method, problem).history, moved)
    return None if different is None else f"after channels were permuted before the first update, {different}"


def last_move_kept(method: Method, problem: Problem) -> str | None:
    """A change of basis after the last update is still there in the final weights: checkpoints and other state that
    the method puts back followed it.
    """
    plain = _run(method, problem)
    move = RESCALING.move(problem.original, generator=Streams(0, "last").generator("moves"))
    moved = _run(method, problem, _moving_after(len(plain.history), move))
    for (name, expected), got in zip(plain.model.state_dict().items(), moved.model.state_dict().values(), strict=True):
        if not _close(move.point(name, expected), got):
            return f"after a change of basis following the last update, {name} of the final model is not in that basis"
    return None


def permutations_followed(method: Method, problem: Problem) -> str | None:
    """Channels permuted after every single update leave every later loss, and the final function, as they were.

    Gradient steps do not depend on the order of channels. So any difference is state that did not follow the weights.
    """
    draws = Streams(0, "permutations").generator("moves")
    plain = _run(method, problem)
    moved = _run(method, problem, Spy(lambda model, task, update: PERMUTATION.move(model, generator=draws)))
    different = _first_difference(plain.history, moved.history)
    if different is not None:
        return f"after channels were permuted between updates, {different}"
    if not _close(_outputs(plain.model, problem), _outputs(moved.model, problem)):
        return "permuting channels between updates changed the function of the final model"
    return None


def rescaling_unseen(method: Method, problem: Problem, *, positions: int = 6) -> str | None:
    """A change of basis after update k leaves every loss that update k + 1 sees as it was, for every k of a short run
    and for `positions` of them spread over a long one.

    Steps after that may differ, since a gradient step depends on the scales; what the method *sees* may not.
    """
    plain = _run(method, problem).history
    count = len(plain)
    spread = {1 + (count - 2) * i // (positions - 1) for i in range(positions)}
    for k in range(1, count) if count <= 2 * positions else sorted(spread):
        move = RESCALING.move(problem.original, generator=Streams(k, "rescaling").generator("moves"))
        moved = _run(method, problem, _moving_after(k, move)).history
        different = _first_difference(plain[: k + 1], moved[: k + 1])
        if different is not None:
            return f"after a change of basis following update {k}, {different}"
    return None


def forget_unread(method: Method, problem: Problem) -> str | None:
    """From the first update to the last, no forget example or label is fetched."""
    counted = _CountedReads(problem.forget)
    reads: list[int] = []

    def count(model: nn.Module, task: Task) -> None:
        reads.append(counted.reads)

    _run(method, problem, Spy(at_start=count, at_end=count), forget=counted)
    before, after = reads
    return f"the forget set was read {after - before} times" if after > before else None


@dataclass(eq=False)
class _CountedReads:
    """Examples that count how often they are read. They stay where they are: the kit runs where its problem lies."""

    examples: TensorExamples
    reads: int = 0

    @property
    def y(self) -> Tensor:
        self.reads += 1
        return self.examples.y

    def take(self, index: Tensor) -> Batch:
        self.reads += 1
        return self.examples.take(index)

    def to(self, device: torch.device | str) -> _CountedReads:
        return self

    def __len__(self) -> int:
        return len(self.examples)


def _run(method: Method, problem: Problem, spy: Spy | None = None, *, forget: Examples | None = None) -> Unlearned:
    with warnings.catch_warnings():
        # On so small a problem a method may well leave the model as it is.
        warnings.simplefilter("ignore", WarpWarning)
        return unlearn(
            problem.original,
            forget=problem.forget if forget is None else forget,
            retain=problem.retain,
            validation=problem.validation,
            method=method,
            defense=spy or Spy(),
            seed=5,
        )


def _moving_after(count: int, move: Move) -> Spy:
    return Spy(lambda model, task, update: move if update.step == count else None)


def _condition(model: nn.Module) -> dict[str, object]:
    return {
        "the weights": model_digest(model),
        "the modes": [m.training for m in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "the gradients": [p.grad is None for p in model.parameters()],
    }


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    return {n: b.clone() for n, b in model.named_buffers() if "running" in n}


@torch.no_grad()
def _outputs(model: nn.Module, problem: Problem) -> Tensor:
    model.eval()
    return torch.cat([model(part.x) for part in (problem.forget, problem.retain, problem.validation)])


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= TOLERANCE * a.abs().max().clamp(min=TOLERANCE))


def _first_difference(plain: list[dict[str, float]], moved: list[dict[str, float]]) -> str | None:
    if len(plain) != len(moved):
        return f"there were {len(moved)} updates instead of {len(plain)}"
    for expected, got in zip(plain, moved, strict=True):
        for key, value in expected.items():
            if abs(got.get(key, float("nan")) - value) > TOLERANCE * max(1.0, abs(value)) or key not in got:
                return f"update {int(expected['update'])} saw {key} = {got.get(key)} instead of {value}"
    return None
