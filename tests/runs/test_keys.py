from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from warp_unlearning.errors import InputError
from warp_unlearning.runs.keys import Key, canonical_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
INGREDIENTS = st.dictionaries(TEXT, DATA, min_size=1, max_size=5)


def typed(data: Any) -> Any:
    """An independent notion of sameness: values together with their types, order of keys aside, lists as tuples."""
    if isinstance(data, dict):
        return ("dict", frozenset((name, typed(item)) for name, item in data.items()))
    if isinstance(data, list | tuple):
        return ("list", tuple(typed(item) for item in data))
    # 0.0 and -0.0 are equal and not the same number.
    return (type(data).__name__, repr(data))


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value, at any depth."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for name, item in inner for place in places(item, (*path, name)))]


def replaced(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.copy(data)
    changed[path[0]] = replaced(data[path[0]], path[1:], value)
    return changed


def reordered(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: reordered(item) for name, item in reversed(data.items())}
    return tuple(reordered(item) for item in data) if isinstance(data, list) else data


@given(INGREDIENTS, st.data())
def test_changing_any_ingredient_at_any_depth_changes_the_digest(
    ingredients: dict[str, Any], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(places(ingredients)[1:]))
    value = data.draw(DATA)
    changed = replaced(ingredients, path, value)
    assume(typed(changed) != typed(ingredients))
    assert Key("train", 1, changed).digest != Key("train", 1, ingredients).digest
    assert Key("train", 1, changed) != Key("train", 1, ingredients)


@given(INGREDIENTS, INGREDIENTS)
def test_digests_are_equal_just_where_data_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (Key("k", 1, one).digest == Key("k", 1, other).digest) == (typed(one) == typed(other))


@given(INGREDIENTS, TEXT, DATA)
def test_one_more_or_one_less_ingredient_changes_the_digest(ingredients: dict[str, Any], name: str, value: Any) -> None:
    assume(name not in ingredients)
    assert Key("k", 1, ingredients | {name: value}).digest != Key("k", 1, ingredients).digest


@given(
    INGREDIENTS,
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(["a", "b", "ab"]),
    st.sampled_from(["a", "b", "ab"]),
)
def test_kind_and_version_count(ingredients: dict[str, Any], v: int, w: int, kind: str, other: str) -> None:
    assert (Key(kind, v, ingredients).digest == Key(other, w, ingredients).digest) == ((kind, v) == (other, w))


@given(INGREDIENTS)
def test_the_order_of_keys_and_tuples_for_lists_do_not_count(ingredients: dict[str, Any]) -> None:
    assert Key("k", 1, reordered(ingredients)).digest == Key("k", 1, ingredients).digest


@given(INGREDIENTS)
def test_ingredients_come_back(ingredients: dict[str, Any]) -> None:
    key = Key("k", 3, ingredients)
    assert typed(key.ingredients) == typed(ingredients)
    assert Key(key.kind, key.version, key.ingredients) == key


def test_types_are_told_apart() -> None:
    values = [1, 1.0, True, "1", "True", None, "null", [1], {"1": 1}, [], {}, "", 0, 0.0, -0.0, False, 2**53, 2.0**53]
    assert len({Key("k", 1, {"a": value}).digest for value in values}) == len(values)


def test_the_digest_is_that_of_the_text_in_this_and_any_other_process() -> None:
    key = Key("train", 2, {"b": [1, 0.1], "a": "é"})
    assert key.digest == sha256('["warp key 1","train",2,{"a":"é","b":[1,0.1]}]'.encode()).hexdigest()
    assert json.loads(key.text) == {"a": "é", "b": [1, 0.1]}
    made = "Key('train', 2, {'a': '\\u00e9', 'b': (1, 0.1)})"
    program = f"from warp_unlearning.runs.keys import Key; print({made}.digest, end='')"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout == key.digest


def test_a_change_of_the_given_mapping_does_not_change_the_key() -> None:
    given = {"recipe": {"epochs": 1}}
    key = Key("train", 1, given)
    before = key.digest
    given["recipe"]["epochs"] = 2
    key.ingredients["recipe"]["epochs"] = 3
    assert key.ingredients == {"recipe": {"epochs": 1}}
    assert Key("train", 1, {"recipe": {"epochs": 1}}).digest == before


def test_a_key_travels_and_is_found_again() -> None:
    key = Key("train", 1, {"a": 1})
    copy_ = pickle.loads(pickle.dumps(key))
    assert {key: 5}[copy_] == 5
    assert copy_.digest == key.digest
    assert str(key) == f"train {key.digest[:12]}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "ingredients.a is nan"),
        (float("inf"), "ingredients.a is inf"),
        (np.float64(1.0), "ingredients.a is a float64"),
        (np.int64(1), "ingredients.a is a int64"),
        (b"x", "ingredients.a is a bytes"),
        ({1, 2}, "ingredients.a is a set"),
        ([{"b": object()}], r"ingredients.a\[0\].b is a object"),
        ({1: 2}, "ingredients.a has the key 1, a int"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_is_not_plain_data_is_refused_and_named(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Key("k", 1, {"a": value})


def test_endless_data_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InputError, match="plain data"):
        canonical_json(endless)


@pytest.mark.parametrize("kind", ["", "Train", "a/b", "../a", "1a", "a b", None, "a" * 65, "a\n"])
def test_kinds_are_simple_names(kind: Any) -> None:
    with pytest.raises(InputError, match="the kind of a job"):
        Key(kind, 1, {})


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None])
def test_versions_are_whole_numbers(version: Any) -> None:
    with pytest.raises(InputError, match="the version of the kind"):
        Key("k", version, {})


def test_ingredients_are_a_mapping() -> None:
    with pytest.raises(InputError, match="are a list"):
        Key("k", 1, [1])  # type: ignore[arg-type]
