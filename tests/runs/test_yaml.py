import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.runs.directory import RepeatedKey, dump_yaml, load_yaml

# PyYAML loses the line separators of Unicode in keys that start with one; no setting or path of ours has them.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Zl", "Zp"], exclude_characters="\x85"))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    TEXT,
    st.from_regex(r"[-+]?[0-9]{1,2}\.?[0-9]{0,2}e[-+]?[0-9]{1,2}", fullmatch=True),
)
DATA = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3))
)


@given(DATA)
def test_what_is_written_is_read_back_the_same(data: object) -> None:
    again = load_yaml(dump_yaml(data))
    assert again == data
    assert repr(again) == repr(data)


@given(st.floats(1e-200, 1e200))
def test_numbers_as_python_writes_them_are_numbers(number: float) -> None:
    assert load_yaml(repr(number)) == number
    assert load_yaml(f"{number:e}") == float(f"{number:e}")


@pytest.mark.parametrize("text", ["1e", "e5", "1e5x", "x1e5", "1.2.3e4", "1-e5"])
def test_other_words_stay_words(text: str) -> None:
    assert load_yaml(text) == text


@pytest.mark.parametrize("text", ["[1", "2024-13-45", "!!python/object/apply:os.getcwd []", "[" * 5000])
def test_text_that_is_not_plain_data_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)


def test_keys_of_other_mappings_and_merged_ones_may_repeat() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}\nd: [{x: 1}, {x: 2}]\n1: 2\n'1': 3\n"
    found = load_yaml(text)
    assert (found["b"], found["c"]) == ({"x": 3, "y": 2}, {"x": 3, "y": 4})
    assert (found[1], found["1"]) == (2, 3)


@pytest.mark.parametrize("text", ["{a: 1, a: 1}", "a: 1\n'a': 2", "x:\n  - {y: {b: 1, b: 2}}"])
def test_a_key_that_stands_twice_is_no_plain_data(text: str) -> None:
    with pytest.raises(RepeatedKey, match=r"the key '[ab]' twice, on lines \d and \d; keep one of them"):
        load_yaml(text)
