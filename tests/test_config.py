from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from warp_unlearning import config as settings
from warp_unlearning.config import SCHEMAS, Config, DataConfig, RangeConfig, TuneConfig, as_plain, resolve, resolve_as
from warp_unlearning.errors import InputError
from warp_unlearning.runs.directory import dump_yaml
from warp_unlearning.training.training import Recipe

LEAVES = st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.text("xyz: #"))
# Keys of leaves and of sections differ, so that layers never disagree on which is which.
TREES = st.dictionaries(st.sampled_from("abc"), LEAVES | st.nothing(), max_size=3) | st.fixed_dictionaries(
    {"s": st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3)}
)


def written(folder: Path, text: str) -> Path:
    file = folder / "c.yaml"
    file.write_text(text)
    return file


def test_a_file_goes_over_the_base_and_overrides_over_the_file(tmp_path: Path) -> None:
    base = {"training": {"epochs": 4, "batch_size": 8}, "validation": 0.3}
    file = written(tmp_path, f"training: {{epochs: 5, lr: 0.2}}\nseed: 3\n{settings.RESOLVED}: {{data: abc}}\n")
    config = resolve(base=base, file=file, overrides=["training.epochs=6", "training.epochs=7"])
    assert (config.training.epochs, config.training.lr, config.training.batch_size) == (7, 0.2, 8)
    assert (config.seed, config.validation, config.training.momentum) == (3, 0.3, 0.9)
    assert base["training"] == {"epochs": 4, "batch_size": 8}
    assert resolve() == resolve(file=written(tmp_path, "# nothing\n")) == Config()


@given(base=TREES, file=TREES, override=st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3))
def test_nested_settings_merge_leaf_by_leaf(
    tmp_path_factory: pytest.TempPathFactory, base: dict[str, Any], file: dict[str, Any], override: dict[str, Any]
) -> None:
    path = written(tmp_path_factory.mktemp("merge"), dump_yaml({"method": {"options": file}}))
    overrides = [f"method.options.s.{key}={dump_yaml(value)}" for key, value in override.items()]
    found = resolve(base={"method": {"options": base}}, file=path, overrides=overrides).method.options
    section = {**base.get("s", {}), **file.get("s", {}), **override}
    assert found == {**base, **file, **({"s": section} if "s" in {**base, **file} or override else {})}


def test_a_power_of_ten_is_a_number_and_a_quoted_value_text(tmp_path: Path) -> None:
    for text in ("1e-3", "1E-3", "0.001", ".1e-2", "1.e-3"):
        assert resolve(overrides=[f"method.options.lr={text}"]).method.options == {"lr": 0.001}
        file = written(tmp_path, f"method: {{options: {{lr: {text}}}}}\n")
        assert resolve(file=file).method.options == {"lr": 0.001}
    for name in ("2024", "1e5", "null", "yes", "a: b", "#1", "x=y", "ä 'b'"):
        assert resolve(overrides=[f'data.path="{name}"']).data.path == Path(name)


