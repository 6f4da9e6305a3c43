"""What can be wrong with a model and its examples: before the first update, and before any of them is believed.

`check_model` asks whether this is the model of these data: whether it knows them better than chance, as well as was
stated, and no better when they are read or numbered in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Subset

from ..data.examples import DatasetExamples, Examples, TensorExamples, as_examples, checksums, in_order
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
            raise InputError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, in which most updates round to nothing; give "
                "model.float() (on the command line: --dtype float32)"
            )


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


def check_disjoint(forget: Examples, retain: Examples) -> None:
    """An error where an input is to be both forgotten and kept, whatever its label: by content, and in parts of one
    data set by index, since a data set that augments may never give the same content twice.
    """
    if isinstance(forget, DatasetExamples) and isinstance(retain, DatasetExamples):
        (whole, some), (other, others) = _part_of(forget.dataset), _part_of(retain.dataset)
        shared = set(some) & set(others) if whole is other else ()
        if shared:
            raise DataError(
                f"{len(shared)} indices are in both the forget and the retain set (first: {min(shared)}); "
                "remove them from the retain set"
            )
    copies = copies_of(forget, retain)
    if len(copies):
        row = int(copies[0])
        raise DataError(
            f"{len(copies)} examples of the retain set are also in the forget set (first: retain row {row}, label "
            f"{int(retain.y[row])}); what is to be forgotten cannot be kept: remove them"
        )


def _part_of(dataset: object) -> tuple[object, Sequence[int]]:
    if not isinstance(dataset, Subset):
        return dataset, range(len(cast("list[object]", dataset)))
    whole, index = _part_of(dataset.dataset)
    return whole, [index[int(i)] for i in dataset.indices]


def copies_of(known: Examples, others: Examples) -> Tensor:
    """The rows of `others` whose input is that of some row of `known`, whatever the labels, ascending.

    Compared by a 64-bit checksum of the bits of the input; two different inputs agree in it by chance once in 10¹⁹
    pairs. Examples of another kind than tensors or a data set have no checksums and no copies.
    """
    sums = [
        checksums(e.x) if isinstance(e, TensorExamples) else e.checksums if isinstance(e, DatasetExamples) else None
        for e in (known, others)
    ]
    if sums[0] is None or sums[1] is None:
        return torch.empty(0, dtype=torch.int64)
    return torch.isin(sums[1].cpu(), sums[0].cpu()).nonzero().flatten()


@dataclass(frozen=True)
class Checked:
    """A model that fits its data: how the rows are read, and the accuracy on rows it learned from and on test rows.

    `readings` has the accuracy on the known rows for each other way to read them, `movable` the share of trainable
    parameters in tensors that the chosen defence can move. Printed, it is a line each.
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
    `accuracy` is the accuracy on test rows as somebody stated it. Nothing is changed.
    """
    check_precision(model)
    share = isinstance(accuracy, int | float) and not isinstance(accuracy, bool) and 0 <= accuracy <= 1
    if accuracy is not None and (test is None or not share):
        raise InputError(f"accuracy is {accuracy}; give a share of test rows between 0 and 1, and the test rows")
    if readings is not None and not isinstance(readings, Mapping):
        raise InputError(f"readings are a {type(readings).__name__}; give a mapping of names to functions")
    for what, function in {"preprocess": preprocess, **(readings or {})}.items():
        if function is not None and not callable(function):
            raise InputError(f"{what} is a {type(function).__name__}; give a function of raw rows that returns inputs")
    given = {"known": known} | ({} if test is None else {"test": test})
    parts = {what: _drawn(as_examples(source, what=what), what) for what, source in given.items()}
    read, rows = preprocess or (lambda x: x), parts["known"]
    name = "given" if preprocess is None else str(getattr(preprocess, "__name__", preprocess))
    network = network_for(model, _as_weights(_read(rows.select(torch.arange(min(2, len(rows)))), read, "known"), model))
    said = {what: _logits(network, part, read, what) for what, part in parts.items()}
    right = {what: (said[what].argmax(1) == part.y.cpu()).numpy() for what, part in parts.items()}
    others, better = _other_readings(network, rows, right["known"], readings or {}, name)
    better += _other_order(said["known"], rows.y)
    if better:
        # A wrong order can look like a wrong reading, and the other way round: the better explanation counts.
        raise InputError(max(better)[1])
    notes = _check_chance(int(right["known"].sum()), rows.y)
    shares = {what: proportion(int(found.sum()), len(found)) for what, found in right.items()}
    if accuracy is not None:
        found = proportion(int(right["test"].sum()), len(right["test"]), level=STATED)
        if not found.low <= accuracy <= found.high:
            raise InputError(
                f"the model is right on {found} of {len(right['test'])} test rows (99.9 % interval), and was stated to "
                f"be on {accuracy:g}: another model, other data, or another way to read them; or state what is measured"
            )
    movable = None
    if defense is not None:
        movable, less = _movable(network, read(rows.x[:1]).to(device_of(network)), defense)
        notes += less
    return Checked(
        classes=said["known"].shape[1],
        reading=name,
        known=shares["known"],
        known_rows=len(rows),
        test=shares.get("test"),
        test_rows=len(right.get("test", ())),
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


def _read(rows: TensorExamples, read: Read, what: str) -> TensorExamples:
    """The inputs that the user's function makes of raw rows."""
    try:
        found: object = read(rows.x)
    except WarpError:
        raise
    except Exception as error:
        raise InputError(f"the preprocessing failed on the {what} set ({reason(error)}); mend it") from error
    if not isinstance(found, Tensor) or found.dim() == 0 or len(found) != len(rows):
        kind = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"the preprocessing gave {kind} for {len(rows)} rows; return a tensor with one a row")
    return TensorExamples(found, rows.y)


