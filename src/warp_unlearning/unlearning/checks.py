"""What can be wrong with a model and its examples: before the first update, and before any of them is believed.

`check_model` asks whether this is the model of these data: whether it knows them better than chance, as well as was
stated, and no better when they are read or numbered in another way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Subset

from ..data.examples import DatasetExamples, Examples, TensorExamples, as_examples, checksums
from ..data.files import to_json
from ..data.sampling import draw_per_class
from ..defense.base import Defense
from ..defense.registry import as_defense
from ..defense.teleporter import teleport
from ..errors import DataError, InputError, WarpError, reason
from ..models.own import as_network, check_network
from ..models.own import check_examples as check_examples
from ..randomness import Streams
from ..stats.exchange import sign_p
from ..stats.intervals import Estimate, proportion
from ..training.scoring import checked_logits

Read = Callable[[Tensor], Tensor]
ROWS, FEW = 2000, 50
CHANCE, STATED = 0.001, 0.999
# How many more of the rows must be right, beyond chance, for another reading or class order to be the true one.
BETTER_READING, BETTER_ORDER = 0.01, 0.10


def check_precision(model: nn.Module) -> None:
    """Refuse weights of 16 bits: a small update is less than half of their last bit, and so is lost."""
    for name, tensor in model.named_parameters():
        if tensor.dtype in (torch.float16, torch.bfloat16):
            raise InputError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, in which most updates round to nothing; give "
                "model.float() (on the command line: --dtype float32)"
            )


def network_for(model: nn.Module, examples: Examples, *, what: str = "the model") -> nn.Module:
    """`model` as a network whose outputs are logits, as these examples show."""
    example = examples.take(torch.arange(min(2, len(examples)))).x if len(examples) else None
    try:
        return as_network(model, example=example, what=what)
    except DataError:
        return as_network(model, what=what)  # `check_examples` says which set it cannot take


def check_disjoint(forget: Examples, retain: Examples) -> None:
    """An error where an input is to be both forgotten and kept, whatever its label: by content, and in parts of one
    data set by index, since a data set that augments may never give the same content twice.
    """
    if isinstance(forget, DatasetExamples) and isinstance(retain, DatasetExamples):
        shared = _shared_indices(forget.dataset, retain.dataset)
        if shared:
            raise DataError(
                f"{len(shared)} indices are in both the forget and the retain set (first: {min(shared)}); "
                "remove them from the retain set"
            )
    copies = copies_of(forget, retain)
    if len(copies):
        asked = torch.stack([cast(Tensor, _checksums_of(forget)).cpu(), forget.y.cpu()], 1).tolist()
        labels = {tuple(pair) for pair in asked}
        kept = torch.stack([cast(Tensor, _checksums_of(retain)).cpu(), retain.y.cpu()], 1)[copies].tolist()
        other = sum(tuple(pair) not in labels for pair in kept)
        under = f", {other} of them under another label" if other else ""
        raise DataError(
            f"{len(copies)} examples of the retain set are also in the forget set{under} (first: retain row "
            f"{int(copies[0])}, label {kept[0][1]}); what is to be forgotten cannot be kept: remove them"
        )


def _shared_indices(forget: object, retain: object) -> set[int]:
    (forget_whole, forget_index), (retain_whole, retain_index) = _part_of(forget), _part_of(retain)
    return set(forget_index) & set(retain_index) if forget_whole is retain_whole else set()


def _part_of(dataset: object) -> tuple[object, Sequence[int]]:
    """The data set that all `Subset`s around it are parts of, and the indices of the part."""
    if not isinstance(dataset, Subset):
        return dataset, range(len(cast("list[object]", dataset)))
    whole, index = _part_of(dataset.dataset)
    return whole, [index[int(i)] for i in dataset.indices]


def copies_of(known: Examples, others: Examples) -> Tensor:
    """The rows of `others` whose input is that of some row of `known`, whatever the labels, ascending.

    Compared by a 64-bit checksum of the bits of the input; two different inputs agree in it by chance once in 10¹⁹
    pairs. Examples of another kind than tensors or a data set have no checksums and no copies.
    """
    sums = [_checksums_of(examples) for examples in (known, others)]
    if sums[0] is None or sums[1] is None:
        return torch.empty(0, dtype=torch.int64)
    return torch.isin(sums[1].cpu(), sums[0].cpu()).nonzero().flatten()


def _checksums_of(examples: Examples) -> Tensor | None:
    if isinstance(examples, TensorExamples):
        return checksums(examples.x)
    return examples.checksums if isinstance(examples, DatasetExamples) else None


@dataclass(frozen=True)
class Checked:
    """A model that fits its data: how the rows are read, and the accuracy on rows it learned from and on test rows.

    `readings` has the accuracy on the known rows for each other way to read them, `movable` the share of trainable
    parameters that the chosen defence moves. Printed, it is a line each.
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
        lines += [f"the defence moves {self.movable:.0%} of the parameters"] if self.movable is not None else []
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
    check_network(model)
    check_precision(model)
    parts = {
        what: _drawn(as_examples(source, what=what), what)
        for what, source in {"known": known, "test": test}.items()
        if source is not None or what == "known"
    }
    share = isinstance(accuracy, int | float) and not isinstance(accuracy, bool) and 0 <= accuracy <= 1
    if accuracy is not None and (test is None or not share):
        raise InputError(f"accuracy is {accuracy}; give a share of test rows between 0 and 1, and the test rows")
    read = _as_given if preprocess is None else preprocess
    for what, function in {"preprocess": read, **_named_readings(readings)}.items():
        if not callable(function):
            raise InputError(f"{what} is a {type(function).__name__}; give a function of raw rows that returns inputs")
    place = next(model.parameters()).device
    inputs = {what: _inputs(read, part, what).to(place) for what, part in parts.items()}
    network = network_for(model, inputs["known"])
    classes = check_examples(network, cast("dict[str, Examples]", inputs))
    answers = {what: _logits(network, part, what, classes) for what, part in inputs.items()}
    right = {what: _right(answers[what], part.y) for what, part in inputs.items()}
    name, notes = _name_of(preprocess), list[str]()
    n, known_right = len(right["known"]), int(right["known"].sum())
    others, better = _other_readings(network, parts["known"], right["known"], readings or {}, name, classes)
    better += _other_order(answers["known"], parts["known"].y, classes)
    if better:
        # A wrong order can look like a wrong reading, and the other way round: the better explanation counts.
        raise InputError(max(better)[1])
    _check_chance(known_right, parts["known"].y, notes)
    if accuracy is not None:
        _check_stated(right["test"], accuracy)
    movable = None if defense is None else _movable(network, inputs["known"], defense, notes)
    return Checked(
        classes=classes,
        reading=name,
        known=proportion(known_right, n),
        known_rows=n,
        test=proportion(int(right["test"].sum()), len(right["test"])) if "test" in right else None,
        test_rows=len(right.get("test", ())),
        readings=others,
        movable=movable,
        notes=tuple(notes),
    )


