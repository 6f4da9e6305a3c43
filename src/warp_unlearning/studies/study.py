"""The studies by name: which arms each has, and how large it is, from minutes on digits to the size of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ..errors import InputError, nearest
from ..methods.recipes import SMALL_DATA
from ..training.recipe import RECIPES
from .cell_settings import CellSettings, StudyArm

SIX = ("ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on")
EPSILONS = (1.0, 4.0, 8.0, 16.0)
ENERGIES = (0.95, 0.97, 0.99, 0.995, 0.999)
BATCHES = (256, 512, 1024, 2048, 4096)
STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
TELEPORTS_EVERY = {"pgu": 95}
"""Updates between teleports at the size of the paper, where a method's epochs are short: those of pgu pass over the
forgotten examples alone, in 19 updates, and there are 100 of them."""

SizeName = Literal["small", "paper"]
Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Size:
    """Data, network and recipe of the shadows, and how many there are; `sets` is for methods that `more_sets` does not
    name.
    """

    data: str
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


SIZES: Mapping[str, Size] = {
    "small": Size("digits", "mlp", {"hidden": [64]}, asdict(RECIPES["small"]), 16, 10, 4, 1000, 100, 4, 150),
    "paper": Size(
        "cifar10",
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
    ),
}


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "kick": {"aim": "random"},
    "published": {"protect": "retain", "relearning": None},
}
"""WARP under names of their own: a random null-space move of the same length, which shows what the descent adds; and
the paper's form, which protects what is retained alone and may learn the forgotten examples again.
"""


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


@dataclass(frozen=True)
class Study:
    """What a study shows, and its arms."""

    about: str
    arms: Callable[[Asked, Size, bool], Iterator[StudyArm]]


def study_settings(name: str, size_name: str, asked: Asked) -> CellSettings:
    """The settings of a study at a size, as asked."""
    study, size = find_study(name), SIZES[size_name]
    arms = _chosen(list(study.arms(asked, size, size_name == "small")), name, asked)
    if asked.forget_sets is not None:
        arms = tuple(replace(arm, sets=asked.forget_sets) for arm in arms)
    training = {**size.training, **({} if asked.epochs is None else {"epochs": asked.epochs})}
    return CellSettings(
        data={"name": size.data, "path": asked.data_path},
        network=size.network,
        network_options=size.network_options,
        training=training,
        arms=arms,
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


def _arm(
    asked: Asked,
    size: Size,
    small: bool,
    method: str,
    defense: str | None = None,
    *,
    method_settings: Mapping[str, Any] | None = None,
    defense_settings: Mapping[str, Any] | None = None,
    swept: Mapping[str, float] | None = None,
) -> StudyArm:
    """An arm with the settings asked for, those of the method under this defence before those of the method."""
    start = SMALL_DATA.get(method, {}) if small else {}
    chosen = asked.method_options.get(f"{method} + {defense}", asked.method_options.get(method, {}))
    own = asked.defense_options.get(f"{method} + {defense}", asked.defense_options.get(defense or "", {}))
    return StudyArm(
        method,
        {**start, **chosen, **(method_settings or {})},
        "warp" if defense in VARIANTS else defense,
        {**_teleporting(method, defense, small), **own, **(defense_settings or {})},
        called=defense if defense in VARIANTS else None,
        sets=size.more_sets.get(method, size.sets),
        swept=swept or {},
    )


def _teleporting(method: str, defense: str | None, small: bool) -> dict[str, Any]:
    """How a study teleports unless it is asked otherwise. It keeps no certificates, so they need not say all."""
    if defense not in ("warp", "fastwarp", *VARIANTS):
        return {}
    variant = VARIANTS.get(defense, {})
    rare = {} if small or method not in TELEPORTS_EVERY else {"every": TELEPORTS_EVERY[method]}
    return {**variant, **rare, "certify": "brief"}


def _defended(*defenses: str | None) -> Callable[[Asked, Size, bool], Iterator[StudyArm]]:
    """Every method with each of these defences."""

    def arms(asked: Asked, size: Size, small: bool) -> Iterator[StudyArm]:
        for method in asked.methods:
            yield from (_arm(asked, size, small, method, defense) for defense in defenses)

    return arms


def _langevin(asked: Asked, size: Size, small: bool) -> Iterator[StudyArm]:
    """Calibrated noise alone and with WARP, beside NegGrad+ with and without it."""
    yield from (_arm(asked, size, small, "ngp", defense) for defense in (None, "warp"))
    for epsilon in EPSILONS:
        for defense in (None, "warp"):
            noise, swept = {"epsilon": epsilon}, {"epsilon": epsilon}
            yield _arm(asked, size, small, "langevin", defense, method_settings=noise, swept=swept)


def _tradeoff(asked: Asked, size: Size, small: bool) -> Iterator[StudyArm]:
    """Every method and defence over learning rates from a quarter to four times the chosen one."""
    for method in asked.methods:
        for defense in (None, "warp", "kick", "conjugate"):
            plain = _arm(asked, size, small, method, defense)
            for factor in STRENGTHS:
                lr, swept = factor * _learning_rate(plain), {"lr_factor": factor}
                yield _arm(asked, size, small, method, defense, method_settings={"lr": lr}, swept=swept)


def _learning_rate(arm: StudyArm) -> float:
    from ..methods.registry import make_method

    return float(make_method(arm.method, **arm.method_settings).lr)  # type: ignore[attr-defined]


def _sensitivity(asked: Asked, size: Size, small: bool) -> Iterator[StudyArm]:
    """The first method alone, and with WARP at each energy and each size of the retain batch."""
    method = asked.methods[0]
    yield _arm(asked, size, small, method)
    for name, values in (("energy", ENERGIES), ("batch_size", BATCHES)):
        for value in values:
            yield _arm(asked, size, small, method, "warp", defense_settings={name: value}, swept={name: float(value)})


_EVERY = (None, "warp", "published", "conjugate", "kick")
STUDIES: Mapping[str, Study] = {
    "table1": Study(
        "U-LiRA on every method alone, with WARP, with WARP as published, with Conjugate and with a random kick",
        _defended(*_EVERY),
    ),
    "whitebox": Study("attackers who hold the weights of both models", _defended(*_EVERY)),
    "radar": Study("privacy and accuracy of every method in one figure", _defended(*_EVERY)),
    "risk-vs-norm": Study("risk of forgotten points beside the norms of their gradients", _defended(*_EVERY)),
    "fastwarp": Study("exact against tracked null spaces", _defended(None, "warp", "fastwarp")),
    "langevin": Study("calibrated noise beside WARP", _langevin),
    "tradeoff": Study("privacy against accuracy over learning rates", _tradeoff),
    "sensitivity": Study("WARP's energy and retain batch", _sensitivity),
}
