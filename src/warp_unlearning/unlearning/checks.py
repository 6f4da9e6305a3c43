"""Checks before the first update: sets that a model can take, none of it both forgotten and kept, and `check_model`.

`check_model` finds whether a model belongs to its data: it must know them better than chance, as well as stated, and
no better under another reading of the rows or another order of the classes.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Subset

from ..data.examples import DatasetExamples, Examples, TensorExamples, as_examples, contents, in_order
from ..data.files import to_json
from ..data.sampling import draw_per_class
from ..defense.base import Defense
from ..defense.registry import as_defense
from ..errors import DataError, InputError, WarpError, reason
from ..models.modes import norm_mode
from ..models.own import as_network, check_network
from ..models.own import check_examples as check_examples
from ..randomness import Streams
from ..stats.exchange import sign_p
from ..stats.intervals import Estimate, proportion
from ..symmetry.base import Compose, Probe, Symmetry
from ..symmetry.layer_inputs import movable_weights
from ..symmetry.null_space import NullSpace
from ..training.scoring import checked_logits
from .guard import generators_kept

Read = Callable[[Tensor], Tensor]
Right = NDArray[np.bool_]
ROWS, FEW, BATCH = 2000, 50, 256
CHANCE, STATED = 0.001, 0.999
# How many more of the rows must be right, beyond chance, for another reading or class order to be the true one.
BETTER_READING, BETTER_ORDER = 0.01, 0.10


def check_precision(model: nn.Module) -> None:
    """Refuse what is no network, and weights of 16 bits: a small update is less than half of their last bit."""
    check_network(model)
    for name, tensor in model.named_parameters():
        if tensor.dtype in (torch.float16, torch.bfloat16):
            kind = f"{name} is {str(tensor.dtype).removeprefix('torch.')}, in which most updates round to nothing"
            raise InputError(f"{kind}; give model.float() (on the command line: --dtype float32)")


def as_sets(**given: object) -> dict[str, Examples]:
    """Each set as `Examples`; `test` and `validation` may be None and are left out."""
    left_out = {what for what in ("test", "validation") if given.get(what) is None}
    return {what: as_examples(source, what=what) for what, source in given.items() if what not in left_out}


def network_for(model: nn.Module, examples: Examples, *, what: str = "the model") -> nn.Module:
    """`model` as a network whose outputs are logits, as these examples show."""
    check_network(model, what=what)
    first = examples.take(torch.arange(min(2, len(examples)))).x.to(device_of(model)) if len(examples) else None
    try:
        return as_network(model, example=first, what=what)
    except DataError:
        return as_network(model, what=what)  # `check_examples` says which set it cannot take


def device_of(model: nn.Module) -> torch.device:
    """The device of a model that has parameters."""
    return next(model.parameters()).device


def finite_logits(
    model: nn.Module, examples: Examples, what: str, *, whose: str = "model", classes: int | None = None
) -> Tensor:
    """Logits (n, classes) in float64 on the CPU; raises where one is not finite. The global generators start from a
    seed and are restored, so that a data set that augments gives every model the same inputs.
    """
    part = examples.to(device_of(model))
    with generators_kept(part.y.device, start=0):
        found = checked_logits(model, part, what, classes=classes)
    broken = (~found.isfinite().all(1)).nonzero()
    if len(broken):
        raise InputError(
            f"the {whose}'s output is not finite on {len(broken)} of {len(found)} {what} rows (first: "
            f"{int(broken[0])}); its weights are damaged, or the rows are on another scale than those of its training"
        )
    return found


def check_disjoint(forget: Examples, retain: Examples) -> None:
    """Raise where an input is to be both forgotten and kept, whatever its label.

    Inputs are compared by content; parts of one data set also by index, since augmentation may change the content.
    """
    if isinstance(forget, DatasetExamples) and isinstance(retain, DatasetExamples):
        (whole, some), (other, others) = _part_of(forget.dataset), _part_of(retain.dataset)
        shared = set(some) & set(others) if whole is other else ()
        if shared:
            found = f"{len(shared)} indices are in both the forget and the retain set (first: {min(shared)})"
            raise DataError(f"{found}; remove them from the retain set")
    copies = copies_of(forget, retain)
    if len(copies):
        first = f"first: retain row {int(copies[0])}, label {int(retain.y[copies[0]])}"
        raise DataError(f"{len(copies)} examples of the retain set are also in the forget set ({first}); remove them")


def _part_of(dataset: object) -> tuple[object, Sequence[int]]:
    if not isinstance(dataset, Subset):
        return dataset, range(len(cast("list[object]", dataset)))
    whole, index = _part_of(dataset.dataset)
    return whole, [index[int(i)] for i in dataset.indices]


def copies_of(known: Examples, others: Examples) -> Tensor:
    """The rows of `others` whose input is that of some row of `known`, whatever the labels, ascending.

    Compared by a 128-bit digest of the bits of the input. Examples of another kind than tensors or a data set have no
    digests and no copies.
    """
    one, other = (
        contents(e.x) if isinstance(e, TensorExamples) else e.contents if isinstance(e, DatasetExamples) else None
        for e in (known, others)
    )
    if one is None or other is None:
        return torch.empty(0, dtype=torch.int64)
    return torch.from_numpy(np.flatnonzero(np.isin(other, one)))


@dataclass(frozen=True)
class Checked:
    """A model that fits its data: how the rows are read, and the accuracy on rows it learned from and on test rows.

    `readings` has the accuracy on the known rows under each other reading, `movable` the share of trainable parameters
    in tensors that the chosen defence can move. Printed, it is a line each.
    """

    classes: int
    reading: str
    known: Estimate
    known_rows: int
    test: Estimate | None
    test_rows: int
    readings: Mapping[str, float]
    movable: float | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"read as {self.reading}", f"known  {self.known} of {self.known_rows:,} rows, {self.classes} classes"]
        lines += [f"test   {self.test} of {self.test_rows:,} rows"] if self.test else []
        lines += [f"read as {name}: {share:.3f} of the known rows" for name, share in self.readings.items()]
        lines += [f"the defence can move {self.movable:.0%} of the parameters"] if self.movable is not None else []
        return "\n".join([*lines, *self.notes])

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return cast("dict[str, Any]", to_json(asdict(self)))


def check_model(
    model: nn.Module,
    *,
    known: object,
    test: object | None = None,
    preprocess: Read | None = None,
    readings: Mapping[str, Read] | None = None,
    accuracy: float | None = None,
    defense: str | Defense | None = None,
) -> Checked:
    """Whether `model` is a model of these data, on at most 2,000 rows of each part; an error where it is not.

    `known` are raw rows that it learned from, `test` raw rows that it did not; `preprocess` makes its inputs of them.
    `readings` are other ways to do so: one under which the model is right more often is an error that names it.
    `accuracy` is the stated accuracy on test rows. The model stays as it is.
    """
    check_precision(model)
    share = isinstance(accuracy, int | float) and not isinstance(accuracy, bool) and 0 <= accuracy <= 1
    if accuracy is not None and (test is None or not share):
        raise InputError(f"accuracy is {accuracy}; give a share of test rows between 0 and 1, and the test rows")
    readings = {} if readings is None else readings
    if not isinstance(readings, Mapping) or not all(callable(function) for function in readings.values()):
        raise InputError(f"readings are {reprlib.repr(readings)}; give a mapping of names to functions of raw rows")
    parts = {what: _drawn(source, what) for what, source in as_sets(known=known, test=test).items()}
    read, rows = preprocess or (lambda x: x), parts["known"]
    name = "given" if preprocess is None else str(getattr(preprocess, "__name__", preprocess))
    network = network_for(model, _inputs(rows.select(torch.arange(min(2, len(rows)))), read, model, "known"))
    logits = {what: _logits(network, part, read, what) for what, part in parts.items()}
    right = {what: _right(logits[what], part) for what, part in parts.items()}
    shares = {what: proportion(int(found.sum()), len(found)) for what, found in right.items()}
    others, better = _other_readings(network, rows, right["known"], readings, name)
    better += _other_order(logits["known"], rows.y)
    if better:
        # A wrong order can look like a wrong reading, and the other way round: the better explanation counts.
        raise InputError(max(better)[1])
    notes = _check_chance(int(right["known"].sum()), rows.y)
    if accuracy is not None:
        found = proportion(int(right["test"].sum()), len(right["test"]), level=STATED)
        if not found.low <= accuracy <= found.high:
            raise InputError(
                f"the model is right on {found} of {len(right['test'])} test rows (99.9 % interval), and was stated to "
                f"be on {accuracy:g}: another model, other data, or another way to read them; or state what is measured"
            )
    movable = None
    if defense is not None:
        one = _inputs(rows.select(torch.arange(1)), read, network, "known").x.to(device_of(network))
        movable, less = _movable(network, one, defense)
        notes += less
    return Checked(
        classes=logits["known"].shape[1],
        reading=name,
        known=shares["known"],
        known_rows=len(rows),
        test=shares.get("test"),
        test_rows=len(parts.get("test", ())),
        readings=others,
        movable=movable,
        notes=tuple(notes),
    )


def _drawn(examples: Examples, what: str) -> TensorExamples:
    if len(examples) == 0:
        raise DataError(f"the {what} set is empty; give at least one example")
    if isinstance(examples, TensorExamples) and len(examples) <= ROWS:
        return examples
    generator = Streams(0, "check").generator(what)
    chosen = draw_per_class(examples.y.cpu().numpy(), count=min(ROWS, len(examples)), generator=generator)
    return TensorExamples(*examples.take(torch.from_numpy(chosen)))


def _inputs(rows: TensorExamples, read: Read, network: nn.Module, what: str) -> TensorExamples:
    """Raw rows as inputs, floating-point ones in the precision of the weights."""
    try:
        x: object = read(rows.x)
    except WarpError:
        raise
    except Exception as error:
        raise InputError(f"the preprocessing failed on the {what} set ({reason(error)}); mend it") from error
    if not isinstance(x, Tensor) or x.dim() == 0 or len(x) != len(rows):
        kind = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"the preprocessing gave {kind} for {len(rows)} rows; return a tensor with one a row")
    return TensorExamples(x.to(next(network.parameters()).dtype) if x.is_floating_point() else x, rows.y)


def _logits(network: nn.Module, rows: TensorExamples, read: Read, what: str) -> Tensor:
    parts = []
    # Inputs take four times the room of bytes, so they are made batch by batch.
    for index in in_order(len(rows), BATCH):
        inputs = _inputs(rows.select(index), read, network, what).to(device_of(network))
        classes = check_examples(network, {what: inputs})
        parts.append(finite_logits(network, inputs, what, classes=classes))
    return torch.cat(parts)


def _right(logits: Tensor, rows: TensorExamples) -> Right:
    return cast(Right, (logits.argmax(1) == rows.y.cpu()).numpy())


def _check_chance(right: int, y: Tensor) -> list[str]:
    """Refuse a model no better than always the commonest class; note where the rows cannot show it."""
    from scipy.stats import binom

    n, counts = len(y), torch.bincount(y)
    if int((counts > 0).sum()) < 2:
        return ["the known rows are of one class, which cannot show whether the model fits them"]
    if n < FEW:
        return [f"{n} rows cannot tell whether this is their model; give at least {FEW}"]
    if binom.sf(right - 1, n, float(counts.max()) / n) > CHANCE:
        raise InputError(
            f"the model is right on {right} of {n} rows that it is said to have learned from, the commonest class on "
            f"{int(counts.max())}: this is not a model of these data, or reads them or their classes in another way"
        )
    return []


def _mcnemar(now: Right, before: Right) -> float:
    return min(1.0, 2 * sign_p(int((now & ~before).sum()), int((before & ~now).sum())))


def _other_readings(
    network: nn.Module, known: TensorExamples, right: Right, readings: Mapping[str, Read], name: str
) -> tuple[dict[str, float], list[tuple[float, str]]]:
    """The accuracy for each reading; of those better by exact McNemar, the accuracy and a refusal's sentence."""
    shares: dict[str, float] = {}
    better: list[tuple[float, str]] = []
    for other, read in readings.items():
        try:
            now = _right(_logits(network, known, read, other), known)
        except WarpError:
            continue  # The network does not take rows of that shape.
        share = shares[other] = float(now.mean())
        # A model of other data is right on a few more rows by one reading than by another, too.
        plausible = share >= 0.5 or right.mean() >= share / 2
        beyond = _mcnemar(now, right) < CHANCE / len(readings) and share - right.mean() >= BETTER_READING
        if plausible and beyond:
            sentence = f"read as {name} the model is right on {right.mean():.3f} of {len(right):,} rows it learned from"
            sentence += f"; read as {other} on {share:.3f}. Say {_setting(read, other)}, or --as-given"
            better.append((share, sentence))
    return shares, better