def _as_given(x: Tensor) -> Tensor:
    return x


def _named_readings(readings: object) -> dict[str, object]:
    if readings is not None and not isinstance(readings, Mapping):
        raise InputError(f"readings are a {type(readings).__name__}; give a mapping of names to functions")
    return {f"the reading {name!r}": read for name, read in (readings or {}).items()}


def _inputs(read: Read, part: TensorExamples, what: str) -> TensorExamples:
    """The inputs that the user's function makes of raw rows."""
    try:
        found: object = read(part.x)
    except WarpError:
        raise
    except Exception as error:
        raise InputError(f"the preprocessing failed on the {what} set ({reason(error)}); mend it") from error
    if not isinstance(found, Tensor) or found.dim() == 0 or len(found) != len(part):
        kind = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"the preprocessing gave {kind} for {len(part)} rows; return a tensor with one a row")
    return TensorExamples(found, part.y)


def _drawn(examples: Examples, what: str) -> TensorExamples:
    """At most 2,000 of the rows, each class in proportion, from a fixed stream."""
    if len(examples) == 0:
        raise DataError(f"the {what} set is empty; give at least one example")
    generator = Streams(0, "check").generator(what)
    chosen = draw_per_class(examples.y.cpu().numpy(), count=min(ROWS, len(examples)), generator=generator)
    return TensorExamples(*examples.take(torch.from_numpy(chosen)))


def _logits(network: nn.Module, part: TensorExamples, what: str, classes: int) -> Tensor:
    found = checked_logits(network, part, what, classes=classes)
    broken = (~found.isfinite().all(1)).nonzero()
    if len(broken):
        raise InputError(
            f"the model's output is not finite on {len(broken)} of {len(found)} {what} rows (first: {int(broken[0])}); "
            "its weights are damaged, or the rows are read on another scale than it was trained on"
        )
    return found


def _right(answers: Tensor, y: Tensor) -> NDArray[np.bool_]:
    return cast("NDArray[np.bool_]", (answers.argmax(1) == y.cpu()).numpy())


def _check_chance(right: int, y: Tensor, notes: list[str]) -> None:
    """Refuse what is no better than always the commonest class."""
    from scipy.stats import binom

    n, counts = len(y), torch.bincount(y)
    if int((counts > 0).sum()) < 2:
        notes.append("the known rows are of one class, so nothing tells whether the model fits them")
    elif n < FEW:
        notes.append(f"{n} rows cannot tell whether this is their model; give at least {FEW}")
    elif binom.sf(right - 1, n, float(counts.max()) / n) > CHANCE:
        raise InputError(
            f"the model is right on {right} of {n} rows that it is said to have learned from, and always the commonest "
            f"class would be on {int(counts.max())}: this is not a model of these data, or reads them "
            "or their classes in another way"
        )