def _as_weights(inputs: TensorExamples, network: nn.Module) -> TensorExamples:
    """Floating-point inputs in the precision of the weights."""
    dtype = next(network.parameters()).dtype
    return TensorExamples(inputs.x.to(dtype), inputs.y) if inputs.x.is_floating_point() else inputs


def _logits(network: nn.Module, rows: TensorExamples, read: Read, what: str) -> Tensor:
    parts, place = [], device_of(network)
    # Inputs take four times the room of bytes, so they are made batch by batch.
    for index in in_order(len(rows), BATCH):
        inputs = _as_weights(_read(rows.select(index), read, what), network).to(place)
        check_examples(network, {what: inputs})
        parts.append(checked_logits(network, inputs, what))
    found = torch.cat(parts)
    broken = (~found.isfinite().all(1)).nonzero()
    if len(broken):
        raise InputError(
            f"the model's output is not finite on {len(broken)} of {len(found)} {what} rows (first: {int(broken[0])}); "
            "its weights are damaged, or the rows are read on another scale than it was trained on"
        )
    return found


def _check_chance(right: int, y: Tensor) -> list[str]:
    """Refuse what is no better than always the commonest class; notes on what cannot be told."""
    from scipy.stats import binom

    n, counts = len(y), torch.bincount(y)
    if int((counts > 0).sum()) < 2:
        return ["the known rows are of one class, so nothing tells whether the model fits them"]
    if n < FEW:
        return [f"{n} rows cannot tell whether this is their model; give at least {FEW}"]
    if binom.sf(right - 1, n, float(counts.max()) / n) > CHANCE:
        raise InputError(
            f"the model is right on {right} of {n} rows that it is said to have learned from, and always the commonest "
            f"class would be on {int(counts.max())}: this is not a model of these data, or reads them "
            "or their classes in another way"
        )
    return []


def _mcnemar(now: Right, before: Right) -> float:
    return min(1.0, 2 * sign_p(int((now & ~before).sum()), int((before & ~now).sum())))


