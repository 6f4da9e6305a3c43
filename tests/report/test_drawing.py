from functools import partial
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from warp_unlearning.report.drawing import Gallery, Plot, blank, look

HOSTILE = "<script>alert(1)</script>$\\frac{\"'&]]>"


def _figure(text: str = "plain"):
    figure = blank()
    axes = figure.subplots()
    axes.plot(range(500), [i % 7 for i in range(500)], "o", alpha=0.5, label=text)
    axes.plot([0, 400], [0, 6], "--")
    axes.set(title=text, xlabel=text)
    axes.legend()
    return figure


def _plot(text: str = "plain") -> Plot:
    return Plot(text, f"about {text}", partial(_figure, text))


def test_text_is_text_and_never_markup_or_mathematics():
    root = ElementTree.fromstring(_plot(HOSTILE).svg("a-1"))
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    texts = [element.text for element in root.iter("text")]
    assert texts.count(HOSTILE) == 3
    assert root.find("title").text == HOSTILE
    assert root.find("desc").text == f"about {HOSTILE}"
    assert root.get("aria-labelledby") == f"{root.find('title').get('id')} {root.find('desc').get('id')}"
    assert root.get("role") == "img"


@pytest.mark.parametrize("text", ["$\\frac{1}{2}$", "$\\unheard{$", "a $x^2$ b"])
def test_what_would_be_mathematics_is_shown_as_it_is(text):
    root = ElementTree.fromstring(_plot(text).svg("a-1"))
    assert [element.text for element in root.iter("text")].count(text) == 3
    assert _plot(text).file("pdf")


def test_nothing_is_loaded_and_no_rule_reaches_the_page():
    text = _plot().svg("a-1")
    root = ElementTree.fromstring(text)
    assert not {element.tag for element in root.iter()} & {"style", "metadata", "image", "script"}
    assert "http" not in text
    assert "@import" not in text


def test_identifiers_are_the_figures_own_and_all_references_resolve():
    one, two = (ElementTree.fromstring(_plot().svg(name)) for name in ("a-1", "a-2"))
    ids = [{element.get("id") for element in root.iter() if element.get("id")} for root in (one, two)]
    assert not ids[0] & ids[1]
    assert all(found.startswith("a-1-") for found in ids[0])
    references = [element.get("href").removeprefix("#") for element in one.iter("use")]
    references += [element.get("clip-path")[5:-1] for element in one.iter() if element.get("clip-path")]
    assert len(references) > 500
    assert set(references) <= ids[0]


def test_the_same_figure_has_the_same_bytes():
    assert _plot().svg("a-1") == _plot().svg("a-1")
    for form, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        found = _plot(HOSTILE).file(form)
        assert found.startswith(start)
        assert found == _plot(HOSTILE).file(form)
        assert b"CreationDate" not in found


def test_the_users_own_settings_change_nothing_and_are_left_alone():
    before = _plot().svg("a-1")
    with mpl.rc_context({"lines.linewidth": 9, "text.usetex": True, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert _plot().svg("a-1") == before
        assert mpl.rcParams["lines.linewidth"] == 9


def test_names_of_figures_are_safe_for_files_and_unique():
    gallery = Gallery(
        "roc", "", "", tuple(_plot(text) for text in ("../../etc/passwd", "../../etc/passwd", "日本", "NGP"))
    )
    assert gallery.names() == ("roc-01-etc-passwd", "roc-02-etc-passwd", "roc-03", "roc-04-ngp")


def test_defences_look_different():
    names = [None, "warp", "fastwarp", "cob", "conjugate", "own", "other"]
    looks = [look(name, names) for name in names]
    for part in ("color", "line", "marker"):
        assert len({str(getattr(found, part)) for found in looks}) == len(names)


@pytest.mark.parametrize("text", ["日本語", "🦄", "a\nb", " "])
def test_characters_that_the_font_lacks_warn_nobody(text):
    assert _plot(text).file("png")
