"""Every key of the configurations, and how defaults, a YAML file and overrides become one, in that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .data.files import read_text
from .data.sources import recognise
from .errors import DataError, InputError, nearest
from .gpu.precision import Precision
from .runs.directory import RepeatedKey, load_yaml
from .training.training import RECIPES

Schema = TypeVar("Schema", bound=BaseModel)
Options = dict[str, Any]
RecipeName = Literal["auto", "published", "small"]
SIX = ["ngp", "scrub", "salun", "pgu", "bad_teacher", "srf_on"]
# The section of a run's config.yaml that says what the run found when it started. It sets nothing.
RESOLVED = "resolved"
_RECIPE = "settings of methods to start from: auto is small below 5,000 training examples, else published"
_PRECISION = "of the forward and backward passes: auto is bf16 on a GPU, else float32"
_SECRET = "fixes the defences' draws for experiments that others are to repeat; else they are secret"


def _key(description: str, default: Any = None, **limits: Any) -> Any:
    return Field(default=default, description=description, **limits)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataConfig(_Section):
    """Examples, and how their inputs are read."""

    name: str | None = _key("digits, cifar10, fashion_mnist, npz, npy, folder, csv; null: what `path` holds, or digits")
    path: Path | None = _key("where the data are; digits need none")
    fetch: bool = _key("bring CIFAR-10 to `path` if it is not there", False)
    size: tuple[int, int] | None = _key("height and width to which image files are resized")
    test: Path | None = _key("where a test part is that does not lie beside the data")
    holdout: float | None = _key("share of rows drawn once as the test part", gt=0, lt=1)
    ids: str | None = _key("array or csv column that names the rows")
    classes: list[str] | None = _key("names of the classes, in label order", min_length=1)
    scale: float | None = _key("divides raw inputs, such as 255 for bytes", gt=0)
    mean: float | list[float] | None = _key("subtracted after `scale`, for each channel")
    std: float | list[float] | None = _key("divides after `mean`, for each channel")
    preprocess: str | None = _key("FILE.py:NAME, raw rows to inputs, in place of the three")

    def load_options(self) -> dict[str, Any]:
        """The options of `load_data`, for studies, which read the standard data sets as they are."""
        known = {"name", "path", "fetch", "size"}
        for key, value in self:
            if key not in known and value is not None:
                raise InputError(f"data.{key} is {value!r} and cannot be used here; leave it out")
        return {**self.model_dump(include=known), "name": self.name or recognise(self.path)}


class ModelConfig(_Section):
    """Which network; one of your own is given by --model."""

    name: str = _key("small_resnet, resnet18, mlp, or custom with --model FILE.py:build", "small_resnet")
    options: Options = _key("its options; shapes are taken from the data", {})


class TrainingConfig(_Section):
    """How a network is trained: SGD with momentum under a cosine schedule."""

    recipe: Literal["small", "paper"] = _key("settings to start from", "small")
    epochs: int = _key("passes through the training examples", 20, ge=1)
    batch_size: int = _key("examples of an update", 64, ge=1)
    lr: float = _key("first learning rate, annealed to zero by a cosine", 0.05, gt=0)
    momentum: float = _key("momentum of SGD", 0.9, ge=0, lt=1)
    weight_decay: float = _key("weight of the squared norm of all weights, halved", 0.0005, ge=0)
    crop_padding: int = _key("pixels by which random crops may be shifted", 0, ge=0)
    flip: bool = _key("mirror images at random", False)
    precision: Precision = _key(_PRECISION, "auto")


class ForgetConfig(_Section):
    """The rows to forget: `rows`, `label` or `fraction`."""

    rows: Path | None = _key("a .npy, .txt or .csv file of row numbers, a mask, or names")
    column: str | None = _key("the column of `rows` that counts; a csv of one needs none")
    by: Literal["row", "id"] | None = _key("what numbers in `rows` are, if in doubt")
    label: int | str | None = _key("every training example of this class, by name or number")
    fraction: float | None = _key("a random fraction of each class", gt=0, lt=1)
    drawn: bool = _key("`rows` were drawn at random, so that unseen rows are like them", False)
    again: bool = _key("forget what earlier requests asked for once more, too", False)


class MethodConfig(_Section):
    """The unlearning method."""

    name: str | None = _key("a method of `warp methods`, or FILE.py:Class")
    recipe: RecipeName = _key(_RECIPE, "auto")
    options: Options = _key("settings of the method, over the recipe's", {})


class DefenseConfig(_Section):
    """The defence that hides the trace, and the source of its randomness."""

    name: str | None = _key("warp, fastwarp, cob or conjugate; none without it")
    options: Options = _key("settings of the defence and of its symmetry", {})
    seed: int | None = _key(_SECRET, ge=0, lt=2**63)


class _Seeded(_Section):
    seed: int = _key("of every draw that need not stay secret", 0)
    device: str = _key("auto, cpu, cuda, cuda:1, ...", "auto")


class _Networks(_Seeded):
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()


class Config(_Networks):
    """Everything that decides the result of one model."""

    validation: float = _key("share of the known rows set aside for methods that choose by it", 0, ge=0, lt=1)
    forget: ForgetConfig = ForgetConfig()
    method: MethodConfig = MethodConfig()
    defense: DefenseConfig = DefenseConfig()
    dtype: Literal["float32", "float64"] | None = _key("type that weights are cast to")
    threads: int | None = _key("threads of torch on the CPU; all cores if null", ge=1)
    checkpoint_seconds: float = _key("write a checkpoint of a training at most this often", 30, ge=0)
    accuracy: float | None = _key("stated test accuracy, which is checked", gt=0, le=1)


class _Arms(_Networks):
    method_options: dict[str, Options] = _key("settings by method, held as they are", {})
    recipe: RecipeName = _key(_RECIPE, "auto")
    defense_options: dict[str, Options] = _key("settings by defence, held likewise", {})


class ShadowConfig(_Arms):
    """Everything that decides the results of a shadow audit."""

    methods: list[str] = _key("methods to audit", SIX, min_length=1)
    defenses: list[str] = _key("defences, each beside the method alone", ["warp"])
    shadows: int = _key("shadow models, in complementary pairs", 16, ge=4, multiple_of=2)
    forget_sets: int = _key("disjoint forget sets of each shadow", 4, ge=1)
    share: float = _key("share of a shadow's training half that they cover", 0.4, gt=0, le=1)
    pairs: int = _key("pairs of models of each arm whose weights are attacked", 1, ge=0)
    defense_seed: int | None = _key(_SECRET, ge=0, lt=2**63)


class RangeConfig(_Section):
    """The values that a search may give to one setting: `choices`, or numbers from `low` to `high`."""

    low: int | float | None = _key("least number")
    high: int | float | None = _key("largest number")
    log: bool = _key("draw evenly in the logarithm", False)
    choices: list[bool | int | float | str] | None = _key("all values, listed", min_length=1)

    @model_validator(mode="after")
    def _one_of_two(self) -> RangeConfig:
        bounds = [self.low, self.high].count(None)
        if bounds != (0 if self.choices is None else 2) or (self.log and self.choices is not None):
            raise ValueError("give low and high, or choices")
        return self


class TuneConfig(_Arms):
    """Everything that decides the results of a tuning, and `trials`, which may grow."""

    methods: list[str] = _key("methods to tune", ["ngp"], min_length=1)
    defenses: list[str] = _key("defences, each beside the method alone", ["warp", "conjugate"])
    ranges: dict[str, dict[str, RangeConfig]] = _key("ranges by method or defence and setting, over ours", {})
    trials: int = _key("trials of each arm, base and defended alike", 8, ge=1)
    sampler: Literal["nsga3", "tpe"] = _key("how the next trials are drawn", "nsga3")
    population: int = _key("trials of a round, and of a generation of nsga3", 4, ge=2)
    shadows: int = _key("shadow models of the tuning, numbered from 1000 on", 2, ge=1)
    forget_sets: int = _key("disjoint forget sets of each shadow", 1, ge=1)
    fraction: float = _key("share of a shadow's training half in a forget set", 0.1, gt=0, lt=1)
    audited: Path | None = _key("an .npy file of training rows that a study audits: neither forgotten nor measured")


class ReproduceConfig(_Seeded):
    """Everything that decides the results of a study of the paper, and `shadows`, which may grow."""

    study: str = _key("which of its studies", "table1")
    size: Literal["auto", "small", "small-images", "paper"] = _key(
        "digits (minutes), 5,000 images of Fashion-MNIST (hours), CIFAR-10 with ResNet-18; auto: paper on a GPU", "auto"
    )
    data_path: Path | None = _key("folder of the images, for all sizes but small")
    methods: list[str] = _key("methods to study", SIX, min_length=1)
    defenses: list[str] | None = _key('defences to study, "none" among them; all of the study if null', min_length=1)
    shadows: int | None = _key("shadow models; of the size if null", ge=2, multiple_of=2)
    forget_sets: int | None = _key("forget sets of each shadow, for every method", ge=1)
    pairs: int | None = _key("shadows whose first models are attacked with weights", ge=0)
    runs: int | None = _key("timed runs of each arm of `runtime`; five if null", ge=2)
    epochs: int | None = _key("epochs of the originals; of the size if null", ge=1)
    recipes: Path | None = _key("the recipes.yaml of a `warp tune`")
    method_options: dict[str, Options] = _key('settings by method, or by "method + defence"', {})
    defense_options: dict[str, Options] = _key('settings by defence ("kick": the control) or "method + defence"', {})
    made_with: Literal["0.1"] | None = _key("the version whose stored results are read, with its names of defences")
    defense_seed: int = _key("what defences draw from: a study is repeatable", 0, ge=0, lt=2**63)


class GeneratorConfig(_Section):
    """How large the generator of a prior is."""

    latent: int | None = _key("numbers in a latent; 32 up to 16x16, else 128, if null", ge=1)
    width: int | None = _key("channels at full size; 16 up to 16x16, else 64, if null", ge=1)
    conditional: bool = _key("whether it takes labels", False)


class PriorTrainingConfig(_Section):
    """How a prior is trained: Adam under a cosine schedule."""

    epochs: int = _key("passes through the images", 60, ge=1)
    batch_size: int = _key("images of an update", 32, ge=1)
    lr: float = _key("largest learning rate", 0.003, gt=0)
    noise: float = _key("pixel noise; less of it lets latents tell more of an image", 0.05, gt=0)
    edges: float = _key("weight of the Laplacian pyramid", 0.5, ge=0)
    flip: bool = _key("mirror images at random", False)
    precision: Precision = _key(_PRECISION, "auto")


class PriorConfig(_Seeded):
    """Everything that decides a prior."""

    data: DataConfig = DataConfig()
    exclude: list[Path] = _key(".npy files of positions not to learn from", [])
    for_run: Path | None = _key("a run of `warp unlearn`: its forgotten images are left out")
    held_out: float = _key("fraction on which reconstruction is measured", 0.1, ge=0, lt=1)
    generator: GeneratorConfig = GeneratorConfig()
    training: PriorTrainingConfig = PriorTrainingConfig()


class TunedArm(_Section):
    """The settings of one arm, in the form in which a shadow audit takes them."""

    method: str
    defense: str | None
    methods: list[str]
    method_options: dict[str, Options]
    defenses: list[str]
    defense_options: dict[str, Options]
    trial: int = Field(ge=0)
    objectives: dict[str, float]


class TunedRecipes(_Section):
    """Recipes by arm, and where they come from."""

    schema_version: Literal[1]
    kind: Literal["recipes"]
    provenance: dict[str, Any]
    arms: list[TunedArm]


def read_recipes(file: Path) -> TunedRecipes:
    """The recipes in `file`, which a tuning wrote."""
    try:
        return TunedRecipes.model_validate(_read(file))
    except ValidationError as error:
        problem = _first_problem(error, TunedRecipes)
        raise DataError(f"{file} holds no recipes of a `warp tune`: {problem}; give its recipes.yaml") from error


# By the command that takes them.
SCHEMAS: Mapping[str, type[BaseModel]] = {
    "unlearn": Config,
    "shadow": ShadowConfig,
    "tune": TuneConfig,
    "reproduce": ReproduceConfig,
    "prior": PriorConfig,
}


def resolve(
    *, base: Mapping[str, Any] | None = None, file: Path | None = None, overrides: Sequence[str] = ()
) -> Config:
    """The `Config` that `resolve_as` makes."""
    return resolve_as(Config, base=base, file=file, overrides=overrides)


def resolve_as(
    schema: type[Schema],
    *,
    base: Mapping[str, Any] | None = None,
    file: Path | None = None,
    overrides: Sequence[str] = (),
) -> Schema:
    """The configuration of `file` over `base`, then each override "key.sub=value" (the value as YAML) over that."""
    data = dict(base or {})
    for layer in ({} if file is None else _read(file), *map(parse_override, overrides)):
        data = _merged(data, layer)
    training = data.get("training")
    if isinstance(training, dict) and training.get("recipe") in RECIPES:
        data["training"] = {**asdict(RECIPES[training["recipe"]]), **training}
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise InputError(_first_problem(error, schema)) from error


def as_plain(config: BaseModel) -> dict[str, Any]:
    """The configuration as plain data."""
    return config.model_dump(mode="json")


def parse_override(override: str) -> dict[str, Any]:
    """The nested data that "key.sub=value" stands for, the value read as YAML.

    >>> parse_override("training.lr=1e-3")
    {'training': {'lr': 0.001}}
    """
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise InputError(f"the override {override!r} is not of the form key.sub=value, such as training.lr=0.1")
    last, *above = reversed(key.strip().split("."))
    nested = {last: _parsed(text, f"the override {override!r}", "put the value in quotes")}
    for part in above:
        nested = {part: nested}
    return nested


class Key(NamedTuple):
    """A key such as "training.lr", its type in words, its default as plain data, and a sentence."""

    key: str
    type: str
    default: Any
    help: str


def describe_keys(schema: type[BaseModel], prefix: str = "") -> list[Key]:
    """Every key of `schema` and of its sections, in their order.

    >>> describe_keys(ModelConfig)[0][:3]
    ('name', 'text', 'small_resnet')
    """
    keys: list[Key] = []
    for name, field in schema.model_fields.items():
        if section := _section(field.annotation):
            keys += describe_keys(section, f"{prefix}{name}.")
        else:
            keys.append(Key(prefix + name, _in_words(field.annotation), field.get_default(), field.description or ""))
    return keys


_WORDS: Mapping[Any, str] = {
    **{float: "number", int: "whole number", bool: "true or false", str: "text", Path: "path"},
    **{NoneType: "null", Any: "anything"},
}


def _in_words(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " or ".join(map(_in_words, inner))
    if origin is dict:
        return f"{{name: {_in_words(inner[1])}}}"
    if origin in (list, tuple):
        return f"[{', '.join(map(_in_words, inner))}{', ...' if origin is list else ''}]"
    section = _section(kind)
    return _WORDS[kind] if section is None else f"{{{', '.join(section.model_fields)}}}"


def _section(kind: Any) -> type[BaseModel] | None:
    return kind if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _parsed(text: str, what: str, way: str) -> Any:
    try:
        return load_yaml(text)
    except RepeatedKey as error:
        raise InputError(f"{what} has {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{what} is not YAML ({error}); {way}") from error


def _read(path: Path) -> dict[str, Any]:
    what, way = f"the configuration {path}", "give a YAML file of sections of key: value"
    try:
        data = _parsed(read_text(path), what, way)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what} cannot be read: {getattr(error, 'strerror', error)}; {way}") from error
    if not isinstance(data, dict | None):
        raise InputError(f"{what} holds a {type(data).__name__}; {way}")
    return {key: value for key, value in (data or {}).items() if key != RESOLVED}


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged


def _first_problem(error: ValidationError, schema: type[BaseModel]) -> str:
    problem = error.errors()[0]
    *above, last = where = [str(part) for part in problem["loc"]] or ["the configuration"]
    if problem["type"] != "extra_forbidden":
        return f"{'.'.join(where)} is {problem.get('input')!r}: {problem['msg']}"
    for part in above:
        field = schema.model_fields.get(part)
        schema = (field and _section(field.annotation)) or schema
    return f"{'.'.join(above) or 'the configuration'} has no key {last!r}; {nearest(last, schema.model_fields)}"