def _other_readings(
    network: nn.Module, known: TensorExamples, right: Right, readings: Mapping[str, Read], name: str
) -> tuple[dict[str, float], list[tuple[float, str]]]:
    """The accuracy for each reading; of those better by exact McNemar, the accuracy and a refusal's sentence."""
    found: dict[str, float] = {}
    better: list[tuple[float, str]] = []
    for other, read in readings.items():
        try:
            now = (_logits(network, known, read, other).argmax(1) == known.y.cpu()).numpy()
        except WarpError:
            continue  # The network does not take rows of that shape.
        found[other] = float(now.mean())
        # A model of other data is right on a few more rows by one reading than by another, too.
        plausible = found[other] >= 0.5 or right.mean() >= found[other] / 2
        beyond = _mcnemar(now, right) < CHANCE / len(readings) and found[other] - right.mean() >= BETTER_READING
        if plausible and beyond:
            sentence = (
                f"read as {name} the model is right on {right.mean():.3f} of {len(right):,} rows it learned from; read "
                f"as {other} on {found[other]:.3f}. Say {_setting(read, other)}, or --as-given"
            )
            better.append((found[other], sentence))
    return found, better


def _setting(read: Read, name: str) -> str:
    if getattr(read, "function", None) is not None or not hasattr(read, "scale"):
        return f"--preprocess FILE.py:NAME, a function that reads them so ({name})"
    options = [f"--scale {read.scale:g}"]
    for key in ("mean", "std"):
        values = np.atleast_1d(getattr(read, key, ())).tolist()
        if values:
            options.append(f"--{key} {','.join(f'{v:g}' for v in values)}")
    return " ".join(options) + ("" if len(options) > 1 else " without --mean and --std")


def _other_order(answers: Tensor, y: Tensor) -> list[tuple[float, str]]:
    """The same of a better order of the classes, matched on one half of the rows and tested on the other."""
    from scipy.optimize import linear_sum_assignment

    truth, said, classes = y.cpu().numpy(), answers.argmax(1).numpy(), answers.shape[1]
    half = np.arange(len(truth)) % 2 == 0
    table = np.zeros((classes, classes))
    np.add.at(table, (said[half], truth[half]), 1)
    # Between two matches as good as each other the order as given counts.
    meant = linear_sum_assignment(table + 0.5 / len(truth) * np.eye(classes), maximize=True)[1]
    before, now = said[~half] == truth[~half], meant[said[~half]] == truth[~half]
    # A model of other data has outputs that go with some labels too, but not with most.
    if _mcnemar(now, before) >= CHANCE or now.mean() < max(0.5, before.mean() + BETTER_ORDER):
        return []
    pairs = [f"{i} is {c}" for i, c in enumerate(meant.tolist()) if i != c]
    sentence = (
        f"the model is right on {before.mean():.3f} of {len(now)} rows, and on {now.mean():.3f} if its outputs are of "
        f"other classes (output {', '.join(pairs[:5])}{', ...' if len(pairs) > 5 else ''}): the classes are in another "
        "order than in its training. Number the labels as the outputs are; for a folder of images, say --classes with "
        "the names in that order"
    )
    return [(float(now.mean()), sentence)]


def _movable(network: nn.Module, x: Tensor, defense: str | Defense) -> tuple[float, list[str]]:
    symmetry = getattr(as_defense(defense), "symmetry", None)
    if symmetry is None:
        raise InputError(f"the defence is a {type(defense).__name__} without a symmetry; nothing tells what it moves")
    try:
        with norm_mode(network, "eval"):
            reached = _reached(symmetry, network, x)
    except WarpError as error:
        return 0.0, [f"the defence moves nothing here: {error}"]
    sizes = [(p.numel(), name in reached) for name, p in network.named_parameters() if p.requires_grad]
    share = sum(n for n, moves in sizes if moves) / max(1, sum(n for n, _ in sizes))
    return share, [f"the defence leaves {1 - share:.0%} of the parameters where they are"] if share < 0.5 else []


def _reached(symmetry: Symmetry, network: nn.Module, x: Tensor) -> set[str | None]:
    """Names of the tensors that a symmetry can move: for a null space all weights with inputs of their own, though the
    inputs of some may leave it no room; else those that a random move changes.
    """
    if isinstance(symmetry, Compose):
        return set().union(*(_reached(each, network, x) for each in symmetry.symmetries))
    if isinstance(symmetry, NullSpace):
        return {name for weight in movable_weights(network, x)[0] for name in (weight.name, weight.bias)}
    move = symmetry.move(network, generator=Streams(0, "check").generator("defence"), probe=Probe([x]))
    state = network.state_dict()
    return {name for name, value in state.items() if not torch.equal(move.point(name, value), value)}