def _check_stated(right: NDArray[np.bool_], accuracy: float) -> None:
    found = proportion(int(right.sum()), len(right), level=STATED)
    if not found.low <= accuracy <= found.high:
        raise InputError(
            f"the model is right on {found} of {len(right)} test rows (99.9 % interval), and was stated to be on "
            f"{accuracy:g}: another model, other data, or another way to read them; or state what is measured"
        )


def _other_readings(
    network: nn.Module,
    known: TensorExamples,
    right: NDArray[np.bool_],
    readings: Mapping[str, Read],
    name: str,
    classes: int,
) -> tuple[dict[str, float], list[tuple[float, str]]]:
    """The accuracy for each other reading; for those that are better beyond chance, by exact McNemar, the accuracy and
    the sentence of a refusal.
    """
    found: dict[str, float] = {}
    better: list[tuple[float, str]] = []
    for other, read in readings.items():
        try:
            inputs = _inputs(read, known, other).to(next(network.parameters()).device)
            check_examples(network, {other: inputs})
            now = _right(_logits(network, inputs, other, classes), known.y)
        except WarpError:
            continue  # The network does not take rows of that shape.
        found[other] = float(now.mean())
        p = min(1.0, 2 * sign_p(int((now & ~right).sum()), int((right & ~now).sum())))
        # A model of other data is right on a few more rows by one reading than by another, too.
        plausible = found[other] >= 0.5 or right.mean() >= found[other] / 2
        if plausible and p < CHANCE / len(readings) and found[other] - right.mean() >= BETTER_READING:
            sentence = (
                f"read as {name} the model is right on {right.mean():.3f} of {len(right):,} rows it learned from; read "
                f"as {other} on {found[other]:.3f}. Say {_setting(read, other)}, or --as-given"
            )
            better.append((found[other], sentence))
    return found, better


def _name_of(read: Read | None) -> str:
    return "given" if read is None else str(getattr(read, "__name__", read))


def _setting(read: Read, name: str) -> str:
    """How to ask for a reading: the options of a scale, mean and deviation, else its name."""
    options = []
    for key in ("scale", "mean", "std"):
        value = getattr(read, key, None)
        values = np.atleast_1d(value).tolist() if value is not None else []
        if any(v != (0.0 if key == "mean" else 1.0) for v in values):
            options.append(f"--{key} {','.join(f'{v:g}' for v in values)}")
    return " ".join(options) or f"preprocess={name!r}"


def _other_order(answers: Tensor, y: Tensor, classes: int) -> list[tuple[float, str]]:
    """Where the outputs fit the labels better in another order, the accuracy in that and the sentence of a refusal:
    matched on one half of the rows, tested on the other.
    """
    from scipy.optimize import linear_sum_assignment

    truth, said = y.cpu().numpy(), answers.argmax(1).numpy()
    half = np.arange(len(truth)) % 2 == 0
    table = np.zeros((classes, classes))
    np.add.at(table, (said[half], truth[half]), 1)
    # Between two matches as good as each other the order as given counts.
    meant = linear_sum_assignment(table + 0.5 / len(truth) * np.eye(classes), maximize=True)[1]
    asked, now = said[~half] == truth[~half], meant[said[~half]] == truth[~half]
    p = min(1.0, 2 * sign_p(int((now & ~asked).sum()), int((asked & ~now).sum())))
    # A model of other data has outputs that go with some labels too, but not with most.
    if not len(asked) or p >= CHANCE or now.mean() - asked.mean() < BETTER_ORDER or now.mean() < 0.5:
        return []
    pairs = [f"{i} is {c}" for i, c in enumerate(meant.tolist()) if i != c]
    sentence = (
        f"the model is right on {asked.mean():.3f} of {len(asked)} rows, and on {now.mean():.3f} if its outputs are of "
        f"other classes (output {', '.join(pairs[:5])}{', ...' if len(pairs) > 5 else ''}): the classes are in another "
        "order than in its training. Say --classes with the names in the order of the outputs"
    )
    return [(float(now.mean()), sentence)]


def _movable(network: nn.Module, known: TensorExamples, defense: str | Defense, notes: list[str]) -> float:
    """The share of trainable parameters that one teleport of the defence moves."""
    chosen = as_defense(defense)
    part = known.select(torch.arange(min(512, len(known))))
    symmetry = getattr(chosen, "symmetry", None)
    if symmetry is None:
        raise InputError(f"the defence is a {type(defense).__name__} without a symmetry; nothing tells what it moves")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            moved = teleport(
                deepcopy(network), symmetry, retain=part, forget=part.select(torch.arange(min(8, len(part)))), seed=0
            )[0]
        except WarpError as error:
            notes.append(f"the defence moves nothing here: {error}")
            return 0.0
    pairs = zip(network.parameters(), moved.parameters(), strict=True)
    sizes = [(old.numel(), not torch.equal(old, new)) for old, new in pairs if old.requires_grad]
    share = sum(n for n, changed in sizes if changed) / max(1, sum(n for n, _ in sizes))
    if share < 0.5:
        notes.append(f"the defence leaves {1 - share:.0%} of the parameters where they are")
    return share