def _setting(read: Read, name: str) -> str:
    if getattr(read, "function", None) is not None or not hasattr(read, "scale"):
        return f"--preprocess FILE.py:NAME, a function that reads them so ({name})"
    moments = {key: np.atleast_1d(getattr(read, key, ())).tolist() for key in ("mean", "std")}
    options = [f"--{key} {','.join(f'{v:g}' for v in values)}" for key, values in moments.items() if values]
    return " ".join([f"--scale {read.scale:g}", *(options or ["without --mean and --std"])])


def _other_order(logits: Tensor, y: Tensor) -> list[tuple[float, str]]:
    """Likewise for another order of the classes, matched on even rows and tested on odd ones."""
    from scipy.optimize import linear_sum_assignment

    truth, answers, classes = y.cpu().numpy(), logits.argmax(1).numpy(), logits.shape[1]
    table = np.zeros((classes, classes))
    np.add.at(table, (answers[::2], truth[::2]), 1)
    # Between two matches as good as each other the order as given counts.
    meant = linear_sum_assignment(table + 0.5 / len(truth) * np.eye(classes), maximize=True)[1]
    before, now = answers[1::2] == truth[1::2], meant[answers[1::2]] == truth[1::2]
    # A model of other data has outputs that go with some labels too, but not with most.
    if _mcnemar(now, before) >= CHANCE or now.mean() < max(0.5, before.mean() + BETTER_ORDER):
        return []
    pairs = [f"{i} is {c}" for i, c in enumerate(meant.tolist()) if i != c]
    sentence = (
        f"the model is right on {before.mean():.3f} of {len(now)} rows, and on {now.mean():.3f} if its outputs are of "
        f"other classes (output {', '.join(pairs[:5])}{', ...' if len(pairs) > 5 else ''}): the classes are in another "
        "order than in its training. Number labels as the outputs are, or name the classes in that order (--classes)"
    )
    return [(float(now.mean()), sentence)]


