"""Reports in headless Chromium: nothing asked for, nothing complained of, nothing cut off."""

import io
import socket
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.browser

NAMES = ("demo", "pair", "hostile")
# Elements that stick out of the page, those in a box that scrolls by itself left out.
OVERHANGING = """
[...document.querySelectorAll('main *')]
  .filter(e => !e.closest('.scroll') && !e.closest('svg') && !e.closest('.skip'))
  .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(e => e.tagName + '.' + e.className)
"""
# Pairs of labels of one figure that lie on each other, by more than a pixel either way.
OVERLAPS = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1)
    .filter(([b, q]) => Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
                     && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1)
    .map(([b, q]) => a + ' | ' + b));
})
"""
CUT_LABELS = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(t => {
    const r = t.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1;
  }).map(t => t.textContent);
})
"""
SMALLEST_LABEL = "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", NAMES)
def test_it_opens_without_a_request_an_error_or_an_overflow(browser, pages, name, width):
    browser.visit(pages[name], width=width)
    assert browser.requests == [pages[name].as_uri()]
    assert browser.problems == []
    assert browser.value("document.documentElement.clientWidth") == width
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(OVERHANGING) == []
    assert browser.value("getComputedStyle(document.querySelector('.verdict')).borderLeftStyle") == "solid"


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", ["demo", "pair"])
def test_labels_can_be_read(browser, pages, name, width):
    browser.visit(pages[name], width=width)
    assert browser.value(OVERLAPS) == []
    assert browser.value(CUT_LABELS) == []
    assert browser.value(SMALLEST_LABEL) >= 9


@pytest.mark.parametrize("name", NAMES)
def test_wide_tables_scroll_in_their_own_box(browser, pages, name):
    browser.visit(pages[name], width=400)
    boxes = browser.value("[...document.querySelectorAll('.scroll')].map(e => [e.clientWidth, e.scrollWidth])")
    assert all(box <= 400 for box, _ in boxes)
    assert any(content > box for box, content in boxes)


def test_a_wide_window_shows_whole_tables(browser, pages):
    browser.visit(pages["demo"], width=1400)
    boxes = browser.value("[...document.querySelectorAll('.scroll')].map(e => [e.clientWidth, e.scrollWidth])")
    assert all(content <= box for box, content in boxes)


@pytest.mark.parametrize("name", NAMES)
def test_it_prints(browser, pages, name):
    browser.visit(pages[name], width=1400)
    browser.call("Emulation.setEmulatedMedia", media="print")
    # Tables of the landscape pages, at the width that these leave: A4 less its margins, 273 mm at 96 pixels an inch.
    browser.call("Emulation.setDeviceMetricsOverride", width=1031, height=700, deviceScaleFactor=1, mobile=False)
    tables = browser.value("[...document.querySelectorAll('.wide table')].map(e => e.getBoundingClientRect().right)")
    # The others, on upright pages of 182 mm.
    browser.call("Emulation.setDeviceMetricsOverride", width=687, height=970, deviceScaleFactor=1, mobile=False)
    others = browser.value(
        "[...document.querySelectorAll('table')].filter(e => !e.closest('.wide'))"
        ".map(e => e.getBoundingClientRect().right)"
    )
    browser.call("Emulation.setEmulatedMedia", media="")
    assert max(tables) <= 1032
    assert max(others) <= 688
    found = browser.pdf()
    assert found.startswith(b"%PDF")
    assert found.count(b"/Type /Page\n") + found.count(b"/Type /Page ") >= 2


def test_it_is_dark_on_white(browser, pages):
    browser.visit(pages["demo"], width=1400)
    shot = Image.open(io.BytesIO(browser.screenshot(whole=False))).convert("RGB")
    assert shot.getpixel((3, 450)) == (255, 255, 255)
    colors = browser.value(
        "[...new Set([...document.querySelectorAll('main *')].filter(e => !e.closest('svg'))"
        ".map(e => getComputedStyle(e).color))]"
    )
    for color in colors:
        parts = [int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        assert _contrast(parts, [245, 245, 243]) >= 4.5, color


def test_the_browser_would_have_noticed(browser, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/picture.png"
        page = tmp_path / "page.html"
        page.write_text(
            f'<!DOCTYPE html><img src="{address}" loading="eager"><p style="width:900px">wide</p>'
            "<svg><text x='10' y='20'>a</text><text x='12' y='20'>aa</text></svg><script>console.error('x')</script>"
        )
        server.settimeout(20)
        browser.call("Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=False)
        browser.requests, browser.problems = [], []
        browser.call("Page.navigate", url=page.as_uri())
        server.accept()[0].close()
    browser.value("new Promise(done => setTimeout(done, 300))")
    assert address in browser.requests
    assert "console error" in browser.problems
    assert browser.value("document.documentElement.scrollWidth") > 400
    assert browser.value(OVERLAPS) == ["a | aa"]


def _contrast(one: list[int], other: list[int]) -> float:
    """The contrast ratio (L₁ + 0.05) / (L₂ + 0.05) of relative luminances."""
    low, high = sorted(_luminance(color) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: list[int]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
