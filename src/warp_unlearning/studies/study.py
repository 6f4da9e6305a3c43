"""The studies by name: which arms each has, and how large it is, from minutes on digits to the size of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import InputError, nearest
from ..methods.registry import SMALL_DATA
from ..training.training import RECIPES
from .cell_settings import CellSettings, StudyArm

SIX = ("ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on")
EPSILONS = (1.0, 4.0, 8.0, 16.0)
ENERGIES = (0.95, 0.97, 0.99, 0.995, 0.999)
BATCHES = (256, 512, 1024, 2048, 4096)
STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Size:
    """Data, network and recipe of the shadows, and how many there are; `sets` is for methods that `more_sets` does not
    name. `small` data take the methods' settings for them. `every` is after how many updates null-space defences
    teleport where a method's epochs are short: those of pgu pass over the forgotten examples alone.
    """

    data: Mapping[str, Any]
    network: str
    network_options: Mapping[str, Any]
    training: Mapping[str, Any]
    shadows: int
    parts: int
    sets: int
    audited: int
    validation: int
    pairs: int
    pair_examples: int
    more_sets: Mapping[str, int] = field(default_factory=dict)
    small: bool = True
    every: Mapping[str, int] = field(default_factory=dict)


SIZES: Mapping[str, Size] = {
    "small": Size({"name": "digits"}, "mlp", {"hidden": [64]}, asdict(RECIPES["small"]), 16, 10, 4, 1000, 100, 4, 150),
    "small-images": Size(
        {"name": "fashion_mnist", "examples": 5000},
        "small_resnet",
        {"width": 8, "stem_stride": 2},
        asdict(replace(RECIPES["small"], epochs=40)),
        16,
        10,
        4,
        1000,
        200,
        4,
        500,
        # 30 epochs of 2 updates.
        every={"pgu": 10},
    ),
    "paper": Size(
        {"name": "cifar10"},
        "resnet18",
        {"stem": "imagenet"},
        asdict(RECIPES["paper"]),
        32,
        10,
        4,
        5000,
        2500,
        8,
        1000,
        {"ngp": 10, "bad_teacher": 10},
        small=False,
        # 100 epochs of 19 updates.
        every={"pgu": 95},
    ),
}
NEEDS_DATA: Mapping[str, str] = {
    "small-images": "Fashion-MNIST; give the folder of its four idx files with --data-path (Debian's package "
    "dataset-fashion-mnist puts them in /usr/share/datasets/fashion-mnist)",
    "paper": "CIFAR-10; give its folder with --data-path (`warp train --data cifar10 -o data.fetch=true` says how to "
    "get it)",
}
"""What has to be there for a size beside the program, and how to get it."""

DEFENSES = (None, "warp", "fastwarp", "warp_guarded", "cob", "conjugate", "kick")
VARIANTS: Mapping[str, Mapping[str, Any]] = {"kick": {"aim": "random"}}
"""WARP under names of their own: a random null-space move of the length that the descent would have, which shows what
the descent adds.
"""
NULL_SPACE = ("warp", "fastwarp", "warp_guarded", *VARIANTS)


@dataclass(frozen=True)
class Asked:
    """What a user may ask of a study: methods, some of its defences ("none" and those of `VARIANTS` among them),
    settings of methods and of defences by name, and of a method under a defence by "method + defence"; other numbers
    than those of the size.
    """

    methods: Sequence[str] = SIX
    defenses: Sequence[str] | None = None
    method_options: Settings = field(default_factory=dict)
    defense_options: Settings = field(default_factory=dict)
    shadows: int | None = None
    forget_sets: int | None = None
    pairs: int | None = None
    epochs: int | None = None
    seed: int = 0
    device: str = "cpu"
    data_path: Any = None


Arms = Callable[[Asked, Size], Iterator[StudyArm]]


@dataclass(frozen=True)
class Study:
    """What a study shows, and its arms."""

    about: str
    arms: Arms


def study_settings(name: str, size_name: str, asked: Asked) -> CellSettings:
    """The settings of a study at a size, as asked."""
    size = SIZES[size_name]
    return settings_of(_chosen(list(find_study(name).arms(asked, size)), name, asked), size, asked)


def settings_of(arms: Sequence[StudyArm], size: Size, asked: Asked) -> CellSettings:
    """The settings of a study with these arms."""
    if asked.forget_sets is not None:
        arms = [replace(arm, sets=asked.forget_sets) for arm in arms]
    training = {**size.training, **({} if asked.epochs is None else {"epochs": asked.epochs})}
    return CellSettings(
        data={**size.data, "path": asked.data_path},
        network=size.network,
        network_options=size.network_options,
        training=training,
        arms=tuple(arms),
        shadows=size.shadows if asked.shadows is None else asked.shadows,
        parts=size.parts,
        audited=size.audited,
        validation=size.validation,
        pairs=size.pairs if asked.pairs is None else asked.pairs,
        pair_examples=size.pair_examples,
        seed=asked.seed,
        device=asked.device,
    )


def _chosen(arms: Sequence[StudyArm], name: str, asked: Asked) -> tuple[StudyArm, ...]:
    """The arms with the defences asked for."""
    there = dict.fromkeys(arm.shown_defense or "none" for arm in arms)
    for defense in asked.defenses or ():
        if defense not in there:
            raise InputError(f"{name} has no arms with the defence {defense!r}; {nearest(defense, there)}")
    return tuple(arm for arm in arms if asked.defenses is None or (arm.shown_defense or "none") in asked.defenses)


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}; {nearest(name, STUDIES)}")
    return STUDIES[name]


def study_arm(
    asked: Asked,
    size: Size,
    method: str,
    defense: str | None = None,
    *,
    method_settings: Mapping[str, Any] | None = None,
    defense_settings: Mapping[str, Any] | None = None,
    swept: Mapping[str, float] | None = None,
) -> StudyArm:
    """An arm with the settings asked for, those of the method under this defence before those of the method."""
    start = SMALL_DATA.get(method, {}) if size.small else {}
    chosen = asked.method_options.get(f"{method} + {defense}", asked.method_options.get(method, {}))
    own = asked.defense_options.get(f"{method} + {defense}", asked.defense_options.get(defense or "", {}))
    often = {"every": size.every[method]} if method in size.every and defense in NULL_SPACE else {}
    return StudyArm(
        method,
        {**start, **chosen, **(method_settings or {})},
        "warp" if defense in VARIANTS else defense,
        {
            **VARIANTS.get(defense or "", {}),
            **often,
            **own,
            **(defense_settings or {}),
        },
        called=defense if defense in VARIANTS else None,
        sets=size.more_sets.get(method, size.sets),
        swept=swept or {},
    )


def _defended(*defenses: str | None) -> Arms:
    """Every method with each of these defences."""

    def arms(asked: Asked, size: Size) -> Iterator[StudyArm]:
        for method in asked.methods:
            yield from (study_arm(asked, size, method, defense) for defense in defenses)

    return arms


def _langevin(asked: Asked, size: Size) -> Iterator[StudyArm]:
    """Calibrated noise alone and with every defence, beside NegGrad+ with and without them."""
    defenses = DEFENSES if size.small else (None, "warp")
    yield from (study_arm(asked, size, "ngp", defense) for defense in defenses)
    for epsilon in EPSILONS:
        for defense in defenses:
            noise, swept = {"epsilon": epsilon}, {"epsilon": epsilon}
            yield study_arm(asked, size, "langevin", defense, method_settings=noise, swept=swept)


def _tradeoff(asked: Asked, size: Size) -> Iterator[StudyArm]:
    """Every method and defence over learning rates from a quarter to four times the chosen one."""
    for method in asked.methods:
        for defense in DEFENSES if size.small else (None, "warp", "kick", "conjugate"):
            plain = study_arm(asked, size, method, defense)
            for factor in STRENGTHS:
                lr, swept = factor * _learning_rate(plain), {"lr_factor": factor}
                yield study_arm(asked, size, method, defense, method_settings={"lr": lr}, swept=swept)


def _learning_rate(arm: StudyArm) -> float:
    from ..methods.registry import make_method

    return float(make_method(arm.method, **arm.method_settings).lr)  # type: ignore[attr-defined]


def _sensitivity(asked: Asked, size: Size) -> Iterator[StudyArm]:
    """The first method alone, with each defence of null spaces at each energy and each size of the retain batch, and
    with the defences that have neither.
    """
    method = asked.methods[0]
    for defense in DEFENSES if size.small else (None, "warp"):
        if defense not in NULL_SPACE:
            yield study_arm(asked, size, method, defense)
            continue
        for name, values in (("energy", ENERGIES), ("batch_size", BATCHES)):
            for value in values:
                given, swept = {name: value}, {name: float(value)}
                yield study_arm(asked, size, method, defense, defense_settings=given, swept=swept)


STUDIES: Mapping[str, Study] = {
    "table1": Study("U-LiRA on every method alone, with each defence, and with a random kick", _defended(*DEFENSES)),
    "whitebox": Study("attackers who hold the weights of both models", _defended(*DEFENSES)),
    "radar": Study("privacy and accuracy of every method in one figure", _defended(*DEFENSES)),
    "risk-vs-norm": Study("risk of forgotten points beside the norms of their gradients", _defended(*DEFENSES)),
    "fastwarp": Study("exact against followed bases", _defended(*DEFENSES)),
    "langevin": Study("calibrated noise beside WARP", _langevin),
    "tradeoff": Study("privacy against accuracy over learning rates", _tradeoff),
    "sensitivity": Study("WARP's energy and retain batch", _sensitivity),
}
