from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.config import RESOLVED, Config, as_plain, resolve
from warp_unlearning.errors import InputError
from warp_unlearning.runs.yaml_text import dump_yaml

KEYS = st.sampled_from(["a", "b", "c"])
LEAVES = st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.text("xyz: #"))
TREES = st.dictionaries(KEYS, st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3)), max_size=3)


def written(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text)
    return file


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every value of a nested dict that is no dict, or an empty one, by the path to it."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in tree.items():
        found |= leaves(value, (*path, key)) if isinstance(value, dict) and value else {(*path, key): value}
    return found


def laid_over(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merging, written independently: leaf by leaf, a leaf replacing whatever stood at its path or above it."""
    result: dict[str, Any] = {}
    for tree in (under, over):
        for (*parents, last), value in leaves(tree).items():
            place = result
            for parent in parents:
                place = place.setdefault(parent, {})
                if not isinstance(place, dict):
                    break
            else:
                if value == {} and isinstance(place.get(last), dict):
                    continue
                place[last] = value
                continue
            place = result
            for parent in parents:
                if not isinstance(place.get(parent), dict):
                    place[parent] = {}
                place = place[parent]
            place[last] = value
    return result


def test_without_anything_the_defaults_hold() -> None:
    assert resolve() == Config()


def test_a_file_goes_over_the_base_and_overrides_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "training: {epochs: 5, lr: 0.2}\nseed: 3\n")
    config = resolve(
        base={"training": {"epochs": 4, "batch_size": 8}, "validation": 0.3},
        file=file,
        overrides=["training.epochs=6", "training.epochs=7"],
    )
    assert (config.training.epochs, config.training.lr, config.training.batch_size) == (7, 0.2, 8)
    assert (config.seed, config.validation, config.training.momentum) == (3, 0.3, 0.9)


@given(base=TREES, file=TREES, override=TREES)
def test_nested_settings_merge_leaf_by_leaf(
    tmp_path_factory: pytest.TempPathFactory, base: dict[str, Any], file: dict[str, Any], override: dict[str, Any]
) -> None:
    path = written(tmp_path_factory.mktemp("merge"), dump_yaml({"method": {"options": file}}))
    overrides = [f"method.options.{'.'.join(where)}={dump_yaml(value)}" for where, value in leaves(override).items()]
    config = resolve(base={"method": {"options": base}}, file=path, overrides=overrides)
    assert config.method.options == laid_over(laid_over(base, file), override)


def test_the_base_is_left_as_it_was() -> None:
    base = {"training": {"epochs": 4}}
    resolve(base=base, overrides=["training.epochs=6"])
    assert base == {"training": {"epochs": 4}}


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", "1.0e-3", ".1e-2", "1.e-3"])
def test_a_power_of_ten_is_a_number_in_overrides_and_files(tmp_path: Path, text: str) -> None:
    assert resolve(overrides=[f"training.lr={text}"]).training.lr == 0.001
    assert resolve(overrides=[f"method.options.lr={text}"]).method.options == {"lr": 0.001}
    file = written(tmp_path, f"method: {{options: {{lr: {text}}}}}\n")
    assert resolve(file=file).method.options == {"lr": 0.001}


@pytest.mark.parametrize("name", ["2024", "1e5", "null", "yes", "a: b", "#1", "x=y", "ä 'b' \"c\""])
def test_a_quoted_value_stays_text(name: str) -> None:
    text = '"' + name.replace('"', '\\"') + '"'
    assert resolve(overrides=[f"data.path={text}"]).data.path == Path(name)


@given(
    st.fixed_dictionaries(
        {
            "seed": st.integers(-(2**70), 2**70),
            "validation": st.floats(0, 0.99),
            "data": st.fixed_dictionaries({"path": st.one_of(st.none(), st.text("aZ09.e-_ /:#'", min_size=1))}),
            "training": st.fixed_dictionaries({"lr": st.floats(1e-300, 1e300), "flip": st.booleans()}),
            "method": st.fixed_dictionaries({"options": TREES}),
        }
    )
)
def test_plain_data_resolve_back_to_the_same_configuration_also_through_yaml(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    config = resolve(base=data)
    assert resolve(base=as_plain(config)) == config
    file = written(tmp_path_factory.mktemp("round"), dump_yaml(as_plain(config)))
    assert resolve(file=file) == config


def test_plain_data_hold_every_section_as_yaml_can_write_it() -> None:
    plain = as_plain(resolve(overrides=["data.path=x/y", "data.size=[4, 5]"]))
    assert set(plain) == set(Config.model_fields)
    assert yaml.safe_load(yaml.safe_dump(plain)) == plain
    assert plain["data"]["path"] == "x/y"


def test_what_a_run_resolved_sets_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, f"seed: 4\n{RESOLVED}: {{data: abc, method: {{name: salun}}}}\n")
    config = resolve(file=file)
    assert config == resolve(overrides=["seed=4"])


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert resolve(file=written(tmp_path, "# nothing\n")) == Config()


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("training.epoch=3", ["training has no key 'epoch'", "did you mean 'epochs'?"]),
        ("methods.name=ngp", ["the configuration has no key 'methods'", "did you mean 'method'?"]),
        ("forget.clas=3", ["forget has no key 'clas'", "Known: again, fraction, indices, label"]),
        ("training.epochs=many", ["training.epochs is 'many'", "valid integer"]),
        ("training.epochs=0", ["training.epochs is 0", "greater than or equal to 1"]),
        ("training.lr=-0.1", ["training.lr is -0.1", "greater than 0"]),
        ("training.lr=.inf", ["training.lr is inf", "finite"]),
        ("training.lr=.nan", ["training.lr is nan", "finite"]),
        ("training.momentum=1", ["training.momentum is 1", "less than 1"]),
        ("training=fast", ["training is 'fast'", "valid dictionary"]),
        ("seed.x=1", ["seed is {'x': 1}", "valid integer"]),
        ("training.precision=half", ["training.precision is 'half'", "'auto', 'float32' or 'bf16'"]),
        ("validation=1", ["validation is 1", "less than 1"]),
        ("forget.fraction=0", ["forget.fraction is 0", "greater than 0"]),
        ("forget.fraction=1.0", ["forget.fraction is 1.0", "less than 1"]),
        ("forget.label=-1", ["forget.label is -1", "greater than or equal to 0"]),
        ("method.recipe=big", ["method.recipe is 'big'", "'published' or 'small'"]),
        ("data.size=[1]", ["data.size", "required"]),
        ("data.path=[a]", ["data.path is ['a']", "path"]),
        ("training.lr", ["the override 'training.lr' is not of the form key.sub=value", "training.lr=0.1"]),
        ("=3", ["the override '=3' is not of the form"]),
        ("seed=[1", ["the override 'seed=[1' is not YAML", "quotes"]),
        ("data={name: digits, name: npz}", ["the override 'data={", "has the key 'name' twice"]),
        ("seed=2024-13-45", ["the override 'seed=2024-13-45' is not YAML"]),
        ("seed=!!python/object:os.system x", ["is not YAML"]),
    ],
)
def test_a_bad_override_is_named_with_its_value_and_the_way_out(override: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as error:
        resolve(overrides=[override])
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"training: [1, 2", ["is not YAML", "line 1", "sections of key: value"]),
        (b"\xff\xfe\x00", ["is not YAML"]),
        (b"seed: !!python/object/apply:os.getcwd []", ["is not YAML"]),
        (b"seed: 1\ndevice: cpu\nseed: 2\n", ["c.yaml has the key 'seed' twice, on lines 1 and 3; keep one of them"]),
        (b"training:\n  lr: 1\n  'lr': 2\n", ["c.yaml has the key 'lr' twice, on lines 2 and 3"]),
        (b"- a\n- b\n", ["holds a list", "sections of key: value"]),
        (b"seed\n", ["holds a str", "sections of key: value"]),
        (b"trainin: {epochs: 3}", ["no key 'trainin'", "did you mean 'training'?"]),
        (b"1: 2", ["1"]),
        (b"training:\n", ["training is None", "valid dictionary"]),
    ],
)
def test_a_bad_file_is_named_with_the_way_out(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError) as error:
        resolve(file=file)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml cannot be read: No such file or directory; give a YAML file"):
        resolve(file=tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        resolve(file=tmp_path)
