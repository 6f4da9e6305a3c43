"""Configuration files, checked."""

from .resolve import as_plain as as_plain
from .resolve import resolve as resolve
from .schema import Config as Config
