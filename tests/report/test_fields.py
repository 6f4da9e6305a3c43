import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.errors import DataError
from warp_unlearning.report.fields import Field, showable


@given(st.text(st.characters()))
def test_showable_text_is_valid_xml_and_utf8(text):
    from xml.etree import ElementTree

    element = ElementTree.Element("a")
    element.text = showable(text)
    again = ElementTree.fromstring(ElementTree.tostring(element, encoding="utf-8"))
    assert (again.text or "") == showable(text).replace("\r\n", "\n").replace("\r", "\n")


def test_bidirectional_controls_are_replaced():
    assert showable("a\u202eb\u2066c") == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(
    ("value", "method", "says"),
    [
        (None, "text", "null"),
        ([1, 2], "number", "a list of 2"),
        ({"a": 1}, "flag", "an object of 1"),
        ("x" * 500, "count", "..."),
    ],
)
def test_errors_say_where_and_what(value, method, says):
    with pytest.raises(DataError) as error:
        getattr(Field(value, "file.json", "a.b[3]"), method)()
    assert "file.json: a.b[3] is " in str(error.value)
    assert says in str(error.value)
    assert len(str(error.value)) < 300


def test_nested_plain_data_becomes_dotted_names():
    nested = {"a": {"b": 1, "c": [True, None]}, "d": [{"e": 0.5}], "f": {}, "g": []}
    assert Field(nested, "f").scalars() == (
        ("a.b", "1"),
        ("a.c", "yes, (none)"),
        ("d[0].e", "0.5"),
        ("f", "(none)"),
        ("g", "(none)"),
    )
    assert Field({}, "f").scalars() == ()
