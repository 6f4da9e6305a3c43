"""Every place where the paper contradicts itself, and the side taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from .markdown import paragraphs, table

OPENING = (
    "Where the paper contradicts itself, or cannot be taken at its word, and the side taken here. Tables and figures "
    "are numbered as in the paper; b is a number without and w one with the defence, c what guessing scores. What can "
    "be computed from the printed numbers is checked by a test."
)


@dataclass(frozen=True)
class Contradiction:
    """`says` is what the paper says in both places, `side` what is done here; `name` is unique."""

    name: str
    topic: str
    where: str
    says: str
    side: str


@cache
def contradictions() -> tuple[Contradiction, ...]:
    """All of them, by topic in the order of the file."""
    text = files(__package__).joinpath("contradictions.yaml").read_text(encoding="utf-8")
    return tuple(_entry(part["topic"], entry) for part in yaml.safe_load(text) for entry in part["entries"])


def contradictions_markdown(*, level: int = 2) -> str:
    """One table a topic, under headings of this level."""
    found = contradictions()
    parts = []
    for topic in dict.fromkeys(entry.topic for entry in found):
        rows = [[entry.where, entry.says, entry.side] for entry in found if entry.topic == topic]
        parts += [f"{'#' * level} {topic}", table(["where", "what the paper says", "side taken"], rows)]
    return paragraphs(*parts)


def document() -> str:
    """The document of all contradictions."""
    return paragraphs("# The paper's contradictions", OPENING, contradictions_markdown().strip())


def _entry(topic: str, entry: Mapping[str, Any]) -> Contradiction:
    return Contradiction(entry["id"], topic, entry["where"], entry["says"], entry["side"])