def _movable(network: nn.Module, x: Tensor, defense: str | Defense) -> tuple[float, list[str]]:
    symmetry = getattr(as_defense(defense), "symmetry", None)
    if symmetry is None:
        raise InputError(f"the defence is a {type(defense).__name__} without a symmetry; what it moves is not known")
    try:
        with norm_mode(network, "eval"):
            moved = _moved(symmetry, network, x)
    except WarpError as error:
        return 0.0, [f"the defence moves nothing here: {error}"]
    sizes = {name: p.numel() for name, p in network.named_parameters() if p.requires_grad}
    share = sum(n for name, n in sizes.items() if name in moved) / max(1, sum(sizes.values()))
    return share, [f"the defence leaves {1 - share:.0%} of the parameters where they are"] if share < 0.5 else []


def _moved(symmetry: Symmetry, network: nn.Module, x: Tensor) -> set[str | None]:
    """Names of the tensors that a symmetry can move: for a null space all weights with inputs of their own, though the
    inputs of some may leave it no room; else those that a random move changes.
    """
    if isinstance(symmetry, Compose):
        return set().union(*(_moved(each, network, x) for each in symmetry.symmetries))
    if isinstance(symmetry, NullSpace):
        return {name for weight in movable_weights(network, x)[0] for name in (weight.name, weight.bias)}
    move = symmetry.move(network, generator=Streams(0, "check").generator("defence"), probe=Probe([x]))
    return {n for n, value in network.state_dict().items() if not torch.equal(move.point(n, value), value)}
