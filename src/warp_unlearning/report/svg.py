"""A matplotlib figure as an SVG element that can stand inside an HTML page under a strict content policy.

What matplotlib writes is rewritten: styles become attributes, since a policy without inline styles would drop them;
identifiers, which would repeat from one figure to the next, are kept only where something refers to them, with a prefix
of the figure's own; dates and tool names go; a title and a description are added for readers who do not see it.
"""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree as ET

from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_FONT_SIZE = re.compile(r"([\d.]+)px")
_FONT_WEIGHT = re.compile(r"\b(bold|[5-9]00)\b")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_COORDINATES = ("d", "x", "y", "width", "height", "transform", "points")
# Attributes that a group hands on to what is in it.
_INHERITED = ("fill", "stroke", "stroke-width", "fill-opacity", "stroke-opacity", "stroke-linejoin", "stroke-linecap")


def inline_svg(figure: Figure, *, name: str, title: str, description: str) -> str:
    """The figure as one `<svg>` element; `name`, of letters, digits and hyphens, is unique in the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    root = ET.fromstring(buffer.getvalue())
    _drop_metadata(root)
    for element in root.iter():
        _style_to_attributes(element)
        _round_numbers(element)
    _own_identifiers(root, name)
    _share_attributes(root)
    _describe(root, name, title, description)
    # Inside HTML an SVG element needs no namespaces, and prefixes would be read as parts of names.
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    return ET.tostring(root, encoding="unicode")


def _drop_metadata(root: ET.Element) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{{{_SVG}}}defs" and not len(child):
                parent.remove(child)
    root.set("stroke-linejoin", "round")


def _style_to_attributes(element: ET.Element) -> None:
    for declaration in element.attrib.pop("style", "").split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font":
            element.set("font-size", (_FONT_SIZE.search(value) or ["", "10"])[1])
            if weight := _FONT_WEIGHT.search(value):
                element.set("font-weight", weight[1])
        elif key == "font-size":
            element.set(key, value.removesuffix("px"))
        elif key and not key.startswith("font-family"):
            element.set(key, value)


def _round_numbers(element: ET.Element) -> None:
    """Hundredths of a point where lengths are meant; a scale keeps its digits."""
    for key in _COORDINATES:
        value = element.get(key)
        if value is not None and "scale" not in value:
            element.set(key, _LONG_NUMBER.sub(lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), value))


def _own_identifiers(root: ET.Element, name: str) -> None:
    wanted: set[str] = set()
    for element in root.iter():
        wanted |= {found for value in element.attrib.values() for found in _REFERENCE.findall(value)}
        if _LINK in element.attrib:
            wanted.add(element.attrib[_LINK].removeprefix("#"))
    short = {found: f"{name}-{i}" for i, found in enumerate(sorted(wanted))}
    for element in root.iter():
        own = element.attrib.pop("id", None)
        if own in short:
            element.set("id", short[own])
        for key, value in list(element.attrib.items()):
            element.set(key, _REFERENCE.sub(lambda m: f"url(#{short[m[1]]})", value))
        if _LINK in element.attrib:
            element.set("href", f"#{short[element.attrib.pop(_LINK).removeprefix('#')]}")


def _share_attributes(root: ET.Element) -> None:
    """Move what all children of a group say alike to the group: thousands of markers share one colour."""
    for group in root.iter(f"{{{_SVG}}}g"):
        children = list(group)
        if len(children) < 3 or any(child.tag != f"{{{_SVG}}}use" for child in children):
            continue
        for key in _INHERITED:
            values = {child.get(key) for child in children}
            if len(values) == 1 and None not in values and key not in group.attrib:
                group.set(key, values.pop() or "")
                for child in children:
                    del child.attrib[key]


def _describe(root: ET.Element, name: str, title: str, description: str) -> None:
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-description")
    root.set("class", "figure")
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(f"{{{_SVG}}}{tag}", {"id": f"{name}-{'title' if tag == 'title' else 'description'}"})
        element.text = text
        root.insert(place, element)
