import base64
import re
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from warp_unlearning.report.page import Report, make_report


class Page(HTMLParser):
    """What a browser would see: elements with attributes, and the text of each kind of element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self._open = ["html"]
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "br"}:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self._open[-1], data))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for found, attrs in self.elements if found == tag]

    def inside(self, tag: str) -> str:
        return "".join(data for found, data in self.text if found == tag)


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return Page(report.html)


@pytest.fixture(scope="module")
def hostile_page(hostile_report: Report) -> Page:
    return Page(hostile_report.html)


def test_it_stands_alone(page, report):
    assert not page.of("script")
    assert not page.of("link")
    assert not page.of("img")
    assert not page.of("iframe")
    for tag, attributes in page.elements:
        assert "style" not in attributes or tag in {"g", "path", "text", "use"}
        assert not [key for key in attributes if key.startswith("on")]
        for key in ("href", "src", "xlink:href", "action"):
            assert (attributes.get(key) or "#").startswith("#")
    assert "http:" not in report.html
    assert "https:" not in report.html


def test_the_policy_allows_one_stylesheet_and_the_styles_of_figures_alone(page, report):
    policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*)</style>", report.html, re.DOTALL)[1]
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    styles = f"style-src 'sha256-{digest}'; style-src-attr 'unsafe-inline'"
    assert policy == f"default-src 'none'; {styles}; base-uri 'none'; form-action 'none'"
    assert len(page.of("style")) == 1


def test_headings_are_in_order_and_contents_lead_somewhere(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    links = [attributes["href"].removeprefix("#") for attributes in page.of("a")]
    assert len(links) == 14
    assert set(links) <= set(ids)


def test_tables_and_figures_can_be_read_aloud(page):
    assert all(attributes.get("scope") in {"col", "row", "rowgroup"} for attributes in page.of("th"))
    assert len(page.of("caption")) == len(page.of("table")) >= 8
    ids = {attributes["id"] for _, attributes in page.elements if attributes.get("id")}
    for svg in page.of("svg"):
        assert svg["role"] == "img"
        assert set(svg["aria-labelledby"].split()) <= ids
    assert page.of("html")[0]["lang"] == "en"


def test_everything_asked_for_is_there(page, report, results):
    # Three methods and six arms: ROC twice and radar a method, histogram and risk an arm, the cost, and the first.
    assert len(page.of("svg")) == 3 * 3 + 2 * 6 + 1 + 1 == len(report.figures)
    assert len({name for name, _ in report.figures}) == len(report.figures)
    text = re.sub(r"\s+", " ", "".join(data for _, data in page.text)).replace("\u00a0", " ")
    for arm in results.arms:
        auc = arm.all.auc
        assert f"{auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]" in text
    for expected in (
        *results.threat,
        *(text[:1].upper() + text[1:] for text in results.not_tested),
        *results.notes,
        *map(str, (*results.digests.values(), *results.versions.values(), *results.hardware.values())),
        "training.epochs",
        "5.2 min",
        "no job failed, and no model is missing",
        "2026-01-02 03:04 UTC",
    ):
        assert expected in text, expected


def test_the_verdict_is_the_first_paragraph_of_the_page(report):
    body = report.html[report.html.index("<main>") :]
    assert body.index('class="opening"') < body.index("<nav") < body.index("<table")
    first = body[body.index("<p") : body.index("</p>")]
    for lead in ("What was audited:", "Who attacked:", "What leaked:"):
        assert lead in first


def test_hostile_text_is_text(hostile_page, hostile_report):
    assert not hostile_page.of("script")
    assert "<script" not in hostile_report.html
    shown = "<script>alert(1)</script>$\\frac{\"'&\ufffd\ufffd\ufffd\ufffd]]>--> 日本"
    assert hostile_page.inside("td").count(shown) > 5
    assert shown in hostile_page.inside("title")
    assert shown in hostile_page.inside("p")
    hostile_report.html.encode()
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name, _ in hostile_report.figures)


def test_an_incomplete_audit_says_so_first(hostile_report):
    body = hostile_report.html
    first = body[body.index('<p class="opening">') : body.index("<nav")]
    assert "This audit is incomplete:" in first
    assert "6 unlearned models in 2 ways could not be made" in first
    assert "1 job failed" in first


def test_the_same_results_give_the_same_bytes(data, read):
    data["arms"] = data["arms"][:1]
    found = read(data)
    assert make_report(found).html == make_report(found).html


def test_the_first_screen_has_the_verdict_three_numbers_and_a_figure(report, results):
    first = report.html[report.html.index('<section id="verdict"') : report.html.index('<p class="opening"')]
    largest = max((arm.all.auc for arm in results.arms), key=lambda auc: auc.value)
    assert f"{largest.value:.3f}" in first
    assert f"[{largest.low:.3f}, {largest.high:.3f}]" in first
    assert (first.count("<dt>"), first.count("<svg"), first.count("<h1>")) == (3, 1, 1)


def test_twenty_four_arms_stay_small(report, results):
    assert len(results.arms[0].risk.score) > 900
    assert 24 / len(results.arms) * len(report.html.encode()) < 4e6


def test_a_report_with_nothing_measured(data, read):
    arm = data["arms"][0]
    kept = {"name", "method", "defense", "complete", "missing", "settings"}
    data["arms"] = [
        {key: value if key in kept else None for key, value in arm.items()} | {"slices": {}, "settings": {}}
    ]
    data |= {key: [] for key in ("stages", "threat", "notes", "not_tested")}
    data |= {key: {} for key in ("configuration", "digests", "versions", "hardware")}
    html = make_report(read(data)).html
    assert "Nothing was measured" in html
    assert "The results file does not say what the attacker holds." in html
    assert html.count("Not measured in this audit.") == 5


def test_an_arm_that_could_not_be_scored_says_why(data, read):
    keys = ("all", "slices", "against_originals", "retain_leakage", "reduction", "roc", "histogram", "risk")
    arm = data["arms"][1] | dict.fromkeys(keys) | {"problem": "<one> shadow is left", "strongest": None}
    html = make_report(read(data | {"arms": [arm]})).html
    assert "ngp + warp was not scored: &lt;one&gt; shadow is left" in html
    assert "This audit is incomplete:" in html


def test_a_pair(pair_data, read):
    pair_data["rows"][0]["name"] = "<b>&$x"
    pair_data["not_tried"]["<i>"] = "<u>"
    pair_data["notes"].append("<b>note</b>")
    found = make_report(read(pair_data))
    page = Page(found.html)
    assert not page.of("b")
    assert not page.of("i")
    assert "<b>&$x" in page.inside("th")
    assert len(page.of("svg")) == 1
    text: Any = page.inside("li")
    assert all(sentence in text for sentence in (*pair_data["threat"], *pair_data["notes"], "<i>: <u>"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