@given(
    st.fixed_dictionaries(
        {
            "seed": st.integers(-(2**70), 2**70),
            "validation": st.floats(0, 0.99),
            "data": st.fixed_dictionaries({"path": st.one_of(st.none(), st.text("aZ09.e-_ :#'", min_size=1))}),
            "training": st.fixed_dictionaries({"lr": st.floats(1e-300, 1e300), "flip": st.booleans()}),
            "method": st.fixed_dictionaries({"options": TREES}),
        }
    )
)
def test_plain_data_resolve_back_to_the_same_configuration_also_through_yaml(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    config = resolve(base=data)
    plain = as_plain(config)
    assert set(plain) == set(Config.model_fields)
    assert resolve(base=plain) == config
    assert resolve(file=written(tmp_path_factory.mktemp("round"), dump_yaml(plain))) == config
    assert yaml.safe_load(yaml.safe_dump(plain)) == plain


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("training.epoch=3", ["training has no key 'epoch'", "did you mean 'epochs'?"]),
        ("methods.name=ngp", ["the configuration has no key 'methods'", "did you mean 'method'?"]),
        ("forget.indices=3", ["forget has no key 'indices'", "Known: again, by, column, drawn, fraction, label, rows"]),
        ("forget.by=name", ["forget.by is 'name'", "'row' or 'id'"]),
        ("training.epochs=many", ["training.epochs is 'many'", "valid integer"]),
        ("training.lr=.inf", ["training.lr is inf", "finite"]),
        ("training.momentum=1", ["training.momentum is 1", "less than 1"]),
        ("training=fast", ["training is 'fast'", "valid dictionary"]),
        ("seed.x=1", ["seed is {'x': 1}", "valid integer"]),
        ("training.precision=half", ["training.precision is 'half'", "'auto', 'float32' or 'bf16'"]),
        ("data.holdout=0", ["data.holdout is 0", "greater than 0"]),
        ("data.size=[1]", ["data.size", "required"]),
        ("training.lr", ["the override 'training.lr' is not of the form key.sub=value", "training.lr=0.1"]),
        ("=3", ["the override '=3' is not of the form"]),
        ("seed=[1", ["the override 'seed=[1' is not YAML", "quotes"]),
        ("data={name: digits, name: npz}", ["the override 'data={", "has the key 'name' twice"]),
        ("seed=!!python/object:os.system x", ["is not YAML"]),
    ],
)
def test_a_bad_override_is_named_with_its_value_and_the_way_out(override: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as error:
        resolve(overrides=[override])
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"training: [1, 2", ["is not YAML", "line 1", "sections of key: value"]),
        (b"\xff\xfe\x00", ["cannot be read", "give a YAML file"]),
        (b"seed: 1\ndevice: cpu\nseed: 2\n", ["c.yaml has the key 'seed' twice, on lines 1 and 3; keep one of them"]),
        (b"- a\n- b\n", ["holds a list", "sections of key: value"]),
        (b"trainin: {epochs: 3}", ["no key 'trainin'", "did you mean 'training'?"]),
        (b"1: 2", ["1"]),
        (b"training:\n", ["training is None", "valid dictionary"]),
    ],
)
def test_a_bad_file_is_named_with_the_way_out(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(InputError) as error:
        resolve(file=tmp_path / "c.yaml")
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"none\.yaml cannot be read: No such file or directory; give a YAML file"):
        resolve(file=tmp_path / "none.yaml")


def test_the_kind_of_data_comes_from_the_path_unless_it_is_named(tmp_path: Path) -> None:
    for folder, file in (("cifar-10-batches-py", "data_batch_1"), ("idx", "train-images-idx3-ubyte.gz"), ("a", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    paths = {"x.npz": "npz", "x.npy": "npy", "x.csv": "csv", "cifar-10-batches-py": "cifar10", "idx": "fashion_mnist"}
    for path, kind in {**paths, ".": "cifar10", "a": "folder"}.items():
        assert DataConfig(path=tmp_path / path).load_options()["name"] == kind
    assert DataConfig().load_options()["name"] == "digits"
    assert DataConfig(path=Path("x.npz"), name="folder").load_options()["name"] == "folder"
    config = resolve(overrides=["data.path=x.npz"]).data
    assert config.load_options() == {"name": "npz", "path": Path("x.npz"), "fetch": False, "size": None}
    with pytest.raises(InputError, match=r"data\.scale is 255\.0 and cannot be used here; leave it out"):
        resolve(overrides=["data.scale=255"]).data.load_options()


@pytest.mark.parametrize("schema", [*SCHEMAS.values(), RangeConfig], ids=lambda schema: schema.__name__)
def test_every_key_of_every_section_is_described_and_can_be_set_to_its_default(schema: type[BaseModel]) -> None:
    keys = settings.describe_keys(schema)
    assert len({key.key for key in keys}) == len(keys) >= 4
    for key in keys:
        assert key.help
        assert key.type
        if schema is not RangeConfig:
            assert resolve_as(schema, overrides=[f"{key.key}={dump_yaml(key.default)}"]) == schema()
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        schema.model_validate({"nonsense": 1})


def test_types_and_defaults_read_as_a_user_writes_them() -> None:
    found = {key.key: key for key in settings.describe_keys(TuneConfig)}
    assert found["data.size"].type == "[whole number, whole number] or null"
    assert found["sampler"][1:3] == ("nsga3, tpe", "nsga3")
    assert found["ranges"].type == "{name: {name: {low, high, log, choices}}}"
    assert found["methods"][1:3] == ("[text, ...]", ["ngp"])
    assert Recipe(**Config().training.model_dump(exclude={"recipe", "checkpoint_seconds"})) == Recipe()


@pytest.mark.parametrize("given_", [{}, {"low": 1}, {"log": True}, {"choices": []}, {"choices": [1, 2], "low": 1}])
def test_a_range_is_one_of_the_two(given_: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RangeConfig(**given_)
    assert type(RangeConfig(low=1, high=2).low) is int
    assert type(RangeConfig(low=1.0, high=2).low) is float
